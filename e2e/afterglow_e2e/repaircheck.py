"""Rows that come from another node: a repair streams them to a node that has both caches and missed the writes.

Two nodes with all rows each; one is stock, the other has our caches, filled. That one hangs while everything is written
again, comes back with rows that are old for it rightly, and is repaired. From then on none of them may be served.

    PYTHONPATH=e2e .venv/bin/python -m afterglow_e2e.repaircheck
"""

import sys

from cassandra import ConsistencyLevel

from .cassandra import Cassandra
from .chunkload import value
from .drivers import connect
from .plugin import CAMPAIGN_BOOT_SECONDS, PATIENT, RowCacheNode
from .process import Failure, poll
from .rowrace import CACHED

KEYS = range(300)
# Nothing but the repair brings what was missed.
SETTINGS = {"hinted_handoff_enabled": "false", **PATIENT}


def write(session, version):
    insert = session.prepare("INSERT INTO repaired.t (p, v) VALUES (?, ?)")
    for answer in [session.execute_async(insert, (p, value(p, version))) for p in KEYS]:
        answer.result()


def wrong(session, version):
    """Keys whose row is not the one of this version."""
    select = session.prepare("SELECT v FROM repaired.t WHERE p = ?")
    answers = [(p, session.execute_async(select, (p,))) for p in KEYS]
    return [p for p, answer in answers if answer.result().one().v != value(p, version)]


def await_state(node, other, state):
    """Until a node takes the other for up (UN) or down (DN)."""

    def seen():
        lines = node.nodetool("status").splitlines()
        return any(line.startswith(state) and other.address in line for line in lines)

    poll(f"{node.address} to see {other.address} {state}", seen, 180, every=1)


def rows_cached(node):
    return int(node.verify()["the row cache works"]["Entries"])


def check(say=lambda line: None):
    """Keys that were stale after the repair."""
    verified = {"afterglow.chunkcache.verify": "true", "afterglow.chunkcache.admit": "1"}
    each = {"heap": "512M", "settings": SETTINGS, "boot_seconds": CAMPAIGN_BOOT_SECONDS}
    with Cassandra(address="127.0.0.31", **each) as stock:
        ours = RowCacheNode(address="127.0.0.32", seed=stock, chunks="64MiB", properties=verified, **each)
        with ours:
            await_state(stock, ours, "UN")
            with connect(stock, timeout=60, consistency=ConsistencyLevel.ALL) as session:
                session.execute(
                    "CREATE KEYSPACE repaired WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 2}"
                )
                session.execute(f"CREATE TABLE repaired.t (p int PRIMARY KEY, v text) WITH {CACHED}")
                write(session, 0)
                ours.ask("flush", "repaired")
                for _ in range(2):
                    if bad := wrong(session, 0):
                        raise Failure(f"wrong before anything happened: {bad}")
            say(f"{rows_cached(ours)} rows are cached")
            ours.pause()
            await_state(stock, ours, "DN")
            with connect(stock, timeout=60, consistency=ConsistencyLevel.ONE) as session:
                write(session, 1)
            ours.resume()
            await_state(stock, ours, "UN")
            await_state(ours, stock, "UN")
            say("it has missed the second version of all rows; repairing")
            kept = rows_cached(ours)
            if not kept:
                raise Failure("nothing is cached any more: the repair would show nothing")
            ours.nodetool("repair", "-full", "repaired")
            say(f"{kept} rows were cached before the repair, {rows_cached(ours)} are after it")
            stock.kill()
            await_state(ours, stock, "DN")
            with connect(ours, timeout=60, consistency=ConsistencyLevel.ONE) as session:
                stale = [p for _ in range(3) for p in wrong(session, 1)]
            different = ours.figures()["Different"]
            if different:
                raise Failure(f"{different} chunks differ from their SSTables")
            return stale


def main():
    try:
        stale = check(lambda line: print(line, flush=True))
    except Failure as failure:
        print(f"error: {failure}")
        return 1
    print(f"{len(KEYS)} rows read three times after the repair, {len(stale)} stale")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
