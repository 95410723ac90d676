"""Rows whose keys the database makes, with `uuid()` and `now()`: in partitions that clients know,
and as partitions of their own. No cache can tell which row such a write touches. A client learns
the key of a row when it reads it.

A row has a register of its own, by its value: there once it is written, until it is deleted. Write
times are the servers'. So these writes have an order only where one ends before the other begins.
"""

from afterglow_e2e.rawcql import LOCAL_QUORUM

# Partitions at a time, and the rows that are sent for each before another takes its place.
PARTITIONS, ROWS = 4, 10
# Writes, and how often.
KINDS = {"one": 8, "two": 3, "beside": 3, "condition": 3, "delete": 5}


def made(value):
    return 1_000_000 + value


def table(keyspace):
    """The statement that makes the table."""
    return f"CREATE TABLE {keyspace}.made (k uuid, c timeuuid, v bigint, PRIMARY KEY (k, c))"


class Partition:
    """One that clients know: the values that were sent for it, and the clustering keys of those
    that were read. Rows of `conditional` values are written by lightweight transactions alone.
    """

    def __init__(self, key, sent=()):
        self.key, self.sent, self.known, self.conditional = key, list(sent), {}, set()

    @property
    def text(self):
        return as_text(self.key)


def as_text(key):
    """A UUID as statements have it."""
    text = key.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def some_partitions(random):
    """The first ones."""
    return [Partition(own_key(random)) for _ in range(PARTITIONS)]


def own_key(random):
    return random.randbytes(16)


class Made:
    """Mixed into a client."""

    def step_of_made(self):
        at = self.random.randrange(PARTITIONS)
        partition = self.shared.made[at]
        if self.only_reads or self.random.random() < 0.8:
            self.read_made(partition, self.level())
        elif len(partition.sent) < ROWS:
            self.write_made(partition)
        else:
            self.shared.made[at] = self.another_partition()

    def another_partition(self):
        """One whose key is ours, or the database's: then it has a row, by which it is found."""
        if self.random.random() < 0.5:
            return Partition(own_key(self.random))
        value, maker = self.record.value(), self.random.choice(("uuid()", "now()"))
        text = f"INSERT INTO KS.made (k, c, v) VALUES ({maker}, now(), {value})"
        self.recorded({made(value): value}, self.texted(text), None, None)
        search = "SELECT k FROM KS.made WHERE v = ? ALLOW FILTERING"
        ((key,),) = self.rows(search, [value.to_bytes(8, "big")], LOCAL_QUORUM)
        return Partition(key.to_bytes(16, "big"), [value])

    def read_made(self, partition, level):
        if partition.known and self.random.random() < 0.3:
            value, c = self.random.choice(list(partition.known.items()))
            start = self.record.now()
            text = "SELECT v FROM KS.made WHERE k = ? AND c = ?"
            rows = self.rows(text, [partition.key, c], level)
            self.seen({made(value): rows[0][0] if rows else None}, start)
        else:
            limit = self.random.choice((None, None, 1, 3))
            self.read_partition(partition, level, self.random.choice(("ASC", "DESC")), limit)

    def read_partition(self, partition, level, way="ASC", limit=None):
        sent, start = list(partition.sent), self.record.now()
        text = f"SELECT c, v FROM KS.made WHERE k = ? ORDER BY c {way}"
        rows = self.rows(text + (f" LIMIT {limit}" if limit else ""), [partition.key], level)
        found = {v: c.to_bytes(16, "big") for c, v in rows}
        assert len(found) == len(rows), f"a row twice: {rows}"
        partition.known |= found
        # Of others nothing is said where the limit is reached.
        absent = [] if len(rows) == limit else [value for value in sent if value not in found]
        cells = {made(value): value for value in found} | {made(value): None for value in absent}
        self.seen(cells, start)

    def write_made(self, partition):
        kind = self.random.choices(list(KINDS), KINDS.values())[0]
        if kind == "delete":
            if partition.known:
                self.delete_made(partition, *self.random.choice(list(partition.known.items())))
            return
        values = [self.record.value() for _ in range(2 if kind in ("two", "beside") else 1)]
        row = f"INSERT INTO KS.made (k, c, v) VALUES ({partition.text}, now(), {{}})".format
        # Known as sent before it is: who reads it, or does not, says so.
        if kind == "condition":
            partition.conditional.update(values)
        partition.sent += values[:1] if kind == "beside" else values
        send = None
        if kind == "one":
            send = self.one_row(partition, values[0])
        elif kind == "two":
            text = f"BEGIN UNLOGGED BATCH {row(values[0])}; {row(values[1])}; APPLY BATCH"
        elif kind == "beside":
            # A row in a partition that nobody knows.
            other = f"INSERT INTO KS.made (k, c, v) VALUES (uuid(), now(), {values[1]})"
            text = f"BEGIN UNLOGGED BATCH {other}; {row(values[0])}; APPLY BATCH"
        else:
            text = f"{row(values[0])} IF NOT EXISTS"
            if self.random.random() < 0.5:
                text = f"BEGIN BATCH {text}; APPLY BATCH"
            send = self.texted(text, LOCAL_QUORUM)
        cells = {made(value): value for value in values}
        self.recorded(cells, send or self.texted(text), None, None)

    def one_row(self, partition, value):
        if self.random.random() < 0.5:
            text = f"({partition.text}, now(), {value})"
            return self.texted(f"INSERT INTO KS.made (k, c, v) VALUES {text}")
        text = "INSERT INTO KS.made (k, c, v) VALUES (?, now(), ?)"
        values = [partition.key, value.to_bytes(8, "big")]
        return lambda: self.execute(text, values, self.write_level())

    def delete_made(self, partition, value, c):
        text = f"DELETE FROM KS.made WHERE k = {partition.text} AND c = {as_text(c)}"
        if value not in partition.conditional:
            self.recorded({made(value): None}, self.texted(text), None, None)
            return
        absent = {made(value): None}
        self.transaction(f"{text} IF EXISTS", absent, lambda applied, _: {} if applied else absent)
