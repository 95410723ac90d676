"""`make ring-restart`: how much of what it had cached a member serves that is killed and comes back
at once, or after others have owned its rows.

Three instances have all rows warm, on flash too. One is killed with `kill -9` and started again. In
every third round it is away until its shards belong to others, and gets them back a minute later.
Meanwhile a row is made whose key the database draws: nobody knows in which shard.
Once it serves its shards, every row that it owns is read through it. Prints what part of them was
answered from the cache, and what part of those came from other members.
"""

import argparse
import os
import sys
import time

from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.drivers import connect
from afterglow_e2e.loadclient import Table, together
from afterglow_e2e.process import Failure, poll
from afterglow_e2e.ring import SHARDS, Ring

from .load import MAKES, TIMEOUT, open_cluster, prepare_made
from .settled import settle

MEMBERS = 3
ROWS = Table(20_000, 100)
# What was cached is on flash after so many seconds.
ON_FLASH = 11
LEAST = 0.99


def read_all(ring, member):
    """Every row that the member owns at least once: how many rows, how many of them were misses,
    and how many came from others' flash.
    """
    before = pulled(member)
    rows = ROWS.records * ring.shards(member) // SHARDS
    order = ("--distribution", "sequential", "--warmup", "0s", "--duration", "60s")
    target = ("--hosts", member.contact, *ROWS.words, "--owned", "--ops", 2 * rows)
    counted = ("--metrics", f"{member.address}:{member.admin}")
    (result,) = together([(ring.folder / "read.json", (*target, *order, *counted))])
    # Who misses a row fills it: it is a miss once.
    return rows, result["cache"]["misses"], pulled(member) - before


def pulled(member):
    labels = {"from": "old_owner"}
    return member.metrics().total("afterglow_carried_total", missing_ok=True, **labels)


def serves(ring, member):
    """Whether it owns shards and may answer for them."""
    status = ring.ask(member, "status")
    return (
        status
        and status["lease_ms"] > 0
        and any(each["id"] == status["me"] and each["shards"] > 0 for each in status["members"])
    )


def away(ring, member):
    """It is killed, and comes back when it owns nothing: how long until it has its part again."""
    member.kill()
    others = [each for each in ring.members if each is not member]
    owners = lambda: sum(ring.shards(each) for each in others)  # noqa: E731
    poll("others to own its rows", lambda: owners() == SHARDS, 60, every=0.1)
    with open_cluster(others, TIMEOUT) as cluster:
        cluster.connect().execute(MAKES)
    began = time.monotonic()
    member.start()
    settle(ring)
    return time.monotonic() - began


def in_place(ring, member):
    """It is killed, and comes back at once: how long until it serves its shards."""
    member.kill()
    began = time.monotonic()
    member.start()
    poll("it to serve its rows", lambda: serves(ring, member), 60, every=0.02)
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(prog="ring.restart", description=__doc__)
    parser.add_argument("--kills", type=int, default=9, help="how many (default: %(default)s)")
    options = parser.parse_args()
    os.environ.setdefault("AFTERGLOW_PROFILE", "release")
    parts = []
    with Cassandra(heap="1G") as node:
        ROWS.load(node.contact)
        with connect(node) as session:
            prepare_made(session)
        with Ring(node.contact, MEMBERS) as ring:
            settle(ring)
            for member in ring.members:
                read_all(ring, member)
            for number in range(options.kills):
                member = ring.members[number % MEMBERS]
                time.sleep(ON_FLASH)
                kind = away if number % 3 == 2 else in_place
                seconds = kind(ring, member)
                rows, misses, pulled = read_all(ring, member)
                parts.append(1 - misses / rows)
                print(
                    f"kill {number + 1}, {kind.__name__}: it serves after {seconds:.1f} s; {rows} "
                    f"rows, {misses} of them missed, {pulled} came from other members: "
                    f"{parts[-1]:.2%} warm",
                    flush=True,
                )
                settle(ring)
    print(f"warm after a restart: {min(parts):.2%} at least", flush=True)
    if min(parts) < LEAST:
        raise Failure(f"a restart cost more than {1 - LEAST:.0%} of what was cached")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"ring-restart failed: {failure}")
