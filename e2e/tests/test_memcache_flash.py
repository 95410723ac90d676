"""Objects of the memcached front end on flash, and across restarts."""

import random
import threading
import time

import pytest

from afterglow_e2e.memcache import MemcacheAfterglow, collisions, content, fill, on_flash
from afterglow_e2e.process import poll


def read(raw, keys, size):
    """Reads objects with one get. Returns the numbers of those that are there; asserts that each
    is itself, and that they come in the order of the keys.
    """
    raw.send(b"get " + b" ".join(b"o%d" % i for i in keys) + b"\r\n")
    there, awaited = [], iter(keys)
    while (head := raw.until(b"\r\n")) != b"END\r\n":
        i = next(i for i in awaited if head == b"VALUE o%d 5 %d\r\n" % (i, size))
        assert raw.until(b"\r\n") == content(i, size) + b"\r\n"
        there.append(i)
    return there


def test_objects_on_flash_are_read_changed_and_kept_in_order(tmp_path):
    count, size = 3000, 16_000
    with MemcacheAfterglow(folder=tmp_path, flash="256MiB", memory="32MiB") as front_end:
        raw = front_end.connect()
        # More than memory holds, as fast as it will go: a set waits while the disk is behind, so
        # that none is lost.
        fill(raw, count, size)
        on_flash(front_end)
        before = front_end.metrics().total(
            "afterglow_hits_total", frontend="memcache", tier="flash"
        )
        keys = [(i * 37) % count for i in range(count)]
        there = [i for at in range(0, count, 50) for i in read(raw, keys[at : at + 50], size)]
        # Two keys may share a slot of the index.
        assert count - len(there) == collisions(front_end)
        assert (
            front_end.metrics().total("afterglow_hits_total", frontend="memcache", tier="flash")
            - before
            > 500
        )
        # A read of flash and, behind it, changes of the same key: each sees what the one before it
        # left.
        for i in there[:200]:
            raw.send(
                b"get o%d\r\nappend o%d 0 0 1\r\n!\r\nmg o%d s\r\ndelete o%d\r\nget o%d\r\n"
                % (i, i, i, i, i)
            )
            assert raw.until(b"END\r\n").endswith(content(i, size) + b"\r\nEND\r\n")
            assert raw.until(b"\r\n") == b"STORED\r\n"
            assert raw.until(b"\r\n") == b"HD s%d\r\n" % (size + 1)
            assert raw.until(b"\r\n") == b"DELETED\r\n"
            assert raw.until(b"\r\n") == b"END\r\n"
        for i in there[1000:1200]:
            assert raw.line(b"touch o%d 1000" % i) == b"TOUCHED"
            assert raw.line(b"mg o%d t" % i) in (b"HD t1000", b"HD t999")


def assert_left(raw, key, first, last):
    """The object ends between these two times, of which the server knows whole seconds."""
    asked = time.time()
    left = int(raw.line(b"mg %s t" % key).split(b" t")[1])
    assert first - time.time() - 2 <= left <= last - asked + 2


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_restart_keeps_values_tokens_and_expiry(tmp_path, how):
    front_end = MemcacheAfterglow(folder=tmp_path).start()
    try:
        raw = front_end.connect()
        fill(raw, 1000, 1500)
        deadline = int(time.time()) + 3600
        raw.line(b"set later 7 %d 5\r\nvalue" % deadline)
        raw.line(b"set gone 0 0 1\r\n1")
        raw.line(b"set counter 0 0 2\r\n10")
        raw.line(b"set short 0 1 1\r\n1")
        raw.send(b"gets later\r\n")
        token = raw.until(b"END\r\n").split(b"\r\n")[0].split()[-1]
        on_flash(front_end)
        raw.line(b"delete gone")
        raw.line(b"incr counter 5")
        touching = time.time()
        assert raw.line(b"touch o500 1000") == b"TOUCHED"
        touched = time.time()
        assert raw.line(b"touch o501 -1") == b"TOUCHED"
        assert raw.line(b"set never 0 -1 1\r\n1") == b"STORED"
        fill(raw, 100, 1500, b"new")
        on_flash(front_end)
        getattr(front_end, how)()
        front_end.start()
        poll(
            "the index to be loaded",
            lambda: front_end.metrics().value("afterglow_engine_loading") == 0,
            20,
        )
        raw = front_end.connect()
        found = {i: raw.get(b"o%d" % i) for i in range(1000)}
        missing = [i for i, value in found.items() if value is None]
        # Two keys may share a slot of the index.
        assert 501 in missing and len(missing) == 1 + collisions(front_end), missing
        assert_left(raw, b"o500", touching + 1000, touched + 1000)
        assert raw.get(b"never") is None
        for i in sorted(found.keys() - missing):
            tag = b"new" if i < 100 else b"x"
            assert found[i] == content(i, 1500, tag), "stale or wrong"
        assert raw.get(b"gone") is None and raw.get(b"counter") == b"15"
        raw.send(b"gets later\r\n")
        assert raw.until(b"END\r\n") == b"VALUE later 7 5 %s\r\nvalue\r\nEND\r\n" % token
        assert_left(raw, b"later", deadline, deadline)
        assert raw.line(b"cas later 0 0 1 %s\r\n1" % token) == b"STORED"
        poll("a second to pass", lambda: raw.get(b"short") is None, 60)
    finally:
        front_end.stop()


def test_values_as_large_as_a_quarter_of_a_segment(tmp_path):
    largest = (2 << 20) - 64 - len("largest")
    value = random.Random(5).randbytes(largest)
    extra = ["--memcache-item-size", "2MiB"]
    with MemcacheAfterglow(
        folder=tmp_path, flash="2GiB", memory="128MiB", extra=extra
    ) as front_end:
        raw = front_end.connect()
        assert raw.set(b"largest", value) == b"STORED" and raw.get(b"largest") == value
        assert raw.set(b"largest", value + b"!") == b"SERVER_ERROR object too large for cache"
        assert raw.get(b"largest") is None, "nothing older than what was refused"
        assert raw.set(b"largest", value) == b"STORED"
        front_end.terminate()
        front_end.start()
        poll(
            "the index to be loaded",
            lambda: front_end.metrics().value("afterglow_engine_loading") == 0,
            20,
        )
        assert front_end.connect().get(b"largest") == value
        assert (
            front_end.metrics().total("afterglow_hits_total", frontend="memcache", tier="flash")
            == 1
        )


def test_a_scheduled_flush_comes_although_the_server_was_down(tmp_path):
    front_end = MemcacheAfterglow(folder=tmp_path).start()
    try:
        raw = front_end.connect()
        fill(raw, 10, 100)
        on_flash(front_end)
        asked = time.time()
        assert raw.line(b"flush_all 2") == b"OK"
        due = time.time() + 2
        # The server counts whole seconds.
        assert raw.get(b"o1") is not None or time.time() > asked + 1
        front_end.kill()
        poll("the flush to be due", lambda: time.time() > due, 5)
        front_end.start()
        raw = front_end.connect()
        assert [raw.get(b"o%d" % i) for i in range(10)] == [None] * 10
        assert raw.set(b"o1", b"new") == b"STORED" and raw.get(b"o1") == b"new"
    finally:
        front_end.stop()


def test_no_increment_is_lost_also_across_a_restart(tmp_path):
    front_end = MemcacheAfterglow(folder=tmp_path, memory="32MiB").start()
    acknowledged, threads = [0] * 8, 8
    try:
        raw = front_end.connect()
        for counter in range(4):
            raw.line(b"set n%d 0 0 1\r\n0" % counter)

        def count(thread, times):
            dice, connection = random.Random(thread), front_end.connect()
            for _ in range(times):
                connection.line(b"incr n%d 1" % dice.randrange(4))
                acknowledged[thread] += 1
                if dice.random() < 0.05:
                    connection.set(b"filler%d" % dice.randrange(1000), b"f" * 20_000)
            connection.close()

        for _ in range(2):
            workers = [
                threading.Thread(target=count, args=(thread, 1000)) for thread in range(threads)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            raw = front_end.connect()
            total = sum(int(raw.get(b"n%d" % counter)) for counter in range(4))
            assert total == sum(acknowledged)
            on_flash(front_end)
            front_end.kill()
            front_end.start()
        raw = front_end.connect()
        poll(
            "the index to be loaded",
            lambda: front_end.metrics().value("afterglow_engine_loading") == 0,
            20,
        )
        assert (
            sum(int(raw.get(b"n%d" % counter)) for counter in range(4))
            == sum(acknowledged)
            == 16_000
        )
    finally:
        front_end.stop()
