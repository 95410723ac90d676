"""Some seconds of clients of a ring that do everything while its instances fail; `make history
RING=4 NODES=3` is the long form.
"""

from collections import Counter

import pytest
from histories import second
from histories.clients import Clients
from histories.floors import short_of, wanted_at_least
from histories.record import Record
from histories.rings import NAMES, Instances, RingRun, complaints, sums
from histories.watch import SOON, Watch

SECONDS, CALM = 12, 3
# The database is shared with other tests. Links that are cut and several deaths at once, which can
# cost a minute, are of the long form only.
FAULTS = ("kill", "terminate", "freeze", "leave", "step")


@pytest.mark.timeout(300)
def test_no_read_through_any_instance_is_stale_whatever_happens(
    cassandra, no_ring, tmp_path, monkeypatch
):
    porcupine = second.build()
    monkeypatch.setattr(Record, "second", porcupine)
    with Instances(cassandra.contact, 2, tmp_path) as instances:
        run = RingRun("short", instances, [cassandra], faults=FAULTS)
        fine, words = run.go(SECONDS, CALM, tmp_path, None)
    print(words)
    assert fine, words
    assert run.faults.counts and len(run.record.events) > 200
    # Where there is a Go to build it with, porcupine has judged the same history.
    assert porcupine is None or run.figures["registers"] > 0


def test_a_ring_that_passes_everything_through_or_hangs_is_not_called_good():
    clients = Clients(Record(), [], "none", "none", count=0)
    assert list(complaints({"calm_share": 0.6}, clients)) == []
    (hits,) = complaints({"calm_share": 0.2}, clients)
    assert "hits" in hits
    clients.hangs.append((1.0, "127.0.0.1:9042"))
    (hang,) = complaints({"calm_share": 0.6}, clients)
    assert "no answer" in hang


def test_a_takeover_is_told_from_a_leave_and_a_return():
    watch = Watch(None, set())

    def follow(version, **members):
        named = [
            {"id": id} | dict(zip(("state", "shards"), of, strict=True))
            for id, of in members.items()
        ]
        watch.follow({"version": version, "members": named})
        return watch.takeovers

    assert follow(1, a=("active", 2), b=("active", 2)) == 0
    assert follow(2, a=("accused", 2), b=("active", 2)) == 0
    assert follow(3, a=("active", 2), b=("active", 2)) == 0
    assert follow(4, b=("active", 4)) == 0
    assert follow(5, a=("active", 2), b=("accused", 2)) == 0
    assert follow(6, a=("active", 4)) == 1
    assert follow(6, a=("accused", 4)) == 1


def test_hits_of_before_a_takeover_or_the_calm_do_not_count_as_those_of_after_it():
    watch, counted = Watch(None, set()), Counter()

    def look(began, answered, hits):
        counted["tier dram"] += hits
        watch.add("process", began, answered, counted.copy())
        return watch.soon["tier dram"], watch.calm["tier dram"]

    assert look(9, 9.1, 5) == (0, 0)
    watch.taken_at = watch.calm_from = 10
    # Of the ten some may be of before.
    assert look(10.2, 10.3, 10) == (0, 0)
    assert look(10.5, 10.6, 7) == (7, 7)
    # It stood still meanwhile: what it counted is of any time since.
    assert look(10.5 + SOON, 10.6 + SOON, 100) == (7, 107)
    watch.calm_from = float("inf")
    assert look(13, 13.1, 3) == (7, 107)
    assert watch.all["tier dram"] == 125


def test_a_campaign_that_saw_too_little_is_told_from_one_that_saw_enough():
    run = {"seconds": 90, "reads": 70, "acknowledged": 5, "hits_soon": 3, "calm_share": 0.5}
    found = sums([run | {"faults": {}, "longest": 1.0}] * 2)
    assert (found["minutes"], found["reads"], found["writes"]) == (3, 140, 10)
    assert (found["soon"], found["stale"]) == (6, 0)
    assert short_of(found, wanted_at_least("reads=140,minutes=3,soon=6", NAMES)) == []
    (short,) = short_of(found, wanted_at_least("reads=100,soon=7", NAMES))
    assert short == "soon: 6 instead of 7"
    for wrong in ("words=3", "reads", "stale=1"):
        with pytest.raises(ValueError):
            wanted_at_least(wrong, NAMES)
