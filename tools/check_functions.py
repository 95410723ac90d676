"""Functions of at most 70 lines, files of at most 600, in Rust and Python."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from check_cycles import COMMENT

LONGEST_FUNCTION, LONGEST_FILE = 70, 600
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


def main():
    names = subprocess.run(
        ["git", "ls-files", "*.rs", "*.py"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    looked_at, complaints = 0, []
    for name in names.split():
        path = Path(name)
        if not path.is_file():
            continue
        text = path.read_text()
        looked_at += 1
        for function, lines in (rust if path.suffix == ".rs" else python)(text):
            if lines > LONGEST_FUNCTION:
                complaints.append(f"{name}::{function} has {lines} lines: part it")
        if (lines := text.count("\n")) > LONGEST_FILE:
            complaints.append(f"{name} has {lines} lines: part it")
    for line in complaints:
        print(f"error: {line}", file=sys.stderr)
    print(f"lengths: {looked_at} files, {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
