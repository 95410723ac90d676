"""The row cache inside a stock Cassandra: rows are served from flash, and never an older one than
was written.
"""

import itertools
import re
import shutil

import pytest

from afterglow_e2e.cassandra import SHORT_LIVED
from afterglow_e2e.drivers import connect
from afterglow_e2e.plugin import RowCacheNode, generation, place
from afterglow_e2e.rowkill import campaign
from afterglow_e2e.rowrace import CACHED, REPLICATION, prepare, race

pytestmark = pytest.mark.timeout(240)
TABLES = itertools.count()
IN_2100 = "USING TIMESTAMP 4102444800000000"


@pytest.fixture(scope="module")
def node():
    with RowCacheNode(options=SHORT_LIVED) as node:
        with connect(node) as session:
            session.execute(f"CREATE KEYSPACE k WITH replication = {REPLICATION}")
        yield node


@pytest.fixture
def session(node):
    with connect(node, timeout=60) as session:
        yield session


@pytest.fixture
def table(session):
    name = f"k.t{next(TABLES)}"
    session.execute(f"CREATE TABLE {name} (p int, c int, v text, PRIMARY KEY (p, c)) WITH {CACHED}")
    return name


def fill(session, table, partitions=range(20), rows=5, value="first"):
    for p in partitions:
        for c in range(rows):
            session.execute(f"INSERT INTO {table} (p, c, v) VALUES ({p}, {c}, '{value} {p} {c}')")


def read(session, table, p):
    return [(row.c, row.v) for row in session.execute(f"SELECT c, v FROM {table} WHERE p = {p}")]


def hits(session):
    rows = session.execute("SELECT hit_count FROM system_views.caches WHERE name = 'rows'")
    return rows.one().hit_count


def hits_of(session, *reads):
    """How many of some reads were answered by the cache."""
    before = hits(session)
    for table, p in reads:
        read(session, table, p)
    return hits(session) - before


def status(node):
    """The attributes of our MBean, by name."""
    return node.verify()["the row cache works"]


def test_the_second_read_is_a_hit_and_a_write_is_seen_at_once(session, table):
    fill(session, table)
    everything = [(table, p) for p in range(20)]
    assert hits_of(session, *everything) == 0
    assert hits_of(session, *everything) == 20
    for p in range(20):
        session.execute(f"UPDATE {table} SET v = 'second' WHERE p = {p} AND c = 3")
        assert (3, "second") in read(session, table, p)
        session.execute(f"DELETE FROM {table} WHERE p = {p} AND c = 0")
        assert [c for c, _ in read(session, table, p)] == [1, 2, 3, 4]
    assert hits_of(session, *everything) == 20


def test_rows_of_many_blocks_are_cached(session, table):
    session.execute(f"INSERT INTO {table} (p, c, v) VALUES (1, 1, %s)", ("x" * 200_000,))
    read(session, table, 1)
    assert hits_of(session, (table, 1)) == 1
    # A quarter of a segment is the largest: this one is not cached, and not wrong.
    session.execute(f"INSERT INTO {table} (p, c, v) VALUES (1, 2, %s)", ("y" * 3_000_000,))
    assert [len(v) for _, v in read(session, table, 1)] == [200_000, 3_000_000]
    assert hits_of(session, (table, 1)) == 0


def test_no_race_of_a_read_and_a_write_leaves_a_stale_row(node, session):
    prepare(session)
    assert race(session, 640) == 0
    said = status(node)
    assert int(said["OvertakenFills"]) > 0, "no write ever came in between: the race was not run"
    assert said["State"] == "on"


def test_truncate_drop_and_alter_leave_nothing_behind(session, table):
    other = table + "b"
    session.execute(
        f"CREATE TABLE {other} (p int, c int, v text, PRIMARY KEY (p, c)) WITH {CACHED}"
    )
    for name in (table, other):
        fill(session, name, range(5))
        hits_of(session, *[(name, p) for p in range(5)])
    session.execute(f"TRUNCATE {table}")
    assert all(read(session, table, p) == [] for p in range(5))
    assert hits_of(session, *[(other, p) for p in range(5)]) == 5, "another table's rows stay"

    session.execute(f"ALTER TABLE {other} ADD extra int")
    session.execute(f"UPDATE {other} SET extra = 7 WHERE p = 1 AND c = 1")
    assert session.execute(f"SELECT extra FROM {other} WHERE p = 1 AND c = 1").one().extra == 7
    assert session.execute(f"SELECT extra FROM {other} WHERE p = 2 AND c = 1").one().extra is None
    session.execute(f"ALTER TABLE {other} DROP v")
    assert [row.extra for row in session.execute(f"SELECT * FROM {other} WHERE p = 1")] == [
        None,
        7,
        None,
        None,
        None,
    ]

    session.execute(f"DROP TABLE {other}")
    session.execute(
        f"CREATE TABLE {other} (p int, c int, v text, PRIMARY KEY (p, c)) WITH {CACHED}"
    )
    assert all(read(session, other, p) == [] for p in range(5))


def caching(session, table, rows):
    session.execute(
        f"ALTER TABLE {table} WITH caching = {{'keys': 'ALL', 'rows_per_partition': '{rows}'}}"
    )


def test_a_table_whose_caching_is_altered_serves_nothing_from_before(session, table):
    """While `caching` is NONE, Cassandra tells no row cache of writes."""
    fill(session, table, range(5), rows=20)
    hits_of(session, *[(table, p) for p in range(5)])
    caching(session, table, "NONE")
    session.execute(f"UPDATE {table} SET v = 'unseen' WHERE p = 1 AND c = 3")
    caching(session, table, "ALL")
    assert (3, "unseen") in read(session, table, 1)

    caching(session, table, "10")
    read(session, table, 1)
    caching(session, table, "ALL")
    assert len(read(session, table, 1)) == 20


def test_nodetool_empties_it_and_switches_it_off_and_on(node, session, table):
    fill(session, table, range(5))
    everything = [(table, p) for p in range(5)]
    hits_of(session, *everything)
    (info,) = re.findall(
        r"Row Cache *: entries (\d+), size (.+), capacity (.+), (\d+) hits", node.nodetool("info")
    )
    assert int(info[0]) >= 5
    assert info[2] == "256 MiB", "that of the flash"
    assert int(info[3]) == hits(session)
    node.nodetool("invalidaterowcache")
    assert hits_of(session, *everything) == 0
    assert hits_of(session, *everything) == 5
    node.nodetool("setcachecapacity", "32", "0", "25")
    assert hits_of(session, *everything) == 0
    fill(session, table, range(5), value="while it was off")
    node.nodetool("setcachecapacity", "32", "64", "25")
    assert all(
        value.startswith("while it was off")
        for p in range(5)
        for _, value in read(session, table, p)
    )
    assert hits_of(session, *everything) == 5


def test_sstables_that_come_by_another_way_than_a_flush_are_seen(node, session, table):
    """Files put under a running node, as a restored snapshot is: `nodetool refresh` tells no row
    cache of them.
    """
    keyspace, name = table.split(".")
    fill(session, table, range(5), value="old")
    node.nodetool("flush", keyspace, name)
    folder = node.files_of(keyspace, name)
    fill(session, table, range(5), value="new")
    node.nodetool("flush", keyspace, name)
    newest = generation(folder)
    aside = node.folder / "aside" / name
    aside.mkdir(parents=True)
    for file in folder.glob(f"*-{newest}-big-*"):
        shutil.copy(file, aside)
    session.execute(f"TRUNCATE {table}")
    fill(session, table, range(5), value="middle")
    session.execute(f"DELETE FROM {table} USING TIMESTAMP 1 WHERE p = 0")
    before = [read(session, table, p) for p in range(5)]
    assert hits_of(session, *[(table, p) for p in range(5)]) == 5
    # Their rows are a little older than those that are there, but for a sixth row that is missing.
    session.execute(f"DELETE FROM {table} WHERE p = 1")
    read(session, table, 1)
    place(aside.iterdir(), folder, newest + 1000)
    node.nodetool("refresh", keyspace, name)
    assert hits_of(session, *[(table, p) for p in range(5)]) == 0, (
        "rows read before the files came are not served"
    )
    assert [read(session, table, p) for p in (0, 2, 3, 4)] == [before[p] for p in (0, 2, 3, 4)]


def test_a_table_that_is_made_again_with_its_id_is_watched_anew(node, session, table):
    """Its files come by `nodetool refresh`; only the table that is there now notices them."""
    keyspace, name = table.split(".")
    where = f"WHERE keyspace_name = '{keyspace}' AND table_name = '{name}'"
    identity = session.execute(f"SELECT id FROM system_schema.tables {where}").one().id
    for p in range(5):
        session.execute(f"INSERT INTO {table} (p, c, v) VALUES ({p}, 0, 'late') {IN_2100}")
    node.nodetool("flush", keyspace, name)
    folder = node.files_of(keyspace, name)
    newest = generation(folder)
    aside = node.folder / "aside" / name
    aside.mkdir(parents=True)
    for file in folder.glob(f"*-{newest}-big-*"):
        shutil.copy(file, aside)
    everything = [(table, p) for p in range(5)]
    hits_of(session, *everything)
    assert hits_of(session, *everything) == 5

    session.execute(f"DROP TABLE {table}")
    columns = "p int, c int, v text, PRIMARY KEY (p, c)"
    session.execute(f"CREATE TABLE {table} ({columns}) WITH ID = {identity} AND {CACHED}")
    fill(session, table, range(5), rows=1, value="early")
    assert [read(session, table, p) for p in range(5)] == [[(0, f"early {p} 0")] for p in range(5)]
    assert hits_of(session, *everything) == 5
    place(aside.iterdir(), folder, newest + 1000)
    node.nodetool("refresh", keyspace, name)
    assert [read(session, table, p) for p in range(5)] == [[(0, "late")]] * 5


def test_compaction_changes_nothing_and_cleanup_lists_all_keys(node, session, table):
    everything = [(table, p) for p in range(5)]
    for value in ("first", "second"):
        fill(session, table, range(5), value=value)
        node.ask("flush", *table.split("."))
        hits_of(session, *everything)
    rows = [read(session, table, p) for p in range(5)]
    assert rows[4] == [(c, f"second 4 {c}") for c in range(5)]
    node.ask("compact", *table.split("."))
    assert hits_of(session, *everything) == 5, "they are in other SSTables now, and the same"
    node.nodetool("cleanup", *table.split("."))
    # The node owns everything: nothing goes.
    assert hits_of(session, *everything) == 5
    assert [read(session, table, p) for p in range(5)] == rows


def test_warm_after_a_clean_stop_cold_after_a_crash_and_never_stale(node):
    with connect(node) as session:
        for name in ("k.kept", "k.changed", "k.altered"):
            session.execute(
                f"CREATE TABLE {name} (p int, c int, v text, PRIMARY KEY (p, c)) WITH {CACHED}"
            )
            fill(session, name)
        for name in ("k.kept", "k.changed", "k.altered"):
            hits_of(session, *[(name, p) for p in range(20)])
    node.drain()
    assert node.said("stopped cleanly")
    # What happens to files while a node is down: here the newest SSTable of one table is taken
    # away.
    for file in node.files_of("k", "changed").glob("*-big-*"):
        file.unlink()
    node.start()
    with connect(node) as session:
        assert hits_of(session, *[("k.kept", p) for p in range(20)]) == 20
        assert all(read(session, "k.changed", p) == [] for p in range(20)), (
            "its rows went with its files"
        )
        # Altered before it was first used in this run; nothing goes to an SSTable meanwhile.
        caching(session, "k.altered", "NONE")
        session.execute("UPDATE k.altered SET v = 'unseen' WHERE p = 1 AND c = 3")
        caching(session, "k.altered", "ALL")
        assert (3, "unseen") in read(session, "k.altered", 1)
        for p in range(20):
            session.execute(f"UPDATE k.kept SET v = 'newer' WHERE p = {p} AND c = 1")
            read(session, "k.kept", p)
    # What is in SSTables is not replayed: nothing but the cache itself could serve the older rows.
    node.nodetool("flush", "k", "kept")
    node.restart()
    assert node.said("empty: there was no clean stop before")
    with connect(node) as session:
        assert hits_of(session, *[("k.kept", p) for p in range(20)]) == 0
        assert all((1, "newer") in read(session, "k.kept", p) for p in range(20))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_rows_are_right_however_a_node_ends_under_load():
    """`make row-kill ROUNDS=50` is the long form, which also kills at once."""
    wrong, compared = campaign(2, ends=("stop", "kill while stopping"))
    assert not wrong
    assert compared > 0
