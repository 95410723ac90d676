"""Chunk reads compared byte for byte with their SSTables, while SSTables come and go under them.

The node reads every hit from its SSTable too. Tables of all kinds are read and overwritten at once,
and flushed and compacted without a pause. The flash is too small for them. Between rounds the node
is killed. Rows are checked as well. Each must be of its key, and not older than the last write that
was acknowledged before the read.

    PYTHONPATH=e2e .venv/bin/python -m afterglow_e2e.chunkverify --reads 200000
"""

import argparse
import random
import sys
import threading

from .cassandra import KEEPS_WHAT_IT_ACKNOWLEDGED, VERSION
from .chunkload import create
from .drivers import connect
from .plugin import CAMPAIGN_BOOT_SECONDS, ChunkCacheNode
from .process import Failure, poll

# Names, and kilobytes of a chunk; 0 is not compressed.
TABLES = {"large": 64, "small": 16, "plain": 0}
KEYS = 2_000
IN_FLIGHT = 64
READERS = 3


def row(p, version):
    """Tells its key and version, and cannot be made much shorter."""
    return f"{p} {version} " + random.Random(p << 20 | version).randbytes(500).hex()


class Load:
    """A writer, readers and someone who flushes and compacts, until told to stop or until the node
    is gone.
    """

    def __init__(self, node, session, acknowledged, seed):
        self.node, self.session, self.acknowledged, self.seed = node, session, acknowledged, seed
        self.wrong, self.reads, self.stop = [], 0, threading.Event()
        self.insert = {
            t: session.prepare(f"INSERT INTO chunks.{t} (p, v) VALUES (?, ?)") for t in TABLES
        }
        self.select = {t: session.prepare(f"SELECT v FROM chunks.{t} WHERE p = ?") for t in TABLES}
        jobs = [self._write, self._compact, *[self._read] * READERS]
        self.threads = [
            threading.Thread(target=self._until_stopped, args=job) for job in enumerate(jobs)
        ]
        for thread in self.threads:
            thread.start()

    def _until_stopped(self, number, job):
        draw = random.Random(self.seed * 100 + number)
        while not self.stop.is_set():
            try:
                job(draw)
            except Exception as failure:
                # What becomes of requests when the node goes is no fault; otherwise it is.
                if not self.stop.is_set():
                    self.wrong.append(repr(failure))
                return

    def _write(self, draw):
        """Alone: it knows which version is the newest."""
        table = draw.choice(list(TABLES))
        version = self.acknowledged[table][1] + 1
        self.acknowledged[table][1] = version
        keys = draw.sample(range(KEYS), IN_FLIGHT)
        for p, answer in [
            (p, self.session.execute_async(self.insert[table], (p, row(p, version)))) for p in keys
        ]:
            answer.result()
            self.acknowledged[table][0][p] = version

    def _read(self, draw):
        table = draw.choice(list(TABLES))
        newest = self.acknowledged[table][0]
        # Some are read much more often than others.
        keys = [int(KEYS * draw.random() ** 3) for _ in range(IN_FLIGHT)]
        asked = [(p, newest[p], self.session.execute_async(self.select[table], (p,))) for p in keys]
        for p, least, answer in asked:
            found = answer.result().one()
            text = found.v if found else "nothing"
            words = text.split(" ", 2)
            if not found or int(words[1]) < least or text != row(p, int(words[1])):
                self.wrong.append(f"{table} {p}, at least version {least}: {text[:60]}")
            self.reads += 1

    def _compact(self, draw):
        table = draw.choice(list(TABLES))
        self.node.ask("flush", "chunks", table)
        self.node.ask("compact", "chunks", table)

    def end(self):
        self.stop.set()

    def join(self):
        for thread in self.threads:
            thread.join()


def prepare(session):
    """The tables with the first version of every row; what is known of them."""
    acknowledged = {}
    for table, chunk in TABLES.items():
        create(session, table, chunk)
        insert = session.prepare(f"INSERT INTO chunks.{table} (p, v) VALUES (?, ?)")
        for start in range(0, KEYS, IN_FLIGHT):
            part = range(start, min(KEYS, start + IN_FLIGHT))
            for answer in [session.execute_async(insert, (p, row(p, 0))) for p in part]:
                answer.result()
        acknowledged[table] = [[0] * KEYS, 0]
    return acknowledged


def compare(node, acknowledged, reads, seed, kill=False, seconds=600):
    """Runs the load until so many chunks were compared, and then may kill the node. The figures,
    and what was wrong.
    """
    seen = {}

    def enough():
        seen.update(node.figures())
        return seen["Compared"] >= reads or load.wrong

    with connect(node, timeout=60) as session:
        load = Load(node, session, acknowledged, seed)
        try:
            poll(f"{reads} chunk reads to be compared", enough, seconds, check=node.child.check)
        finally:
            load.end()
            if kill:
                node.kill()
            load.join()
    if seen["Different"]:
        load.wrong.append(f"{seen['Different']} chunks differ from their SSTables")
    return seen, load.wrong


def campaign(reads, rounds, version=VERSION, compress=False, say=lambda line: None):
    """What was wrong; how many chunk reads were compared."""
    options = {"verify": "true", "admit": "1", "compress": str(compress).lower()}
    properties = {f"afterglow.chunkcache.{name}": value for name, value in options.items()}
    # All readers read chunks only where nothing is mapped into memory.
    settings = {**KEEPS_WHAT_IT_ACKNOWLEDGED, "disk_access_mode": "standard"}
    wrong, compared = [], 0
    timeouts = {"boot_seconds": CAMPAIGN_BOOT_SECONDS}
    with ChunkCacheNode(
        "64MiB", version=version, properties=properties, settings=settings, **timeouts
    ) as node:
        with connect(node, timeout=60) as session:
            acknowledged = prepare(session)
        for number in range(rounds):
            if number:
                node.start()
            node.await_chunks()
            figures, bad = compare(
                node, acknowledged, reads // rounds, number, kill=number + 1 < rounds
            )
            wrong += bad
            compared += figures["Compared"]
            kept = (
                "Compared",
                "Different",
                "Misses",
                "Fills",
                "Bypassed",
                "FilesDropped",
                "Errors",
            )
            say(
                f"round {number + 1} of {rounds}: "
                + ", ".join(f"{name} {figures[name]}" for name in kept)
            )
            if wrong:
                break
    return wrong, compared


def main():
    parser = argparse.ArgumentParser(
        prog="afterglow_e2e.chunkverify", description="Compares chunks with SSTables."
    )
    parser.add_argument("--reads", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=4, help="the node is killed between them")
    parser.add_argument("--cassandra", default=VERSION)
    parser.add_argument("--compress", action="store_true", help="chunks are kept as LZ4")
    options = parser.parse_args()
    say = lambda line: print(line, flush=True)  # noqa: E731
    try:
        wrong, compared = campaign(
            options.reads, options.rounds, options.cassandra, options.compress, say
        )
    except Failure as failure:
        print(f"error: {failure}")
        return 1
    for line in wrong[:20]:
        print(line)
    print(f"{compared} chunk reads compared with their SSTables, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
