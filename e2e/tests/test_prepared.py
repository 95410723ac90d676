"""Prepared statements outlive what they were prepared on: no client ever hears UNPREPARED of one that is still good."""

import pytest

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.drivers import answer, connect
from afterglow_e2e.process import poll


@pytest.fixture
def strict(monkeypatch):
    """The driver prepares again behind a test's back when it hears UNPREPARED; here that is a failure."""
    from cassandra.cluster import ResponseFuture

    def refuse(self, *args, **kwargs):
        raise AssertionError("the driver heard UNPREPARED")

    monkeypatch.setattr(ResponseFuture, "_execute_after_prepare", refuse)


def test_alter_table_in_a_loop_shows_only_in_the_columns(strict, cached, table):
    cached.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text)")
    insert = cached.prepare(f"INSERT INTO {table} (k, v) VALUES (?, ?)")
    select = cached.prepare(f"SELECT * FROM {table} WHERE k = ?")
    one = cached.prepare(f"SELECT v FROM {table} WHERE k = ?")
    for number in range(10):
        cached.execute(f"ALTER TABLE {table} ADD a{number} int")
        cached.execute(insert, (number, f"v{number}"))
        for _ in range(3):
            row = cached.execute(select, (number,)).one()
            assert len(row) == number + 3 and (row.k, row.v) == (number, f"v{number}")
            assert cached.execute(one, (number,)).one() == (f"v{number}",)


def test_statements_outlive_our_restart(strict, cassandra, direct, table):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text)")
    with Afterglow(cassandra.contact) as instance, connect(instance) as session:
        insert = session.prepare(f"INSERT INTO {table} (k, v) VALUES (?, ?)")
        select = session.prepare(f"SELECT v FROM {table} WHERE k = ?")
        query = "SELECT key FROM system.local"
        for k, end in enumerate((instance.kill, instance.terminate)):
            end()
            instance.start()
            poll("the driver to connect again", lambda: answer(session, query)[0] == ["key"], 20)
            session.execute(insert, (k, "after"))
            assert session.execute(select, (k,)).one() == ("after",)
