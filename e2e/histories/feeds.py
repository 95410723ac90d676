"""Slices of partitions in turns with writes of their rows: what the cache keeps of a partition
follows them.
"""

from dataclasses import dataclass

from .values import bound_list, number, page

FEEDS, ITEMS = 6, 8
COLUMNS = ("v", "w")
# Writes, and how often.
KINDS = {"insert": 10, "cell": 4, "row": 3, "range": 1, "partition": 1, "batch": 1}
# Reads, and how often.
READS = {"slice": 10, "feeds": 2, "pages": 2, "aggregate": 1}
# Which rows of a partition a slice asks for, and how often.
ASKED = {"": 5, "c >= ? AND c <= ?": 2, "c > ?": 1, "c < ?": 1, "c IN ?": 2, "c = ?": 1}


def item(feed, c, column):
    return 3000 + (feed * ITEMS + c) * 2 + COLUMNS.index(column)


def table(keyspace):
    """The statement that makes the table; it has no static column, so that it has units."""
    return (
        f"CREATE TABLE {keyspace}.feed (k int, c int, v bigint, w bigint, PRIMARY KEY (k, c)) "
        "WITH CLUSTERING ORDER BY (c DESC)"
    )


@dataclass
class Slice:
    """Rows of a partition that a statement asks for, in their order."""

    where: str
    values: list
    rows: list
    falling: bool
    limit: int

    @staticmethod
    def whole():
        return Slice("", [], range(ITEMS), True, ITEMS + 1)

    @staticmethod
    def random(random):
        where = random.choices(list(ASKED), ASKED.values())[0]
        low, high = sorted(random.randrange(ITEMS) for _ in range(2))
        some = [random.randrange(ITEMS) for _ in range(random.randrange(1, 4))]
        values, rows = {
            "": ([], range(ITEMS)),
            "c >= ? AND c <= ?": ([number(low), number(high)], range(low, high + 1)),
            "c > ?": ([number(low)], range(low + 1, ITEMS)),
            "c < ?": ([number(high)], range(high)),
            "c IN ?": ([bound_list(some)], set(some)),
            "c = ?": ([number(low)], [low]),
        }[where]
        limit = random.randrange(1, ITEMS + 2)
        return Slice(where and f" AND {where}", values, rows, random.random() < 0.8, limit)

    def text(self, columns):
        order = "DESC" if self.falling else "ASC"
        return f"SELECT {columns} FROM KS.feed WHERE k = ?{self.where} ORDER BY c {order}"

    def wanted(self):
        return sorted(self.rows, reverse=self.falling)


def cells_of(feed, wanted, rows, full):
    """What rows say of these clusterings of a feed, as registers. `full`: there may be more, and
    they say nothing of what is behind the last.
    """
    found = {c: cells for c, *cells in rows}
    assert len(found) == len(rows), f"a row twice: {rows}"
    assert list(found) == [c for c in wanted if c in found], f"out of order, or not asked: {rows}"
    if full:
        wanted = wanted[: wanted.index(rows[-1][0]) + 1]
    return {
        item(feed, c, column): value
        for c in wanted
        for column, value in zip(COLUMNS, found.get(c, (None, None)), strict=True)
    }


class Feeds:
    """Mixed into a client."""

    def step_of_feed(self):
        feed = int(self.random.random() ** 2 * FEEDS)
        if not self.only_reads and self.random.random() > 0.75:
            self.write_item(feed, int(self.random.random() * ITEMS))
            return
        kind, level = self.random.choices(list(READS), READS.values())[0], self.level()
        if kind == "slice":
            self.read_feed(feed, Slice.random(self.random), level)
        elif kind == "feeds":
            others = [self.random.randrange(FEEDS) for _ in range(self.random.randrange(3))]
            self.read_feeds([feed, *others], self.random.randrange(1, ITEMS + 2), level)
        elif kind == "pages":
            self.read_pages(feed, Slice.random(self.random), level)
        else:
            self.read_aggregate(feed, self.random.randrange(ITEMS), level)

    def seen(self, cells, start):
        self.record.read(cells, start, self.server)
        self.shared.reads += 1

    def read_feed(self, feed, asked, level):
        start = self.record.now()
        text = f"{asked.text('c, v, w')} LIMIT {asked.limit}"
        rows = self.rows(text, [number(feed), *asked.values], level)
        self.seen(cells_of(feed, asked.wanted(), rows, len(rows) == asked.limit), start)

    def read_feeds(self, feeds, limit, level):
        """The newest of several partitions."""
        start = self.record.now()
        text = f"SELECT k, c, v, w FROM KS.feed WHERE k IN ? PER PARTITION LIMIT {limit}"
        rows = self.rows(text, [bound_list(feeds)], level)
        order = [k for k, *_ in rows]
        assert order == sorted(order) and set(order) <= set(feeds), f"out of order: {rows}"
        for feed in set(feeds):
            own = [row for k, *row in rows if k == feed]
            self.seen(cells_of(feed, Slice.whole().wanted(), own, len(own) == limit), start)

    def read_pages(self, feed, asked, level):
        """Each page is a read of its own: of what is behind the last row of the one before."""
        size, state, wanted = self.random.randrange(1, 5), None, asked.wanted()
        while True:
            start = self.record.now()
            values = [number(feed), *asked.values]
            answer = self.answer(asked.text("c, v, w"), values, level, page=(size, state))
            rows, state = page(answer)
            assert len(rows) <= size, f"more than {size} rows: {rows}"
            if rows or state is None:
                self.seen(cells_of(feed, wanted, rows, state is not None), start)
            if state is None:
                return
            wanted = wanted[wanted.index(rows[-1][0]) + 1 :] if rows else wanted

    def read_aggregate(self, feed, c, level):
        """Of one row, so that it tells the value of a cell."""
        start = self.record.now()
        columns = "count(*), count(v), max(v), min(w)"
        text = f"SELECT {columns} FROM KS.feed WHERE k = ? AND c >= ? AND c <= ?"
        rows = self.rows(text, [number(feed), number(c), number(c)], level)
        ((row, cells, v, w),) = rows
        assert cells == (v is not None) and row in (0, 1), rows
        assert row or (v, w) == (None, None), rows
        self.seen({item(feed, c, "v"): v, item(feed, c, "w"): w}, start)

    def write_item(self, feed, c):
        """Prepared with a write time beside it, or in text with one in it."""
        random = self.random
        life = random.choice((2, 3)) if random.random() < 0.05 else None
        kind = random.choices(list(KINDS), KINDS.values())[0] if life is None else "insert"
        timestamp = self.record.timestamp(random, life is not None)
        prepares = kind != "batch" and random.random() < 0.5
        options = [f"TIMESTAMP {timestamp}"] * (not prepares) + [f"TTL {life}"] * bool(life)
        using = f" USING {' AND '.join(options)}" if options else ""
        cells, text, values = self.item_write(kind, feed, c, using)
        send = self.bound(text, values, timestamp) if prepares else self.texted(told(text, values))
        self.recorded(cells, send, timestamp, life)

    def item_write(self, kind, feed, c, using):
        """One kind of write: the cells it sets, its text, and a value for each of its markers."""
        rows, columns, new = [c], COLUMNS, self.record.value()
        insert = "INSERT INTO KS.feed (k, c, v, w) VALUES (?, ?, ?, ?)"
        values = [feed, c]
        if kind == "insert":
            text, values = insert + using, [feed, c, new, new]
        elif kind == "cell":
            columns, values = (self.random.choice(COLUMNS),), [new, feed, c]
            text = f"UPDATE KS.feed{using} SET {columns[0]} = ? WHERE k = ? AND c = ?"
        elif kind == "row":
            text, new = f"DELETE FROM KS.feed{using} WHERE k = ? AND c = ?", None
        elif kind == "range":
            text, new = f"DELETE FROM KS.feed{using} WHERE k = ? AND c >= ?", None
            rows = range(c, ITEMS)
        elif kind == "partition":
            text, new = f"DELETE FROM KS.feed{using} WHERE k = ?", None
            rows, values = range(ITEMS), [feed]
        else:
            rows = [c, (c + 1) % ITEMS]
            text = f"BEGIN BATCH{using} {insert}; {insert}; APPLY BATCH"
            values = [value for row in rows for value in (feed, row, new, new)]
        return {item(feed, row, column): new for row in rows for column in columns}, text, values


def told(text, values):
    """The text with the values in the place of its markers."""
    return text.replace("?", "{}").format(*values)
