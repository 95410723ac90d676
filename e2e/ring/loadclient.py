"""The load client `afterglow-bench` as campaigns of the ring use it."""

import json
import subprocess
from collections import Counter

from afterglow_e2e.afterglow import binary
from afterglow_e2e.drivers import connect
from afterglow_e2e.process import Failure, poll
from afterglow_e2e.ring import SHARDS


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
    poll("drivers to see who owns what", lambda: is_shown(ring), 60, every=0.5)


def is_shown(ring):
    """Whether every member shows drivers that all have the same part of the shards."""
    running = ring.running()
    for member in running:
        with connect(member) as session:
            owners = session.cluster.metadata.token_map.token_to_host_owner.values()
        parts = Counter(owners).values()
        even = len(parts) == len(running) and max(parts) - min(parts) <= 1
        if not even or sum(parts) != SHARDS:
            return False
    return True


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
