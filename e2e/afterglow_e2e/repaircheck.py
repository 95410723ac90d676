"""Rows that come from another node: it streams them to a node that has both caches and missed the
writes.

There are two nodes with all rows each; one is stock, the other has our caches, filled. The second
one hangs while everything is written again. It comes back with old rows, which is correct at that
time, and is repaired, or rebuilt from the other. From then on no old row may be served. A repair
streams the parts of SSTables that differ; a rebuild copies whole ones, file by file.

    PYTHONPATH=e2e .venv/bin/python -m afterglow_e2e.repaircheck [--rebuild]
"""

import argparse
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
SETTINGS = {"hinted_handoff_enabled": "false", "stream_entire_sstables": "true", **PATIENT}
TABLES = {"t": "SizeTieredCompactionStrategy", "levelled": "LeveledCompactionStrategy"}


def write(session, version):
    for table in TABLES:
        insert = session.prepare(f"INSERT INTO repaired.{table} (p, v) VALUES (?, ?)")
        for answer in [session.execute_async(insert, (p, value(p, version))) for p in KEYS]:
            answer.result()


def wrong(session, version):
    """Keys, with their table, whose row is not the one of this version."""
    found = []
    for table in TABLES:
        select = session.prepare(f"SELECT v FROM repaired.{table} WHERE p = ?")
        answers = [(p, session.execute_async(select, (p,))) for p in KEYS]
        found += [
            (table, p) for p, answer in answers if answer.result().one().v != value(p, version)
        ]
    return found


def await_state(node, other, state):
    """Until a node takes the other for up (UN) or down (DN)."""

    def seen():
        lines = node.nodetool("status").splitlines()
        return any(line.startswith(state) and other.address in line for line in lines)

    poll(f"{node.address} to see {other.address} {state}", seen, 180, every=1)


def rows_cached(node):
    return int(node.verify()["the row cache works"]["Entries"])


def copied_whole(node, table):
    """SSTables that came file by file: unlike those that a node writes, they have no table of
    contents.
    """
    folder = node.files_of("repaired", table)
    stems = {file.name.removesuffix("Data.db") for file in folder.glob("*-Data.db")}
    return sorted(stem for stem in stems if not (folder / f"{stem}TOC.txt").exists())


def stream(ours, rebuild):
    """Has what was missed brought by the other node."""
    if not rebuild:
        ours.nodetool("repair", "-full", "repaired")
        return
    ours.nodetool("rebuild", "-ks", "repaired")
    for table in TABLES:
        if not copied_whole(ours, table):
            raise Failure(f"no SSTable of {table} was copied as a whole: this shows nothing")


def check(say=lambda line: None, rebuild=False):
    """Keys that were stale after the repair."""
    verified = {"afterglow.chunkcache.verify": "true", "afterglow.chunkcache.admit": "1"}
    each = {"heap": "512M", "settings": SETTINGS, "boot_seconds": CAMPAIGN_BOOT_SECONDS}
    with Cassandra(address="127.0.0.31", **each) as stock:
        ours = RowCacheNode(
            address="127.0.0.32", seed=stock, chunks="64MiB", properties=verified, **each
        )
        with ours:
            await_state(stock, ours, "UN")
            with connect(stock, timeout=60, consistency=ConsistencyLevel.ALL) as session:
                session.execute(
                    "CREATE KEYSPACE repaired WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 2}"
                )
                for table, strategy in TABLES.items():
                    options = (
                        f"{CACHED} AND compaction = {{'class': '{strategy}', 'enabled': 'false'}}"
                    )
                    session.execute(
                        f"CREATE TABLE repaired.{table} (p int PRIMARY KEY, v text) WITH {options}"
                    )
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
            stream(ours, rebuild)
            say(
                f"{kept} rows were cached before they were streamed, {rows_cached(ours)} are after it"
            )
            stock.kill()
            await_state(ours, stock, "DN")
            with connect(ours, timeout=60, consistency=ConsistencyLevel.ONE) as session:
                stale = [key for _ in range(3) for key in wrong(session, 1)]
                ours.nodetool("invalidaterowcache")
                # Now from the chunks of what was streamed: the second time those that the first one
                # kept.
                before = ours.figures()["Hits"]
                stale += [key for _ in range(2) for key in wrong(session, 1)]
            hits = ours.figures()["Hits"] - before
            say(f"{hits} chunk reads of streamed SSTables were hits")
            if not hits:
                raise Failure("no chunk of what was streamed is served from flash")
            different = ours.figures()["Different"]
            if different:
                raise Failure(f"{different} chunks differ from their SSTables")
            return stale


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rebuild", action="store_true", help="copy whole SSTables instead of what differs"
    )
    rebuild = parser.parse_args().rebuild
    try:
        stale = check(lambda line: print(line, flush=True), rebuild)
    except Failure as failure:
        print(f"error: {failure}")
        return 1
    rows = len(KEYS) * len(TABLES)
    print(f"{rows} rows read three times after they were streamed, {len(stale)} stale")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
