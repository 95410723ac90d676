"""Runs all unit and integration tests: LANES programs at a time, the longest first.

cargo runs one after the other, and most of them wait most of the time. What a program says is
printed when it has ended. Ends with status 1 if one has failed; the others are run all the same.
"""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CARGO = ["cargo", "test", "--locked", "--workspace"]
# By the time that they take; the rest as they come.
LONGEST = ["cached", "afterglow", "afterglow_engine", "serve", "memcache", "cql_frontend"]
# What measures for a moment runs alone, after the others: it must come to some operations.
ALONE = ["bench"]
PRINTING = threading.Lock()


def built():
    """(name, program, folder of its crate) of each program with tests."""
    command = [*CARGO, "--no-run", "--message-format=json-render-diagnostics"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as build:
        found = []
        for line in build.stdout:
            said = json.loads(line)
            if said["reason"] == "compiler-artifact" and said["profile"]["test"]:
                folder = Path(said["manifest_path"]).parent
                found.append((said["target"]["name"], said["executable"], folder))
    if build.returncode != 0:
        sys.exit(build.returncode)
    return sorted(found, key=place)


def place(program):
    name = program[0]
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def passed(program):
    """Whether all tests of a program pass."""
    name, path, folder = program
    # As cargo runs them.
    env = os.environ | {"CARGO_MANIFEST_DIR": str(folder)}
    done = subprocess.run(
        [path], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    with PRINTING:
        print(f"     Running {name} ({path})", flush=True)
        sys.stdout.buffer.write(done.stdout)
        if done.returncode != 0:
            print(f"{name} FAILED ({done.returncode})", flush=True)
        sys.stdout.flush()
    return done.returncode == 0


def main():
    programs = built()
    assert programs, "no program with tests was built"
    alone = [program for program in programs if program[0] in ALONE]
    together = [program for program in programs if program not in alone]
    with ThreadPoolExecutor(int(os.environ.get("LANES", "2"))) as lanes:
        results = list(lanes.map(passed, together))
    results += map(passed, alone)
    documents = subprocess.run([*CARGO, "--doc"], check=False)
    ran = zip(together + alone, results, strict=True)
    failed = [name for (name, *_), fine in ran if not fine]
    if failed or documents.returncode != 0:
        sys.exit(f"failed: {', '.join(failed) or 'tests in documentation'}")


if __name__ == "__main__":
    main()
