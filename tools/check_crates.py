"""Which crate of the house may know which: the rule of docs/architecture.md over `cargo metadata`.

The engine and the protocol crates know nobody, so that they stay sans-io and can be simulated and fuzzed alone.
"""

import json
import subprocess
import sys

# Only these put the parts together.
ASSEMBLERS = {"afterglow", "afterglow-ffi", "afterglow-fuzz", "afterglow-workload"}


def main():
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    ours = {package["name"] for package in packages}
    complaints = 0
    for package in packages:
        known = {dependency["name"] for dependency in package["dependencies"]} & ours - {package["name"]}
        if known and package["name"] not in ASSEMBLERS:
            print(f"error: crate {package['name']} may not depend on {', '.join(sorted(known))}", file=sys.stderr)
            complaints += 1
    print(f"crate rule: {len(ours)} crates, {complaints} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
