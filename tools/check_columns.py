"""Lines of at most 100 columns: Rust, Java, Python, shell, Makefile and Markdown.

What cannot be broken may be longer: rows of tables and links in Markdown, code and drawings between
fences, words of sixty characters (names of tests), lines that hold a string or an attribute, and
what is generated. Files on tools/house/wide-lines.txt still have longer ones (rustfmt leaves the
bodies of macros alone): that list only shrinks.
"""

import re
import subprocess
import sys
from pathlib import Path

WIDEST = 100
LIST = Path("tools/house/wide-lines.txt")
LONG_WORD = 60
FENCE = re.compile(r"\s*(?://[/!]?\s*)?```")
GENERATED = re.compile(r"(^|/)(vendor|target|generated)/|\.lock$")
SHELL = re.compile(r"#!.*\b(?:ba)?sh\b")
COMMENTS = {".rs": "//", ".java": ("//", "*", "/*"), ".py": "#", ".sh": "#", ".mk": "#"}


def kind(path):
    """The suffix that tells how to read a file; nothing for one that is not looked at."""
    if path.suffix in (".rs", ".java", ".py", ".sh", ".md"):
        return path.suffix
    if path.name == "Makefile":
        return ".mk"
    if path.suffix:
        return ""
    with path.open(errors="replace") as file:
        return ".sh" if SHELL.match(file.readline()) else ""


def may_be_longer(line, suffix):
    bare = line.strip()
    if any(len(word) >= LONG_WORD for word in bare.split()):
        return True
    if suffix == ".md":
        return bare.startswith("|") or "](" in bare or "://" in bare
    if bare.startswith(COMMENTS[suffix]):
        return "](" in bare or "://" in bare
    return '"' in bare.replace('"""', "") or suffix == ".rs" and bare.startswith(("#[", "#!["))


def held_against(found, complaint):
    """Complains of what is found and not listed, and of what is listed and not found."""
    listed = set(LIST.read_text().split()) if LIST.is_file() else set()
    complaints = [
        complaint(item, what) for item, what in sorted(found.items()) if item not in listed
    ]
    complaints += [
        f"{item} is on {LIST} without need: take it off" for item in sorted(listed - set(found))
    ]
    for line in complaints:
        print(f"error: {line}", file=sys.stderr)
    return len(complaints), len(listed)


def main():
    listed = subprocess.run(
        ["git", "ls-files"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    looked_at, wide = 0, {}
    for name in listed.splitlines():
        path = Path(name)
        if GENERATED.search(name) or not path.is_file() or not (suffix := kind(path)):
            continue
        looked_at += 1
        fenced = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            fenced ^= bool(FENCE.match(line))
            if len(line) > WIDEST and not fenced and not may_be_longer(line, suffix):
                wide.setdefault(name, []).append(str(number))
    complaints, still = held_against(
        wide,
        lambda name, numbers: (
            f"{name} has over {WIDEST} columns in {', '.join(numbers)}: break them"
        ),
    )
    print(f"columns: {looked_at} files, {still} still with wide lines, {complaints} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
