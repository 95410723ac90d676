"""Rows of every kind: cached with all they have, or passed through; never with less, and never
beyond their end.
"""

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from afterglow_e2e.drivers import answer


def same(cached, direct, text):
    assert answer(cached, text) == answer(direct, text), text


@pytest.fixture
def rich(cached, direct, keyspace, table, settle):
    """A table with collections and user types, frozen and not, nested, and a vector."""
    direct.execute(
        f"CREATE TYPE IF NOT EXISTS {keyspace}.person (name text, born date, tags frozen<set<text>>)"
    )
    direct.execute(
        f"CREATE TABLE {table} (k int PRIMARY KEY, l list<int>, s set<text>, m map<int, text>, u person, "
        "f frozen<person>, n map<text, frozen<list<int>>>, t tuple<int, frozen<person>>, v vector<float, 2>, p int)"
    )
    settle(cached, f"SELECT * FROM {table} WHERE k = 0")
    cached.execute(
        f"INSERT INTO {table} (k, l, s, m, u, f, n, t, v, p) VALUES (1, [1, 2], {{'x', 'y'}}, {{1: 'a', 2: 'b'}}, "
        "{name: 'Ada', born: '1815-12-10', tags: {'one'}}, {name: 'Bob'}, {'list': [3, 4]}, "
        "(7, {name: 'Eve', tags: {}}), [0.5, 1.5], 9)"
    )
    return table


ROW = "SELECT * FROM {t} WHERE k = 1"
CHANGES = (
    "UPDATE {t} SET l = l + [3] WHERE k = 1",
    "UPDATE {t} SET l = [0] + l WHERE k = 1",
    "UPDATE {t} SET l[0] = 8 WHERE k = 1",
    "UPDATE {t} SET l = l - [8] WHERE k = 1",
    "DELETE l[0] FROM {t} WHERE k = 1",
    "UPDATE {t} SET s = s + {{'z'}} WHERE k = 1",
    "UPDATE {t} SET s = s - {{'x'}} WHERE k = 1",
    "UPDATE {t} SET m[3] = 'c' WHERE k = 1",
    "DELETE m[1] FROM {t} WHERE k = 1",
    "UPDATE {t} SET u.name = 'Grace' WHERE k = 1",
    "DELETE u.born FROM {t} WHERE k = 1",
    "UPDATE {t} SET u = {{name: 'Linus'}} WHERE k = 1",
    "UPDATE {t} SET f = {{name: 'Ken'}} WHERE k = 1",
    "UPDATE {t} SET n['list'] = [5] WHERE k = 1",
    "UPDATE {t} SET v = [2.5, 3.5] WHERE k = 1",
    "UPDATE {t} SET m = {{}} WHERE k = 1",
    "UPDATE {t} SET s = {{'only'}} WHERE k = 1 IF s = {{'y', 'z'}}",
    "DELETE s, l, u FROM {t} WHERE k = 1",
)


def test_collections_and_user_types_are_cached_whole_and_every_change_shows(
    cached, direct, rich, expect
):
    text = ROW.format(t=rich)
    same(cached, direct, text)
    with expect(hits=3):
        same(cached, direct, text)
        same(cached, direct, f"SELECT m, u, l AS list FROM {rich} WHERE k = 1")
        prepared = f"SELECT * FROM {rich} WHERE k = ?"
        assert answer(cached, cached.prepare(prepared), (1,)) == answer(
            direct, direct.prepare(prepared), (1,)
        )
    for change in CHANGES:
        cached.execute(change.format(t=rich))
        with expect(hits=1):
            for _ in range(2):
                same(cached, direct, text)


def test_an_altered_type_shows_in_cached_rows(cached, direct, keyspace, rich):
    text = ROW.format(t=rich)
    same(cached, direct, text)
    field = rich.split(".")[1]
    cached.execute(f"ALTER TYPE {keyspace}.person ADD f_{field} text")
    for _ in range(2):
        same(cached, direct, text)
    cached.execute(f"UPDATE {rich} SET u.f_{field} = 'new' WHERE k = 1")
    for _ in range(2):
        same(cached, direct, text)


def test_an_element_ends_before_its_collection(cached, direct, rich):
    cached.execute(f"UPDATE {rich} USING TTL 2 SET m[9] = 'goes', u.name = 'goes' WHERE k = 1")
    text = f"SELECT m, u FROM {rich} WHERE k = 1"
    shown = True
    while shown:
        # The database is asked first: what it has ceased to show, Afterglow must not show.
        gone = 9 not in direct.execute(text).one()[0]
        shown = 9 in cached.execute(text).one()[0]
        assert not (shown and gone), "served after the database had ceased to"
    same(cached, direct, text)


STATIC_CHANGES = (
    "UPDATE {t} SET s = 'other' WHERE k = 1",
    "INSERT INTO {t} (k, s) VALUES (1, 'inserted')",
    "INSERT INTO {t} (k, c, s, v) VALUES (1, 1, 'both', 'v')",
    "UPDATE {t} SET v = 'w' WHERE k = 1 AND c = 2",
    "UPDATE {t} SET s = 'if' WHERE k = 1 IF s = 'both'",
    "UPDATE {t} SET v = 'if' WHERE k = 1 AND c = 1 IF s = 'if'",
    "BEGIN BATCH UPDATE {t} SET s = 'batch' WHERE k = 1; DELETE v FROM {t} WHERE k = 1 AND c = 2; APPLY BATCH",
    "DELETE s FROM {t} WHERE k = 1",
    "DELETE FROM {t} WHERE k = 1 AND c = 1",
    "UPDATE {t} SET s = 'alone' WHERE k = 1",
    "DELETE FROM {t} WHERE k = 1",
)


def test_static_columns_change_in_every_row(cached, direct, table, expect, settle):
    direct.execute(
        f"CREATE TABLE {table} (k int, c int, s text static, z int static, v text, PRIMARY KEY (k, c))"
    )
    reads = [
        f"SELECT {what} FROM {table} WHERE k = 1 AND c = {c}"
        for c in (1, 2, 3)
        for what in ("*", "s, v")
    ]
    settle(cached, reads[0])
    for c in (1, 2):
        cached.execute(f"INSERT INTO {table} (k, c, s, v) VALUES (1, {c}, 'shared', 'v{c}')")
    for text in reads:
        same(cached, direct, text)
    with expect(hits=len(reads)):
        for text in reads:
            same(cached, direct, text)
    for change in STATIC_CHANGES:
        assert answer(cached, change.format(t=table))
        for _ in range(2):
            for text in reads:
                same(cached, direct, text)


def test_a_static_value_ends_in_every_row(cached, direct, table):
    direct.execute(
        f"CREATE TABLE {table} (k int, c int, s text static, v text, PRIMARY KEY (k, c))"
    )
    cached.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, 1, 'stays')")
    cached.execute(f"UPDATE {table} USING TTL 2 SET s = 'goes' WHERE k = 1")
    text = f"SELECT s, v FROM {table} WHERE k = 1 AND c = 1"
    shown = True
    while shown:
        gone = direct.execute(text).one() == (None, "stays")
        shown = cached.execute(text).one() == ("goes", "stays")
        assert not (shown and gone), "served after the database had ceased to"
    assert cached.execute(text).one() == (None, "stays")


def test_indexed_tables_are_cached_and_views_and_counters_are_not(
    cached, direct, table, expect, settle
):
    # Through Afterglow, which answers after the last event of the change. The event of an index
    # that comes later would drop the row between a write and its read.
    cached.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text)")
    cached.execute(f"CREATE INDEX ON {table} (v)")
    cached.execute(f"CREATE TABLE {table}_counter (k int PRIMARY KEY, n counter)")
    settle(cached, f"SELECT * FROM {table}_counter WHERE k = 1")
    settle(cached, f"SELECT * FROM {table} WHERE k = 1")
    # The reads by key, not those by index: one after the fill, then two after each write, which the
    # row follows.
    with expect(hits=5):
        for value in ("a", "b", "c"):
            cached.execute(f"UPDATE {table} SET v = '{value}' WHERE k = 1")
            cached.execute(f"UPDATE {table}_counter SET n = n + 5 WHERE k = 1")
            for _ in range(2):
                same(cached, direct, f"SELECT * FROM {table} WHERE k = 1")
                same(cached, direct, f"SELECT * FROM {table} WHERE v = '{value}'")
                same(cached, direct, f"SELECT * FROM {table}_counter WHERE k = 1")


def test_the_clients_timestamps_decide_and_not_ours(cached, direct, table, settle):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text)")
    text = f"SELECT v FROM {table} WHERE k = 1"
    settle(cached, text)
    for write in (
        "INSERT INTO {t} (k, v) VALUES (1, 'later') USING TIMESTAMP 2000",
        "INSERT INTO {t} (k, v) VALUES (1, 'earlier') USING TIMESTAMP 1000",
        "DELETE FROM {t} USING TIMESTAMP 1500 WHERE k = 1",
        "INSERT INTO {t} (k, v) VALUES (1, 'lesser') USING TIMESTAMP 2000",
        "DELETE FROM {t} USING TIMESTAMP 5000 WHERE k = 1",
        "INSERT INTO {t} (k, v) VALUES (1, 'hidden') USING TIMESTAMP 4000",
    ):
        cached.execute(write.format(t=table))
        for _ in range(2):
            same(cached, direct, text)


@pytest.mark.parametrize(
    "level", ["ONE", "LOCAL_ONE", "LOCAL_QUORUM", "QUORUM", "TWO", "ALL", "SERIAL"]
)
def test_levels_are_answered_from_the_cache_where_that_is_as_much(
    cached, direct, table, expect, settle, level
):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text)")
    direct.execute(f"INSERT INTO {table} (k, v) VALUES (1, 'x')")
    text = f"SELECT v FROM {table} WHERE k = 1"
    settle(cached, text)
    statement = SimpleStatement(text, consistency_level=getattr(ConsistencyLevel, level))
    cached.execute(text)
    with expect(hits=2 if level in ("ONE", "LOCAL_ONE", "LOCAL_QUORUM", "QUORUM") else 0):
        for _ in range(2):
            same(cached, direct, statement)
