"""Cells with a time to live are never served after their end: not when the database itself has
ceased to.
"""

import time

import pytest

from afterglow_e2e.drivers import answer

TTL = 3


@pytest.mark.parametrize(
    ("options", "write"),
    [
        ("", f"INSERT INTO {{t}} (k, v) VALUES (1, 'brief') USING TTL {TTL}"),
        (f"WITH default_time_to_live = {TTL}", "INSERT INTO {t} (k, v) VALUES (1, 'brief')"),
        ("", f"BEGIN BATCH UPDATE {{t}} USING TTL {TTL} SET v = 'brief' WHERE k = 1; APPLY BATCH"),
    ],
    ids=["using ttl", "default ttl", "batch"],
)
def test_a_row_ends_with_its_ttl(cached, direct, table, options, write):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text) {options}")
    select = cached.prepare(f"SELECT v FROM {table} WHERE k = ?")
    past = direct.prepare(f"SELECT v FROM {table} WHERE k = ?")
    began = time.monotonic()
    cached.execute(write.format(t=table))
    row = ("brief",)
    while row is not None:
        # The database is asked first: what it has ceased to show, Afterglow must not show
        # afterwards.
        gone = direct.execute(past, (1,)).one() is None
        row = cached.execute(select, (1,)).one()
        assert row in (None, ("brief",))
        assert row is None or not gone, "served after the database had ceased to"
    # Seconds are counted whole, rounded down.
    assert time.monotonic() - began > TTL - 1.1
    assert answer(cached, select, (1,)) == answer(direct, past, (1,))


def test_one_cell_of_a_row_ends_before_the_others(cached, direct, table):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, a text, b text)")
    cached.execute(f"INSERT INTO {table} (k, a) VALUES (1, 'stays')")
    cached.execute(f"UPDATE {table} USING TTL 2 SET b = 'goes' WHERE k = 1")
    select = f"SELECT a, b FROM {table} WHERE k = 1"
    row = ("stays", "goes")
    while row == ("stays", "goes"):
        gone = direct.execute(select).one() != row
        row = cached.execute(select).one()
        assert row != ("stays", "goes") or not gone, "served after the database had ceased to"
    assert row == ("stays", None)
