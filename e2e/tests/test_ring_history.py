"""Some seconds of clients of a ring that do everything while its instances fail; `make history
RING=4 NODES=3` is the long form.
"""

import pytest
from histories import second
from histories.clients import Clients
from histories.record import Record
from histories.rings import Instances, RingRun, complaints
from histories.watch import Watch

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
