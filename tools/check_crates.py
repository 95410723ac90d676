"""Which crate of the house may know which: the table of docs/internals/architecture.md over `cargo
metadata`.

The engine and the protocol crates know nobody, so that they stay sans-io and can be simulated and
fuzzed alone. Tools depend on the product, never the reverse; only tests of the product may use
tools.
"""

import json
import subprocess
import sys
from pathlib import Path

ENGINE, CQL, MEMCACHE = "afterglow-engine", "afterglow-cql", "afterglow-memcache"
ROWCACHE, SERVER, FFI = "afterglow-rowcache", "afterglow", "afterglow-ffi"
RING = "afterglow-ring"
LOADGEN, TESTKIT, BENCH, FUZZ = (
    "afterglow-loadgen",
    "afterglow-testkit",
    "afterglow-bench",
    "afterglow-fuzz",
)
MAY_KNOW = {
    ENGINE: set(),
    CQL: set(),
    MEMCACHE: set(),
    RING: set(),
    ROWCACHE: {CQL, ENGINE},
    SERVER: {CQL, ENGINE, MEMCACHE, RING, ROWCACHE},
    FFI: {ENGINE},
    LOADGEN: {CQL},
    TESTKIT: {LOADGEN, CQL, ENGINE},
    BENCH: {SERVER, CQL, ENGINE, LOADGEN},
    FUZZ: {SERVER, CQL, ENGINE, MEMCACHE, RING, ROWCACHE},
}
# What tests may use besides.
TESTS_MAY_KNOW = {
    SERVER: {LOADGEN, TESTKIT},
    TESTKIT: {ROWCACHE},
    BENCH: {TESTKIT},
    FUZZ: {LOADGEN},
}


# What the files below a folder may not import: front ends know nothing of each other.
FORBIDDEN_IMPORTS = {
    "crates/server/src/frontend/memcache": ["afterglow_cql", "afterglow_rowcache", "frontend::cql"],
    "crates/server/src/frontend/cql": ["afterglow_memcache", "frontend::memcache"],
}


def forbidden_imports():
    """Says which files import what their folder may not know."""
    count = 0
    for folder, names in FORBIDDEN_IMPORTS.items():
        for file in sorted(Path(folder).rglob("*.rs")):
            for name in (name for name in names if name in file.read_text()):
                print(
                    f"error: {file} may not import {name}: front ends know nothing of each other",
                    file=sys.stderr,
                )
                count += 1
    return count


def main():
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)[
        "packages"
    ]
    ours = {package["name"] for package in packages}
    complaints = forbidden_imports()
    for package in packages:
        name = package["name"]
        if name not in MAY_KNOW:
            print(
                f"error: crate {name} is not in the table of tools/check_crates.py: add it there",
                file=sys.stderr,
            )
            complaints += 1
            continue
        for dependency in package["dependencies"]:
            other, kind = dependency["name"], dependency["kind"]
            allowed = MAY_KNOW[name] | (TESTS_MAY_KNOW.get(name, set()) if kind == "dev" else set())
            if other in ours - {name} and other not in allowed:
                print(f"error: crate {name} may not depend on {other}", file=sys.stderr)
                complaints += 1
    print(f"crate rule: {len(ours)} crates, {complaints} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
