"""What keeps the lease of `exclusive` tables away: the log names the cause and the remedy, reads
pass through meanwhile, and the remedy works.
"""

import contextlib

import pytest
from cassandra.cluster import NoHostAvailable
from conftest import await_caching

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.drivers import connect
from afterglow_e2e.fakedatabase import KEYSPACE, FakeDatabase
from afterglow_e2e.process import poll
from afterglow_e2e.rawcql import RawClient

TROUBLE = "the lease cannot be had, so `exclusive` tables pass through: "


def lease(instance):
    """Which state of the lease it shows."""
    states = instance.metrics().by("afterglow_lease_state", "state")
    (state,) = (state for state, shown in states.items() if shown)
    return state


def trouble(instance, *parts):
    """Waits for the line of the log that tells the trouble. It has all of these parts, once."""

    def told():
        lines = instance.log_text().splitlines()
        return [line for line in lines if TROUBLE in line and all(part in line for part in parts)]

    poll(f"the log to say {parts}", told, 60, check=instance.child.check)
    assert len(told()) == 1, told()


def no_keyspace(session):
    with contextlib.suppress(NoHostAvailable):
        session.execute("DROP KEYSPACE IF EXISTS afterglow")


@pytest.fixture
def fresh(cassandra, direct):
    """A database in which no instance has been. So is what it is left as."""
    no_keyspace(direct)
    yield cassandra
    no_keyspace(direct)


def test_too_few_replicas_for_transactions(fresh, direct, table):
    replicas = "{{'class': 'NetworkTopologyStrategy', 'datacenter1': {}}}"
    direct.execute(f"CREATE KEYSPACE afterglow WITH replication = {replicas.format(3)}")
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int)")
    direct.execute(f"INSERT INTO {table} (k, v) VALUES (1, 1)")
    with Afterglow(fresh.contact) as instance:
        trouble(
            instance,
            "the database says: Cannot achieve consistency level",
            "give the keyspace no more replicas than there are nodes (ALTER KEYSPACE)",
        )
        assert lease(instance) == "waiting"
        with connect(instance) as session:
            for _ in range(3):
                assert session.execute(f"SELECT v FROM {table} WHERE k = 1").one() == (1,)
            assert instance.metrics().hits() == 0
            direct.execute(f"ALTER KEYSPACE afterglow WITH replication = {replicas.format(1)}")
            await_caching(instance)
        assert lease(instance) == "held"


def test_a_keyspace_that_was_dropped(fresh, direct):
    with Afterglow(fresh.contact) as first, Afterglow(fresh.contact) as second:
        held = lambda: sorted(map(lease, (first, second))) == ["held", "held_by_other"]  # noqa: E731
        poll("one of them to have the lease", held, 60)
        waits = second if lease(first) == "held" else first
        direct.execute("DROP KEYSPACE afterglow")
        trouble(
            waits,
            "the database says: ",
            "If it was dropped, stop all instances and start them again",
        )
        assert lease(waits) != "held"
    with Afterglow(fresh.contact) as instance:
        await_caching(instance)
        assert lease(instance) == "held"


def test_a_database_that_refuses_transactions(tmp_path):
    with (
        FakeDatabase(tmp_path, "--refuse-transactions") as database,
        Afterglow(database.address) as instance,
    ):
        trouble(
            instance,
            "the database says: This database takes no lightweight transactions",
            "The keyspace `afterglow` must take lightweight transactions",
        )
        assert lease(instance) == "waiting"
        with RawClient(instance.address, instance.port) as client:
            for text in (
                f"CREATE KEYSPACE ks WITH replication = {KEYSPACE}",
                "CREATE TABLE ks.t (k text PRIMARY KEY, v text)",
                "INSERT INTO ks.t (k, v) VALUES ('a', 'b')",
                *["SELECT v FROM ks.t WHERE k = 'a'"] * 3,
            ):
                assert not client.query(text).error
        assert instance.metrics().hits() == 0
