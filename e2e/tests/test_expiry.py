"""Cells with a time to live are never served after their end."""

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
    cached.execute(write.format(t=table))
    written = time.monotonic()
    assert cached.execute(select, (1,)).one() == ("brief",)
    seen_at = written
    while True:
        asked = time.monotonic()
        row = cached.execute(select, (1,)).one()
        if row is None:
            break
        assert row == ("brief",)
        seen_at = asked
        assert seen_at - written < TTL + 2, "served more than a second after its end"
    assert seen_at - written > TTL - 2
    assert answer(cached, select, (1,)) == answer(direct, direct.prepare(f"SELECT v FROM {table} WHERE k = ?"), (1,))


def test_one_cell_of_a_row_ends_before_the_others(cached, direct, table):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, a text, b text)")
    cached.execute(f"INSERT INTO {table} (k, a) VALUES (1, 'stays')")
    cached.execute(f"UPDATE {table} USING TTL 2 SET b = 'goes' WHERE k = 1")
    written = time.monotonic()
    select = f"SELECT a, b FROM {table} WHERE k = 1"
    assert cached.execute(select).one() == ("stays", "goes")
    while cached.execute(select).one() == ("stays", "goes"):
        assert time.monotonic() - written < 2 + 2
    assert cached.execute(select).one() == ("stays", None)
