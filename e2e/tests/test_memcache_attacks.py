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
        for _ in range(100):
            raw.send(b"".join(b"get o%d\r\n" % i for i in range(1000)))
            for _ in range(1000):
                raw.until(b"END\r\n")
        refused = [server.connect() for _ in range(1000)]
        for watcher in refused:
            watcher.send(b"watch\r\n")
        full = b"WATCHER_TOO_MANY log watcher limit reached\r\n"
        assert all(watcher.until(b"\r\n") == full for watcher in refused)
        assert memory(server) - before < 48 << 20, "100,000 look-ups for 20 who do not read"
        # Those who do not read lose their places to those who ask.
        poll("a place", lambda: server.connect().line(b"watch") == b"OK", 40, every=0.5)
        assert raw.get(b"o1") is not None


def test_limits_that_flap_beside_dumps_watchers_and_load(tmp_path):
    with MemcacheAfterglow(folder=tmp_path, memory="64MiB") as server:
        fill(server.connect(), 5_000, 2_000)
        ended, wrong = threading.Event(), []

        def again(act):
            def run():
                try:
                    while not ended.is_set():
                        act()
                except (Failure, OSError, AssertionError) as error:
                    wrong.append(repr(error))

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

        threads = [again(act) for act in (flap, load, dump, watch, ask)]
        for thread in threads:
            thread.start()
        other = server.connect()
        for _ in range(300):
            assert other.line(b"mn") == b"MN"
        ended.set()
        for thread in threads:
            thread.join()
        assert not wrong, wrong
        assert limits.line(b"cache_memlimit 64") == b"OK"
        found = sum(other.get(b"o%d" % i) is not None for i in range(5_000))
        raw = server.connect()
        raw.send(b"stats\r\n")
        watchers = re.search(rb"log_watchers (\d+)", raw.until(b"END\r\n"))
        assert found >= 4_990 and int(watchers[1]) <= 1, (found, watchers)
