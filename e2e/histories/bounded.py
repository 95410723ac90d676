"""A table under `max-staleness`, of which each instance of a ring has copies of its own. What was
written through an instance is seen at once through it. So each instance has registers of its own,
for the values that were written through it. What was written through others is not judged: it may
be seen within the bound, and not be seen again.
"""

from .values import number

KEYS, BOUND = 6, 3
POLICIES = (f"*.bounded=max-staleness={BOUND}s", "*.*=exclusive")


def bounded(place, key):
    """The register of a key as the instance at this place shows it."""
    return 4000 + place * KEYS + key


def table(keyspace):
    """The statement that makes the table."""
    return f"CREATE TABLE {keyspace}.bounded (k int PRIMARY KEY, v bigint)"


class Bounded:
    """Mixed into a client."""

    def step_of_bounded(self):
        key = int(self.random.random() ** 2 * KEYS)
        if self.only_reads or self.random.random() < 0.75:
            self.read_bounded(key, self.level())
        else:
            self.write_bounded(key)

    def place(self):
        contacts = [server.contact for server in self.shared.servers]
        return contacts.index(self.server)

    def read_bounded(self, key, level):
        start = self.record.now()
        rows = self.rows("SELECT v FROM KS.bounded WHERE k = ?", [number(key)], level)
        found = rows[0][0] if rows else None
        # Whose deletion a missing row shows is not known.
        if self.shared.wrote_bounded.get(found) == self.place():
            self.record.read({bounded(self.place(), key): found}, start, self.server)
            self.shared.reads += 1

    def write_bounded(self, key):
        timestamp = self.record.timestamp(self.random, False)
        using, value = f"USING TIMESTAMP {timestamp}", self.record.value()
        if self.random.random() < 0.2:
            text, value = f"DELETE FROM KS.bounded {using} WHERE k = {key}", None
        else:
            text = f"INSERT INTO KS.bounded (k, v) VALUES ({key}, {value}) {using}"
            self.shared.wrote_bounded[value] = self.place()
        cells = {bounded(self.place(), key): value}
        self.recorded(cells, self.texted(text), timestamp, None)
