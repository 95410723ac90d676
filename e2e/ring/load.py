"""Clients of a ring that write and read rows, and judge every read.

Each row has one writer, whose values count up. A read must not be older than what was acknowledged
before it was sent.
"""

import contextlib
import random
import threading
import time
from dataclasses import dataclass, field

from cassandra import ConsistencyLevel, DriverException
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import (
    ConstantReconnectionPolicy,
    HostFilterPolicy,
    RetryPolicy,
    RoundRobinPolicy,
    TokenAwarePolicy,
)

from afterglow_e2e.process import Failure, poll

TIMEOUT = 15
WRITES = 10  # one request of so many


class NextHost(RetryPolicy):
    """What is idempotent is tried at another instance."""

    def _next(self, retry_num):
        return (self.RETRY_NEXT_HOST, None) if retry_num < 5 else (self.RETHROW, None)

    def on_read_timeout(self, *args, retry_num=0, **kwargs):
        return self._next(args[-1] if args and retry_num == 0 else retry_num)

    def on_write_timeout(self, *args, retry_num=0, **kwargs):
        return self._next(args[-1] if args and retry_num == 0 else retry_num)

    def on_unavailable(self, *args, retry_num=0, **kwargs):
        return self._next(args[-1] if args and retry_num == 0 else retry_num)

    def on_request_error(self, query, consistency, error, retry_num):
        return self._next(retry_num)


@dataclass
class Seen:
    """What one client saw."""

    reads: int = 0
    writes: int = 0
    stale: list = field(default_factory=list)
    failed_reads: list = field(default_factory=list)
    failed_writes: list = field(default_factory=list)
    longest_read: float = 0.0
    longest_write: float = 0.0
    # The same of each window: see `Load.begin`.
    windows: dict = field(default_factory=dict)

    def took(self, name, window, seconds):
        """A request that began in this window has ended, well or not."""
        setattr(self, name, max(getattr(self, name), seconds))
        self.windows[window, name] = max(self.windows.get((window, name), 0.0), seconds)


class Rows:
    """The rows and what was acknowledged last of each."""

    def __init__(self, count):
        self.acknowledged = [0] * count

    def __len__(self):
        return len(self.acknowledged)


def open_cluster(members, timeout=TIMEOUT, is_pinned=False):
    """The Python driver. If it is pinned it asks nobody but these members."""
    policy = TokenAwarePolicy(RoundRobinPolicy())
    if is_pinned:
        only = {(member.address, member.port) for member in members}
        among = lambda host: (host.endpoint.address, host.endpoint.port) in only  # noqa: E731
        policy = HostFilterPolicy(policy, among)
    profile = ExecutionProfile(
        load_balancing_policy=policy,
        retry_policy=NextHost(),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        request_timeout=timeout,
    )
    return Cluster(
        [(member.address, member.port) for member in members],
        protocol_version=5,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(0.2, max_attempts=None),
        connect_timeout=timeout,
        control_connection_timeout=timeout,
    )


class TokenAware:
    """A driver that does what it is told, with the commands of `e2e/cql-clients`."""

    def __init__(self, server, keyspace):
        self.cluster = open_cluster([server])
        self.session = self.cluster.connect(keyspace)
        self.insert = self.session.prepare("INSERT INTO rows (k, c, v) VALUES (?, ?, ?)")
        self.select = self.session.prepare("SELECT * FROM rows WHERE k = ? AND c = ?")

    def __call__(self, command, *values):
        statement = {"write": self.insert, "read": self.select}[command]
        return self.session.execute(statement, values).one()

    def close(self):
        self.cluster.shutdown()


class PythonDriver:
    """The Python driver at all members, with the statements of the load."""

    name = "Python"

    def __init__(self, members, table, timeout=TIMEOUT, is_pinned=False):
        self.members, self.table = members, table
        self.cluster = open_cluster(members, timeout, is_pinned)

    def known(self):
        """Addresses of the instances that the driver would send a request to."""
        hosts = self.cluster.metadata.all_hosts()
        return {(host.endpoint.address, host.endpoint.port) for host in hosts if host.is_up}

    def open(self, stop):
        """Connects. A driver that has connected before all members had shards knows some of them
        alone. It asks again only seconds after their event, and a member that it knows has
        connections later.
        """
        self.session = self.cluster.connect()
        all_members = {(member.address, member.port) for member in self.members}

        def knows_all():
            # Without a connection to ask there is none to read on either.
            with contextlib.suppress(DriverException):
                self.cluster.refresh_nodes()
            return all_members <= self.known() or stop.is_set()

        poll("the driver to be connected to all members", knows_all, 60, every=0.2)
        self.put = self.session.prepare(f"INSERT INTO {self.table} (k, c, v) VALUES (?, 0, ?)")
        self.get = self.session.prepare(f"SELECT v FROM {self.table} WHERE k = ? AND c = 0")
        self.put.is_idempotent = self.get.is_idempotent = True

    def ask(self, statement, values):
        return self.session.execute(statement, values)

    def write(self, row, value):
        self.ask(self.put, (row, str(value)))

    def read(self, row):
        """The value of a row; None without one."""
        found = self.ask(self.get, (row,)).one()
        return found and found.v

    def close(self):
        self.cluster.shutdown()


class Client(threading.Thread):
    """One client: it writes the rows whose number leaves its own as the rest, and reads all, with
    its driver.
    """

    def __init__(self, number, of, driver, load, writes):
        super().__init__(name=f"client-{number}", daemon=True)
        self.number, self.of, self.load, self.rows, self.stop = (
            number,
            of,
            load,
            load.rows,
            load.stop,
        )
        self.driver, self.writes, self.swept = driver, writes, threading.Event()
        self.seen, self.random, self.crashed = Seen(), random.Random(number), None

    def known(self):
        """Addresses of the instances that the driver would send a request to."""
        return self.driver.known()

    def run(self):
        try:
            self.driver.open(self.stop)
            # Each row once first.
            for row in range(self.number, len(self.rows), self.of):
                if self.stop.is_set():
                    break
                self.read(row)
            self.swept.set()
            while not self.stop.is_set():
                if self.random.randrange(self.writes) == 0:
                    self.write()
                else:
                    self.read()
        except Exception as error:  # told at the end: a client that ends early proves nothing
            self.crashed = error
        finally:
            self.driver.close()

    def write(self):
        mine = range(self.number, len(self.rows), self.of)
        row = self.random.choice(mine)
        value = self.next_value(row)
        window, began = self.load.window, time.monotonic()
        try:
            self.driver.write(row, value)
        except Exception as error:
            self.seen.failed_writes.append(f"{type(error).__name__}: {error}")
            return
        finally:
            self.seen.took("longest_write", window, time.monotonic() - began)
        self.rows.acknowledged[row] = value
        self.seen.writes += 1

    def next_value(self, row):
        """Higher than any that may have been written, also by a write that failed."""
        self.values = getattr(self, "values", {})
        self.values[row] = self.values.get(row, 0) + 1
        return self.values[row]

    def read(self, row=None):
        row = self.random.randrange(len(self.rows)) if row is None else row
        least = self.rows.acknowledged[row]
        window, began = self.load.window, time.monotonic()
        try:
            found = self.driver.read(row)
        except Exception as error:
            self.seen.failed_reads.append(f"{type(error).__name__}: {error}")
            return
        finally:
            self.seen.took("longest_read", window, time.monotonic() - began)
        value = int(found or 0)
        if value < least:
            self.seen.stale.append((row, value, least))
        self.seen.reads += 1


class Load:
    """Clients at work, from the beginning of the block to its end. One request of `writes` is a
    write. `members`: those that run, where not all do. `drivers`: one of each client's own, where
    not all have the Python driver.
    """

    def __init__(
        self,
        ring,
        table,
        clients=3,
        rows=2_000,
        timeout=TIMEOUT,
        writes=WRITES,
        members=None,
        drivers=None,
    ):
        self.ring, self.rows, self.stop = ring, Rows(rows), threading.Event()
        self.window = 0
        members = members or ring.members
        drivers = drivers or [PythonDriver(members, table, timeout) for _ in range(clients)]
        self.clients = [
            Client(number, len(drivers), driver, self, writes)
            for number, driver in enumerate(drivers)
        ]

    def __enter__(self):
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *failure):
        self.stop.set()
        for client in self.clients:
            client.join(timeout=4 * TIMEOUT)

    def read_all(self, seconds=300):
        """Waits until each client has read its rows once: each is connected to all members then."""
        swept = lambda: all(c.swept.is_set() or c.crashed for c in self.clients)  # noqa: E731
        poll("each row to be read", swept, seconds)
        if crashed := self.crashed():
            raise Failure(f"a client ended early: {crashed[0]!r}")

    def total(self, name):
        values = [getattr(client.seen, name) for client in self.clients]
        return sum(values, [] if isinstance(values[0], list) else 0)

    def begin(self):
        """Requests from now on are in another window; its number. None are left out: one that goes
        on into a later window is in that in which it began.
        """
        self.window += 1
        return self.window

    def longest(self, name, window=None):
        """Of the whole load, or of a window."""
        if window is None:
            return max(getattr(client.seen, name) for client in self.clients)
        return max(client.seen.windows.get((window, name), 0.0) for client in self.clients)

    def crashed(self):
        return [client.crashed for client in self.clients if client.crashed]

    def hung(self):
        """Clients whose last request has not ended, though the block has."""
        return [client.name for client in self.clients if self.stop.is_set() and client.is_alive()]

    def check(self, writes=False):
        """Fails if a client ended early, or a read was stale or failed; with `writes` if a write
        failed too.
        """
        failed_reads, failed_writes = self.total("failed_reads"), self.total("failed_writes")
        for error in [*failed_reads, *failed_writes][:5]:
            print(f"  {error}", flush=True)
        if crashed := self.crashed():
            raise Failure(f"a client ended early: {crashed[0]!r}")
        if hung := self.hung():
            raise Failure(f"requests without an end: of {hung}")
        if stale := self.total("stale"):
            raise Failure(f"stale reads: {stale[:5]}")
        if failed_reads:
            raise Failure("idempotent reads failed")
        if writes and failed_writes:
            raise Failure("idempotent writes failed")


def prepare_keyspace(session, keyspace):
    session.execute(
        f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = "
        "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    )


def prepare(session, keyspace):
    """The table of the load."""
    prepare_keyspace(session, keyspace)
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {keyspace}.rows (k int, c int, v text, PRIMARY KEY (k, c))"
    )
    return f"{keyspace}.rows"


# Makes a row whose key the database draws, in the table of `prepare_made`.
MAKES = "INSERT INTO shop.made (k, v) VALUES (uuid(), 'new')"


def prepare_made(session):
    """The table in which the database makes each row's key."""
    prepare_keyspace(session, "shop")
    session.execute("CREATE TABLE IF NOT EXISTS shop.made (k uuid PRIMARY KEY, v text)")
