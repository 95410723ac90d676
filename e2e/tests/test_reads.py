"""Point reads: the second one is a hit, and nobody can tell it from the database's own answer."""

import uuid
from decimal import Decimal
from ipaddress import ip_address

import pytest
from cassandra.query import SimpleStatement
from cassandra.util import Date, Duration, Time

from afterglow_e2e.drivers import answer

PLAIN_TYPES = {
    "ascii": "plain",
    "bigint": -(2**63),
    "blob": bytes(range(256)) * 4,
    "boolean": True,
    "date": Date("2026-02-28"),
    "decimal": Decimal("-12345678901234567890.123456789"),
    "double": 2.5e-300,
    "duration": Duration(14, 5, 7_000_000_123),
    "float": -0.5,
    "inet": str(ip_address("2001:db8::7")),
    "int": -1,
    "smallint": 32767,
    "text": "Grüße, 世界",
    "time": Time("23:59:59.999999999"),
    "timestamp": 1_700_000_000_123,
    "timeuuid": uuid.UUID("8c1d2b60-1dd2-11b2-8080-808080808080"),
    "tinyint": -128,
    "uuid": uuid.UUID("12345678-1234-5678-1234-567812345678"),
    "varchar": "",
    "varint": -(10**40),
    "frozen<list<int>>": [3, 1, 2],
    "frozen<map<text, int>>": {"a": 1, "b": 2},
    "frozen<set<uuid>>": {uuid.UUID(int=1), uuid.UUID(int=2)},
    "tuple<int, text, boolean>": (1, None, False),
    "vector<float, 3>": [0.5, -1.0, 2.0],
}


def name_of(kind):
    return "c_" + "".join(letter if letter.isalnum() else "_" for letter in kind)


@pytest.fixture(scope="module")
def wide(direct, keyspace):
    """A table with a column of every plain type, one row filled and one with nulls only."""
    table = f"{keyspace}.wide"
    columns = ", ".join(f"{name_of(kind)} {kind}" for kind in PLAIN_TYPES)
    direct.execute(f"CREATE TABLE {table} (k int, c text, {columns}, PRIMARY KEY (k, c))")
    names = ", ".join(map(name_of, PLAIN_TYPES))
    marks = ", ".join("?" for _ in PLAIN_TYPES)
    insert = direct.prepare(f"INSERT INTO {table} (k, c, {names}) VALUES (?, ?, {marks})")
    for version in (3, 4, 5):
        direct.execute(insert, (version, "full", *PLAIN_TYPES.values()))
        direct.execute(f"INSERT INTO {table} (k, c) VALUES ({version}, 'bare')")
    return table


def version_of(session):
    return session.cluster.protocol_version


def test_the_driver_agreed_on_the_version_asked_for(cached, request):
    assert version_of(cached) == int(request.node.callspec.id[1:])


def test_prepared_read_hits_the_second_time(cached, direct, table, expect, settle):
    direct.execute(f"CREATE TABLE {table} (k text PRIMARY KEY, v text)")
    direct.execute(f"INSERT INTO {table} (k, v) VALUES ('a', 'one')")
    select = cached.prepare(f"SELECT k, v FROM {table} WHERE k = ?")
    settle(cached, select, ("other",))
    with expect(hits=0):
        assert cached.execute(select, ("a",)).one() == ("a", "one")
    with expect(hits=3):
        for _ in range(3):
            assert cached.execute(select, ("a",)).one() == ("a", "one")


def test_unprepared_read_hits_the_second_time(cached, direct, table, expect, settle):
    direct.execute(f"CREATE TABLE {table} (k int, c int, v text, PRIMARY KEY (k, c))")
    direct.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, 2, 'one')")
    settle(cached, f"SELECT v FROM {table} WHERE k = 0 AND c = 0")
    with expect(hits=0):
        assert cached.execute(f"SELECT v FROM {table} WHERE k = 1 AND c = 2").one() == ("one",)
    with expect(hits=3):
        assert cached.execute(f"SELECT v FROM {table} WHERE k = 1 AND c = 2").one() == ("one",)
        assert cached.execute(f"select  v  from {table}  where c = 2 and k = 1").one() == ("one",)
        assert cached.execute(f"SELECT v FROM {table} WHERE k = %s AND c = %s", (1, 2)).one() == (
            "one",
        )


def test_what_a_prepared_read_cached_serves_an_unprepared_one_and_any_projection(
    cached, direct, table, expect, settle
):
    direct.execute(f'CREATE TABLE {table} (k int PRIMARY KEY, a int, b text, "Odd Name" blob)')
    direct.execute(f"INSERT INTO {table} (k, a, b, \"Odd Name\") VALUES (7, 1, 'b', 0x0102)")
    first = cached.prepare(f"SELECT b FROM {table} WHERE k = ?")
    settle(cached, first, (0,))
    assert cached.execute(first, (7,)).one() == ("b",)
    projections = ("*", "a", "b, a", "k", 'b AS "B", "Odd Name"', "a, a AS again", "k, a, b")
    for projection in projections:
        text = f"SELECT {projection} FROM {table} WHERE k = 7"
        with expect(hits=1):
            assert answer(cached, text) == answer(direct, text)
        prepared = f"SELECT {projection} FROM {table} WHERE k = ?"
        with expect(hits=1):
            assert answer(cached, cached.prepare(prepared), (7,)) == answer(
                direct, direct.prepare(prepared), (7,)
            )


@pytest.mark.parametrize("row", ["full", "bare"])
def test_every_plain_type_reads_the_same_missed_and_hit(cached, direct, wide, expect, settle, row):
    key = version_of(cached)
    settle(cached, f"SELECT * FROM {wide} WHERE k = 0 AND c = ''")
    text = f"SELECT * FROM {wide} WHERE k = {key} AND c = '{row}'"
    right = answer(direct, text)
    # A row without any value has nothing that would tell when it expires, so it is not kept.
    hits = 1 if row == "full" else 0
    with expect(hits=0):
        assert answer(cached, text) == right
    with expect(hits=hits):
        assert answer(cached, text) == right
    statement = f"SELECT * FROM {wide} WHERE k = ? AND c = ?"
    with expect(hits=hits):
        assert answer(cached, cached.prepare(statement), (key, row)) == right


# Where two different encodings can be the same key (1.0 and 1.00), a row is not found by the bytes
# of its key.
NOT_CACHED_AS_KEY = ("decimal", "frozen", "tuple", "vector")


@pytest.mark.parametrize("kind", [kind for kind in PLAIN_TYPES if kind != "duration"])
def test_every_plain_type_works_as_a_key(cached, direct, table, expect, settle, kind):
    direct.execute(f"CREATE TABLE {table} (k {kind}, c {kind}, v text, PRIMARY KEY (k, c))")
    value = PLAIN_TYPES[kind] or "x"  # an empty partition key is refused by Cassandra
    if kind == "blob":
        value = value[:300]
    insert = direct.prepare(f"INSERT INTO {table} (k, c, v) VALUES (?, ?, 'v')")
    direct.execute(insert, (value, value))
    select = cached.prepare(f"SELECT v FROM {table} WHERE k = ? AND c = ?")
    settle(cached, select, (value, value))
    with expect(hits=0 if kind.startswith(NOT_CACHED_AS_KEY) else 2):
        for _ in range(2):
            assert cached.execute(select, (value, value)).one() == ("v",)


def test_a_row_that_is_not_there_is_cached_too(cached, direct, table, expect, settle):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text)")
    select = cached.prepare(f"SELECT v FROM {table} WHERE k = ?")
    settle(cached, select, (1,))
    assert cached.execute(select, (1,)).one() is None
    with expect(hits=2):
        assert cached.execute(select, (1,)).one() is None
        assert cached.execute(select, (1,)).one() is None
    cached.execute(f"INSERT INTO {table} (k, v) VALUES (1, 'now')")
    assert cached.execute(select, (1,)).one() == ("now",)


def test_named_values_and_an_own_keyspace(cached, direct, keyspace, table, expect, settle):
    direct.execute(f"CREATE TABLE {table} (k int, c int, v text, PRIMARY KEY (k, c))")
    direct.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, 2, 'x')")
    session = cached.cluster.connect(keyspace)
    bare = table.split(".")[1]
    settle(session, f"SELECT v FROM {bare} WHERE k = 1 AND c = 2")
    with expect(hits=3):
        for _ in range(2):
            assert session.execute(f"SELECT v FROM {bare} WHERE k = 1 AND c = 2").one() == ("x",)
        named = session.prepare(f"SELECT v FROM {bare} WHERE c = :c AND k = :k")
        assert session.execute(named, {"k": 1, "c": 2}).one() == ("x",)
    session.shutdown()


NOT_CACHED = (
    "SELECT count(*) FROM {t} WHERE k = 1",
    "SELECT WRITETIME(v) FROM {t} WHERE k = 1 AND c = 1",
    "SELECT TTL(v), v FROM {t} WHERE k = 1 AND c = 1",
    "SELECT JSON * FROM {t} WHERE k = 1 AND c = 1",
    "SELECT v FROM {t} WHERE k = 1 AND c IN (1, 3)",
    "SELECT v FROM {t} WHERE k = 1 AND c > 1",
    "SELECT v FROM {t} WHERE k = 1 AND c >= 1 AND c <= 1",
    "SELECT c, v FROM {t} WHERE k = 1 ORDER BY c DESC",
    "SELECT c, v FROM {t} WHERE k = 1 LIMIT 2",
    "SELECT c, v FROM {t} WHERE k = 1 PER PARTITION LIMIT 1",
    "SELECT DISTINCT k FROM {t}",
    "SELECT v FROM {t} WHERE v = 'v2' ALLOW FILTERING",
    "SELECT v FROM {t} WHERE k = 1 AND c = 1 AND v = 'other' ALLOW FILTERING",
    "SELECT token(k), v FROM {t} WHERE k = 1 AND c = 1",
    "SELECT CAST(c AS text) FROM {t} WHERE k = 1 AND c = 1",
    "SELECT max(c) FROM {t} WHERE k = 1 GROUP BY k",
    "SELECT s FROM {t} WHERE k = 1",
    "SELECT k, c, v, s FROM {t} WHERE k = 1",
)


def test_everything_else_passes_through_and_answers_as_the_database(cached, direct, table):
    direct.execute(
        f"CREATE TABLE {table} (k int, c int, v text, s text static, PRIMARY KEY (k, c))"
    )
    direct.execute(f"INSERT INTO {table} (k, s) VALUES (1, 'static')")
    for c in range(1, 6):
        direct.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, {c}, 'v{c}')")
    cached.execute(
        f"SELECT * FROM {table} WHERE k = 1 AND c = 1"
    )  # now something is cached that must not be used
    for pattern in NOT_CACHED:
        text = pattern.format(t=table)
        for _ in range(2):
            assert answer(cached, text) == answer(direct, text), text


def test_paging(cached, direct, table):
    direct.execute(f"CREATE TABLE {table} (k int, c int, v text, PRIMARY KEY (k, c))")
    insert = direct.prepare(f"INSERT INTO {table} (k, c, v) VALUES (?, ?, ?)")
    for c in range(100):
        direct.execute(insert, (c % 3, c, "x" * c))
    for text in (f"SELECT * FROM {table}", f"SELECT c, v FROM {table} WHERE k = 1"):
        paged = SimpleStatement(text, fetch_size=7)
        assert answer(cached, paged) == answer(direct, text)
        first = cached.execute(paged)
        assert len(first.current_rows) == 7 and first.has_more_pages
    # A page size of one cannot hide a row, and the answer to a single row says that nothing
    # follows.
    single = SimpleStatement(f"SELECT v FROM {table} WHERE k = 1 AND c = 1", fetch_size=1)
    for _ in range(3):
        assert [tuple(row) for row in cached.execute(single)] == [("x",)]


def test_tracing_gives_a_real_session(cached, direct, table):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text)")
    direct.execute(f"INSERT INTO {table} (k, v) VALUES (1, 'x')")
    select = f"SELECT v FROM {table} WHERE k = 1"
    for _ in range(3):
        result = cached.execute(select, trace=True)
        assert result.one() == ("x",)
        assert result.get_query_trace(max_wait_sec=20).events
    # What people try first.
    result = cached.execute("SELECT key FROM system.local", trace=True)
    assert result.one() == ("local",) and result.get_query_trace(max_wait_sec=20).events
