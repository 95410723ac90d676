"""Tables for the chunk cache, and reads of them whose answers are known: every value follows from
its key.
"""

import random

from .drivers import REPLICATION


def value(p, version=0):
    """A text of 2,000 characters that no compressor makes short: what chunks hold matters."""
    return "".join(
        random.Random(p * 1000 + version).choices("0123456789abcdefghijklmnopqrstuvwxyz", k=2000)
    )


def create(session, table, chunk=16, keyspace="chunks"):
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {REPLICATION}")
    compression = (
        f"{{'class': 'LZ4Compressor', 'chunk_length_in_kb': {chunk}}}"
        if chunk
        else "{'enabled': 'false'}"
    )
    session.execute(
        f"CREATE TABLE {keyspace}.{table} (p int PRIMARY KEY, v text) WITH compression = {compression} "
        "AND compaction = {'class': 'SizeTieredCompactionStrategy', 'enabled': 'false'}"
    )


def write(session, table, keys, version=0, keyspace="chunks"):
    insert = session.prepare(f"INSERT INTO {keyspace}.{table} (p, v) VALUES (?, ?)")
    waiting = []
    for p in keys:
        waiting.append(session.execute_async(insert, (p, value(p, version))))
        if len(waiting) == 64:
            [answer.result() for answer in waiting]
            waiting = []
    [answer.result() for answer in waiting]


def wrong(session, table, keys, version=0, keyspace="chunks"):
    """Keys whose row is not what was written."""
    select = session.prepare(f"SELECT v FROM {keyspace}.{table} WHERE p = ?")
    bad = []
    keys = list(keys)
    for start in range(0, len(keys), 32):
        part = keys[start : start + 32]
        answers = [session.execute_async(select, (p,)) for p in part]
        bad += [
            p
            for p, answer in zip(part, answers, strict=True)
            if _value(answer) != value(p, version)
        ]
    return bad


def _value(answer):
    row = answer.result().one()
    return row.v if row else None


def settled(node):
    """The figures once no chunk waits for flash any more."""
    return _figures_when(node, "the queue to be empty", lambda figures: figures["QueueBytes"] == 0)


def saved(node):
    """The figures once no chunk would be lost with the process."""
    return _figures_when(
        node, "everything to be on flash", lambda figures: figures["UnsavedBytes"] == 0
    )


def _figures_when(node, what, holds):
    seen = {}

    def look():
        seen.update(node.figures())
        return holds(seen)

    node.child.wait_for(what, look, 180)
    return seen
