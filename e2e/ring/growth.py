"""`make ring-growth`: a fourth instance joins a ring of three under load. Prints how many shards
moved, and how far the hit ratio dipped while they did: reads that no cache of the ring answered.
"""

import os
import sys
import time

from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.drivers import connect
from afterglow_e2e.process import Failure, poll
from afterglow_e2e.ring import SHARDS, Ring

from .hits import Hits
from .load import Load, prepare

ROWS = 20_000
# One request of so many is a write: what was written is a miss with or without a move.
WRITES = 200
# What the fourth gets, in shares of all; the best there is is a quarter.
SHARE = (0.24, 0.26)
DIP = 0.02


def mean(points):
    """The hit ratio over some seconds, by reads."""
    reads = sum(reads for *_, reads in points)
    return sum(ratio * reads for _, ratio, reads in points) / max(reads, 1)


def lowest(points, seconds=3):
    """The lowest ratio over so many seconds one after the other."""
    return min(mean(points[at : at + seconds]) for at in range(max(len(points) - seconds + 1, 1)))


def main():
    os.environ.setdefault("AFTERGLOW_PROFILE", "release")
    with Cassandra(heap="1G") as node:
        with connect(node) as session:
            table = prepare(session, "shop")
        ring = Ring(node.contact, 4)
        *members, fourth = ring.members
        try:
            for member in members:
                member.start()
            ring.settle()
            hits = Hits(ring)
            with Load(ring, table, rows=ROWS, writes=WRITES, members=members) as load:
                load.read_all()
                hits.start()
                time.sleep(15)
                before = list(hits.points)
                hits.note("the fourth instance is started")
                fourth.start()
                poll("it to be a member", lambda: len(ring.status(fourth)["members"]) == 4, 60)
                ring.settle()
                hits.note("all four have the same part of the rows")
                time.sleep(15)
                during = hits.points[len(before) :]
            hits.stop.set()
            judge(load, mean(before), lowest(during), ring.shards(fourth) / SHARDS)
        finally:
            ring.stop()


def judge(load, before, dip, share):
    print(
        f"the fourth has {share:.1%} of the shards\n"
        f"hit ratio {before:.2%} before, {dip:.2%} in the lowest three seconds of the move\n"
        f"reads {load.total('reads')}, writes {load.total('writes')}, stale "
        f"{len(load.total('stale'))}, failed reads {len(load.total('failed_reads'))}, failed writes "
        f"{len(load.total('failed_writes'))}",
        flush=True,
    )
    load.check(writes=True)
    if not SHARE[0] <= share <= SHARE[1]:
        raise Failure("the fourth does not have a quarter of the shards")
    if before - dip > DIP:
        raise Failure(f"the hit ratio dipped by more than {DIP:.0%}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"ring-growth failed: {failure}")
