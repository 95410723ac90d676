"""`make ring-write-cost`: what a write costs through an instance that does not own its row.

Two instances form a ring over one Cassandra. One has all of the rows, the other has the weight 0.
The same updates go to each in turn, at a light load, and directly to the database. Prints the
medians of the pairs' ratios.
"""

import argparse
import os
import statistics
import sys

from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.loadclient import Table, together
from afterglow_e2e.process import Failure, poll
from afterglow_e2e.ring import SHARDS, Ring

ROWS = Table(20_000, 100)
# Updates a second: far below what any of the three can do.
RATE = 300
# Seconds of writes without a pause through each before anything is measured.
WARM = 15
# By how much a write through a non-owner may take longer than one through the owner.
MOST = {"p50": 1.10, "p99": 1.15}


def measure(label, contact, folder, seconds, number):
    """Percentiles of the writes of one run, in microseconds."""
    load = ("--read-ratio", 0, "--rate", RATE, "--poisson", "--distribution", "uniform")
    times = ("--warmup", "2s", "--duration", f"{seconds}s")
    arguments = (*("--hosts", contact), *ROWS.words, *load, *times)
    file = folder / f"{label}-{number}.json"
    (result,) = together([(file, (*arguments, "--label", label, "--seed", number + 1))])
    errors = result["errors"]
    if errors["refused"] or errors["lost"]:
        raise Failure(f"writes of {label} failed, so nothing is measured: {errors}")
    writes = result["writes"]
    return {"p50": writes["p50_us"], "p99": writes["p99_us"]}


def warm(contact, folder, seconds):
    """As many writes as it takes for so long: the database compiles what it runs often."""
    load = ("--read-ratio", 0, "--distribution", "uniform", "--in-flight", 2)
    times = ("--warmup", "0s", "--duration", f"{seconds}s")
    together([(folder / "warm.json", ("--hosts", contact, *ROWS.words, *load, *times))])


def settled(ring, owner):
    status = ring.ask(owner, "status")
    if not status or len(status["members"]) < 2 or status["lease_ms"] == 0:
        return False
    return all(
        each["shards"] == (SHARDS if each["id"] == status["me"] else 0)
        for each in status["members"]
    )


def campaign(node, pairs, seconds, warmup=WARM):
    """Runs through the owner, through the other and directly, in turn: lists of percentiles by
    target.
    """
    ROWS.load(node.contact)
    ring = Ring(node.contact, 2)
    owner, other = ring.members
    other.extra = (*other.extra, "--ring-weight", "0")
    with ring:
        poll("the owner to have all rows", lambda: settled(ring, owner), 150, every=0.5)
        targets = {"owner": owner.contact, "non-owner": other.contact, "direct": node.contact}
        for contact in targets.values():
            warm(contact, ring.folder, warmup)
        runs = {label: [] for label in targets}
        for number in range(pairs):
            # In turn, so that what grows with time is shared.
            for label in sorted(targets, reverse=number % 2 == 1):
                runs[label].append(measure(label, targets[label], ring.folder, seconds, number))
    return runs


def main():
    parser = argparse.ArgumentParser(prog="ring.writecost", description=__doc__)
    parser.add_argument("--pairs", type=int, default=11, help="how many (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10, help="of each run (default: %(default)s)"
    )
    options = parser.parse_args()
    os.environ.setdefault("AFTERGLOW_PROFILE", "release")
    with Cassandra(heap="2G") as node:
        judge(campaign(node, options.pairs, options.seconds))


def judge(runs):
    """Prints the medians.

    Raises:
        Failure: A write through a non-owner costs more than it may.
    """
    missed = []
    for label, of in runs.items():
        median = {name: statistics.median(run[name] for run in of) for name in MOST}
        print(f"{label:10} p50 {median['p50']:7.0f} us   p99 {median['p99']:7.0f} us")
    for name, most in MOST.items():
        ratios = sorted(
            ours[name] / theirs[name]
            for ours, theirs in zip(runs["non-owner"], runs["owner"], strict=True)
        )
        middle = statistics.median(ratios)
        print(
            f"non-owner / owner at {name}: {middle:.3f} (pairs {ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )
        if middle > most:
            missed.append(f"{name} {middle:.3f} instead of {most}")
    if missed:
        raise Failure("a write through a non-owner costs more than it may: " + ", ".join(missed))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"ring-write-cost failed: {failure}")
