"""`afterglow invalidate`: what was written past Afterglow is read from the database again."""

import subprocess

import pytest
from conftest import await_caching

from afterglow_e2e.afterglow import Afterglow, binary
from afterglow_e2e.drivers import connect
from afterglow_e2e.memcache import MemcacheAfterglow
from afterglow_e2e.process import poll


def invalidate(instance, *arguments):
    return subprocess.run(
        [binary(), "invalidate", *arguments, "--data-dir", instance.data],
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.fixture(scope="module")
def own(cassandra):
    with Afterglow(cassandra.contact) as instance:
        await_caching(instance)
        yield instance


@pytest.fixture
def stale(own, direct, table):
    """Cached rows, all of which were then changed past Afterglow."""
    direct.execute(f"CREATE TABLE {table} (k int, c int, v text, PRIMARY KEY (k, c))")
    keys = [(k, c) for k in range(3) for c in range(2)]
    for k, c in keys:
        direct.execute(f"INSERT INTO {table} (k, c, v) VALUES ({k}, {c}, 'old')")
    assert set(seen(own, table, keys).values()) == {"old"}
    for k, c in keys:
        direct.execute(f"INSERT INTO {table} (k, c, v) VALUES ({k}, {c}, 'new')")
    assert set(seen(own, table, keys).values()) == {"old"}, "they are hits"
    return keys


def seen(instance, table, keys):
    """Each row as a client reads it, once all of them are hits. A table that was made past the
    instance is cached only when it has read the schema.
    """
    rows = {}
    with connect(instance) as session:
        select = session.prepare(f"SELECT v FROM {table} WHERE k = ? AND c = ?")

        def all_hits():
            before = instance.metrics().hits()
            rows.update({key: session.execute(select, key).one().v for key in keys})
            return instance.metrics().hits() - before == len(keys)

        poll("all rows to be hits", all_hits, 30, check=instance.child.check)
    return rows


@pytest.mark.parametrize(
    ("condition", "dropped"),
    [
        ("k = 1", lambda k, c: k == 1),
        ("k = 1 AND c = 0", lambda k, c: (k, c) == (1, 0)),
        ("k IN (0, 2)", lambda k, c: k != 1),
    ],
)
def test_partitions_and_rows(own, table, stale, condition, dropped):
    done = invalidate(own, table, "--where", condition)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"dropped rows of {table} where {condition}\n"
    rows = seen(own, table, stale)
    assert rows == {key: "new" if dropped(*key) else "old" for key in stale}


@pytest.mark.parametrize("what", ["table", "keyspace", "--all"])
def test_tables_keyspaces_and_all(own, table, stale, what):
    name = {"table": table, "keyspace": table.split(".")[0]}.get(what, what)
    done = invalidate(own, name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("dropped all rows"), done.stdout
    assert set(seen(own, table, stale).values()) == {"new"}
    assert "the operator has dropped" in own.log_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing.there"], 1, "there is no table nothing.there"),
        (["nothing"], 1, "there is no keyspace nothing"),
        (["TABLE", "--where", "c = 1"], 1, "every partition key column"),
        (["TABLE", "--where", "k = 'x'"], 1, "every partition key column"),
        (["TABLE", "--where", "k = 1; DROP TABLE x.y"], 1, "every partition key column"),
        (["shop", "--where", "k = 1"], 2, "name it as keyspace.table"),
        (["--all", "--where", "k = 1"], 2, "cannot be used with"),
        ([], 2, "required"),
        (["--all", "TABLE"], 2, "cannot be used with"),
    ],
)
def test_what_cannot_be_dropped_is_refused_and_nothing_is_lost(
    own, table, stale, arguments, code, message
):
    done = invalidate(own, *[table if word == "TABLE" else word for word in arguments])
    assert done.returncode == code, done.stderr
    assert message in done.stderr, done.stderr
    assert set(seen(own, table, stale).values()) == {"old"}


def test_without_a_cql_front_end_the_command_says_so(tmp_path):
    instance = MemcacheAfterglow(folder=tmp_path)
    instance.start()
    try:
        done = invalidate(instance, "--all")
        assert done.returncode == 1 and "flush_all" in done.stderr, done.stderr
    finally:
        instance.stop()
    done = invalidate(instance, "--all")
    assert done.returncode == 1 and "no server runs" in done.stderr, done.stderr
