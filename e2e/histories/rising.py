"""Rows that one client takes away with TRUNCATE, now and then. Nothing that was written before it
is read once it has been answered.

Nodes that miss a TRUNCATE, or have a write wait for them while it comes, differ from the others
afterwards. So it is for one node alone. Write times rise with the clock, so that a write in doubt
is sent again. What overlaps may have happened in either order.
"""

import time

from .values import number

KEYS = 8
# Which part of the steps of the one client are a TRUNCATE.
TRUNCATES = 0.05


def rising(k):
    return 6000 + k


def table(keyspace):
    """The statement that makes the table."""
    return f"CREATE TABLE {keyspace}.rising (k int PRIMARY KEY, v bigint)"


class Rising:
    """Mixed into a client."""

    def step_of_rising(self):
        k, luck = self.random.randrange(KEYS), self.random.random()
        if self.truncates and luck < TRUNCATES:
            cells = {rising(k): None for k in range(KEYS)}
            self.recorded(cells, self.texted("TRUNCATE KS.rising"), None, None)
        elif self.only_reads or luck < 0.8:
            self.read_rising(k, self.level())
        else:
            value = self.record.value()
            using = f"USING TIMESTAMP {time.time_ns() // 1000}"
            text = f"INSERT INTO KS.rising (k, v) VALUES ({k}, {value}) {using}"
            self.recorded({rising(k): value}, self.texted(text), None, None)

    def read_rising(self, k, level):
        start = self.record.now()
        rows = self.rows("SELECT v FROM KS.rising WHERE k = ?", [number(k)], level)
        self.seen({rising(k): rows[0][0] if rows else None}, start)
