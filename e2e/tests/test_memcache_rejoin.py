"""`--memcache-rejoin-grace`: a server that was down for too long starts empty."""

import re
import time
from pathlib import Path

import pytest

from afterglow_e2e.memcache import MemcacheAfterglow, content, fill, on_flash
from afterglow_e2e.process import poll

HOUR = 3_600_000
KEPT, EMPTY = "keeps its objects", "starts empty"


@pytest.fixture
def front_end(tmp_path):
    instance = MemcacheAfterglow(folder=tmp_path, extra=["--memcache-rejoin-grace", "1h"])
    yield instance.start()
    instance.stop()


def warm(front_end):
    raw = front_end.connect()
    fill(raw, 200, 500)
    on_flash(front_end)
    raw.close()


def found(front_end):
    """How many of the objects are there, and that none is another."""
    poll(
        "the index to be loaded",
        lambda: front_end.metrics().value("afterglow_engine_loading") == 0,
        20,
    )
    raw = front_end.connect()
    values = [raw.get(b"o%d" % i) for i in range(200)]
    raw.close()
    assert all(value in (None, content(i, 500)) for i, value in enumerate(values))
    return sum(value is not None for value in values)


def sign(front_end):
    return front_end.data / "memcache-alive"


def edit(front_end, boot=None, **by):
    """Has the last sign of life be one by other clocks."""
    text = sign(front_end).read_text()
    for name, millis in by.items():
        text = re.sub(
            rf"{name}=(\d+)", lambda m, n=name, by=millis: f"{n}={int(m[1]) + by:020}", text
        )
    if boot:
        text = re.sub(r"boot=\S+", f"boot={boot}", text)
    sign(front_end).write_text(text)


def restarted(front_end, how, change=lambda: None):
    """What the log says of a restart, and how many objects are left."""
    getattr(front_end, how)()
    change()
    before = len(front_end.log_text())
    front_end.start()
    said = front_end.log_text()[before:]
    return next(word for word in (KEPT, EMPTY) if word in said), found(front_end)


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_within_the_grace_it_stays_warm_and_beyond_it_starts_empty(front_end, how):
    warm(front_end)
    assert restarted(front_end, how) == (KEPT, 200)
    back = {"up": -HOUR, "unix": -HOUR}
    assert restarted(front_end, how, lambda: edit(front_end, **back)) == (EMPTY, 0)
    # What was dropped stays so, and what came since is kept.
    warm(front_end)
    assert restarted(front_end, how) == (KEPT, 200)


OTHER = "11111111-2222-3333-4444-555555555555"


# By clocks that were set, a machine that was started again, a file that is gone or damaged.
@pytest.mark.parametrize(
    ("name", "change", "left"),
    [
        ("set back while it was down", {"unix": 10 * HOUR}, 200),
        ("set forth while it was down", {"unix": -10 * HOUR}, 0),
        ("another machine's clock", {"up": HOUR}, 0),
        ("another boot and a clock that was set back", {"boot": OTHER, "unix": HOUR}, 0),
        ("another boot, long ago", {"boot": OTHER, "unix": -HOUR}, 0),
    ],
)
def test_clocks_that_were_set(front_end, name, change, left):
    warm(front_end)
    _, kept = restarted(front_end, "kill", lambda: edit(front_end, **change))
    assert kept == left, name


def test_after_a_reboot_the_time_since_counts(tmp_path):
    up = float(Path("/proc/uptime").read_text().split()[0])
    for grace, left in ((f"{int(up) + 3600}s", 200), (f"{max(int(up) - 60, 1)}s", 0)):
        extra = ["--memcache-rejoin-grace", grace]
        with MemcacheAfterglow(folder=tmp_path / grace, extra=extra) as front_end:
            warm(front_end)
            # The clocks say that it was down for a moment; the machine was started before that.
            change = {"boot": OTHER}
            _, kept = restarted(
                front_end, "kill", lambda edited=front_end, c=change: edit(edited, **c)
            )
            assert kept == left


def test_a_file_that_says_nothing(front_end):
    for change in (
        lambda: sign(front_end).unlink(),
        lambda: sign(front_end).write_bytes(b"\0" * 100),
        lambda: sign(front_end).write_text(sign(front_end).read_text()[:40]),
    ):
        warm(front_end)
        assert restarted(front_end, "kill", change) == (EMPTY, 0)
        assert "nobody can say" in front_end.log_text()


def test_real_time_down(tmp_path):
    extra = ["--memcache-rejoin-grace", "2s"]
    with MemcacheAfterglow(folder=tmp_path, extra=extra) as front_end:
        warm(front_end)
        front_end.kill()
        end = time.monotonic() + 2.1
        poll("the grace to be over", lambda: time.monotonic() > end, 10)
        front_end.start()
        assert found(front_end) == 0 and EMPTY in front_end.log_text()


def test_without_the_option_it_is_always_warm(tmp_path):
    with MemcacheAfterglow(folder=tmp_path) as front_end:
        warm(front_end)
        front_end.kill()
        assert not sign(front_end).exists()
        front_end.start()
        assert found(front_end) == 200
