"""Rows of partitions that only lightweight transactions write: with the value that a client has
seen, or whether there is a row, as a condition. A batch of one partition writes two rows on the
condition of one.

What is applied is a write, and a read of what its condition names. What is not is a read of what
stood against it.
"""

from .values import number

# Partitions at a time. A transaction that was under way when Afterglow was killed keeps its
# partition out of the cache for hours, so now and then another one takes the place of the oldest.
PARTITIONS, ROWS, MOVES = 4, 3, 0.02
SERIAL = 8
# Writes, and how often.
KINDS = {"insert": 3, "swap": 8, "exists": 2, "take": 2, "batch": 5}


def duel(k, c):
    return 2_000_000 + k * ROWS + c


def table(keyspace):
    """The statement that makes the table."""
    return f"CREATE TABLE {keyspace}.duel (k int, c int, v bigint, PRIMARY KEY (k, c))"


class Duel:
    """Mixed into a client."""

    def step_of_duel(self):
        first = self.shared.duels
        k, c = first + self.random.randrange(PARTITIONS), self.random.randrange(ROWS)
        if self.only_reads or self.random.random() < 0.75:
            level = SERIAL if self.random.random() < 0.15 else self.level()
            if self.random.random() < 0.5:
                self.read_duel(k, level)
            else:
                self.read_dueller(k, c, level)
        else:
            self.write_duel(k, c)
            if self.random.random() < MOVES:
                self.shared.duels = first + 1

    def read_duel(self, k, level):
        """All rows of a partition."""
        start = self.record.now()
        rows = self.rows("SELECT c, v FROM KS.duel WHERE k = ?", [number(k)], level)
        found = dict(rows)
        assert list(found) == sorted(found) and len(found) == len(rows), f"out of order: {rows}"
        self.seen_duel({duel(k, c): found.get(c) for c in range(ROWS)}, start)

    def read_dueller(self, k, c, level):
        start = self.record.now()
        text = "SELECT v FROM KS.duel WHERE k = ? AND c = ?"
        rows = self.rows(text, [number(k), number(c)], level)
        self.seen_duel({duel(k, c): rows[0][0] if rows else None}, start)

    def seen_duel(self, cells, start):
        self.shared.duel |= cells
        self.seen(cells, start)

    def write_duel(self, k, c):
        kind, value = self.random.choices(list(KINDS), KINDS.values())[0], self.record.value()
        where, register = f"WHERE k = {k} AND c = {c}", duel(k, c)
        seen = self.shared.duel.get(register)
        cells, condition = {register: value}, {}
        if seen is None or kind == "insert":
            text = f"INSERT INTO KS.duel (k, c, v) VALUES ({k}, {c}, {value}) IF NOT EXISTS"
            condition = {register: None}
        elif kind == "exists":
            text = f"UPDATE KS.duel SET v = {value} {where} IF EXISTS"
        elif kind == "take":
            text = f"DELETE FROM KS.duel {where} IF v = {seen}"
            cells, condition = {register: None}, {register: seen}
        else:
            text = f"UPDATE KS.duel SET v = {value} {where} IF v = {seen}"
            condition = {register: seen}
        if kind == "batch":
            # The other row has no condition of its own.
            other = (c + 1) % ROWS
            cells[duel(k, other)] = value
            insert = f"INSERT INTO KS.duel (k, c, v) VALUES ({k}, {other}, {value})"
            if self.random.random() < 0.2:
                insert = f"DELETE FROM KS.duel WHERE k = {k} AND c = {other}"
                cells[duel(k, other)] = None
            parts = self.random.sample((text, insert), 2)
            text = f"BEGIN BATCH {'; '.join(parts)}; APPLY BATCH"

        def known(applied, row):
            # What stood against it is the last column, where there is a row.
            stood = row[-1] if len(row) > 1 else None
            return condition if applied else {register: stood}

        self.transaction(text, cells, known)
