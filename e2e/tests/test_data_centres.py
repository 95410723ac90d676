"""Two data centres of one Cassandra: reads at QUORUM through one instance. Then a ring in each: who
caches what, what goes on while the nodes of one are gone, and how the home of `exclusive` tables
moves.
"""

import contextlib
import random
import re
import threading
import time

import pytest
from cassandra import ConsistencyLevel
from cassandra.protocol import ConfigurationException
from cassandra.query import SimpleStatement

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.cassandra import (
    BOOT_SECONDS,
    KEEPS_WHAT_IT_ACKNOWLEDGED,
    SHORT_LIVED,
    Cassandra,
)
from afterglow_e2e.drivers import connect
from afterglow_e2e.process import poll
from afterglow_e2e.ring import SHARDS, Ring

# Two nodes start one after the other within the first test.
pytestmark = pytest.mark.timeout(3 * BOOT_SECONDS)
LOCAL, EACH = ConsistencyLevel.LOCAL_QUORUM, ConsistencyLevel.EACH_QUORUM
ONE, QUORUM = ConsistencyLevel.ONE, ConsistencyLevel.QUORUM
CENTRES = ("east", "west")
BOUND = 3
BOUNDED, EXCLUSIVE = f"*.*=max-staleness={BOUND}s", "*.*=exclusive"
ROWS = 24
REPLICATION = "{'class': 'NetworkTopologyStrategy', 'east': 1, 'west': 1}"
RELEASE = "UPDATE afterglow.lease SET owner = null WHERE scope = 'cql' IF EXISTS"


@pytest.fixture(scope="module")
def nodes():
    with contextlib.ExitStack() as stack:
        nodes = {}
        for number, name in enumerate(CENTRES):
            node = Cassandra(
                heap="384M",
                address=f"127.0.0.{31 + number}",
                seed=nodes.get("east"),
                settings=KEEPS_WHAT_IT_ACKNOWLEDGED,
                options=SHORT_LIVED,
                data_center=name,
            )
            nodes[name] = stack.enter_context(node)
        for node in nodes.values():
            node.await_neighbours(1)
        yield nodes


@pytest.fixture(scope="module")
def direct(nodes):
    with connect(nodes["east"]) as session:
        poll("the nodes to know their data centres", lambda: create(session), BOOT_SECONDS)
        for table in ("rows", "bounded"):
            session.execute(f"CREATE TABLE shop.{table} (k int PRIMARY KEY, v int)")
        yield session


def create(session):
    """Creates the keyspace; false while a node takes a data centre for none."""
    try:
        session.execute(f"CREATE KEYSPACE shop WITH replication = {REPLICATION}")
    except ConfigurationException:
        return False
    return True


@pytest.fixture(scope="module")
def rings(nodes, direct):
    """The home first, whose keyspace has replicas in its own data centre alone."""
    policies = {
        "east": (f"shop.bounded=max-staleness={BOUND}s", EXCLUSIVE),
        "west": (BOUNDED,),
    }
    with contextlib.ExitStack() as stack:
        rings = {}
        for name in CENTRES:
            ring = Ring(nodes[name].contact, 2, policies=policies[name])
            rings[name] = stack.enter_context(ring)
            if name == "west":
                mend_keyspace(ring, nodes[name], direct)
            ring.settle()
        yield rings


def mend_keyspace(ring, node, direct):
    """Does what the members say."""
    said = re.compile(r"run (ALTER KEYSPACE .*\}), then `nodetool (.*?)`")
    log = ring.members[0].log_text
    found = poll("it to say what the keyspace lacks", lambda: said.search(log()), 60)
    assert found[1] == f"ALTER KEYSPACE afterglow WITH replication = {REPLICATION}"
    assert ring.status(ring.members[0])["members"] == [], "it has no map yet"
    direct.execute(found[1])
    node.nodetool(*found[2].split())


def addresses(members):
    return {(member.address, member.port) for member in members}


def hits(ring):
    return sum(member.metrics().hits() for member in ring.members)


class Session:
    """A driver of a ring, with its statements."""

    def __init__(self, ring, stack):
        self.session = stack.enter_context(connect(ring.members[0], consistency=LOCAL))
        self.put = {
            level: self._prepared("INSERT INTO shop.rows (k, v) VALUES (?, ?)", level)
            for level in (LOCAL, EACH)
        }
        self.get = self.session.prepare("SELECT v FROM shop.rows WHERE k = ?")

    def _prepared(self, text, level):
        statement = self.session.prepare(text)
        statement.consistency_level = level
        return statement

    def write(self, row, value, level=LOCAL):
        self.session.execute(self.put[level], (row, value))

    def read(self, row):
        found = self.session.execute(self.get, (row,)).one()
        return found.v if found else 0


class Work:
    """One thread writes rows, whose values grow, through one ring. Others read them through each.
    A read may be older than what was acknowledged before it by so many seconds as `ages` says.
    """

    def __init__(self, rings, ages):
        self.rings, self.ages = rings, ages
        self.acknowledged = [[(0.0, 0)] for _ in range(ROWS)]
        self.home, self.over = "east", threading.Event()
        self.stale, self.errors = [], []
        self.reads, self.writes = dict.fromkeys(rings, 0), dict.fromkeys(rings, 0)
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        sessions = {name: Session(ring, self.stack) for name, ring in self.rings.items()}
        work = [self._thread(self._write, sessions)]
        work += [self._thread(self._read, name, sessions[name]) for name in self.rings]
        for thread in work:
            self.stack.callback(thread.join)
            thread.start()
        self.stack.callback(self.over.set)
        return self

    def __exit__(self, *failure):
        self.stack.close()

    def _thread(self, work, *arguments):
        def run():
            while not self.over.is_set():
                try:
                    work(*arguments)
                except Exception as error:  # told at the end
                    self.errors.append(f"{work.__name__}: {error!r}")

        return threading.Thread(target=run, daemon=True)

    def _write(self, sessions):
        name, row = self.home, random.randrange(ROWS)
        value = 1 + sum(self.writes.values())
        self.writes[name] += 1
        sessions[name].write(row, value, EACH)
        self.acknowledged[row].append((time.monotonic(), value))
        time.sleep(0.01)

    def _read(self, name, session):
        row, least_at = random.randrange(ROWS), time.monotonic() - self.ages[name]
        least = next(v for at, v in reversed(self.acknowledged[row]) if at <= least_at)
        found = session.read(row)
        self.reads[name] += 1
        if found < least:
            self.stale.append((name, row, found, least))

    def more(self, count=300):
        """Waits until so many more reads have come through each ring."""
        before = dict(self.reads)
        enough = lambda: all(self.reads[n] >= before[n] + count for n in before)  # noqa: E731
        poll("more reads", enough, 60)

    def check(self):
        assert self.errors == [] and self.stale == [], (self.errors[:5], self.stale[:5])


def await_known(cluster, every):
    """Waits until the driver knows these nodes, and no others. Who connects before all members have
    rows is not shown all of them.
    """

    def known():
        cluster.refresh_nodes()
        hosts = cluster.metadata.all_hosts()
        return {(host.endpoint.address, host.endpoint.port) for host in hosts} == every

    poll("the driver to know the members alone", known, 60)


def test_quorum_is_answered_beside_one_replica_elsewhere_until_a_write_that_fills_may_miss(
    nodes, direct
):
    """Before the first ring: beside one an instance of its own caches nothing."""
    read = "SELECT v FROM shop.rows WHERE k = 1000"

    def write(session, value, level):
        text = f"INSERT INTO shop.rows (k, v) VALUES (1000, {value})"
        session.execute(SimpleStatement(text, consistency_level=level))

    with (
        Afterglow(nodes["east"].contact) as instance,
        connect(instance, consistency=QUORUM) as session,
    ):

        def is_hit(value):
            before = instance.metrics().hits()
            assert session.execute(read).one().v == value
            return instance.metrics().hits() > before

        # On a busy machine a node may take the other for dead again for a moment.
        poll("a write at QUORUM", lambda: written(write, session, 1, QUORUM), 120)
        poll("a read at QUORUM to be a hit", lambda: is_hit(1), 60)
        for value in range(2, 10):
            write(session, value, random.choice((LOCAL, QUORUM, EACH)))
            is_hit(value)
            assert is_hit(value)
        # The other replica may have it first. A read at QUORUM asks both.
        write(session, 10, ONE)
        assert not any(is_hit(10) for _ in range(3))
        assert session.execute(SimpleStatement(read, consistency_level=LOCAL)).one().v in (9, 10)
        assert not any(is_hit(10) for _ in range(3))
    # The first ring is the first holder ever. All replicas of the lease are in the east so far.
    forget = "DELETE FROM afterglow.lease WHERE scope = 'cql' IF EXISTS"
    direct.execute(SimpleStatement(forget, consistency_level=ONE))


def written(write, *what):
    with contextlib.suppress(Exception):
        write(*what)
        return True


def test_each_ring_has_its_own_map_and_its_drivers_see_its_members_alone(rings, direct):
    maps = {row.data_center for row in direct.execute("SELECT data_center FROM afterglow.ring")}
    assert maps == set(CENTRES)
    for name, ring in rings.items():
        for member in ring.members:
            known = {each["address"] for each in ring.status(member)["members"]}
            own = {part for each in ring.members for part in each.extra}
            assert len(known) == 2 and known <= own
            with connect(member) as session:
                await_known(session.cluster, addresses(ring.members))
                hosts = session.cluster.metadata.all_hosts()
                assert {host.datacenter for host in hosts} == {name}


def test_the_home_is_never_stale_and_the_other_no_older_than_its_bound(rings):
    before = {name: hits(ring) for name, ring in rings.items()}
    with Work(rings, {"east": 0, "west": BOUND}) as work:
        work.more()
        # Rows have grown older than the bound.
        time.sleep(BOUND)
        work.more()
    work.check()
    for name, ring in rings.items():
        assert hits(ring) > before[name], f"{name} caches"


def test_a_second_home_caches_nothing_takes_no_write_and_says_who_has_it(rings, nodes, direct):
    mistaken = Ring(nodes["west"].contact, 1, extra=("--ring-name", "mistaken"))
    with contextlib.ExitStack() as stack:
        (member,) = stack.enter_context(mistaken).members
        told = "the ring `afterglow` of data centre east holds the lease"
        poll("it to say who holds the lease", lambda: told in member.log_text(), 60)
        assert "give all tables `max-staleness`" in member.log_text()
        home, other = Session(rings["east"], stack), Session(mistaken, stack)
        for row in range(ROWS):
            home.write(row, 1_000_000 + row, EACH)
            assert {other.read(row) for _ in range(3)} == {1_000_000 + row}
            with pytest.raises(Exception, match="another ring"):
                other.write(row, 0)
        assert hits(mistaken) == 0
        # Nobody else is refused, what is bounded least of all.
        for ring in rings.values():
            session = stack.enter_context(connect(ring.members[0], consistency=LOCAL))
            for row in range(ROWS):
                session.execute(f"INSERT INTO shop.bounded (k, v) VALUES ({row}, 1)")
                read = f"SELECT v FROM shop.bounded WHERE k = {row}"
                assert [session.execute(read).one().v for _ in range(2)] == [1, 1]


def test_a_ring_goes_on_while_the_other_data_centre_is_gone(rings, nodes):
    east, west = rings["east"], rings["west"]
    ours = {each["id"] for each in east.status(east.members[0])["members"]}
    nodes["west"].kill()
    try:
        first, second = east.members
        first.kill()
        poll("the other to own all rows", lambda: east.shards(second) == SHARDS, 60)
        first.start()
        # It is a member again, and has the lease, of which half of the replicas cannot be asked.
        poll("both to be members and to cache", lambda: is_whole(east), 90)
        with contextlib.ExitStack() as stack:
            session = Session(east, stack)
            before = hits(east)
            for row in range(ROWS):
                session.write(row, 2_000_000 + row)
                assert {session.read(row) for _ in range(4)} == {2_000_000 + row}
            assert hits(east) > before
        known = {each["id"] for each in east.status(second)["members"]}
        assert known == ours, "those whose nodes are gone do not come here"
    finally:
        nodes["west"].start()
    with contextlib.ExitStack() as stack:
        session = Session(west, stack)

        def goes_on():
            with contextlib.suppress(Exception):
                session.write(0, 2_100_000)
                return session.read(0) == 2_100_000

        poll("the other ring to go on", goes_on, 120)
        assert len(west.status(west.members[0])["members"]) == 2


def is_whole(ring):
    """Whether both are members, and may cache."""
    statuses = [ring.ask(member, "status") for member in ring.members]
    lease = [each.metrics().total("afterglow_lease_state", state="held") for each in ring.members]
    return lease == [1, 1] and all(
        status and status["lease_ms"] and len(status["members"]) == 2 for status in statuses
    )


def test_the_home_moves_and_no_read_is_stale_on_the_way(rings, direct, nodes):
    east, west = rings["east"], rings["west"]
    with contextlib.ExitStack() as stack:
        session = Session(east, stack)
        # On a busy machine a node may take the other for dead again for a moment.
        poll("both nodes to have all rows", lambda: are_written(session), 120)
        ages = {"east": 0, "west": BOUND}
        time.sleep(BOUND)
        work = stack.enter_context(Work(rings, ages))
        work.more()
        # 1. No table is `exclusive` any more.
        ages["east"] = BOUND
        east.set_policies(BOUNDED)
        east.settle()
        # 2. Writes go over.
        work.home = "west"
        work.more()
        # 3. The lease is given back.
        released = stack.enter_context(connect(nodes["west"], consistency=EACH))
        assert released.execute(RELEASE).one().applied
        # 4. The other ring takes it.
        west.set_policies(EXCLUSIVE)
        west.settle()
        before, ages["west"] = hits(west), 0
        work.more()
    work.check()
    assert hits(west) > before
    assert work.writes["east"] > 0 < work.writes["west"]


def are_written(session):
    with contextlib.suppress(Exception):
        for row in range(ROWS):
            session.write(row, 0, EACH)
        return True
