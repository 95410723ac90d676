"""The program of release 0.1, for what compares with it."""

import os
import subprocess

from .process import ROOT

# The last one of release 0.1 that knows no ring.
COMMIT = "9220f078971fdd6671a82dc5f4862f9de48e9513"


def build_release_0_1():
    """Built once into target/, some minutes. Gives its path."""
    source, target = ROOT / "target" / "old-release", ROOT / "target" / "old-target"
    program = target / "release" / "afterglow"
    if not program.exists():
        print(f"building {COMMIT[:9]}, some minutes", flush=True)
        source.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(
            ["git", "-C", ROOT, "archive", COMMIT], capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
        build = ["cargo", "build", "--locked", "--release", "-p", "afterglow"]
        subprocess.run(build, cwd=source, env=os.environ | {"CARGO_TARGET_DIR": target}, check=True)
    return program
