"""The load client `afterglow-bench` as campaigns of the ring use it."""

import json
import subprocess
import time

from afterglow_e2e.afterglow import binary
from afterglow_e2e.process import Failure

# Drivers are shown who owns what when the map has been the same for 2 s.
SHOWN = 3


class Table:
    """So many rows of one field of so many bytes."""

    def __init__(self, records, size):
        self.records = records
        self.words = ("--records", records, "--fields", 1, "--field-size", size)

    def load(self, contact):
        """Makes the table and fills it."""
        run("load-cql", "--hosts", contact, *self.words, "--create")


def settle(ring):
    """Waits until all members own their parts, and show them to drivers."""
    ring.settle()
    time.sleep(SHOWN)


def words(command, *arguments):
    return [str(part) for part in (binary("afterglow-bench"), command, *arguments, "--quiet")]


def run(command, *arguments):
    done = subprocess.run(words(command, *arguments), capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"afterglow-bench {command}: {done.stderr[-2000:]}")


def together(runs):
    """Results of several `run-cql` at the same time; `runs` has a file and arguments of each."""
    started = [
        subprocess.Popen(
            words("run-cql", *arguments, "--json", file),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for file, arguments in runs
    ]
    said = [(each, each.communicate()[1]) for each in started]
    for each, errors in said:
        if each.returncode != 0:
            raise Failure(f"afterglow-bench run-cql: {errors[-2000:]}")
    return [json.loads(file.read_text()) for file, _ in runs]
