"""A node with the row cache ended in every way under load, and every row compared with the database
after each start.

While it runs no read may be older than a write that was acknowledged before the read was sent.
After a start each row is read twice, the second time from the cache. It is read once more when the
cache has been emptied; that answer is the correct one.

    PYTHONPATH=e2e .venv/bin/python -m afterglow_e2e.rowkill --rounds 50
"""

import argparse
import contextlib
import random
import sys
import threading
import time

from .drivers import connect
from .plugin import CAMPAIGN_BOOT_SECONDS, RowCacheNode
from .process import Failure
from .rowrace import CACHED, REPLICATION

PARTITIONS = 200
ROWS = 20
# How a node ends: at once, in order, and in the middle of that.
ENDS = ("kill", "stop", "kill while stopping")


class Load:
    """Writers and readers at one session, until told to stop or until the node is gone."""

    def __init__(self, session, seed):
        self.session, self.seed = session, seed
        self.acknowledged = [0] * PARTITIONS
        self.stale, self.reads, self.stop = [], 0, threading.Event()
        self.update = session.prepare("UPDATE rk.t SET v = ? WHERE p = ? AND c = ?")
        self.select = session.prepare("SELECT c, v FROM rk.t WHERE p = ?")
        self.threads = [threading.Thread(target=self._write, args=(n,)) for n in range(2)]
        self.threads += [threading.Thread(target=self._read, args=(n,)) for n in range(4)]
        for thread in self.threads:
            thread.start()

    def _write(self, n):
        """Each writer has partitions of its own, so that it knows which value is the newest."""
        draw = random.Random(self.seed + n)
        while not self.stop.is_set():
            p, value = draw.randrange(PARTITIONS // 2) * 2 + n, time.time_ns()
            try:
                self.session.execute(self.update, (value, p, draw.randrange(ROWS)))
            except Exception:  # the node is going: what becomes of this write is not known
                return
            self.acknowledged[p] = value

    def _read(self, n):
        draw = random.Random(self.seed + 10 + n)
        while not self.stop.is_set():
            p = draw.randrange(PARTITIONS)
            least = self.acknowledged[p]
            try:
                newest = max((row.v for row in self.session.execute(self.select, (p,))), default=0)
            except Exception:
                return
            self.reads += 1
            if newest < least:
                self.stale.append((p, newest, least))

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def everything(session):
    return {
        p: sorted(map(tuple, session.execute(f"SELECT c, v FROM rk.t WHERE p = {p}")))
        for p in range(PARTITIONS)
    }


def campaign(rounds, seed=1, ends=ENDS, say=lambda line: None):
    """Reads that were stale or wrong, as text; and how many rows were compared."""
    draw, wrong, compared = random.Random(seed), [], 0
    with RowCacheNode(boot_seconds=CAMPAIGN_BOOT_SECONDS) as node:
        with connect(node, timeout=60) as session:
            session.execute(f"CREATE KEYSPACE rk WITH replication = {REPLICATION}")
            session.execute(
                f"CREATE TABLE rk.t (p int, c int, v bigint, PRIMARY KEY (p, c)) WITH {CACHED}"
            )
        for number in range(rounds):
            how = ends[number % len(ends)]
            with connect(node, timeout=60) as session:
                load = Load(session, seed + 100 * number)
                time.sleep(draw.uniform(1, 4))
                if draw.random() < 0.5:
                    node.nodetool("flush", "rk")
                _end(node, how, draw)
                load.end()
            wrong += [
                f"round {number} ({how}): partition {p} was {v}, older than {least}"
                for p, v, least in load.stale
            ]
            node.start()
            with connect(node, timeout=60) as session:
                first, second = everything(session), everything(session)
                node.nodetool("invalidaterowcache")
                truth = everything(session)
            for seen in (first, second):
                wrong += [
                    f"after round {number} ({how}): partition {p}"
                    for p in truth
                    if seen[p] != truth[p]
                ]
                compared += PARTITIONS
            say(
                f"round {number + 1} of {rounds}, {how}: {load.reads} reads under load, {len(wrong)} wrong so far"
            )
    return wrong, compared


def _end(node, how, draw):
    if how == "kill":
        return node.kill()
    if how == "stop":
        return node.drain()
    # A Failure says that it was killed in the middle, as is wanted.
    with contextlib.suppress(Failure):
        node.drain(draw.uniform(0.2, 3))
    return None


def main():
    parser = argparse.ArgumentParser(
        prog="afterglow_e2e.rowkill", description="Ends a node with the row cache again and again."
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wrong, compared = campaign(
        options.rounds, options.seed, say=lambda line: print(line, flush=True)
    )
    for line in wrong:
        print(line)
    print(
        f"{options.rounds} rounds, {compared} partitions compared after starts, {len(wrong)} stale or wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
