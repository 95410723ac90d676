"""Fixtures: one stock Cassandra for the run, one Afterglow for each module, and drivers in front of
both.
"""

import contextlib
import itertools
import os
from contextlib import contextmanager

import pytest
from cassandra import InvalidRequest

from afterglow_e2e.afterglow import Afterglow, describe
from afterglow_e2e.cassandra import MANY_TABLES, SHORT_LIVED, Cassandra
from afterglow_e2e.drivers import await_caching, connect
from afterglow_e2e.memcache import MemcacheAfterglow, Memcached, peer
from afterglow_e2e.process import poll

NAMES = itertools.count()

# They take a minute and more. First, so that no lane is left with one of them at the end.
LONGEST = (
    "test_history.py",
    "test_ring_history.py",
    "test_memcache_rejoin.py",
    "test_killtest.py",
    "test_rowcache.py",
    "test_rowcache_versions.py",
    "test_ring.py",
    "test_ring_of_four.py",
    "test_ring_cut.py",
    "test_data_centres.py",
    "test_cluster.py",
    "test_backend.py",
    "test_doubts.py",
    "test_chunkcache.py",
)


def pytest_collection_modifyitems(items):
    """The files that take longest come first."""

    def place(item):
        name = item.path.name
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    """Says at once why a test failed: a run that is cut short never comes to the summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(
            f"\n--- {report.nodeid} ({report.when}) failed\n{report.longreprtext}\n---", flush=True
        )


@pytest.fixture(scope="session")
def cassandra():
    with Cassandra(options=SHORT_LIVED, **MANY_TABLES) as node:
        yield node


@pytest.fixture(scope="module")
def afterglow(cassandra, direct):
    """Shared by a module's tests. It ends with them: only one instance at a time may cache
    `exclusive` tables. It is not the successor of one that another module has killed.
    """
    with contextlib.suppress(InvalidRequest):  # there was none
        forget_holder(direct)
    with Afterglow(cassandra.contact) as instance:
        await_caching(instance)
        yield instance


@pytest.fixture(scope="module")
def direct(cassandra):
    with connect(cassandra) as session:
        yield session


@pytest.fixture
def no_ring(direct):
    """The database as it is before the first ring, and as other tests need it again."""
    yield
    # All instances have ended: nobody holds what these rows say.
    direct.execute("TRUNCATE afterglow.ring")
    forget_holder(direct)


def forget_holder(session):
    """The next instance is the first one ever. After one that was killed it would take all writes
    before for weak ones.
    """
    session.execute("DELETE FROM afterglow.lease WHERE scope = 'cql' IF EXISTS")


@pytest.fixture(scope="module", params=[3, 4, 5], ids=["v3", "v4", "v5"])
def cached(request, afterglow):
    """A driver session through Afterglow, once for each protocol version."""
    with connect(afterglow, version=request.param) as session:
        yield session


@pytest.fixture(scope="module")
def keyspace(cassandra, direct):
    name = f"e2e_{next(NAMES)}"
    direct.execute(
        f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    yield name
    # Over a connection of its own: after a test that restarts the node `direct` may not have found
    # back to it yet.
    with connect(cassandra) as session:
        session.execute(f"DROP KEYSPACE IF EXISTS {name}", timeout=120)


@pytest.fixture
def table(keyspace):
    """A table name that no other test uses."""
    return f"{keyspace}.t{next(NAMES)}"


@pytest.fixture
def expect(afterglow):
    """`with expect(hits=2): ...` fails unless exactly so many reads in the block were answered from
    the cache.
    """

    @contextmanager
    def block(hits):
        before = afterglow.metrics()
        yield
        after = afterglow.metrics()
        got = after.hits() - before.hits()
        assert got == hits, f"{got:g} hits, not {hits}: {describe(after, before)}"

    return block


@pytest.fixture
def settle(afterglow):
    """`settle(session, select)` after a CREATE TABLE past Afterglow: until it knows the table, its
    reads pass through. It may know it before it hears of the change, which drops its rows. A change
    that it makes itself is answered when it has heard of all before, and is heard of itself.
    """

    def wait(session, statement, values=None):
        def passes():
            return afterglow.metrics().total("afterglow_passes_total", reason="schema_unknown")

        def known():
            before = passes()
            for _ in range(3):
                session.execute(statement, values)
            return passes() == before

        session.execute(f"CREATE TABLE probe.settled_{next(NAMES)} (k int PRIMARY KEY)")
        poll("Afterglow to know the table", known, 20)

    return wait


@pytest.fixture(scope="module")
def front_end():
    """The memcached front end alone, shared by a module's tests."""
    with MemcacheAfterglow(flash="1GiB") as instance:
        yield instance


@pytest.fixture
def raw(front_end):
    """A connection to it."""
    connection = front_end.connect()
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def memcached():
    """A real memcached."""
    if peer("memcached") is None:
        pytest.skip("needs memcached")
    with Memcached(["-o", "no_lru_maintainer,no_lru_crawler"]) as server:
        yield server
