"""Concurrent writers and readers, and a record of what was acknowledged that tells an old answer
from a right one.

One writer per key writes 1, 2, 3, ... and never the same number twice. A read that began after
number n was acknowledged, or after a reader had seen n, must give n or a later one. It must give no
number that was never sent. A write without an answer may or may not have happened.
"""

import threading
import time

from cassandra.cluster import NoHostAvailable

from .drivers import connect


class History:
    """The record, and the threads that make it."""

    def __init__(self, server, table, writers=4, readers=4, keys_per_writer=8):
        self.server, self.table = server, table
        self.writers, self.readers, self.keys_per_writer = writers, readers, keys_per_writer
        keys = range(writers * keys_per_writer)
        self.sent = dict.fromkeys(keys, 0)
        self.known = dict.fromkeys(keys, 0)  # the latest acknowledged or read
        self.locks = {key: threading.Lock() for key in keys}
        self.stale, self.reads, self.writes, self.failures = [], 0, 0, 0
        self.stopping = threading.Event()
        self.threads = []

    def learn(self, key, number):
        with self.locks[key]:
            self.known[key] = max(self.known[key], number)

    def judge(self, key, floor, number):
        if not floor <= number <= self.sent[key]:
            self.stale.append(
                f"key {key}: read {number}, but {floor} was known before and {self.sent[key]} sent last"
            )
        self.learn(key, number)

    def write_forever(self, session, index):
        statements = (
            session.prepare(f"INSERT INTO {self.table} (k, v) VALUES (?, ?)"),
            session.prepare(f"UPDATE {self.table} SET v = ? WHERE k = ?"),
        )
        turn = 0
        while not self.stopping.is_set():
            key = index * self.keys_per_writer + turn % self.keys_per_writer
            number = self.sent[key] + 1
            self.sent[key] = number
            insert = turn % 3 == 0
            try:
                session.execute(statements[not insert], (key, number) if insert else (number, key))
                self.learn(key, number)
                self.writes += 1
            except Exception as error:
                self.pause_after(error)
            turn += 1

    def read_forever(self, session, index):
        select = session.prepare(f"SELECT v FROM {self.table} WHERE k = ?")
        turn = index
        while not self.stopping.is_set():
            turn += 7
            key = (
                turn * turn % (self.writers * self.keys_per_writer)
            )  # some keys more often than others
            floor = self.known[key]
            try:
                row = session.execute(select, (key,)).one()
            except Exception as error:
                self.pause_after(error)
                continue
            self.reads += 1
            self.judge(key, floor, row.v if row else 0)

    def pause_after(self, error):
        """Errors are expected while the server is away; do not spin on them."""
        self.failures += 1
        if isinstance(error, NoHostAvailable):
            time.sleep(0.02)

    def _run(self, body, index):
        with connect(self.server, version=4 + index % 2, timeout=10) as session:
            body(session, index)

    def __enter__(self):
        bodies = [(self.write_forever, index) for index in range(self.writers)]
        bodies += [(self.read_forever, index) for index in range(self.readers)]
        self.threads = [
            threading.Thread(target=self._run, args=body, daemon=True) for body in bodies
        ]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(30)

    def verify_all(self):
        """Read every key once more, alone."""
        with connect(self.server) as session:
            for key in self.sent:
                floor = self.known[key]
                row = session.execute(f"SELECT v FROM {self.table} WHERE k = {key}").one()
                self.judge(key, floor, row.v if row else 0)
