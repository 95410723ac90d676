"""The race that a row cache must win: a read that fills it, and a write to the same partition,
under way together.

When both are answered, a read through the cache must give what was written. As a program it runs
many rounds against a node with our cache. With --stock it also runs against a node with Cassandra's
default row cache. It prints what each left stale:

    PYTHONPATH=e2e .venv/bin/python -m afterglow_e2e.rowrace --rounds 10000 --stock
"""

import argparse
import random
import sys

from .cassandra import Cassandra
from .drivers import connect
from .plugin import CAMPAIGN_BOOT_SECONDS, PATIENT, RowCacheNode

REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
CACHED = "caching = {'keys': 'ALL', 'rows_per_partition': 'ALL'}"
PARTITIONS = 32
ROWS = 300


def prepare(session, keyspace="race"):
    """A table whose partitions take a while to read."""
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {REPLICATION}")
    session.execute(
        f"CREATE TABLE {keyspace}.t (p int, c int, v int, pad text, PRIMARY KEY (p, c)) WITH {CACHED}"
    )
    insert = session.prepare(f"INSERT INTO {keyspace}.t (p, c, v, pad) VALUES (?, ?, 0, ?)")
    for p in range(PARTITIONS):
        waiting = [session.execute_async(insert, (p, c, "x" * 50)) for c in range(ROWS)]
        for answer in waiting:
            answer.result()


def race(session, rounds, keyspace="race", seed=1):
    """How many rounds left a value that is older than the last write, and stays."""
    draw = random.Random(seed)
    read = session.prepare(f"SELECT v FROM {keyspace}.t WHERE p = ? AND c = 7")
    write = session.prepare(f"UPDATE {keyspace}.t SET v = ? WHERE p = ? AND c = 7")
    stale, value = 0, 0
    for _ in range(0, rounds, PARTITIONS):
        value += 1
        waiting = []
        for p in range(PARTITIONS):
            pair = [(write, (value, p)), (read, (p,))]
            draw.shuffle(pair)
            waiting += [session.execute_async(*each) for each in pair]
        for answer in waiting:
            answer.result()
        checks = [session.execute_async(read, (p,)) for p in range(PARTITIONS)]
        stale += sum(check.result().one().v != value for check in checks)
        # The next round must find nothing cached, or there is no fill to race with.
        value += 1
        waiting = [session.execute_async(write, (value, p)) for p in range(PARTITIONS)]
        for answer in waiting:
            answer.result()
    return stale


def main():
    parser = argparse.ArgumentParser(
        prog="afterglow_e2e.rowrace", description="Races of reads and writes on a row cache."
    )
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument(
        "--stock", action="store_true", help="the same with Cassandra's default row cache beside"
    )
    options = parser.parse_args()
    nodes = {"Afterglow": RowCacheNode(boot_seconds=CAMPAIGN_BOOT_SECONDS)}
    if options.stock:
        settings = {"row_cache_size": "64MiB", **PATIENT}
        nodes["Cassandra's default"] = Cassandra(
            settings=settings, boot_seconds=CAMPAIGN_BOOT_SECONDS
        )
    left = {}
    for name, node in nodes.items():
        with node, connect(node, timeout=60) as session:
            prepare(session)
            left[name] = race(session, options.rounds)
            print(f"{name}: {left[name]} of {options.rounds} rounds left a stale row", flush=True)
    return 1 if left["Afterglow"] else 0


if __name__ == "__main__":
    sys.exit(main())
