"""`make ring-growth`: a fourth instance joins a ring of three under load. Prints which shards have
moved: a quarter to the fourth, and none between the others. Prints how far the hit ratio dipped
meanwhile: reads that no cache of the ring answered.
Meanwhile a client makes rows whose keys the database draws. Then the fourth leaves while some rows
are written all the time. Once they no longer are, the ring must cache them again.
"""

import os
import sys
import threading
import time
from collections import Counter

from afterglow_e2e.afterglow import Metrics
from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.drivers import connect
from afterglow_e2e.process import Failure, poll
from afterglow_e2e.ring import SHARDS, Ring

from .hits import Hits, mean
from .load import MAKES, Load, PythonDriver, prepare, prepare_made

ROWS = 20_000
# One request of so many is a write: what was written is a miss with or without a move.
WRITES = 200
# What moves, in shares of all; the best there is is a quarter.
SHARE = (0.24, 0.26)
DIP = 0.02
# Rows that are written all the time, beyond those of the load.
HOT = range(ROWS, ROWS + 256)


class Writers:
    """Writes rows again and again, all at once, from the beginning of the block to its end."""

    def __init__(self, members, table):
        self.driver, self.stop, self.failed = PythonDriver(members, table), threading.Event(), None
        self.rounds, self.thread = 0, threading.Thread(target=self.run, daemon=True)

    def run(self):
        try:
            self.driver.open(self.stop)
            while not self.stop.is_set():
                put, session = self.driver.put, self.driver.session
                for answer in [session.execute_async(put, (row, "1")) for row in HOT]:
                    answer.result()
                self.rounds += 1
        except Exception as error:  # told at the end
            self.failed = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *failure):
        self.stop.set()
        self.thread.join(timeout=60)

    def uncached(self, hits):
        """How many of the rows the ring does not cache, now that nobody writes them, and what it
        counts meanwhile that says why."""
        for _ in range(2):
            before, reasons = missed(hits), why(hits)
            for row in HOT:
                self.driver.read(row)
        return missed(hits) - before, dict(why(hits) - reasons)

    def close(self):
        self.driver.close()


class Makers(Writers):
    """Makes rows all the time, one after the other."""

    longest = 0

    def run(self):
        try:
            self.driver.open(self.stop)
            while not self.stop.wait(0.02):
                began = time.monotonic()
                self.driver.session.execute(MAKES)
                self.longest = max(self.longest, time.monotonic() - began)
                self.rounds += 1
        except Exception as error:  # told at the end
            self.failed = error


def missed(hits):
    """Reads of the whole ring that no cache has answered."""
    counts = [hits.counts(member) for member in hits.ring.running()]
    return sum(reads - served for served, reads in counts)


def why(hits):
    """What the whole ring counts by reason or outcome."""
    counts = Counter()
    for member in hits.ring.running():
        for name, labels, count in Metrics(member.get("/metrics")[1]).samples:
            if labels.keys() & {"reason", "outcome"}:
                counts[name, *sorted(labels.items())] += count
    return counts


def lowest(points, seconds=3):
    """The lowest ratio over so many seconds one after the other."""
    return min(mean(points[at : at + seconds]) for at in range(max(len(points) - seconds + 1, 1)))


def main():
    os.environ.setdefault("AFTERGLOW_PROFILE", "release")
    with Cassandra(heap="1G") as node:
        with connect(node) as session:
            table = prepare(session, "shop")
            prepare_made(session)
        ring = Ring(node.contact, 4)
        *members, fourth = ring.members
        try:
            for member in members:
                member.start()
            ring.settle()
            owned = ring.owners(members[0])
            hits = Hits(ring)
            makers = Makers(members, table)
            with Load(ring, table, rows=ROWS, writes=WRITES, members=members) as load, makers:
                load.read_all()
                poll("rows to be made", lambda: makers.rounds > 2 or makers.failed, 60)
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
            hits.join()
            if makers.failed:
                raise Failure(f"a row could not be made: {makers.failed!r}")
            print(f"rows made {makers.rounds}, the longest took {makers.longest:.2f} s", flush=True)
            makers.close()
            judge(load, mean(before), lowest(during))
            judge_moves(owned, ring.owners(members[0]), ring.status(fourth)["me"])
            judge_hot(ring, table, hits)
        finally:
            ring.stop()


def judge_hot(ring, table, hits):
    """The last instance leaves while rows are written all the time."""
    *members, last = ring.members
    writers = Writers(members, table)
    with writers:
        poll("rows to be written", lambda: writers.rounds > 2 or writers.failed, 60)
        ring.command(last, "leave")
        first = members[0]
        poll("it to be gone", lambda: len(ring.status(first)["members"]) == len(members), 60)
        time.sleep(2)
    if writers.failed:
        raise Failure(f"a row could not be written: {writers.failed!r}")
    uncached, reasons = writers.uncached(hits)
    writers.close()
    print(f"{uncached:.0f} of {len(HOT)} rows that were written all the time are not cached")
    if uncached:
        raise Failure(f"rows that were written while they moved are not cached after it: {reasons}")


def moves(before, after):
    """How many shards went from whom to whom, by ids: the owners of each before and after."""
    pairs = zip(before, after, strict=True)
    return Counter((old, new) for old, new in pairs if old != new)


def judge_moves(before, after, fourth):
    """A quarter has moved, all of it to the fourth."""
    moved = moves(before, after)
    share = sum(moved.values()) / SHARDS
    elsewhere = {pair: count for pair, count in moved.items() if pair[1] != fourth}
    from_each = sorted(count for (_, new), count in moved.items() if new == fourth)
    print(
        f"{share:.1%} of the shards moved: to the fourth {from_each} from its three neighbours, "
        f"elsewhere {sum(elsewhere.values())}",
        flush=True,
    )
    if elsewhere:
        raise Failure(f"shards moved between members that were there before: {elsewhere}")
    if not SHARE[0] <= share <= SHARE[1]:
        raise Failure("another part than a quarter of the shards moved")


def judge(load, before, dip):
    print(
        f"hit ratio {before:.2%} before, {dip:.2%} in the lowest three seconds of the move\n"
        f"reads {load.total('reads')}, writes {load.total('writes')}, stale "
        f"{len(load.total('stale'))}, failed reads {len(load.total('failed_reads'))}, failed writes "
        f"{len(load.total('failed_writes'))}",
        flush=True,
    )
    load.check(writes=True)
    if before - dip > DIP:
        raise Failure(f"the hit ratio dipped by more than {DIP:.0%}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"ring-growth failed: {failure}")
