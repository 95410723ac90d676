"""The clients: one thread and one connection each, every kind of read and write over few keys."""

import random as randomness
import struct
import threading
import time

from afterglow_e2e import rawcql
from afterglow_e2e.rawcql import LOCAL_QUORUM, ONE, UNSET, RawClient

from . import bounded, duel, feeds, made, rising
from .bounded import Beside, Bounded
from .duel import Duel
from .feeds import FEEDS, Feeds, Slice
from .made import Made
from .rising import Rising
from .values import bound_list, number, numbers

PARTITIONS, ROWS = 24, 4
SERIAL = 8
COLUMNS = ("v", "w")
# Tables, and how often.
TABLES = {
    "plain": 58,
    "feed": 18,
    "bounded": 5,
    "beside": 6,
    "made": 6,
    "duel": 4,
    "rising": 3,
}
# Writes, and how often.
KINDS = {
    "insert": 20,
    "update": 13,
    "cell": 13,
    "row": 8,
    "cells": 5,
    "range": 4,
    "partition": 2,
    "static": 4,
    "batch": 6,
    "two": 3,
    "some rows": 5,
    "some partitions": 3,
    "json": 4,
    "using": 6,
    "part": 4,
}


def register(partition, row, column):
    return (partition * ROWS + row) * 2 + COLUMNS.index(column)


def static(partition):
    return 1000 + partition


def conditional(key):
    return 2000 + key


def schema(keyspace, factor):
    """Statements that make the tables."""
    replication = f"{{'class': 'SimpleStrategy', 'replication_factor': {factor}}}"
    yield f"CREATE KEYSPACE {keyspace} WITH replication = {replication}"
    columns = "k int, c int, v bigint, w bigint, s bigint static, PRIMARY KEY (k, c)"
    yield f"CREATE TABLE {keyspace}.plain ({columns})"
    yield f"CREATE TABLE {keyspace}.paxos (k int PRIMARY KEY, v bigint)"
    yield feeds.table(keyspace)
    yield from bounded.tables(keyspace)
    yield made.table(keyspace)
    yield duel.table(keyspace)
    yield rising.table(keyspace)


class Clients:
    """`with Clients(...)`: they work until the end of the block, through whatever happens to the
    servers. Each begins at one of these and moves to any other when its own is away. The first
    `readers` never write: no write that waits keeps them waiting. `nodes` are written to besides,
    past the servers, in the table for that. The last client `truncates`.
    """

    def __init__(
        self,
        record,
        servers,
        keyspace,
        seed,
        count=8,
        levels=(ONE, LOCAL_QUORUM),
        patience=8,
        readers=0,
        nodes=(),
        write_levels=None,
        truncates=False,
    ):
        self.record, self.servers, self.keyspace, self.levels = record, servers, keyspace, levels
        self.write_levels = write_levels or levels
        self.patience, self.readers, self.truncates = patience, readers, truncates
        self.reads = self.writes = self.failures = 0
        # Through which server a value of `bounded.py` was written, by its place.
        self.wrote_bounded = {}
        self.beside = Beside(nodes, keyspace, seed) if nodes else None
        self.made = made.some_partitions(randomness.Random(f"{seed}-made"))
        # What was last seen of the registers of `duel.py`, and its first partition.
        self.duel, self.duels = {}, 0
        # Requests without any answer, and the longest that had one, in seconds.
        self.hangs, self.longest = [], 0.0
        self.stopping = threading.Event()
        self.errors = []
        self.threads = [
            threading.Thread(
                target=self._run, args=(n, randomness.Random(f"{seed}-{n}")), daemon=True
            )
            for n in range(count)
        ]

    def __enter__(self):
        if self.beside:
            self.beside.start()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
        if self.beside:
            self.beside.stopping.set()
            self.beside.join(30)

    def _run(self, number, random):
        client, server = None, self.servers[number % len(self.servers)]
        while not self.stopping.is_set():
            began = time.monotonic()
            try:
                client = client or Client(self, server, random, 3 + number % 3)
                client.only_reads = number < self.readers
                client.truncates = self.truncates and number == len(self.threads) - 1
                client.step()
                self.longest = max(self.longest, time.monotonic() - began)
                if random.random() < 0.0005:
                    client.close()
                    client, server = None, random.choice(self.servers)
            except (OSError, Lost) as error:
                self.failures += 1
                if isinstance(error, TimeoutError):
                    self.hangs.append((began, server.contact))
                if not isinstance(error, Lost):
                    if client:
                        client.close()
                    client, server = None, random.choice(self.servers)
                time.sleep(0.02)
            except Exception as error:  # a client that died would leave the rest of the run unseen
                self.errors.append(repr(error))
                raise
        if client:
            client.close()

    def sweep(self):
        """Read every row once more through every server, when all is quiet."""
        for server in self.servers:
            client = Client(self, server, randomness.Random(0), 4)
            for partition in range(PARTITIONS):
                for row in range(ROWS):
                    client.read_row(partition, row, LOCAL_QUORUM, "*")
                client.read_conditional(partition, LOCAL_QUORUM)
            for feed in range(FEEDS):
                client.read_feed(feed, Slice.whole(), LOCAL_QUORUM)
            for partition in self.made:
                client.read_partition(partition, LOCAL_QUORUM)
            for partition in range(duel.PARTITIONS):
                client.read_duel(self.duels + partition, LOCAL_QUORUM)
            for k in range(rising.KEYS):
                client.read_rising(k, LOCAL_QUORUM)
            client.close()


class Lost(Exception):
    """A server said that it could not."""


class Client(Feeds, Bounded, Made, Duel, Rising):
    """One connection, and its statements."""

    def __init__(self, shared, server, random, version):
        self.shared, self.record, self.random, self.version = shared, shared.record, random, version
        self.server = server.contact
        self.socket = RawClient(server.address, server.port, version, timeout=shared.patience)
        self.prepared, self.only_reads, self.truncates = {}, False, False

    def close(self):
        self.socket.close()

    def step(self):
        table = self.random.choices(list(TABLES), TABLES.values())[0]
        getattr(self, f"step_of_{table}")()

    def step_of_plain(self):
        """This one's lightweight transactions have a table of their own."""
        random = self.random
        partition, row = int(random.random() ** 2 * PARTITIONS), int(random.random() ** 2 * ROWS)
        luck = random.random() * (0.65 if self.only_reads else 1)
        if luck < 0.08:
            others = [int(random.random() ** 2 * PARTITIONS) for _ in range(random.randrange(3))]
            self.read_rows([partition, *others], row, random.choice(self.shared.levels))
        elif luck < 0.6:
            projection = random.choice(("v", "v, w", "w, v", "*", "k, c, s, v, w"))
            self.read_row(partition, row, random.choice(self.shared.levels), projection)
        elif luck < 0.65:
            self.read_conditional(partition, random.choice((*self.shared.levels, SERIAL)))
        elif luck < 0.72:
            self.write_conditional(partition)
        else:
            self.write(partition, row)

    # Reads

    def rows(self, text, values, level):
        """Rows of a prepared read as lists of numbers."""
        return numbers(self.answer(text, values, level))

    def answer(self, text, values, level, page=None):
        """The answer to a prepared read."""
        answer = self.execute(text, values, level, page=page)
        if answer.error:
            raise Lost(answer.error)
        return answer

    def execute(self, text, values, level, timestamp=None, page=None):
        """An answer to a prepared statement; prepared when this connection sees it first. `page`:
        how many rows, and the state that the page before ended with or None.
        """
        if text not in self.prepared:
            body = rawcql.long_string(text.replace("KS", self.shared.keyspace))
            answer = self.socket.request(
                rawcql.PREPARE, body + (bytes(4) if self.version >= 5 else b"")
            )
            if answer.error:
                raise Lost(answer.error)
            ids = [answer.prepared_id]
            if self.version >= 5:
                at = 6 + len(ids[0])
                (length,) = struct.unpack_from(">H", answer.message, at)
                ids.append(answer.message[at + 2 : at + 2 + length])
            self.prepared[text] = b"".join(map(rawcql.short_bytes, ids))
        rows, state = page or (None, None)
        flags = 1 | (0x20 if timestamp is not None else 0)
        flags |= (4 if rows else 0) | (8 if state else 0)
        body = self.prepared[text] + struct.pack(
            ">HI" if self.version >= 5 else ">HB", level, flags
        )
        body += struct.pack(">H", len(values)) + b"".join(map(rawcql.value, values))
        body += (struct.pack(">i", rows) if rows else b"") + (rawcql.value(state) if state else b"")
        if timestamp is not None:
            body += struct.pack(">q", timestamp)
        return self.socket.request(rawcql.EXECUTE, body)

    def read_row(self, partition, row, level, projection):
        start = self.record.now()
        text = f"SELECT {projection} FROM KS.plain WHERE k = ? AND c = ?"
        values = [number(partition), number(row)]
        if self.random.random() < 0.2:
            text += self.random.choice((" LIMIT ?", " PER PARTITION LIMIT ?"))
            values.append(number(1))
        rows = self.rows(text, values, level)
        names = "k, c, s, v, w" if projection == "*" else projection
        found = dict(zip(names.split(", "), rows[0], strict=True)) if rows else {}
        cells = {register(partition, row, c): found.get(c) for c in COLUMNS if c in names}
        if "s" in found:
            cells[static(partition)] = found["s"]
        self.record.read(cells, start, self.server)
        self.shared.reads += 1

    def read_rows(self, partitions, row, level):
        """The same row of several partitions."""
        start = self.record.now()
        columns = "k, s, v, w"
        values = [number(partition) for partition in partitions]
        if self.random.random() < 0.5:
            text = f"SELECT {columns} FROM KS.plain WHERE k IN ? AND c = ?"
            data = bound_list(partitions)
            rows = self.rows(text, [data, number(row)], level)
        else:
            marks = ", ".join("?" * len(values))
            text = f"SELECT {columns} FROM KS.plain WHERE k IN ({marks}) AND c = ?"
            rows = self.rows(text, [*values, number(row)], level)
        found = {cells[0]: cells[1:] for cells in rows}
        assert len(found) == len(rows) and set(found) <= set(partitions), (partitions, rows)
        assert list(found) == sorted(found), f"out of order: {rows}"
        for partition in set(partitions):
            there = partition in found
            s, v, w = found[partition] if there else (None, None, None)
            cells = {register(partition, row, "v"): v, register(partition, row, "w"): w}
            if there:
                cells[static(partition)] = s
            self.record.read(cells, start, self.server)
            self.shared.reads += 1

    def read_conditional(self, key, level):
        start = self.record.now()
        rows = self.rows("SELECT v FROM KS.paxos WHERE k = ?", [number(key)], level)
        found = rows[0][0] if rows else None
        self.record.read({conditional(key): found}, start, self.server)
        self.shared.reads += 1

    # Writes

    def settle(self, answer):
        """True if the write happened, false if it did not; raises when nobody knows."""
        if answer.error is None:
            return True
        code = answer.error[0]
        # UNAVAILABLE, and everything that is refused before it is begun.
        if code == 0x1000 or 0x2000 <= code < 0x2500:
            return False
        raise Lost(answer.error)

    def write(self, partition, row):
        random = self.random
        life = random.choice((2, 3)) if random.random() < 0.12 else None
        timestamp = self.record.timestamp(random, life is not None)
        cells, send = self.shape(partition, row, timestamp, life)
        self.recorded(cells, send, timestamp, life)

    def recorded(self, cells, send, timestamp, life):
        """Sends a write, and records what became of it."""
        start = self.record.now()
        happened = None
        try:
            happened = self.settle(send())
        finally:
            # Of what failed in any other way the outcome is unknown.
            if happened is not False:
                self.record.wrote(cells, start, happened, timestamp, life, self.server)
        self.shared.writes += 1

    def shape(self, partition, row, timestamp, life):
        """One kind of write: the cells it sets, and how to send it."""
        random, value = self.random, self.record.value()
        both = {register(partition, row, column): value for column in COLUMNS}
        if life is not None:
            text = f"INSERT INTO KS.plain (k, c, v, w) VALUES (?, ?, ?, ?) USING TTL {life}"
            return both, self.bound(text, [partition, row, value, value], timestamp)
        kind = random.choices(list(KINDS), KINDS.values())[0]
        if kind == "insert":
            text = "INSERT INTO KS.plain (k, c, v, w) VALUES (?, ?, ?, ?)"
            return both, self.bound(text, [partition, row, value, value], timestamp)
        if kind == "update":
            text = "UPDATE KS.plain SET v = ?, w = ? WHERE k = ? AND c = ?"
            return both, self.bound(text, [value, value, partition, row], timestamp)
        if kind == "cell":
            column = random.choice(COLUMNS)
            text = f"UPDATE KS.plain SET {column} = ? WHERE k = ? AND c = ?"
            return {register(partition, row, column): value}, self.bound(
                text, [value, partition, row], timestamp
            )
        if kind == "using":
            # It wins over the timestamp of the request.
            text = "UPDATE KS.plain USING TIMESTAMP ? SET v = ?, w = ? WHERE k = ? AND c = ?"
            other = timestamp + random.randrange(-(10**6), 10**6)
            return both, self.bound(text, [timestamp, value, value, partition, row], other)
        if kind == "part":
            return self.part(partition, row, value, timestamp)
        if kind == "row":
            text = "DELETE FROM KS.plain WHERE k = ? AND c = ?"
            return dict.fromkeys(both), self.bound(text, [partition, row], timestamp)
        if kind == "static":
            text = "UPDATE KS.plain SET s = ? WHERE k = ?"
            return {static(partition): value}, self.bound(text, [value, partition], timestamp)
        if kind.startswith("some"):
            return self.listed(kind, partition, row, value, timestamp)
        if kind == "json":
            document = f'{{"k": {partition}, "C": "{row}", "v": {value}, "w": {value}}}'
            # What it does not name, it sets to null: the static column too.
            unset = random.random() < 0.7
            text = f"INSERT INTO KS.plain JSON ?{' DEFAULT UNSET' if unset else ''}"
            cells = both if unset else both | {static(partition): None}
            return cells, lambda: self.execute(
                text, [document.encode()], self.write_level(), timestamp
            )
        using = f"USING TIMESTAMP {timestamp}"
        if kind == "cells":
            column = random.choice(COLUMNS)
            text = f"DELETE {column} FROM KS.plain {using} WHERE k = {partition} AND c = {row}"
            return {register(partition, row, column): None}, self.texted(text)
        if kind == "range":
            rows = range(row, random.randrange(row, ROWS) + 1)
            text = f"DELETE FROM KS.plain {using} WHERE k = {partition} AND c >= {rows[0]} AND c <= {rows[-1]}"
            return self.all_of(partition, rows), self.texted(text)
        if kind == "partition":
            cells = self.all_of(partition, range(ROWS)) | {static(partition): None}
            return cells, self.texted(f"DELETE FROM KS.plain {using} WHERE k = {partition}")
        return self.batch(kind, partition, row, value, using)

    def part(self, partition, row, value, timestamp):
        """A row of which one column is null, or unset: that stays as it was."""
        random = self.random
        odd, even = random.sample(COLUMNS, 2)
        other = random.choice((None, UNSET)) if self.version >= 4 else None
        cells = {register(partition, row, even): value}
        if other is None:
            cells[register(partition, row, odd)] = None
        text = f"INSERT INTO KS.plain (k, c, {odd}, {even}) VALUES (?, ?, ?, ?)"
        values = [number(partition), number(row), other, value.to_bytes(8, "big")]
        return cells, lambda: self.execute(text, values, self.write_level(), timestamp)

    def listed(self, kind, partition, row, value, timestamp):
        """Rows of one partition or of two, by lists bound to IN."""
        random = self.random
        rows = random.choices(range(ROWS), k=random.randrange(3)) + [row]
        if kind == "some rows":
            partitions = [partition]
        else:
            partitions = [partition, (partition + 1) % PARTITIONS]
        named = [register(k, c, column) for k in partitions for c in rows for column in COLUMNS]
        values = [bound_list(partitions), bound_list(rows)]
        if random.random() < 0.5:
            text, cells = "DELETE FROM KS.plain WHERE k IN ? AND c IN ?", dict.fromkeys(named)
        else:
            text = "UPDATE KS.plain SET v = ?, w = ? WHERE k IN ? AND c IN ?"
            cells = dict.fromkeys(named, value)
            values = [value.to_bytes(8, "big")] * 2 + values
        return cells, lambda: self.execute(text, values, self.write_level(), timestamp)

    def batch(self, kind, partition, row, value, using):
        """Rows of one partition, or of two, in one batch."""
        others = [
            (partition, (row + 1) % ROWS)
            if kind == "batch"
            else ((partition + 1) % PARTITIONS, row)
        ]
        cells, parts = {}, []
        for k, c in [(partition, row), *others]:
            cells |= {register(k, c, column): value for column in COLUMNS}
            parts.append(f"INSERT INTO KS.plain (k, c, v, w) VALUES ({k}, {c}, {value}, {value});")
        # A logged batch of several partitions that timed out is replayed from the batch log, up to
        # 14 s later. The histories' hold of writes of unknown outcome is 6 s.
        unlogged = self.random.choice(("", "UNLOGGED ")) if kind == "batch" else "UNLOGGED "
        return cells, self.texted(f"BEGIN {unlogged}BATCH {using} {' '.join(parts)} APPLY BATCH")

    @staticmethod
    def all_of(partition, rows):
        return {register(partition, row, column): None for row in rows for column in COLUMNS}

    def bound(self, text, values, timestamp):
        wide = {"v": 8, "w": 8, "s": 8, "USING": 8}
        names = names_of(text)
        data = [
            value.to_bytes(wide.get(name, 4), "big")
            for name, value in zip(names, values, strict=True)
        ]
        return lambda: self.execute(text, data, self.write_level(), timestamp)

    def texted(self, text, level=None):
        text = text.replace("KS", self.shared.keyspace)
        return lambda: self.socket.query(text, consistency=level or self.write_level())

    def level(self):
        return self.random.choice(self.shared.levels)

    def write_level(self):
        return self.random.choice(self.shared.write_levels)

    def write_conditional(self, key):
        """A lightweight transaction: applied, it is a write, else a read of what stood against
        it.
        """
        value = self.record.value()
        kind = self.random.choice(("insert", "update", "update", "delete"))
        text = {
            "insert": f"INSERT INTO KS.paxos (k, v) VALUES ({key}, {value}) IF NOT EXISTS",
            "update": f"UPDATE KS.paxos SET v = {value} WHERE k = {key} IF EXISTS",
            "delete": f"DELETE FROM KS.paxos WHERE k = {key} IF EXISTS",
        }[kind]
        cells = {conditional(key): None if kind == "delete" else value}

        def known(applied, row):
            # k and v for an INSERT; the others find no row.
            stood = row[2] if kind == "insert" and not applied else None
            return {} if applied else {conditional(key): stood}

        self.transaction(text, cells, known)

    def transaction(self, text, cells, known):
        """A lightweight transaction of these cells. `known` tells what it has read, from whether it
        was applied and the answer's first row.
        """
        start = self.record.now()
        applied = None
        try:
            answer = self.texted(text, LOCAL_QUORUM)()
            if self.settle(answer):
                row = numbers(answer)[0]
                applied = bool(row[0])
                self.record.read(known(applied, row), start, self.server)
            else:
                applied = False
        finally:
            if applied is not False:
                self.record.wrote(cells, start, applied, by=self.server)
        self.shared.writes += 1


def names_of(text):
    """Which column each marker stands for."""
    if text.startswith("INSERT"):
        return text[text.index("(") + 1 : text.index(")")].split(", ")
    words = text.replace(",", "").split()
    return [words[at - 2] for at, word in enumerate(words) if word == "?"]
