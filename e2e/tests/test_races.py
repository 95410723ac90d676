"""Fills and writes that overlap, made to overlap by holding the database still (SIGSTOP)."""

import pytest

from afterglow_e2e.process import poll


@pytest.fixture
def held(cassandra):
    """Stop the database; `release()` lets it go on, and the end of the test does in any case."""
    cassandra.pause()
    yield cassandra.resume
    cassandra.resume()


def requests(afterglow):
    return afterglow.metrics().total("afterglow_requests_total", frontend="cql")


@pytest.fixture
def primed(cached, direct, table, settle):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int)")
    direct.execute(f"INSERT INTO {table} (k, v) VALUES (1, 0)")
    select = cached.prepare(f"SELECT v FROM {table} WHERE k = ?")
    settle(cached, select, (0,))
    return select, cached.prepare(f"UPDATE {table} SET v = ? WHERE k = ?")


def send(afterglow, session, *calls):
    """Send requests without waiting for answers, until Afterglow has taken them all."""
    before = requests(afterglow)
    futures = [session.execute_async(*call) for call in calls]
    poll("the requests to arrive", lambda: requests(afterglow) >= before + len(calls), 60)
    return futures


def test_concurrent_misses_make_one_fill(afterglow, cached, primed, cassandra):
    select, update = primed

    def counted():
        now = afterglow.metrics()
        return now.total("afterglow_fills_total"), now.total(
            "afterglow_passes_total", reason="schema_unknown"
        )

    # The schema may just be read once more after the CREATE TABLE: then some of them go past the
    # cache, and those after them may fill the row. So each attempt has a row of its own.
    for key in range(2, 12):
        cached.execute(update, (0, key))
        fills, passes = counted()
        cassandra.pause()
        try:
            futures = send(afterglow, cached, *[(select, (key,))] * 50)
        finally:
            cassandra.resume()
        assert [future.result().one() for future in futures] == [(0,)] * 50
        after = counted()
        if after[1] == passes:
            break
    assert after == (fills + 1, passes)


def test_a_fill_that_a_write_overtakes_is_not_kept(afterglow, cached, primed, held):
    select, update = primed
    reads = send(afterglow, cached, *[(select, (1,))] * 3)
    writes = send(afterglow, cached, (update, (7, 1)))
    late = send(afterglow, cached, *[(select, (1,))] * 3)
    held()
    writes[0].result()
    for _ in range(5):
        assert cached.execute(select, (1,)).one() == (7,)
    assert {future.result().one() for future in reads + late} <= {(0,), (7,)}


def test_reads_while_a_write_is_on_its_way_do_not_bring_the_old_value_back(
    afterglow, cached, primed, cassandra
):
    select, update = primed
    for _ in range(2):
        assert cached.execute(select, (1,)).one() == (0,)
    cassandra.pause()
    try:
        writes = send(afterglow, cached, (update, (9, 1)))
        reads = send(afterglow, cached, (select, (1,)))
    finally:
        cassandra.resume()
    writes[0].result()
    assert reads[0].result().one() in ((0,), (9,))
    assert cached.execute(select, (1,)).one() == (9,)
