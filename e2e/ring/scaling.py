"""`make ring-scaling`: what four instances as one ring do, beside four that know nothing of each
other.

Each is held to a part of a core, or to so many reads a second of its device, by control groups.
Each has as many rows of its own in the ring as it has alone. A client of each instance asks for the
rows that it owns, as token-aware drivers do. Prints the ring's reads a second beside those of four
alone, in runs in turn, and beside four times those of one; and what a read costs in CPU where
clients ask any instance instead.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.cgroup import Group, device_of, lacking
from afterglow_e2e.drivers import await_caching
from afterglow_e2e.loadclient import Table, together
from afterglow_e2e.process import Failure, scratch
from afterglow_e2e.ring import Ring

from .settled import settle

MEMBERS = 4
LEAST = 0.97
# Reads that no cache answered: the measure is void with more.
MISSES = 0.01


class Bound:
    """What holds an instance back: its limits, and how many rows of what size it has."""

    def __init__(self, name, rows, size, **limits):
        self.name, self.rows, self.size, self.limits = name, rows, size, limits

    def table(self):
        """The rows of all instances together."""
        return Table(MEMBERS * self.rows, self.size)


BOUNDS = (
    Bound("CPU", rows=5_000, size=100, cores=0.15),
    # Three quarters of them are on flash alone.
    Bound("device", rows=40_000, size=4_000, cores=0.45, reads=3_000),
)
SIZES = {"flash": "512MiB", "memory": "64MiB"}


class Run(NamedTuple):
    """Reads a second, and CPU of a read in us."""

    rate: float
    cost: float

    def __str__(self):
        return f"{self.rate:8.0f} reads/s  {self.cost:6.1f} us of CPU a read"


def median(runs):
    """The medians of several runs."""
    return Run(*(statistics.median(of) for of in zip(*runs, strict=True)))


class Site:
    """One kind of run over one database."""

    def __init__(self, bound, contact, seconds, rounds):
        self.bound, self.contact, self.seconds, self.rounds = bound, contact, seconds, rounds
        self.folder = Path(scratch("scaling-"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def groups(self, stack, kind, count):
        """A control group for each of so many instances of a kind."""
        device = device_of(self.folder)
        limits = self.bound.limits
        return [
            stack.enter_context(Group(f"{kind}{n}", device=device, **limits)) for n in range(count)
        ]

    def read(self, members, records, *load):
        """One run at every member at the same time: the results."""
        table = Table(records, self.bound.size).words
        runs = []
        for n, member in enumerate(members):
            target = ("--hosts", member.contact, *table, "--seed", n + 1)
            watch = ("--pid", member.pid, "--metrics", f"{member.address}:{member.admin}")
            runs.append((self.folder / f"{n}.json", (*target, *watch, *load)))
        return together(runs)

    def warm(self, members, records, *more):
        """Every row twice, in order; then as it is measured, until the DRAM tier has its part."""
        each = records if "--owned" not in more else records // len(members)
        for order, rounds in (("sequential", 2), ("uniform", 4)):
            load = ("--distribution", order, "--ops", rounds * each)
            self.read(members, records, *load, "--warmup", "0s", "--duration", "300s", *more)

    def measure(self, members, records, *more):
        """One run: reads a second of all members together, and CPU of a read in us."""
        load = ("--distribution", "uniform", "--warmup", "2s", "--duration", f"{self.seconds}s")
        results = self.read(members, records, *load, *more)
        operations = sum(result["operations"] for result in results)
        missed = sum(result["cache"]["misses"] for result in results)
        if missed > MISSES * operations:
            raise Failure(f"{missed} of {operations} reads were misses: nothing is measured")
        cores = sum(server["cores"] for result in results for server in result["servers"])
        rate = sum(result["per_second"] for result in results)
        return Run(rate, cores / rate * 1e6)

    def start_alone(self, stack, count, **policies):
        """So many warm instances at the same time, of which none knows another."""
        instances = []
        for group in self.groups(stack, "alone", count):
            one = Afterglow(self.contact, wrapper=group.wrapper, **SIZES, **policies)
            stack.enter_context(one)
            await_caching(one)
            instances.append(one)
        self.warm(instances, self.bound.rows)
        return instances

    def start_ring(self, stack):
        """As many warm members of one ring."""
        homes = [("127.0.0.1", group.wrapper) for group in self.groups(stack, "member", MEMBERS)]
        ring = Ring(self.contact, MEMBERS, homes=homes)
        for member in ring.members:
            member.flash, member.memory = SIZES["flash"], SIZES["memory"]
        stack.enter_context(ring)
        settle(ring)
        self.warm(ring.members, MEMBERS * self.bound.rows, "--owned")
        return ring.members

    def one_alone(self):
        """What one does, with the machine for itself: medians of its runs."""
        with contextlib.ExitStack() as stack:
            one = self.start_alone(stack, 1)
            return median(self.measure(one, self.bound.rows) for _ in range(self.rounds))

    def in_turn(self):
        """Runs of four alone, of the ring asked by token and of it asked anywhere, in turn. What
        the machine does besides is the same for all three.
        """
        every = MEMBERS * self.bound.rows
        with contextlib.ExitStack() as stack:
            # Several may not cache an `exclusive` table.
            four = self.start_alone(stack, MEMBERS, policies=("*.*=max-staleness=1h",))
            ring = self.start_ring(stack)
            return [
                (
                    self.measure(four, self.bound.rows),
                    self.measure(ring, every, "--owned"),
                    self.measure(ring, every),
                )
                for _ in range(self.rounds)
            ]

    def run(self):
        self.bound.table().load(self.contact)
        one = self.one_alone()
        rounds = self.in_turn()
        parts = sorted(by_token.rate / four.rate for four, by_token, _ in rounds)
        four, by_token, anywhere = (median(runs) for runs in zip(*rounds, strict=True))
        part = statistics.median(parts)
        print(
            f"bound by {self.bound.name}, {self.bound.rows} rows of {self.bound.size} B each, "
            f"{', '.join(f'{name} {value:g}' for name, value in self.bound.limits.items())}:\n"
            f"  one alone            {one}\n"
            f"  four alone at once   {four}\n"
            f"  ring, asked by token {by_token}\n"
            f"  ring, asked anywhere {anywhere}\n"
            f"  the ring beside four alone: {part:.3f} ({parts[0]:.3f} to {parts[-1]:.3f}), "
            f"beside four times one: {by_token.rate / (MEMBERS * one.rate):.3f}",
            flush=True,
        )
        return part


def main():
    parser = argparse.ArgumentParser(prog="ring.scaling", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8, help="of a run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (%(default)s)")
    options = parser.parse_args()
    os.environ.setdefault("AFTERGLOW_PROFILE", "release")
    if why := lacking():
        raise Failure(f"instances cannot be held back here: {why}")
    missed = []
    for bound in BOUNDS:
        # A ring takes the lease of instances alone for ever, so each has a database of its own.
        with (
            Cassandra(heap="2G") as node,
            Site(bound, node.contact, options.seconds, options.rounds) as site,
        ):
            part = site.run()
        if part < LEAST:
            missed.append(f"bound by {bound.name}: {part:.3f} instead of {LEAST}")
    if missed:
        raise Failure("a ring of four does less than four alone: " + "; ".join(missed))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"ring-scaling failed: {failure}")
