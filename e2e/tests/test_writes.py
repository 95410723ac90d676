"""Every kind of write through Afterglow is seen by the next read, whatever was cached before."""

from dataclasses import dataclass

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import BatchStatement, BatchType, SimpleStatement

from afterglow_e2e.drivers import answer, connect


@dataclass
class Write:
    """CQL over table {t}, see `make`; `changes` is false if the row (1, 1) must read as before."""

    text: str
    changes: bool = True
    consistency: int = ConsistencyLevel.LOCAL_ONE


TEXTS = {
    "update": Write("UPDATE {t} SET v = 'new' WHERE k = 1 AND c = 1"),
    "insert": Write("INSERT INTO {t} (k, c, v) VALUES (1, 1, 'new')"),
    "insert json": Write("""INSERT INTO {t} JSON '{{"k": 1, "c": 1, "v": "new"}}'"""),
    "insert null": Write("INSERT INTO {t} (k, c, v) VALUES (1, 1, null)"),
    "update with ttl": Write("UPDATE {t} USING TTL 1000 SET v = 'new' WHERE k = 1 AND c = 1"),
    "update in the past": Write(
        "UPDATE {t} USING TIMESTAMP 1 SET v = 'old' WHERE k = 1 AND c = 1", changes=False
    ),
    "update many columns": Write("UPDATE {t} SET v = 'new', n = 2 WHERE k = 1 AND c = 1"),
    "update in": Write("UPDATE {t} SET v = 'new' WHERE k = 1 AND c IN (1, 2)"),
    "update partitions in": Write("UPDATE {t} SET v = 'new' WHERE k IN (1, 2) AND c = 1"),
    "update tuple in": Write("UPDATE {t} SET v = 'new' WHERE k = 1 AND (c) IN ((1), (3))"),
    "update map element": Write("UPDATE {t} SET m[7] = 'seven' WHERE k = 1 AND c = 1"),
    "update map plus": Write("UPDATE {t} SET m = m + {{8: 'eight'}} WHERE k = 1 AND c = 1"),
    "update static": Write("UPDATE {t} SET s = 'new' WHERE k = 1"),
    "delete row": Write("DELETE FROM {t} WHERE k = 1 AND c = 1"),
    "delete column": Write("DELETE v FROM {t} WHERE k = 1 AND c = 1"),
    "delete map element": Write("DELETE m[0] FROM {t} WHERE k = 1 AND c = 1"),
    "delete range": Write("DELETE FROM {t} WHERE k = 1 AND c >= 0 AND c < 2"),
    "delete open range": Write("DELETE FROM {t} WHERE k = 1 AND c > 0"),
    "delete partition": Write("DELETE FROM {t} WHERE k = 1"),
    "delete partitions in": Write("DELETE FROM {t} WHERE k IN (1, 5)"),
    "delete static": Write("DELETE s FROM {t} WHERE k = 1"),
    "lwt applied": Write("UPDATE {t} SET v = 'new' WHERE k = 1 AND c = 1 IF v = 'old'"),
    "lwt not applied": Write(
        "UPDATE {t} SET v = 'new' WHERE k = 1 AND c = 1 IF v = 'other'", changes=False
    ),
    "lwt if exists": Write("DELETE FROM {t} WHERE k = 1 AND c = 1 IF EXISTS"),
    "lwt insert not applied": Write(
        "INSERT INTO {t} (k, c, v) VALUES (1, 1, 'new') IF NOT EXISTS", changes=False
    ),
    "batch text": Write(
        "BEGIN BATCH UPDATE {t} SET v = 'new' WHERE k = 1 AND c = 1; "
        "INSERT INTO {t} (k, c, v) VALUES (2, 1, 'other') APPLY BATCH"
    ),
    "batch text unlogged": Write(
        "BEGIN UNLOGGED BATCH DELETE FROM {t} WHERE k = 1 AND c = 1; "
        "UPDATE {t} SET n = 3 WHERE k = 1 AND c = 2; APPLY BATCH;"
    ),
    "batch text lwt": Write(
        "BEGIN BATCH UPDATE {t} SET v = 'new' WHERE k = 1 AND c = 1 IF v = 'old'; "
        "UPDATE {t} SET n = 9 WHERE k = 1 AND c = 2; APPLY BATCH"
    ),
    "batch with timestamp": Write(
        "BEGIN BATCH USING TIMESTAMP 9000000000000000 UPDATE {t} SET v = 'new' WHERE k = 1 AND c = 1; APPLY BATCH"
    ),
    "truncate": Write("TRUNCATE {t}"),
    "truncate table": Write("TRUNCATE TABLE {t};"),
    "comment before": Write("/* UPDATE nothing */ UPDATE {t} SET v = 'new' WHERE k = 1 AND c = 1"),
    "line comment": Write(
        "-- SELECT * FROM x\nDELETE FROM {t} // all of it\nWHERE k = 1 AND c = 1"
    ),
    "odd case and space": Write("  uPdAtE\n{t}\tsEt v='new' wHeRe c=1 AnD k=1 ;"),
    "dollar string": Write("UPDATE {t} SET v = $$it's new$$ WHERE k = 1 AND c = 1"),
    "at quorum": Write(
        "UPDATE {t} SET v = 'new' WHERE k = 1 AND c = 1", consistency=ConsistencyLevel.QUORUM
    ),
    "alter drop": Write("ALTER TABLE {t} DROP v"),
    "alter add": Write("ALTER TABLE {t} ADD extra int"),
    "alter rename": Write("ALTER TABLE {t} RENAME c TO cc"),
}

READS = ("SELECT * FROM {t} WHERE k = 1 AND c = 1", "SELECT v FROM {t} WHERE k = 1 AND c = 1")


def make(direct, table, rich=False):
    """Three rows of a partition; a rich table has a static column and a map too."""
    more = "s text static, m map<int, text>," if rich else ""
    direct.execute(f"CREATE TABLE {table} (k int, c int, v text, n int, {more} PRIMARY KEY (k, c))")
    for c in (1, 2, 3):
        direct.execute(f"INSERT INTO {table} (k, c, v, n) VALUES (1, {c}, 'old', 1)")
        if rich:
            direct.execute(
                f"UPDATE {table} SET m = {{0: 'zero'}}, s = 'static' WHERE k = 1 AND c = {c}"
            )


def is_rich(name):
    """Only writes of a static column or a map need a table with one."""
    return "map" in name or "static" in name


def prime(cached, direct, table, reads=READS):
    """Read until the cache answers what it can, checking on the way."""
    for text in reads:
        for _ in range(3):
            assert answer(cached, text.format(t=table)) == answer(direct, text.format(t=table))


@pytest.mark.parametrize("name", TEXTS)
def test_text(cached, direct, table, expect, settle, name):
    write = TEXTS[name]
    make(direct, table, is_rich(name))
    settle(cached, READS[0].format(t=table))
    prime(cached, direct, table)
    with expect(hits=1):  # so that there is something to get stale
        cached.execute(READS[1].format(t=table))
    before = answer(direct, READS[0].format(t=table))
    cached.execute(SimpleStatement(write.text.format(t=table), consistency_level=write.consistency))
    for text in READS:
        for _ in range(3):
            assert answer(cached, text.format(t=table)) == answer(direct, text.format(t=table))
    assert (answer(direct, READS[0].format(t=table)) != before) == write.changes


PREPARED = {
    "update": ("UPDATE {t} SET v = ? WHERE k = ? AND c = ?", ("new", 1, 1)),
    "update named": ("UPDATE {t} SET v = :v WHERE c = :c AND k = :k", ("new", 1, 1)),
    "insert": ("INSERT INTO {t} (c, v, k) VALUES (?, ?, ?)", (1, "new", 1)),
    "insert half bound": ("INSERT INTO {t} (k, c, v) VALUES (1, ?, 'new')", (1,)),
    "insert json": ("INSERT INTO {t} JSON ?", ('{"k": 1, "c": 1, "v": "new"}',)),
    "delete row": ("DELETE FROM {t} WHERE k = ? AND c = ?", (1, 1)),
    "delete partition": ("DELETE FROM {t} WHERE k = ?", (1,)),
    "delete range": ("DELETE FROM {t} WHERE k = ? AND c < ?", (1, 2)),
    "update in": ("UPDATE {t} SET v = ? WHERE k = ? AND c IN ?", ("new", 1, [1, 2])),
    "update in partitions": ("UPDATE {t} SET v = ? WHERE k IN ? AND c = ?", ("new", [2, 1], 1)),
    "static": ("UPDATE {t} SET s = ? WHERE k = ?", ("new", 1)),
    "lwt": ("UPDATE {t} SET v = ? WHERE k = ? AND c = ? IF v = ?", ("new", 1, 1, "old")),
    "ttl": ("UPDATE {t} USING TTL ? SET v = ? WHERE k = ? AND c = ?", (900, "new", 1, 1)),
    "map element": ("UPDATE {t} SET m[?] = ? WHERE k = ? AND c = ?", (1, "x", 1, 1)),
    "batch": (
        "BEGIN BATCH UPDATE {t} SET v = ? WHERE k = ? AND c = ?; DELETE FROM {t} WHERE k = ? AND c = ?; APPLY BATCH",
        ("new", 1, 1, 1, 2),
    ),
}


@pytest.mark.parametrize("name", PREPARED)
def test_prepared(cached, direct, table, expect, settle, name):
    text, values = PREPARED[name]
    make(direct, table, is_rich(name))
    settle(cached, READS[1].format(t=table))
    write = cached.prepare(text.format(t=table))
    prime(cached, direct, table)
    with expect(hits=1):  # so that there is something to get stale
        cached.execute(READS[1].format(t=table))
    before = answer(direct, READS[0].format(t=table))
    cached.execute(write, values)
    for text in READS:
        for _ in range(3):
            assert answer(cached, text.format(t=table)) == answer(direct, text.format(t=table))
    assert answer(direct, READS[0].format(t=table)) != before


@pytest.mark.parametrize("kind", [BatchType.LOGGED, BatchType.UNLOGGED], ids=["logged", "unlogged"])
def test_driver_batch(cached, direct, table, kind):
    make(direct, table)
    update = cached.prepare(f"UPDATE {table} SET v = ? WHERE k = ? AND c = ?")
    batch = BatchStatement(batch_type=kind)
    batch.add(update, ("new", 1, 1))
    batch.add(SimpleStatement(f"DELETE FROM {table} WHERE k = 1 AND c = 2"))
    batch.add(
        SimpleStatement(f"INSERT INTO {table} (k, c, v) VALUES (%s, %s, %s)"), (1, 3, "newer")
    )
    reads = [f"SELECT c, v, n FROM {table} WHERE k = 1 AND c = {c}" for c in (1, 2, 3)]
    prime(cached, direct, table, reads)
    cached.execute(batch)
    assert [list(cached.execute(text)) for text in reads] == [
        [(1, "new", 1)],
        [],
        [(3, "newer", 1)],
    ]
    prime(cached, direct, table, reads)


def test_counters(cached, direct, table):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, n counter)")
    add = cached.prepare(f"UPDATE {table} SET n = n + ? WHERE k = ?")
    for total in range(1, 6):
        cached.execute(add, (1, 1))
        assert cached.execute(f"SELECT n FROM {table} WHERE k = 1").one() == (total,)
    batch = BatchStatement(batch_type=BatchType.COUNTER)
    batch.add(add, (10, 1))
    cached.execute(batch)
    assert cached.execute(f"SELECT n FROM {table} WHERE k = 1").one() == (15,)


def test_a_write_leaves_other_rows_cached(cached, direct, table, expect, settle):
    make(direct, table)
    others = [f"SELECT v FROM {table} WHERE k = 1 AND c = {c}" for c in (2, 3)]
    settle(cached, others[0])
    prime(cached, direct, table, others)
    cached.execute(f"UPDATE {table} SET v = 'new' WHERE k = 1 AND c = 1")
    with expect(hits=2):
        for text in others:
            assert cached.execute(text).one() == ("old",)


def test_a_dropped_and_made_again_table_is_empty(cached, direct, table):
    for round_ in range(3):
        cached.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text)")
        select = cached.prepare(f"SELECT v FROM {table} WHERE k = ?")
        assert cached.execute(select, (1,)).one() is None
        cached.execute(f"INSERT INTO {table} (k, v) VALUES (1, 'round {round_}')")
        for _ in range(3):
            assert cached.execute(select, (1,)).one() == (f"round {round_}",)
        cached.execute(f"DROP TABLE {table}")


def test_a_dropped_and_made_again_keyspace_is_empty(cached, keyspace):
    name = f"{keyspace}_again_v{cached.cluster.protocol_version}"
    for round_ in range(2):
        cached.execute(
            f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        cached.execute(f"CREATE TABLE {name}.t (k int PRIMARY KEY, v int)")
        assert cached.execute(f"SELECT v FROM {name}.t WHERE k = 1").one() is None
        cached.execute(f"INSERT INTO {name}.t (k, v) VALUES (1, {round_})")
        for _ in range(3):
            assert cached.execute(f"SELECT v FROM {name}.t WHERE k = 1").one() == (round_,)
        cached.execute(f"DROP KEYSPACE {name}")


def test_a_prepared_select_star_follows_alter_table(cached, direct, table):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, a int, b int)")
    direct.execute(f"INSERT INTO {table} (k, a, b) VALUES (1, 2, 3)")
    select = cached.prepare(f"SELECT a FROM {table} WHERE k = ?")
    for _ in range(3):
        assert cached.execute(select, (1,)).one() == (2,)
    cached.execute(f"ALTER TABLE {table} DROP b")
    cached.execute(f"ALTER TABLE {table} ADD c text")
    cached.execute(f"UPDATE {table} SET c = 'new', a = 5 WHERE k = 1")
    for _ in range(3):
        assert cached.execute(select, (1,)).one() == (5,)
        assert cached.execute(f"SELECT * FROM {table} WHERE k = 1").one()._asdict() == {
            "k": 1,
            "a": 5,
            "c": "new",
        }


def test_two_sessions_see_each_others_writes_at_once(cached, afterglow, direct, table):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int)")
    with connect(afterglow, version=4) as other:
        write = other.prepare(f"INSERT INTO {table} (k, v) VALUES (?, ?)")
        read = cached.prepare(f"SELECT v FROM {table} WHERE k = ?")
        for number in range(200):
            other.execute(write, (number % 5, number))
            assert cached.execute(read, (number % 5,)).one() == (number,)
            assert cached.execute(read, (number % 5,)).one() == (number,)


def test_refused_writes_change_nothing_and_say_why(cached, direct, table):
    make(direct, table)
    prime(cached, direct, table)
    for text in (
        f"UPDATE {table} SET v = 5 WHERE k = 1 AND c = 1",
        f"UPDATE {table} SET v = 'x' WHERE k = 1",
        f"UPDATE {table} SET nothing = 'x' WHERE k = 1 AND c = 1",
        f"INSERT INTO {table} (k, v) VALUES (1, 'x')",
        f"DELETE FROM {table}",
        f"DELETE FROM {table} WHERE c = 1",
        "TRUNCATE nowhere.nothing",
    ):
        assert answer(cached, text) == answer(direct, text), text
    prime(cached, direct, table)
