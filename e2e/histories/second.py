"""The second judge of histories: porcupine, a checker that others wrote."""

from afterglow_e2e.clients import GO, run
from afterglow_e2e.process import ROOT

SOURCE = ROOT / "e2e/porcupine"
TARGET = ROOT / "target/porcupine"


def build():
    """The program of `e2e/porcupine`, built; None where there is no Go."""
    if GO is None:
        return None
    run(GO, "build", "-o", TARGET, ".", cwd=SOURCE)
    return TARGET
