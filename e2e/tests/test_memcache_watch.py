"""`watch` of the memcached front end and of a real memcached: what is said of the same commands."""

import re
import socket

import pytest

from afterglow_e2e.memcache import MemcacheAfterglow, Memcached, peer, say
from afterglow_e2e.process import poll

LOOKS = [
    b"get a none",
    b"gets a",
    b"gat 100 a",
    b"gat 100 none",
    b"touch a 100",
    b"touch none 100",
    b"incr n 1",
    b"incr none 1",
    b"decr n 1",
    b"mg a v",
    b"mg none v",
    b"mg none2 N100 v",
    b"me a",
    b"md gone q",
    b"delete gone2",
    b"delete gone2",
    b"add a 0 0 1\r\n1",
    b"add fresh 0 200 2\r\n12",
    b"replace a 0 0 3\r\n123",
    b"replace none 0 0 3\r\n123",
    b"append a 0 0 3\r\n123",
    b"append none 0 0 3\r\n123",
    b"prepend a 0 0 3\r\n123",
    b"cas a 0 0 1 1\r\n1",
    b"cas none 0 0 1 1\r\n1",
    b"ms a 1 MA\r\n1",
    b"ms fresh2 1 ME T300\r\n1",
    b"get odd/%key~\xe9",
]
# Afterglow does not look before these, so that only what they store is told.
BLIND = [
    b"set a 0 0 1\r\n1",
    b"set a 7 500 5\r\nvalue",
    b"ms a 2 T70\r\nhi",
    b"set odd/%key~\xe9 0 0 0\r\n",
]


def watch(server, topics):
    raw = server.connect()
    assert raw.line(b"watch " + topics) == b"OK"
    return raw


def told(watcher, server):
    """What a watcher was told until now: a look-up of a key of its own marks the end."""
    other = server.connect()
    say(other, b"get the-end\r\n")
    lines = watcher.until(b"key=the-end status=not_found clsid=0 cfd=%s size=0\n" % cfd(watcher))
    other.close()
    return [plain(line) for line in lines.split(b"\n")[:-2]]


def cfd(watcher):
    """The descriptor in the marking line, once that line is there."""

    def found():
        match = re.search(rb"key=the-end [^\n]*cfd=(\d+) size=0\n", watcher.buffer)
        if not match:
            watcher.buffer += watcher.connection.recv(1 << 16)
        return match and match[1]

    return poll("the marking line", found, 20)


def plain(line):
    """A line without what differs from run to run."""
    return re.sub(rb" (gid|cfd|rport)=\d+", b"", re.sub(rb"^ts=\d+\.\d+", b"", line)).strip()


def test_watchers_are_told_what_memcached_tells(front_end, memcached):
    watchers = []
    for server in (front_end, memcached):
        raw = server.connect()
        say(raw, b"flush_all\r\nset a 0 0 1\r\n1\r\nset n 0 0 1\r\n5\r\n")
        say(raw, b"set gone 0 0 1\r\n1\r\nset gone2 0 0 1\r\n1\r\n")
        watchers.append((watch(server, b"fetchers mutations"), server, raw))
    for command in LOOKS + BLIND:
        both = []
        for watcher, server, raw in watchers:
            say(raw, command + b"\r\n")
            both.append(told(watcher, server))
        ours, theirs = both
        if command in BLIND:
            assert theirs[0].startswith(b"type=item_get") and len(theirs) == 2
            theirs = theirs[1:]
        # A whole second may have begun between the two.
        ours, theirs = (
            [re.sub(rb"ttl=[1-9]\d+", b"ttl=#", line) for line in lines] for lines in (ours, theirs)
        )
        assert ours == theirs and ours, command


def test_connections_are_told_as_memcached_tells_them(front_end, memcached):
    both = []
    for server in (front_end, memcached):
        watcher = watch(server, b"connevents")
        for last in (b"", b"quit\r\n"):
            raw = server.connect()
            raw.send(b"mn\r\n" + last)
            raw.until(b"MN\r\n")
            raw.close()
        # Connections before this test may end late, memcached's for another reason.
        lines = []
        while sum(b"type=conn_close" in line and b"=normal" in line for line in lines) < 2:
            lines.append(plain(watcher.until(b"\n")))
        both.append({line for line in lines if b"reason=error" not in line})
        watcher.close()
    ours, theirs = both
    assert ours == theirs and len(ours) == 2, (ours, theirs)


def test_a_unix_socket_is_told_as_local(front_end):
    watcher = watch(front_end, b"connevents")
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(front_end.socket))
    poll(
        "the line",
        lambda: b"rip=unix rport=0 transport=local" in watcher.until(b"\n"),
        20,
    )
    watcher.close()


def test_refusals_are_those_of_memcached(front_end, memcached):
    for server in (front_end, memcached):
        raw = server.connect()
        assert say(raw, b"watch nonsense\r\n") == b"ERROR\r\nMN\r\n"
        # `noreply` is no topic, and silences the error that says so.
        assert say(raw, b"watch fetchers noreply\r\n") == b"MN\r\n"
        raw.send(b"set a 0 0 1\r\n1\r\nwatch\r\n")
        refused = b"STORED\r\nERROR cannot pipeline other commands before watch\r\n"
        assert raw.until(b"watch\r\n") == refused
        # Watchers of tests before this one may still be leaving.
        poll("no watcher to be left", lambda server=server: watching(server) == 0, 20)
        all_of_them = [watch(server, b"evictions") for _ in range(20)]
        raw = server.connect()
        assert raw.line(b"watch") == b"WATCHER_TOO_MANY log watcher limit reached"
        for watcher in all_of_them:
            watcher.close()
        poll("their places to be free", lambda server=server: watching(server) == 0, 20)
    with MemcacheAfterglow(extra=["--memcache-no-watch"]) as ours, Memcached(["-W"]) as theirs:
        for server in (ours, theirs):
            answer = server.connect().line(b"watch fetchers")
            assert answer == b"CLIENT_ERROR watch commands not allowed"


def watching(server):
    raw = server.connect()
    raw.send(b"stats\r\n")
    answer = raw.until(b"END\r\n")
    raw.close()
    return int(re.search(rb"log_watchers (\d+)", answer)[1])


def test_what_is_evicted_is_told_with_its_key():
    if peer("memcached") is None:
        pytest.skip("needs memcached")
    # Flash takes an hour of this budget at once, and then next to nothing.
    extra = ["--write-budget", "1KiB"]
    shape = rb"type=eviction key=o\d+ fetch=(yes|no) ttl=-1 la=\d+ clsid=\d+ size=4000"
    with (
        MemcacheAfterglow(memory="32MiB", extra=extra) as ours,
        Memcached(["-m", "8", "-o", "no_lru_maintainer"]) as theirs,
    ):
        for server in (ours, theirs):
            watcher, raw = watch(server, b"evictions"), server.connect()
            value = b"x" * 4000
            for first in range(0, 20_000, 100):
                keys = range(first, first + 100)
                raw.send(b"".join(b"set o%d 0 0 4000\r\n%s\r\n" % (i, value) for i in keys))
                for _ in keys:
                    raw.until(b"\r\n")
            line = plain(watcher.until(b"\n"))
            assert re.fullmatch(shape, line), line


def test_objects_that_go_with_their_segment_are_counted_and_not_told():
    """As the guide says: they are not read when their segment is overwritten."""
    with MemcacheAfterglow(memory="32MiB", flash="64MiB") as server:
        watcher, raw = watch(server, b"evictions fetchers"), server.connect()
        value, written = b"x" * 4000, 0
        dropped = "afterglow_engine_flash_dropped_total"
        gone = "afterglow_engine_dropped_total"
        while server.metrics().total(dropped, reason="reclaimed") < 1_000:
            assert written < 100_000, "nothing is overwritten"
            keys = range(written, written + 1_000)
            raw.send(b"".join(b"set o%d 0 0 4000\r\n%s\r\n" % (i, value) for i in keys))
            for _ in keys:
                raw.until(b"\r\n")
            written += 1_000
        lines = [line for line in told(watcher, server) if line.startswith(b"type=eviction")]
        raw.send(b"stats\r\n")
        counted = int(re.search(rb"STAT evictions (\d+)", raw.until(b"END\r\n"))[1])
        assert counted >= 1_000 and len(lines) < counted - 900
        assert len(lines) <= server.metrics().total(gone)
