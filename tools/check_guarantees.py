"""Every test that docs/guide/guarantees.md names (`path::function`) exists: no promise without a
test.
"""

import re
import sys
from pathlib import Path

PAGE = Path("docs/guide/guarantees.md")


def main():
    named = re.findall(r"`([\w./]+\.(?:rs|py))::(\w+)`", PAGE.read_text())
    missing = [
        f"{path}::{function}"
        for path, function in named
        if not Path(path).is_file()
        or not re.search(rf"\b(?:fn|def) {function}\b", Path(path).read_text())
    ]
    for name in missing:
        print(f"error: {PAGE} names {name}, which is not there", file=sys.stderr)
    if not named:
        print(f"error: {PAGE} names no tests", file=sys.stderr)
    print(f"guarantees: {len(named)} tests named, {len(missing)} missing")
    return 1 if missing or not named else 0


if __name__ == "__main__":
    sys.exit(main())
