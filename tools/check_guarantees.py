"""Every test that docs/guide/guarantees.md names (`path::function`) exists: no promise without a
test. The same for the assertions and tests of docs/internals/invariants.md.
"""

import re
import sys
from pathlib import Path

PAGES = [Path("docs/guide/guarantees.md"), Path("docs/internals/invariants.md")]


def main():
    return max(check(page) for page in PAGES)


def check(page):
    named = re.findall(r"`([\w./]+\.(?:rs|py))::(\w+)`", page.read_text())
    missing = [
        f"{path}::{function}"
        for path, function in named
        if not Path(path).is_file()
        or not re.search(rf"\b(?:fn|def) {function}\b", Path(path).read_text())
    ]
    for name in missing:
        print(f"error: {page} names {name}, which is not there", file=sys.stderr)
    if not named:
        print(f"error: {page} names no tests", file=sys.stderr)
    print(f"{page.stem}: {len(named)} functions named, {len(missing)} missing")
    return 1 if missing or not named else 0


if __name__ == "__main__":
    sys.exit(main())
