"""docs/internals/ring-rules.md says which deliberate mistakes break which rule of the ring. Every
mistake that it names is one of tools/mutants/mutants.toml, made in a file of its rule. Every
mistake of the ring is named. Every rule has one, or says why not. docs/internals/ring.md says how
many the ring has.
"""

import re
import sys
import tomllib
from pathlib import Path

from check_guarantees import check as check_functions

PAGE = Path("docs/internals/ring-rules.md")
PROTOCOL = Path("docs/internals/ring.md")
MUTANTS = Path("tools/mutants/mutants.toml")
SOURCES = Path("crates/ring/src")
HEAD = "| rule | files | mistakes |"
LONGEST_RULE = 25


def rules(text):
    """(rule, files, mistakes, why it has none) of each row of the page's tables."""
    for line in text.splitlines():
        if not line.startswith("| ") or line == HEAD:
            continue
        rule, files, found = (cell.strip() for cell in line.strip("|").split(" | "))
        none = found.removeprefix("none: ") if found.startswith("none: ") else ""
        named = [] if none else re.findall(r"`([^`]+)`", found)
        yield rule, [path_of(name) for name in re.findall(r"`([^`]+)`", files)], named, none


def path_of(name):
    return Path(name) if name.startswith("crates/") else SOURCES / name


def complaints_of(rule, files, named, none, made):
    """What is wrong with one rule. `made`: the file of each mistake, by its name."""
    if len(rule.split()) > LONGEST_RULE:
        yield f"has more than {LONGEST_RULE} words"
    if not files:
        yield "names no file"
    for path in files:
        if not path.is_file():
            yield f"names {path}, which is not there"
    if not named and not none:
        yield "has no mistake, and does not say why"
    for name in named:
        if name not in made:
            yield f"names `{name}`, which is no mistake"
        elif made[name] not in files:
            yield f"does not name {made[name]}, in which `{name}` is made"


def main():
    mutants = tomllib.loads(MUTANTS.read_text())["mutant"]
    crates = {m["name"]: m.get("crate", "engine") for m in mutants}
    made = {m["name"]: Path(f"crates/{crates[m['name']]}/src") / m["file"] for m in mutants}
    of_ring = {name for name, crate in crates.items() if crate == "ring"}
    complaints, all_named, count = [], set(), 0
    for rule, files, named, none in rules(PAGE.read_text()):
        count += 1
        all_named.update(named)
        found = complaints_of(rule, files, named, none, made)
        complaints += [f"{PAGE}: {rule!r} {complaint}" for complaint in found]
    complaints += [f"{PAGE} does not name `{name}`" for name in sorted(of_ring - all_named)]
    told = f"makes {len(of_ring)} deliberate mistakes"
    if told not in " ".join(PROTOCOL.read_text().split()):
        complaints.append(f"{PROTOCOL} does not say that `make ring-mutants` {told}")
    for line in complaints:
        print(f"error: {line}", file=sys.stderr)
    missing = len(all_named - set(made)) + len(of_ring - all_named)
    print(f"rules: {count} rules, {len(all_named)} mistakes named, {missing} missing")
    return max(1 if complaints or not count else 0, check_functions(PAGE))


if __name__ == "__main__":
    sys.exit(main())
