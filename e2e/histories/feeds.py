"""Slices of partitions in turns with writes of their rows: what the cache keeps of a partition
follows them.
"""

FEEDS, ITEMS = 6, 8
COLUMNS = ("v", "w")
# Writes, and how often.
KINDS = {"insert": 10, "cell": 4, "row": 3, "range": 1, "partition": 1, "batch": 1}


def item(feed, c, column):
    return 3000 + (feed * ITEMS + c) * 2 + COLUMNS.index(column)


def table(keyspace):
    """The statement that makes the table; it has no static column, so that it has units."""
    return (
        f"CREATE TABLE {keyspace}.feed (k int, c int, v bigint, w bigint, PRIMARY KEY (k, c)) "
        "WITH CLUSTERING ORDER BY (c DESC)"
    )


class Feeds:
    """Mixed into a client."""

    def step_of_feed(self):
        feed = int(self.random.random() ** 2 * FEEDS)
        if self.only_reads or self.random.random() < 0.75:
            limit = self.random.randrange(1, ITEMS + 2)
            self.read_feed(feed, self.random.random() < 0.8, limit, self.level())
        else:
            self.write_item(feed, int(self.random.random() * ITEMS))

    def read_feed(self, feed, falling, limit, level):
        start = self.record.now()
        order = "DESC" if falling else "ASC"
        text = f"SELECT c, v, w FROM KS.feed WHERE k = ? ORDER BY c {order} LIMIT {limit}"
        rows = self.rows(text, [feed.to_bytes(4, "big")], level)
        found = {c: cells for c, *cells in rows}
        wanted = sorted(range(ITEMS), reverse=falling)
        assert list(found) == [c for c in wanted if c in found], f"out of order: {rows}"
        if len(rows) == limit:
            # It says nothing of what is behind its last row.
            wanted = wanted[: wanted.index(rows[-1][0]) + 1]
        cells = {}
        for c in wanted:
            for column, value in zip(COLUMNS, found.get(c, (None, None)), strict=True):
                cells[item(feed, c, column)] = value
        self.record.read(cells, start, self.server)
        self.shared.reads += 1

    def write_item(self, feed, c):
        life = self.random.choice((2, 3)) if self.random.random() < 0.05 else None
        timestamp = self.record.timestamp(self.random, life is not None)
        cells, text = self.item_write(feed, c, timestamp, life)
        self.recorded(cells, self.texted(text), timestamp, life)

    def item_write(self, feed, c, timestamp, life):
        """One kind of write: the cells it sets, and its text."""
        value, using = self.record.value(), f"USING TIMESTAMP {timestamp}"
        insert = f"INSERT INTO KS.feed (k, c, v, w) VALUES ({feed}, {{}}, {value}, {value})"
        kind = self.random.choices(list(KINDS), KINDS.values())[0]
        rows, columns, new = [c], COLUMNS, value
        where = f"WHERE k = {feed} AND c = {c}"
        if life is not None:
            text = f"{insert.format(c)} {using} AND TTL {life}"
        elif kind == "insert":
            text = f"{insert.format(c)} {using}"
        elif kind == "cell":
            columns = (self.random.choice(COLUMNS),)
            text = f"UPDATE KS.feed {using} SET {columns[0]} = {value} {where}"
        elif kind == "row":
            text, new = f"DELETE FROM KS.feed {using} {where}", None
        elif kind == "range":
            rows, new = range(c, ITEMS), None
            text = f"DELETE FROM KS.feed {using} WHERE k = {feed} AND c >= {c}"
        elif kind == "partition":
            rows, new = range(ITEMS), None
            text = f"DELETE FROM KS.feed {using} WHERE k = {feed}"
        else:
            rows = [c, (c + 1) % ITEMS]
            both = "; ".join(insert.format(row) for row in rows)
            text = f"BEGIN BATCH {using} {both}; APPLY BATCH"
        return {item(feed, row, column): new for row in rows for column in columns}, text
