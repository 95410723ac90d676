"""The same conversations, dumps and refusals with the memcached front end and with a real
memcached.
"""

import random
import re

import pytest

from afterglow_e2e.memcache import MemcacheAfterglow, Memcached, on_flash, peer, say
from afterglow_e2e.process import ROOT, poll

RECORDED = ROOT / "crates" / "memcache" / "golden" / "conversations.txt"


def expand(text):
    parts = re.split(r"\{(\d+)\*(.)\}", text)
    out = b""
    for i in range(0, len(parts), 3):
        out += parts[i].encode().decode("unicode_escape").encode("latin-1")
        if i + 2 < len(parts):
            out += parts[i + 2].encode() * int(parts[i + 1])
    return out


def conversations():
    """Text conversations, each line sent at once; not those about what differs on purpose."""
    name, lines = None, []
    for line in [*RECORDED.read_text().splitlines(), "# end"]:
        if line.startswith("# "):
            if (
                name
                and name != "dumps"
                and "binary" not in name
                and "users" not in name
                and "never ends" not in name
                # A watcher gets no answers: test_memcache_watch.py compares what it is told.
                and not name.startswith("watch")
            ):
                yield name, lines
            name, lines = line[2:], []
        elif line:
            lines.append(expand(line))


def tokens_apart(answer):
    """An answer without what may differ: the version, cas tokens, and how many seconds are left."""
    answer = re.sub(rb"VERSION [^\r]*", b"VERSION", answer)
    answer = re.sub(rb" t\d+", b" t#", answer)
    return re.sub(rb"(^VALUE \S+ \d+ \d+ |cas=| c)\d+", rb"\1#", answer, flags=re.M)


def test_recorded_conversations_go_as_with_memcached(front_end, memcached):
    wrong, lines = [], 0
    for name, sent in conversations():
        if name == "other commands" or name == "cas" or name.startswith("meta"):
            # These name cas tokens, or end the connection: the unit tests have them.
            sent = [
                line for line in sent if not re.search(rb"quit| C\d|^cas|I C|mn\\r|refresh", line)
            ]
        ours, theirs = front_end.connect(), memcached.connect()
        for connection in (ours, theirs):
            say(connection, b"flush_all\r\n")
        for line in sent:
            lines += 1
            answers = [tokens_apart(say(connection, line)) for connection in (ours, theirs)]
            if answers[0] != answers[1]:
                wrong.append((name, line[:80], *answers))
        ours.close()
        theirs.close()
    assert not wrong and lines > 150, wrong


COMMANDS = [
    "get {k}", "gets {k}", "gat {t} {k}", "mg {k} v f t s", "mg {k} k O1 h", "mg {k} v N{t} T{t}", "mg {k} v R{t}",
    "mg {k} R150 T{t} t", "mg {k} T{t} R150 t", "mg {k} N{t} T100 v", "mg {k} T100 N{t} v", "slabs automove {n}",
    "delete {k}", "md {k} q", "md {k} I T{t}", "touch {k} {t}", "incr {k} {n}", "decr {k} {n}", "ma {k} N{t} J{n} v",
    "ma {k} MD D{n} t v", "ma {k} N{t} T100 t v", "ma {k} T{t} N100 t", "ma {k} T100 N{t}", "ma {k} N{t} J{n} q",
    "set {k} {n} {t} {l}", "add {k} {n} {t} {l}", "replace {k} {n} {t} {l}",
    "append {k} 0 0 {l}", "prepend {k} 0 0 {l}", "ms {k} {l} T{t} F{n}", "ms {k} {l} MA k", "ms {k} {l} ME b",
    "nonsense {k}", "get {k} {k} c", "verbosity {n}", "incr {k} x", "mg {k} {n}",
]  # fmt: skip


def test_random_conversations_go_as_with_memcached(front_end, memcached):
    for seed in range(60):
        dice = random.Random(seed)
        ours, theirs = front_end.connect(), memcached.connect()
        for connection in (ours, theirs):
            say(connection, b"flush_all\r\n")
        for step in range(60):
            value = dice.choice(["1", "42", "text", "", "99999999999999999999", "9 "])
            command = dice.choice(COMMANDS).format(
                k=dice.choice("ab"),
                t=dice.choice([0, 0, 100, -1, 200]),
                n=dice.choice([0, 1, 7, 4000000000]),
                l=len(value),
            )
            stores = command.split()[0] in "set add replace append prepend ms".split()
            data = (command + "\r\n" + (value + "\r\n" if stores else "")).encode()
            answers = [tokens_apart(say(connection, data)) for connection in (ours, theirs)]
            assert answers[0] == answers[1], f"seed {seed}, step {step}: {data}"
        ours.close()
        theirs.close()


# Sums of these are below the limit of 1 MiB by what no header needs, or beyond it.
LENGTHS = [600, 24_000, 48_000, 300_000, 524_000, 1_000_000, 1_048_000, 1_048_600]
GROWING = [
    "set {k} 1 0 {l}",
    "append {k} 0 0 {l}",
    "prepend {k} 0 0 {l}",
    "ms {k} {l} MA",
    "ms {k} {l} MP",
    "add {k} 0 0 {l}",
]


def test_random_values_around_the_limit_go_as_with_memcached(front_end, memcached):
    answers_seen = set()
    for seed in range(12):
        dice = random.Random(seed)
        ours, theirs = front_end.connect(), memcached.connect()
        for connection in (ours, theirs):
            say(connection, b"flush_all\r\n")
        for step in range(20):
            key, length = dice.choice("ab"), dice.choice(LENGTHS)
            command = dice.choice(GROWING).format(k=key, l=length)
            data = command.encode() + b"\r\n" + bytes([97 + step]) * length + b"\r\n"
            said = [say(connection, data) for connection in (ours, theirs)]
            assert said[0] == said[1], f"seed {seed}, step {step}: {command}"
            answers_seen.add(said[0])
            values = [
                say(connection, b"mg %s v f\r\n" % key.encode()) for connection in (ours, theirs)
            ]
            assert values[0] == values[1], f"seed {seed}, step {step}: what {command} left"
        ours.close()
        theirs.close()
    assert len(answers_seen) >= 5, "too large, not stored and stored, in both forms"


def dumped(server, command, end):
    """What a dump names: each object once, by key, without cas tokens and times of use."""
    raw = server.connect()

    def begun():
        # memcached's own crawler, or the dump before this one, may not have let go yet.
        raw.send(command + b"\r\n")
        return (
            line := raw.until(b"\n")
        ) != b"BUSY currently processing crawler request\r\n" and line

    first = poll("the turn to dump", begun, 20)
    lines = (first if first == end else first + raw.until(end)).removesuffix(end).split(b"\n")[:-1]
    raw.close()
    return sorted({re.sub(rb" (la|cas)=\d+", b"", line.rstrip(b"\r")) for line in lines})


def test_dumps_say_what_memcached_says():
    if peer("memcached") is None:
        pytest.skip("needs memcached")
    # Its maintainer moves objects between queues by itself: a dump leaves out what is being moved.
    quiet = ["-o", "no_lru_maintainer,lru_crawler"]
    with MemcacheAfterglow() as front_end, Memcached(quiet) as memcached:
        for server in (front_end, memcached):
            raw = server.connect()
            say(raw, b"flush_all\r\n")
            for i in range(300):
                raw.send(
                    b"set %d/%%a+~\xc3\xa9 %d %d 2\r\nhi\r\n"
                    % (i, i % 3, 0 if i % 2 else 1_900_000_000)
                )
                assert raw.until(b"\r\n") == b"STORED\r\n"
            say(
                raw,
                b"ms AAH/ 1 b\r\n1\r\nget 7/%a+~\xc3\xa9\r\nset gone 0 -1 1\r\n1\r\nset gone2 0 0 1\r\n1\r\n",
            )
            say(raw, b"delete gone2\r\nget 7/%a+~\xc3\xa9\r\n")
            raw.close()
        for crawled in (b"all", b"hash", b"1,2"):
            command = b"lru_crawler metadump " + crawled
            ours, theirs = (
                dumped(server, command, b"END\r\n") for server in (front_end, memcached)
            )
            assert [line.replace(b"cls=2", b"cls=1") for line in theirs] == ours and len(
                ours
            ) == 301, crawled
        on_flash(front_end)
        assert dumped(front_end, b"lru_crawler metadump all", b"END\r\n") == ours
        # Later versions than the one compared with have this one.
        named = dumped(front_end, b"lru_crawler mgdump all", b"EN\r\n")
        assert b"mg AAH/ b" in named and b"mg 5/%a+~\xc3\xa9" in named and len(named) == 301
        raw = front_end.connect()
        for line in named:
            assert raw.line(line).startswith(b"HD"), "a key dumped is one that is there"
        items = dumped(front_end, b"stats cachedump 1 0", b"END\r\n")
        assert b"ITEM 4/%a+~\xc3\xa9 [2 b; 1900000000 s]" in items and len(items) == 300
        assert len(dumped(front_end, b"stats cachedump 1 7", b"END\r\n")) == 7


def test_flush_all_and_dumps_that_are_refused():
    if peer("memcached") is None:
        pytest.skip("needs memcached")
    extra = ["--memcache-no-flush", "--memcache-no-dump"]
    with MemcacheAfterglow(extra=extra) as front_end, Memcached(["-F", "-X"]) as memcached:
        packet = b"\x80\x08" + bytes(22)
        for sent in [
            b"set a 0 0 1\r\n1\r\nflush_all\r\nflush_all 0 noreply\r\nflush_all 10\r\nget a\r\n",
            b"flush_all invalid\r\nflush_all invalid noreply\r\n",
            b"lru_crawler metadump all\r\nstats cachedump 1 1\r\n",
        ]:
            ours, theirs = (say(server.connect(), sent) for server in (front_end, memcached))
            assert ours == theirs
        answers = []
        for server in (front_end, memcached):
            raw = server.connect()
            raw.send(packet)
            answers.append(raw.until(b"Auth failure."))
        assert answers[0] == answers[1]
        assert b"VALUE a 0 1" in say(front_end.connect(), b"get a\r\n"), "nothing was dropped"
