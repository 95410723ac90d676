"""The operators' commands of the memcached front end in the hands of an enemy, and all at once."""

import re
import threading
from pathlib import Path

from afterglow_e2e.memcache import MemcacheAfterglow, fill
from afterglow_e2e.process import Failure, poll


def memory(server):
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024


def test_watchers_that_never_read_and_others_that_want_their_place(tmp_path):
    extra = ["--memcache-connections", "3000"]
    with MemcacheAfterglow(folder=tmp_path, extra=extra) as server:
        raw = server.connect()
        fill(raw, 1000, 100)
        lazy = [server.connect() for _ in range(20)]
        for watcher in lazy:
            assert watcher.line(b"watch fetchers mutations evictions connevents") == b"OK"
        before = memory(server)
        gets = b"".join(b"get o%d\r\n" % i for i in range(1000))

        def look_up():
            raw.send(gets)
            for _ in range(1000):
                raw.until(b"END\r\n")

        for _ in range(100):
            look_up()
        refused = [server.connect() for _ in range(1000)]
        for watcher in refused:
            watcher.send(b"watch\r\n")
        full = b"WATCHER_TOO_MANY log watcher limit reached\r\n"
        assert all(watcher.until(b"\r\n") == full for watcher in refused)
        assert memory(server) - before < 48 << 20, "100,000 look-ups for 20 who do not read"
        # Who asks gets the place of one whose lines do not go out any more. A socket takes some MiB
        # of them, and what comes too fast for a watcher is left out: so lines come meanwhile.
        taker = server.connect()

        def has_place():
            look_up()
            return taker.line(b"watch") == b"OK"

        poll("a place", has_place, 120, every=0.02)
        assert raw.get(b"o1") is not None


def test_limits_that_flap_beside_dumps_watchers_and_load(tmp_path):
    with MemcacheAfterglow(folder=tmp_path, memory="64MiB") as server:
        fill(server.connect(), 5_000, 2_000)
        ended, unwatched, wrong = threading.Event(), threading.Event(), []

        def again(act, end=ended):
            def run():
                try:
                    while not end.is_set():
                        act()
                except (Failure, OSError, AssertionError) as error:
                    wrong.append(f"{act.__name__}: {error!r}")

            return threading.Thread(target=run)

        limits, loads, dumps, lines = (server.connect() for _ in range(4))

        def flap():
            for megabytes in (28, 64, 40):
                assert limits.line(b"cache_memlimit %d" % megabytes) == b"OK"

        def load():
            value = b"n" * 2_000
            for i in range(50):
                assert loads.set(b"n%d" % i, value) == b"STORED"
                assert loads.get(b"n%d" % i) == value

        def dump():
            dumps.send(b"lru_crawler metadump all\r\n")
            assert dumps.until(b"END\r\n").count(b"key=") >= 5_000

        def watch():
            watcher = server.connect()
            assert watcher.line(b"watch fetchers mutations evictions") == b"OK"
            assert watcher.until(b"\n").startswith((b"ts=", b"skipped="))
            watcher.close()

        def ask():
            for command in (b"stats sizes_enable", b"stats sizes_disable", b"verbosity 2"):
                lines.line(command)
            lines.send(b"stats items\r\nstats conns\r\nstats reset\r\n")
            lines.until(b"RESET\r\n")

        threads = [again(act) for act in (flap, dump, watch, ask)]
        # The load outlives the watchers: without it the last one would wait for a line for ever.
        loading = again(load, unwatched)
        for thread in [loading, *threads]:
            thread.start()
        other = server.connect()
        for _ in range(300):
            assert other.line(b"mn") == b"MN"
        ended.set()
        for thread in threads:
            thread.join()
        unwatched.set()
        loading.join()
        assert not wrong, wrong
        assert limits.line(b"cache_memlimit 64") == b"OK"
        found = sum(other.get(b"o%d" % i) is not None for i in range(5_000))
        raw = server.connect()
        raw.send(b"stats\r\n")
        watchers = re.search(rb"log_watchers (\d+)", raw.until(b"END\r\n"))
        assert found >= 4_990 and int(watchers[1]) <= 1, (found, watchers)
