"""Tables under `max-staleness`, of which each instance has copies of its own.

`bounded`: what was written through an instance is seen at once through it. So each instance has
registers of its own, for the values that were written through it. What was written through others
is not judged: it may be seen within the bound, and not be seen again.

`beside`: only one thread writes, past all instances, larger values each time. What it was told to
be written is seen through any instance once the bound is over, or something larger is.
"""

import random as randomness
import threading
import time

from afterglow_e2e.rawcql import LOCAL_QUORUM, RawClient

from .values import number

KEYS, BOUND = 6, 3
LIMITED = tuple(f"*.{table}=max-staleness={BOUND}s" for table in ("bounded", "beside"))
POLICIES = (*LIMITED, "*.*=exclusive")
# A read is sent, and its time noted, at two moments.
SLACK = 0.2


def bounded(place, key):
    """The register of a key as the instance at this place shows it."""
    return 4000 + place * KEYS + key


def tables(keyspace):
    """The statements that make the tables."""
    for table in ("bounded", "beside"):
        yield f"CREATE TABLE {keyspace}.{table} (k int PRIMARY KEY, v bigint)"


class Beside(threading.Thread):
    """Writes to `beside` at any of these nodes until it is stopped, and knows what must be seen."""

    def __init__(self, nodes, keyspace, seed):
        super().__init__(daemon=True)
        self.nodes, self.keyspace, self.random = nodes, keyspace, randomness.Random(seed)
        self.stopping = threading.Event()
        # Of each key, when which value was acknowledged.
        self.acknowledged = [[] for _ in range(KEYS)]

    def run(self):
        client = None
        value = 0
        while not self.stopping.wait(self.random.uniform(0, 0.2)):
            value, key = value + 1, self.random.randrange(KEYS)
            text = f"INSERT INTO {self.keyspace}.beside (k, v) VALUES ({key}, {value})"
            try:
                node = self.random.choice(self.nodes)
                client = client or RawClient(node.address, node.port, timeout=8)
                text = f"{text} USING TIMESTAMP {value}"
                if client.query(text, consistency=LOCAL_QUORUM).error is None:
                    self.acknowledged[key].append((time.monotonic(), value))
            except OSError:
                if client:
                    client.close()
                client = None
        if client:
            client.close()

    def least(self, key, began):
        """The least that a read may find that began then."""
        until = began - BOUND - SLACK
        known = reversed(self.acknowledged[key])
        return next((value for at, value in known if at < until), 0)


class Bounded:
    """Mixed into a client."""

    def step_of_bounded(self):
        key = int(self.random.random() ** 2 * KEYS)
        if self.only_reads or self.random.random() < 0.75:
            self.read_bounded(key, self.level())
        else:
            self.write_bounded(key)

    def step_of_beside(self):
        beside, key = self.shared.beside, int(self.random.random() ** 2 * KEYS)
        if beside is None:
            return
        began = time.monotonic()
        text = "SELECT v FROM KS.beside WHERE k = ?"
        rows = self.rows(text, [number(key)], self.level())
        found, least = rows[0][0] if rows else 0, beside.least(key, began)
        assert found >= least, f"beside {key}: {found} at {began}, {least} was before the bound"
        self.shared.reads += 1

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
