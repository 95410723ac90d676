"""Lines of at most 100 columns: Rust, Java, Python, shell, Makefile and Markdown.

Lines that cannot be broken may be longer. These are rows of tables and links in Markdown, code and
drawings between fences, and words of sixty characters (names of tests). So are lines with a string
or an attribute, and generated files. rustfmt leaves the bodies of macros alone, so they are checked
too.
"""

import re
import subprocess
import sys
from pathlib import Path

WIDEST = 100
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
    for name, numbers in sorted(wide.items()):
        print(
            f"error: {name} has over {WIDEST} columns in {', '.join(numbers)}: break them",
            file=sys.stderr,
        )
    print(f"columns: {looked_at} files, {len(wide)} complaints")
    return 1 if wide else 0


if __name__ == "__main__":
    sys.exit(main())
