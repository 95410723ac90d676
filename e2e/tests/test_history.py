"""Some seconds of clients that do everything while Afterglow and the database fail; `make history`
is the long form.
"""

import random

import pytest
from histories.bounded import POLICIES
from histories.clients import Clients, register
from histories.faults import Clock
from histories.floors import complaints, missing, sums
from histories.record import Record
from histories.runs import Run

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.drivers import await_caching

SECONDS = 10


@pytest.fixture
def fragile(cassandra, tmp_path):
    clock = Clock(tmp_path)
    options = ("--unknown-outcome-hold", "6s")
    with Afterglow(
        cassandra.contact, policies=POLICIES, wrapper=clock.wrapper, extra=options
    ) as instance:
        await_caching(instance)
        yield instance, clock


def test_no_read_is_stale_whatever_happens(fragile, cassandra, tmp_path):
    instance, clock = fragile
    run = Run(
        "short", instance, [cassandra], clock=clock, wanted=("kill", "terminate", "hold", "step")
    )
    fine, words = run.go(SECONDS, tmp_path, None)
    print(words)
    assert fine, words
    assert run.faults.counts and len(run.record.events) > 200
    assert instance.metrics().hits() > 0


def test_a_run_that_passes_everything_through_or_writes_nothing_is_not_called_good():
    figures = {"seconds": 60, "asked": 10_000, "hits": 4_000, "acknowledged": 5_000, "off": 0}
    assert list(complaints(figures)) == []
    (hits,) = complaints(figures | {"hits": 10})
    assert "hits" in hits
    (off,) = complaints(figures | {"off": 9})
    assert "off" in off
    (writes,) = complaints(figures | {"acknowledged": 100})
    assert "writes" in writes
    assert len(list(complaints(dict.fromkeys(figures, 0)))) == 2


def test_a_campaign_whose_rows_follow_no_write_is_not_called_good():
    names = ("reads", "acknowledged", "hits", "updated", "refreshed", "settled", "beyond")
    run = dict.fromkeys(names, 1000) | {"seconds": 60, "lulls": 4, "limited": False}
    assert sums([run] * 2) == {
        "minutes": 2,
        **dict.fromkeys(("reads", "writes", "hits", "updated", "refreshed", "settled"), 2000),
    }
    assert missing([run] * 2) == []
    for name in ("updated", "refreshed", "settled"):
        (short,) = missing([run | {name: 0}] * 2)
        assert short.startswith(name)
    # Without lulls nothing need be settled, and without small units no read is beyond one.
    assert missing([run | {"lulls": 1, "settled": 0, "beyond": 0}] * 2) == []
    (short,) = missing([run, run | {"limited": True, "beyond": 0}])
    assert short.startswith("beyond")


def test_a_lie_is_found(afterglow, tmp_path):
    """The judgement itself: a read of what was overwritten before it began, planted into an honest
    history.
    """
    run = Run("lie", afterglow, [], wanted=())
    run.create()
    record = Record()
    clients = Clients(record, [afterglow], run.keyspace, "lie", count=0)
    with clients:
        clients.sweep()
    assert record.judge(tmp_path / "honest", None)[0]
    cell = register(0, 0, "v")
    for value in (1, 2):
        start = record.now()
        record.wrote({cell: value}, start, True, record.timestamp(random.Random(1), mortal=True))
    record.read({cell: 1}, record.now())
    fine, said = record.judge(tmp_path / "lie", None)
    assert not fine and "Stale" in said
