"""A database that hangs, dies, comes back, or wants a password."""

import contextlib
import time

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import NoHostAvailable
from conftest import await_caching

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.cassandra import KEEPS_WHAT_IT_ACKNOWLEDGED, SHORT_LIVED, Cassandra
from afterglow_e2e.drivers import answer, connect
from afterglow_e2e.process import poll

REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"


@pytest.fixture
def fragile():
    """A Cassandra to be killed; no table is `exclusive`, so that no lease ends while it is away."""
    with (
        Cassandra(heap="512M", settings=KEEPS_WHAT_IT_ACKNOWLEDGED, options=SHORT_LIVED) as node,
        Afterglow(node.contact, policies=("*.*=max-staleness=10m",)) as instance,
    ):
        await_caching(instance)
        yield node, instance


def test_hits_are_served_while_the_database_is_away_and_all_is_well_when_it_is_back(fragile):
    node, instance = fragile
    with connect(instance, timeout=30) as session:
        session.execute(f"CREATE KEYSPACE ks WITH replication = {REPLICATION}")
        session.execute("CREATE TABLE ks.t (k int PRIMARY KEY, v text)")
        select, insert = (
            session.prepare("SELECT v FROM ks.t WHERE k = ?"),
            session.prepare("INSERT INTO ks.t (k, v) VALUES (?, ?)"),
        )
        for k in range(20):
            session.execute(insert, (k, "old"))
        for k in range(10):
            session.execute(select, (k,))
        hits = instance.metrics().hits()
        node.kill()
        for k in range(10):
            assert session.execute(select, (k,)).one() == ("old",)
        assert instance.metrics().hits() - hits == 10
        for statement, values in ((select, (15,)), (insert, (3, "lost"))):
            asked = time.monotonic()
            kind, text = answer(session, statement, values)
            assert (
                kind != "OperationTimedOut" and kind != "NoHostAvailable" or "errors={}" not in text
            ), (kind, text)
            assert time.monotonic() - asked < 25
        assert instance.running() and instance.ready() in (True, False)
        node.start()
        poll(
            "a read that needs the database to work again",
            lambda: answer(session, select, (15,))[-1] == [("old",)],
            60,
        )
        session.execute(insert, (3, "new"))
        for _ in range(3):
            assert session.execute(select, (3,)).one() == ("new",)


def test_a_write_whose_outcome_is_not_known_leaves_nothing_old_behind(fragile):
    node, instance = fragile
    with connect(instance, timeout=5) as session, connect(node) as direct:
        session.execute(f"CREATE KEYSPACE ks WITH replication = {REPLICATION}")
        session.execute("CREATE TABLE ks.t (k int PRIMARY KEY, v text)")
        session.execute("INSERT INTO ks.t (k, v) VALUES (1, 'old')")
        for _ in range(2):
            assert session.execute("SELECT v FROM ks.t WHERE k = 1").one() == ("old",)
        update = session.prepare("UPDATE ks.t SET v = 'maybe' WHERE k = 1")
        node.pause()
        pending = session.execute_async(update)
        poll(
            "the write to arrive",
            lambda: instance.metrics().total("afterglow_writes_total") >= 1,
            10,
        )
        instance.kill()  # in the middle of it
        node.resume()
        with contextlib.suppress(Exception):  # whether it is reported lost depends on the moment
            pending.result()
        instance.start()
        query = "SELECT v FROM ks.t WHERE k = 1"
        poll("the driver to connect again", lambda: answer(session, query)[0] == ["v"], 20)
        # It may still be on its way in the database, so only that Afterglow is not behind can be
        # asked for.
        for _ in range(20):
            known = answer(direct, query)[-1]
            assert answer(session, query)[-1] in (known, answer(direct, query)[-1])


@pytest.fixture(scope="module")
def guarded_node():
    """A Cassandra that wants passwords, and its first role."""
    with Cassandra(heap="512M", auth=True, options=SHORT_LIVED) as node:
        root = PlainTextAuthProvider("cassandra", "cassandra")

        def superuser_exists():
            try:
                with connect(node, auth=root) as session:
                    return session.execute("SELECT role FROM system_auth.roles").one()
            except NoHostAvailable:
                return None

        poll("Cassandra to make its first role", superuser_exists, 60)
        yield node, root


@pytest.fixture(scope="module")
def guarded(guarded_node):
    """It, with an Afterglow in front that has no role of its own."""
    node, root = guarded_node
    with Afterglow(node.contact) as instance:
        yield node, instance, root


@pytest.fixture(scope="module")
def trusted(guarded_node, tmp_path_factory):
    """It, with an Afterglow in front that has."""
    node, root = guarded_node
    with connect(node, auth=root) as session:
        session.execute("CREATE ROLE afterglow WITH PASSWORD = 'of-its-own' AND LOGIN = true")
        session.execute("GRANT CREATE ON ALL KEYSPACES TO afterglow")
        session.execute(f"CREATE KEYSPACE IF NOT EXISTS ks WITH replication = {REPLICATION}")
        session.execute("CREATE TABLE ks.ours (k int PRIMARY KEY, v text)")
        for role in ("alice", "carol"):
            session.execute(f"CREATE ROLE {role} WITH PASSWORD = '{role}' AND LOGIN = true")
        session.execute("GRANT SELECT ON ks.ours TO alice")
        session.execute("GRANT MODIFY ON ks.ours TO alice")
    credentials = tmp_path_factory.mktemp("credentials") / "afterglow"
    credentials.touch(mode=0o600)
    credentials.write_text('username = "afterglow"\npassword = "of-its-own"\n')
    with Afterglow(node.contact, extra=("--backend-credentials", credentials)) as instance:
        poll(
            "the lease",
            lambda: instance.metrics().total("afterglow_lease_state", state="held") == 1,
            30,
        )
        yield node, instance, root


def test_a_role_that_may_not_keep_the_lease_is_told_what_it_lacks(trusted, tmp_path):
    node, holder, root = trusted
    credentials = tmp_path / "bare"
    credentials.touch(mode=0o600)
    credentials.write_text('username = "bare"\npassword = "bare"\n')
    with connect(node, auth=root) as session:
        session.execute("CREATE ROLE bare WITH PASSWORD = 'bare' AND LOGIN = true")
        with Afterglow(node.contact, extra=("--backend-credentials", credentials)) as instance:

            def told(*parts):
                lines = instance.log_text().splitlines()
                return any(all(part in line for part in parts) for line in lines)

            poll(
                "the log to name the right and who grants it",
                lambda: told(
                    "the lease cannot be had",
                    "the database says: User bare has no SELECT permission on <table afterglow.lease>",
                    "Let the user of --backend-credentials SELECT and MODIFY the keyspace `afterglow`",
                ),
                60,
            )
            session.execute("GRANT SELECT ON KEYSPACE afterglow TO bare")
            poll("the holder to be seen", lambda: told("another instance holds the lease"), 60)
            assert instance.metrics().total("afterglow_lease_state", state="held_by_other") == 1
            assert holder.metrics().total("afterglow_lease_state", state="held") == 1


def login(role):
    return PlainTextAuthProvider(role, role)


def test_a_role_that_may_read_is_answered_from_the_cache_and_no_other(trusted):
    node, instance, _ = trusted
    query = "SELECT v FROM ks.ours WHERE k = 1"
    for version in (3, 4, 5):
        with (
            connect(instance, auth=login("alice"), version=version) as alice,
            connect(instance, auth=login("carol"), version=version) as carol,
            connect(node, auth=login("carol"), version=version) as direct,
        ):
            insert, select = (
                alice.prepare("INSERT INTO ks.ours (k, v) VALUES (?, ?)"),
                alice.prepare(query),
            )
            alice.execute(insert, (1, f"v{version}"))

            def hit(session, statement, right=f"v{version}"):
                before = instance.metrics().hits()
                kind, *rest = answer(session, statement)
                assert kind == "Unauthorized" or rest[-1] == [(right,)], (kind, rest)
                return instance.metrics().hits() > before

            for statement in (query, select):
                poll("a hit", lambda s=statement: hit(alice, s), 60)
            for _ in range(3):
                assert not hit(carol, query)
                assert answer(carol, query) == answer(direct, query)


def test_what_is_revoked_is_refused_within_the_ages_of_both_caches(trusted):
    node, instance, root = trusted
    query = "SELECT v FROM ks.ours WHERE k = 1"
    with connect(instance, auth=login("alice")) as alice, connect(node, auth=root) as direct:
        alice.execute("INSERT INTO ks.ours (k, v) VALUES (1, 'one')")
        direct.execute("REVOKE SELECT ON ks.ours FROM alice")
        revoked = time.monotonic()

        def refused():
            asked = time.monotonic()
            if answer(alice, query)[0] == "Unauthorized":
                return True
            # Two seconds of ours on top of Cassandra's two; how long the answer took is no matter.
            assert asked - revoked < 10
            return False

        poll("the refusal", refused, 60)
        direct.execute("GRANT SELECT ON ks.ours TO alice")
        poll("the grant", lambda: answer(alice, query)[-1] == [("one",)], 30)


def test_what_is_refused_or_changes_no_row_leaves_the_rows_cached(trusted):
    node, instance, root = trusted
    query = "SELECT v FROM ks.ours WHERE k = 5"
    with (
        connect(instance, auth=login("alice")) as alice,
        connect(instance, auth=login("carol")) as carol,
        connect(instance, auth=root) as admin,
        connect(node, auth=root) as direct,
    ):
        alice.execute("INSERT INTO ks.ours (k, v) VALUES (5, 'five')")

        def is_hit():
            before = instance.metrics().hits()
            assert answer(alice, query)[-1] == [("five",)]
            return instance.metrics().hits() > before

        poll("a hit", is_hit, 60)
        fills = instance.metrics().total("afterglow_fills_total")

        def assert_kept(after):
            # Now and then a read asks whether alice may still read the table.
            poll(f"a hit after {after}", is_hit, 60)
            assert instance.metrics().total("afterglow_fills_total") == fills, after

        for refused in (
            "TRUNCATE ks.ours",
            "DROP TABLE ks.ours",
            "ALTER TABLE ks.ours ADD w int",
            "ALTER TABLE ks.ours WITH default_time_to_live = 60",
            "DROP KEYSPACE ks",
            "DELETE FROM ks.ours WHERE v = 'five'",
            "UPDATE ks.ours SET v = 'six' WHERE v = 'five'",
        ):
            assert answer(carol, refused)[0] in ("Unauthorized", "InvalidRequest"), refused
            assert_kept(refused)
        for nothing in (
            "DROP TABLE IF EXISTS ks.nothing",
            "DROP INDEX IF EXISTS ks.nothing",
            "DROP TYPE IF EXISTS ks.nothing",
            "ALTER TABLE ks.ours ADD IF NOT EXISTS v text",
        ):
            admin.execute(nothing)
            assert_kept(nothing)
        # What is known of a new table was read after the event of what came before.
        for n, change in enumerate(
            (
                "ALTER TABLE ks.ours WITH comment = 'ours'",
                "CREATE INDEX ours_v ON ks.ours (v)",
                "DROP INDEX ks.ours_v",
            )
        ):
            direct.execute(change)
            direct.execute(f"CREATE TABLE ks.told{n} (k int PRIMARY KEY)")
            told = f"SELECT * FROM ks.told{n}"

            def is_known(told=told):
                unknown = instance.metrics().total(
                    "afterglow_passes_total", reason="schema_unknown"
                )
                admin.execute(told)
                passes = instance.metrics().total("afterglow_passes_total", reason="schema_unknown")
                return passes == unknown

            poll("the table to be known", is_known, 30)
            assert_kept(change)
        admin.execute("TRUNCATE ks.ours")
        assert answer(alice, query)[-1] == []


def test_many_clients_of_a_role_have_few_connections_to_the_database(trusted):
    node, instance, root = trusted
    with contextlib.ExitStack() as stack:
        sessions = [
            stack.enter_context(connect(instance, auth=login("alice"), version=3 + n % 3))
            for n in range(12)
        ]
        for session in sessions:
            assert session.execute("SELECT v FROM ks.ours WHERE k = 77").one() is None
        direct = stack.enter_context(connect(node, auth=root))
        users = [
            row.username for row in direct.execute("SELECT username FROM system_views.clients")
        ]
        assert 1 <= users.count("alice") <= 8, users
        assert users.count("afterglow") <= 2, users


def test_a_wrong_password_is_refused_in_the_databases_words_also_before_a_cache(trusted):
    node, instance, _ = trusted
    words = []
    for server in (node, instance):
        with (
            pytest.raises(NoHostAvailable) as refusal,
            connect(server, auth=PlainTextAuthProvider("alice", "no")),
        ):
            pass
        words.append([str(error).split("code=", 1)[-1] for error in refusal.value.errors.values()])
    assert words[0] == words[1]


def test_with_passwords_everything_passes_through_and_nothing_is_cached(guarded):
    node, instance, root = guarded
    for version in (3, 4, 5):
        with connect(instance, auth=root, version=version) as session:
            session.execute(f"CREATE KEYSPACE IF NOT EXISTS ks WITH replication = {REPLICATION}")
            session.execute("CREATE TABLE IF NOT EXISTS ks.t (k int PRIMARY KEY, v text)")
            insert = session.prepare("INSERT INTO ks.t (k, v) VALUES (?, ?)")
            select = session.prepare("SELECT v FROM ks.t WHERE k = ?")
            session.execute(insert, (1, f"v{version}"))
            for _ in range(5):
                assert session.execute(select, (1,)).one() == (f"v{version}",)
    assert instance.metrics().hits() == 0
    assert "authentication" in instance.log_text()


def test_a_role_sees_only_what_the_database_lets_it_see(guarded):
    node, instance, root = guarded
    with connect(instance, auth=root) as session:
        session.execute(f"CREATE KEYSPACE IF NOT EXISTS ks WITH replication = {REPLICATION}")
        session.execute("CREATE TABLE IF NOT EXISTS ks.secret (k int PRIMARY KEY, v text)")
        session.execute("INSERT INTO ks.secret (k, v) VALUES (1, 'secret')")
        session.execute("CREATE ROLE IF NOT EXISTS bob WITH PASSWORD = 'bob' AND LOGIN = true")
        for _ in range(3):
            assert session.execute("SELECT v FROM ks.secret WHERE k = 1").one() == ("secret",)
    bob = PlainTextAuthProvider("bob", "bob")
    with connect(instance, auth=bob) as through, connect(node, auth=bob) as direct:
        for text in ("SELECT v FROM ks.secret WHERE k = 1", "TRUNCATE ks.secret", "LIST ROLES"):
            assert answer(through, text) == answer(direct, text)
            assert answer(through, text)[0] in (
                "Unauthorized",
                ["role", "super", "login", "options", "datacenters"],
            )


def test_a_wrong_password_is_refused_in_the_databases_words(guarded):
    node, instance, _ = guarded
    words = []
    for server in (node, instance):
        with (
            pytest.raises(NoHostAvailable) as refusal,
            connect(server, auth=PlainTextAuthProvider("cassandra", "no")),
        ):
            pass
        words.append([str(error).split("code=", 1)[-1] for error in refusal.value.errors.values()])
    assert words[0] == words[1]
