"""Functions of at most 70 lines, files of at most 600; tools/house/*.txt lists what is still
longer.

The lists only shrink: a name that is on a list without need is an error too.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

from check_cycles import COMMENT

LONGEST_FUNCTION, LONGEST_FILE = 70, 600
LISTS = Path("tools/house")
FUNCTION = re.compile(
    r"^[ \t]*(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe |extern \"C\" )*fn (\w+)", re.M
)


def rust(text):
    """(name, lines) of each function, nested ones as part of theirs."""
    plain = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    end = 0
    for match in FUNCTION.finditer(plain):
        if match.start() < end:
            continue
        at, depth = match.end(), 0
        while at < len(plain) and not (plain[at] == ";" and depth == 0):
            depth += (plain[at] in "{([") - (plain[at] in "})]")
            at += 1
            if depth == 0 and plain[at - 1] == "}":
                break
        if at < len(plain) and plain[at - 1] == "}":
            end = at
            yield match[1], plain.count("\n", match.start(), at) + 1


def python(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.end_lineno - node.lineno + 1


def too_long(item, lines):
    return f"{item} has {lines} lines: part it"


def held_against(found, name, complaint=too_long):
    """Complains of what is found and not listed, and of what is listed and not found."""
    path = LISTS / name
    listed = set(path.read_text().split()) if path.is_file() else set()
    complaints = [
        complaint(item, what) for item, what in sorted(found.items()) if item not in listed
    ]
    complaints += [
        f"{item} is on {path} without need: take it off" for item in sorted(listed - set(found))
    ]
    for line in complaints:
        print(f"error: {line}", file=sys.stderr)
    return len(complaints), len(listed)


def main():
    names = subprocess.run(
        ["git", "ls-files", "*.rs", "*.py"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    functions, files = {}, {}
    for name in names.split():
        path = Path(name)
        if not path.is_file():
            continue
        text = path.read_text()
        for function, lines in (rust if path.suffix == ".rs" else python)(text):
            if lines > LONGEST_FUNCTION:
                functions[f"{name}::{function}"] = lines
        if text.count("\n") > LONGEST_FILE:
            files[name] = text.count("\n")
    wrong = [held_against(functions, "long-functions.txt"), held_against(files, "long-files.txt")]
    complaints = sum(number for number, _ in wrong)
    print(
        f"lengths: {wrong[0][1]} functions and {wrong[1][1]} files still too long, {complaints} complaints"
    )
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
