"""Prepared statements outlive the connection and node that they were prepared on.

No client gets UNPREPARED for a statement that is still good. The exception is a statement whose
columns have changed, if a client of v5 still executes it with the old ones.
"""

import pytest

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.drivers import answer, connect
from afterglow_e2e.process import poll


@pytest.fixture
def strict(monkeypatch):
    """The driver prepares again behind a test's back when it hears UNPREPARED; here that is a
    failure.
    """
    from cassandra.cluster import ResponseFuture

    def refuse(self, *args, **kwargs):
        raise AssertionError("the driver heard UNPREPARED")

    monkeypatch.setattr(ResponseFuture, "_execute_after_prepare", refuse)


@pytest.fixture
def heard(monkeypatch):
    """The statements of which the driver heard UNPREPARED, in order. It prepares them again, as
    ever.
    """
    from cassandra.cluster import ResponseFuture

    statements, prepare = [], ResponseFuture._execute_after_prepare

    def count(self, *args, **kwargs):
        statements.append(self.query.prepared_statement.query_string)
        return prepare(self, *args, **kwargs)

    monkeypatch.setattr(ResponseFuture, "_execute_after_prepare", count)
    return statements


def test_after_a_change_a_statement_has_hits_again(heard, afterglow, cached, table):
    cached.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text)")
    insert = cached.prepare(f"INSERT INTO {table} (k, v) VALUES (?, ?)")
    select = cached.prepare(f"SELECT * FROM {table} WHERE k = ?")
    cached.execute(insert, (1, "x"))
    cached.execute(select, (1,))
    version = cached.cluster.protocol_version
    for number in range(2):
        cached.execute(f"ALTER TABLE {table} ADD a{number} int")

        def hit(width=number + 3):
            before = afterglow.metrics().hits()
            assert len(cached.execute(select, (1,)).one()) == width
            return afterglow.metrics().hits() > before

        poll("the statement to have hits", hit, 20)
        # Python's driver does not take on the columns that an answer tells it; before v5 there is
        # nothing to take on.
        assert heard == [select.query_string] * (number + 1 if version == 5 else 0)


def test_alter_table_in_a_loop_shows_only_in_the_columns(heard, cached, table):
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
    # A loop that takes long may hear of each change, of the one statement that it concerns.
    assert set(heard) <= {select.query_string} and len(heard) <= 10


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
