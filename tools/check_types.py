"""One meaning for a type's name within a crate: no `struct`, `enum`, `trait` or `union` is defined
twice.

Types of tests are exempt, and so are those that a function defines for itself.
"""

import re
import subprocess
import sys
from pathlib import Path

from check_cycles import COMMENT, without_tests

TYPE = re.compile(
    r"^(?:pub(?:\([^)]*\))?\s+)?(?:unsafe\s+)?(?:struct|enum|trait|union)\s+(\w+)", re.M
)


def types(file):
    """The names of the types that a file defines at its top, tests aside."""
    text = COMMENT.sub(lambda match: '""' if match[0][0] == '"' else "", file.read_text())
    return TYPE.findall(without_tests(text))


def main():
    listed = subprocess.run(
        ["git", "ls-files", "crates"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    where = {}
    for name in listed.split():
        file = Path(name)
        parts = file.with_suffix("").parts
        is_source = file.suffix == ".rs" and parts[2:3] == ("src",) and file.is_file()
        if is_source and not any(
            re.fullmatch(r"tests?|\w+_tests?|testing", part) for part in parts
        ):
            for type_name in types(file):
                where.setdefault(f"{parts[1]}::{type_name}", []).append(name)
    complaints = [
        f"{name} is in {', '.join(files)}: one meaning for a name"
        for name, files in sorted(where.items())
        if len(files) > 1
    ]
    for line in complaints:
        print(f"error: {line}", file=sys.stderr)
    print(f"types: {len(where)} names, {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
