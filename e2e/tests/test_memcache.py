"""The memcached front end with the clients of the ecosystem, beside a real memcached, and across restarts."""

import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import threading
import time
from importlib import metadata
from pathlib import Path

import pylibmc
import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheServerError

from afterglow_e2e.memcache import MemcacheAfterglow, Memcached, Raw, peer, peer_environment
from afterglow_e2e.process import ROOT, Failure, poll

CLIENTS = ROOT / "e2e" / "memcache-clients"
RECORDED = ROOT / "crates" / "memcache" / "golden" / "conversations.txt"


@pytest.fixture(scope="module")
def front_end():
    with MemcacheAfterglow(flash="1GiB") as instance:
        yield instance


@pytest.fixture
def raw(front_end):
    connection = front_end.connect()
    yield connection
    connection.close()


def run(*command, **more):
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        **more,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_pymemcache(front_end):
    client = Client((front_end.address, front_end.port), timeout=20)
    client.flush_all()
    assert client.get("a") is None
    client.set("a", b"1", flags=7)
    assert client.add("a", b"2", noreply=False) is False
    assert client.append("a", b"0", noreply=False) is True
    assert client.incr("a", 5) == 15
    value, token = client.gets("a")
    assert client.cas("a", b"x", token) is True
    assert client.cas("a", b"y", token) is False
    assert client.cas("zz", b"y", token) is None
    assert isinstance(client.stats("cachedump", "1", "1"), dict)
    client.set_many({f"k{i}": str(i).encode() for i in range(300)}, noreply=False)
    found = client.get_many([f"k{i}" for i in range(400)])
    assert len(found) == 300 and found["k123"] == b"123"
    assert client.touch("a", 100, noreply=False) is True
    assert client.delete("a", noreply=False) is True
    assert client.delete("a", noreply=False) is False
    assert client.stats()[b"curr_connections"] >= 1
    assert client.version().startswith(b"1.6.")
    with pytest.raises(MemcacheServerError, match="too large"):
        client.set("large", b"x" * (1 << 20), noreply=False)
    client.close()


def pymemcache_tests():
    """The tests that come with pymemcache's source, of the version that is installed."""
    version, folder = metadata.version("pymemcache"), ROOT / "target" / "peers"
    source = folder / f"pymemcache-{version}"
    if not source.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", folder]
        if subprocess.run([*command, f"pymemcache=={version}"]).returncode:
            pytest.skip("needs the source of pymemcache")
        with tarfile.open(folder / f"{source.name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return source / "pymemcache" / "test"


def test_pymemcache_s_own_tests_pass():
    suite = pymemcache_tests()
    with MemcacheAfterglow(memory="64MiB") as front_end:
        where = [
            "--rootdir",
            suite,
            "--server",
            front_end.address,
            "--port",
            front_end.port,
            suite / "test_integration.py",
        ]
        # Neither our settings nor a cache beside its sources.
        ours = ["-c", os.devnull, "-p", "no:cacheprovider", "-q", "-W", "ignore", "-m", "integration"]
        out = run(sys.executable, "-m", "pytest", *ours, *where)
        # One of them lowers the memory for objects to 50 MiB, each time anew.
        lowered = front_end.metrics().value("afterglow_engine_dram_capacity_bytes")
    assert int(re.search(r"(\d+) passed", out)[1]) >= 100, out
    assert lowered < 50 << 20


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_pylibmc(front_end, binary):
    client = pylibmc.Client(
        [f"{front_end.address}:{front_end.port}"], binary=binary, behaviors={"ketama": True, "cas": True}
    )
    client.flush_all()
    assert client.get("a") is None
    assert client.set("a", {"some": ["object"]})
    assert client.get("a") == {"some": ["object"]}
    assert not client.add("a", 1) and client.replace("a", 5)
    assert client.incr("a", 2) == 7 and client.decr("a", 3) == 4
    value, token = client.gets("a")
    assert client.cas("a", 9, token) and not client.cas("a", 10, token)
    assert not client.set_multi({f"k{i}": i for i in range(200)})
    assert client.get_multi([f"k{i}" for i in range(300)]) == {f"k{i}": i for i in range(200)}
    assert client.set("t", "text") and client.append("t", "!") and client.prepend("t", "!")
    assert client.get("t") == "!text!"
    assert client.touch("t", 100) and client.delete("t") and not client.delete("t")
    blob = random.Random(1).randbytes(700_000)
    assert client.set("blob", blob) and client.get("blob") == blob
    assert client.get_stats()[0][1]["threads"]


def test_gomemcache(front_end, tmp_path):
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not shutil.which(go):
        pytest.skip("needs Go")
    program = tmp_path / "session"
    run(go, "build", "-o", program, ".", cwd=CLIENTS / "go")
    assert "all is well" in run(program, f"{front_end.address}:{front_end.port}")


def test_spymemcached(front_end):
    jars = ROOT / "target" / "spymemcached"
    if not list(jars.glob("spymemcached-*.jar")):
        pom = CLIENTS / "java" / "pom.xml"
        run("mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={jars}")
    # The folder of target/ that Maven leaves beside the POM holds nothing.
    classpath = f"{jars}/*"
    source = CLIENTS / "java" / "Session.java"
    assert "all is well" in run("java", "-cp", classpath, source, f"{front_end.address}:{front_end.port}")


def test_memccapable(front_end):
    program = peer("memccapable")
    if program is None:
        pytest.skip("needs libmemcached-tools")
    out = run(program, "-h", front_end.address, "-p", front_end.port, "-t", 20, env=peer_environment())
    assert "All tests passed" in out and out.count("[pass]") >= 54, out


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
            if name and name != "dumps" and "binary" not in name and "users" not in name and "never ends" not in name:
                yield name, lines
            name, lines = line[2:], []
        elif line:
            lines.append(expand(line))


def tokens_apart(answer):
    """An answer without what may differ: the version, cas tokens, and how many seconds are left."""
    answer = re.sub(rb"VERSION [^\r]*", b"VERSION", answer)
    answer = re.sub(rb" t\d+", b" t#", answer)
    return re.sub(rb"(^VALUE \S+ \d+ \d+ |cas=| c)\d+", rb"\1#", answer, flags=re.M)


def say(connection, data):
    """What is answered to some bytes, known to be whole because a command that always answers comes after them."""
    connection.send(data + b"mn\r\n")
    return connection.until(b"MN\r\n")


@pytest.fixture(scope="module")
def memcached():
    if peer("memcached") is None:
        pytest.skip("needs memcached")
    with Memcached(["-o", "no_lru_maintainer,no_lru_crawler"]) as server:
        yield server


def test_recorded_conversations_go_as_with_memcached(front_end, memcached):
    wrong, lines = [], 0
    for name, sent in conversations():
        if name == "other commands" or name == "cas" or name.startswith("meta"):
            # These name cas tokens, or end the connection: the unit tests have them.
            sent = [line for line in sent if not re.search(rb"quit| C\d|^cas|I C|mn\\r|refresh", line)]
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
    "ma {k} MD D{n} t v", "set {k} {n} {t} {l}", "add {k} {n} {t} {l}", "replace {k} {n} {t} {l}",
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
            values = [say(connection, b"mg %s v f\r\n" % key.encode()) for connection in (ours, theirs)]
            assert values[0] == values[1], f"seed {seed}, step {step}: what {command} left"
        ours.close()
        theirs.close()
    assert len(answers_seen) >= 5, "too large, not stored and stored, in both forms"


def dumped(server, command, end):
    """What a dump names: each object once, by key, without cas tokens and times of use."""
    raw = server.connect()
    raw.send(command + b"\r\n")
    lines = raw.until(end).removesuffix(end).split(b"\n")[:-1]
    raw.close()
    return sorted({re.sub(rb" (la|cas)=\d+", b"", line.rstrip(b"\r")) for line in lines})


def test_dumps_say_what_memcached_says():
    if peer("memcached") is None:
        pytest.skip("needs memcached")
    with MemcacheAfterglow() as front_end, Memcached() as memcached:
        for server in (front_end, memcached):
            raw = server.connect()
            say(raw, b"flush_all\r\n")
            for i in range(300):
                raw.send(b"set %d/%%a+~\xc3\xa9 %d %d 2\r\nhi\r\n" % (i, i % 3, 0 if i % 2 else 1_900_000_000))
                assert raw.until(b"\r\n") == b"STORED\r\n"
            say(raw, b"ms AAH/ 1 b\r\n1\r\nget 7/%a+~\xc3\xa9\r\nset gone 0 -1 1\r\n1\r\nset gone2 0 0 1\r\n1\r\n")
            say(raw, b"delete gone2\r\nget 7/%a+~\xc3\xa9\r\n")
            raw.close()
        for crawled in (b"all", b"hash", b"1,2"):
            command = b"lru_crawler metadump " + crawled
            ours, theirs = (dumped(server, command, b"END\r\n") for server in (front_end, memcached))
            assert [line.replace(b"cls=2", b"cls=1") for line in theirs] == ours and len(ours) == 301, crawled
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


def test_pipelined_requests_are_answered_in_order_and_together(raw):
    count = 2000
    raw.send(b"".join(b"set p%d 0 0 4\r\n%04d\r\n" % (i, i) for i in range(count)))
    for _ in range(count):
        assert raw.until(b"\r\n") == b"STORED\r\n"
    raw.send(b"".join(b"get p%d\r\n" % i for i in range(count)))
    for i in range(count):
        assert raw.until(b"END\r\n") == b"VALUE p%d 0 4\r\n%04d\r\nEND\r\n" % (i, i)


def test_a_client_that_does_not_read_costs_neither_memory_nor_others(front_end, raw):
    value = b"v" * 900_000
    assert raw.set(b"big", value) == b"STORED"
    before = memory(front_end)
    lazy = [front_end.connect() for _ in range(8)]
    for connection in lazy:
        connection.send(b"get big\r\n" * 200)
    for i in range(200):
        assert raw.line(b"set other%d 0 0 1\r\n1" % i) == b"STORED"
    assert memory(front_end) - before < 64 << 20, "1.4 GB of answers were asked for"
    for connection in lazy:
        connection.close()


def memory(front_end):
    status = Path(f"/proc/{front_end.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024


def test_a_unix_socket(front_end):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(front_end.socket))
    raw = Raw(connection)
    assert raw.set(b"u", b"unix") == b"STORED" and raw.get(b"u") == b"unix"
    raw.close()
    assert front_end.socket.stat().st_mode & 0o777 == 0o700


def test_figures_for_dashboards(front_end, raw):
    raw.set(b"f", b"1")
    raw.get(b"f")
    raw.get(b"no such key")
    raw.line(b"incr f 1")
    metrics = front_end.metrics()
    assert metrics.value("memcached_up") == 1
    for command, status in [("get", "hit"), ("get", "miss"), ("set", "hit"), ("incr", "hit")]:
        assert metrics.total("memcached_commands_total", command=command, status=status) > 0, (command, status)
    for name in "current_items current_bytes limit_bytes current_connections max_connections uptime_seconds".split():
        metrics.value(f"memcached_{name}")
    assert metrics.total("afterglow_hits_total", frontend="memcache", tier="dram") > 0


# What the Prometheus exporter of memcached reads of each `stats`, as far as memcached 1.6.18 has it.
EXPORTER = {
    "": """uptime time version rusage_user rusage_system bytes limit_maxbytes curr_items total_items bytes_read
        bytes_written curr_connections total_connections rejected_connections conn_yields
        listen_disabled_num accepting_conns evictions reclaimed store_too_large store_no_memory
        lru_crawler_starts direct_reclaims crawler_items_checked crawler_reclaimed moves_to_cold
        moves_to_warm moves_within_lru get_hits get_misses delete_hits delete_misses incr_hits incr_misses
        decr_hits decr_misses cas_hits cas_misses cas_badval touch_hits touch_misses cmd_flush cmd_set
        extstore_compact_lost extstore_compact_rescues extstore_compact_skipped extstore_page_allocs
        extstore_page_evictions extstore_page_reclaims extstore_pages_free extstore_pages_used
        extstore_objects_evicted extstore_objects_read extstore_objects_written extstore_objects_used
        extstore_bytes_evicted extstore_bytes_written extstore_bytes_read extstore_bytes_used
        extstore_bytes_fragmented extstore_limit_maxbytes extstore_io_queue""",
    " settings": "maxconns lru_crawler",
    " slabs": """chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks free_chunks_end
        total_malloced get_hits cmd_set delete_hits incr_hits decr_hits cas_hits cas_badval touch_hits""",
    " items": """number age crawler_reclaimed evicted evicted_nonzero evicted_time evicted_unfetched
        expired_unfetched outofmemory reclaimed tailrepairs mem_requested moves_to_cold moves_to_warm
        moves_within_lru number_hot number_warm number_cold age_hot age_warm hits_to_hot hits_to_warm
        hits_to_cold hits_to_temp""",
    " conns": "addr listen_addr state secs_since_last_cmd",
}

# What memcached 1.6.18 names and Afterglow does not, as docs/guide/memcached.md says: parts that it does not have,
# and what it does not know.
LEFT_OUT = {
    "": """libevent reserved_fds response_obj_.* read_buf_.* slab_.* slabs_moved lru_maintainer_juggles
        lru_bumps_dropped malloc_fails log_.* unexpected_napi_ids round_robin_fallback
        recache_from_extstore expired_unfetched evicted_unfetched evicted_active extstore_compact_rescues
        extstore_compact_skipped extstore_page_allocs extstore_objects_written extstore_bytes_evicted
        extstore_bytes_fragmented""",
    " settings": """reqs_per_event tcp_backlog hashpower_init hash_algorithm slab_.* lru_crawler_.* tail_repair_time
        hot_.* warm_.* temporary_ttl .*_logbuf_size ext_.* ssl_.* num_napi_ids memory_file""",
    " slabs": "",
    " items": "age.* evicted_nonzero evicted_time expired_unfetched evicted_unfetched evicted_active",
    " conns": "",
}


def names(server, which):
    """What a kind of `stats` names, without the class or the connection that it is of."""
    raw = server.connect()
    raw.set(b"some", b"object")
    raw.send(b"stats%s\r\n" % which.encode())
    lines = raw.until(b"END\r\n").decode().splitlines()[:-1]
    raw.close()
    return {re.sub(r"^(items:)?\d+:", "", line.split(" ")[1]) for line in lines}


@pytest.mark.parametrize("which", EXPORTER)
def test_stats_have_the_names_that_memcached_has_and_monitoring_reads(front_end, tmp_path, which):
    if peer("memcached") is None:
        pytest.skip("needs memcached")
    left_out = re.compile("|".join(LEFT_OUT[which].split()) or "nothing")
    ours = names(front_end, which)
    with Memcached(["-o", f"ext_path={tmp_path}/ext:64m"]) as memcached:
        theirs = names(memcached, which)
    read = set(EXPORTER[which].split())
    assert read <= theirs, "the list is of another memcached"
    assert {name for name in theirs | read if not left_out.fullmatch(name)} <= ours


def figures(raw, which=b""):
    """All that a kind of `stats` says."""
    raw.send(b"stats%s\r\n" % which)
    lines = raw.until(b"END\r\n").decode().splitlines()[:-1]
    return dict(line.split(" ", 2)[1:] for line in lines)


# Counted by the store on flash or of the process: memcached, too, leaves these when it is told to reset.
GAUGES = re.compile(
    "pid|uptime|time|version|pointer_size|rusage_.*|max_connections|curr_.*|connection_structures|limit_maxbytes|"
    "accepting_conns|threads|hash_.*|bytes|extstore_.*"
)


def test_a_reset_resets_what_memcached_resets(memcached):
    with MemcacheAfterglow() as front_end:
        seen = []
        for server in (front_end, memcached):
            raw = server.connect()
            say(raw, b"set r 0 0 1\r\n1\r\nget r none\r\nincr r 1\r\ntouch r 0\r\ndelete none\r\nflush_all invalid\r\n")
            assert int(figures(raw)["cmd_get"]) > 0
            assert raw.line(b"stats reset") == b"RESET"
            after = figures(raw)
            seen.append({name for name, value in after.items() if re.fullmatch(r"[0.]+", value)})
            assert say(raw, b"get r\r\n").startswith(b"VALUE r 0 1")
            assert figures(raw)["get_hits"] == "1" and figures(raw)["curr_connections"] == after["curr_connections"]
            raw.close()
        ours, theirs = seen
        both = set(figures(front_end.connect())) - ours
        left = {name for name in theirs & both if not GAUGES.fullmatch(name)}
        assert not left and len(theirs & ours) > 30, left
        assert front_end.metrics().total("memcached_commands_total", command="incr", status="hit") == 1


def fill(raw, count, size, tag=b"x"):
    """So many objects, each of its own content."""
    for first in range(0, count, 100):
        keys = range(first, min(first + 100, count))
        raw.send(b"".join(b"set o%d 5 0 %d\r\n%s\r\n" % (i, size, content(i, size, tag)) for i in keys))
        for _ in keys:
            assert raw.until(b"\r\n") == b"STORED\r\n"


def content(i, size, tag=b"x"):
    return (b"%s-%d-" % (tag, i) * (size // 4))[:size]


def on_flash(front_end):
    """Waits until nothing is in memory only."""
    poll("everything to be on flash", lambda: front_end.metrics().value("afterglow_engine_unsaved_bytes") == 0, 30)


def test_objects_on_flash_are_read_changed_and_kept_in_order(tmp_path):
    count, size = 12_000, 4000
    with MemcacheAfterglow(folder=tmp_path, flash="256MiB", memory="32MiB") as front_end:
        raw = front_end.connect()
        # More than memory holds, as fast as it will go: a set waits while the disk is behind, so that none is lost.
        fill(raw, count, size)
        on_flash(front_end)
        before = front_end.metrics().total("afterglow_hits_total", frontend="memcache", tier="flash")
        keys = [(i * 37) % count for i in range(2000)]
        for first in range(0, len(keys), 50):
            some = keys[first : first + 50]
            raw.send(b"get " + b" ".join(b"o%d" % i for i in some) + b"\r\n")
            for i in some:
                assert raw.until(b"\r\n") == b"VALUE o%d 5 %d\r\n" % (i, size)
                assert raw.until(b"\r\n") == content(i, size) + b"\r\n"
            assert raw.until(b"\r\n") == b"END\r\n"
        assert front_end.metrics().total("afterglow_hits_total", frontend="memcache", tier="flash") - before > 500
        # A read of flash and, behind it, changes of the same key: each sees what the one before it left.
        for i in range(200):
            raw.send(b"get o%d\r\nappend o%d 0 0 1\r\n!\r\nmg o%d s\r\ndelete o%d\r\nget o%d\r\n" % (i, i, i, i, i))
            assert raw.until(b"END\r\n").endswith(content(i, size) + b"\r\nEND\r\n")
            assert raw.until(b"\r\n") == b"STORED\r\n"
            assert raw.until(b"\r\n") == b"HD s%d\r\n" % (size + 1)
            assert raw.until(b"\r\n") == b"DELETED\r\n"
            assert raw.until(b"\r\n") == b"END\r\n"
        for i in range(1000, 1200):
            assert raw.line(b"touch o%d 1000" % i) == b"TOUCHED"
            assert raw.line(b"mg o%d t" % i) in (b"HD t1000", b"HD t999")


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_restart_keeps_values_tokens_and_expiry(tmp_path, how):
    front_end = MemcacheAfterglow(folder=tmp_path).start()
    try:
        raw = front_end.connect()
        fill(raw, 3000, 500)
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
        assert raw.line(b"touch o2000 1000") == b"TOUCHED"
        assert raw.line(b"touch o2001 -1") == b"TOUCHED"
        assert raw.line(b"set never 0 -1 1\r\n1") == b"STORED"
        touched = int(time.time())
        fill(raw, 100, 500, b"new")
        on_flash(front_end)
        getattr(front_end, how)()
        front_end.start()
        poll("the index to be loaded", lambda: front_end.metrics().value("afterglow_engine_loading") == 0, 20)
        raw = front_end.connect()
        found = [raw.get(b"o%d" % i) for i in range(3000)]
        missing = sum(value is None for value in found)
        assert missing == 1 and found.pop(2001) is None, missing
        left = int(raw.line(b"mg o2000 t").split(b" t")[1])
        assert abs(left - (touched + 1000 - time.time())) <= 2
        assert raw.get(b"never") is None
        assert found[:100] == [content(i, 500, b"new") for i in range(100)], "nothing stale"
        assert found[100:] == [content(i, 500) for i in range(100, 3000) if i != 2001]
        assert raw.get(b"gone") is None and raw.get(b"counter") == b"15"
        raw.send(b"gets later\r\n")
        assert raw.until(b"END\r\n") == b"VALUE later 7 5 %s\r\nvalue\r\nEND\r\n" % token
        left = int(raw.line(b"mg later t").split(b" t")[1])
        assert abs(left - (deadline - time.time())) <= 2
        assert raw.line(b"cas later 0 0 1 %s\r\n1" % token) == b"STORED"
        poll("a second to pass", lambda: raw.get(b"short") is None, 5)
    finally:
        front_end.stop()


def test_values_as_large_as_a_quarter_of_a_segment(tmp_path):
    largest = (2 << 20) - 64 - len("largest")
    value = random.Random(5).randbytes(largest)
    extra = ["--memcache-item-size", "2MiB"]
    with MemcacheAfterglow(folder=tmp_path, flash="2GiB", memory="128MiB", extra=extra) as front_end:
        raw = front_end.connect()
        assert raw.set(b"largest", value) == b"STORED" and raw.get(b"largest") == value
        assert raw.set(b"largest", value + b"!") == b"SERVER_ERROR object too large for cache"
        assert raw.get(b"largest") is None, "nothing older than what was refused"
        assert raw.set(b"largest", value) == b"STORED"
        front_end.terminate()
        front_end.start()
        poll("the index to be loaded", lambda: front_end.metrics().value("afterglow_engine_loading") == 0, 20)
        assert front_end.connect().get(b"largest") == value
        assert front_end.metrics().total("afterglow_hits_total", frontend="memcache", tier="flash") == 1


def test_a_scheduled_flush_comes_although_the_server_was_down(tmp_path):
    front_end = MemcacheAfterglow(folder=tmp_path).start()
    try:
        raw = front_end.connect()
        fill(raw, 10, 100)
        on_flash(front_end)
        assert raw.line(b"flush_all 2") == b"OK"
        due = time.time() + 2
        assert raw.get(b"o1") is not None
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
            workers = [threading.Thread(target=count, args=(thread, 1000)) for thread in range(threads)]
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
        poll("the index to be loaded", lambda: front_end.metrics().value("afterglow_engine_loading") == 0, 20)
        assert sum(int(raw.get(b"n%d" % counter)) for counter in range(4)) == sum(acknowledged) == 16_000
    finally:
        front_end.stop()


def test_users_and_tls(tmp_path):
    users, cert, key = (tmp_path / name for name in ("users", "cert.pem", "key.pem"))
    users.write_text("ada:secret\n")
    users.chmod(0o600)
    if not shutil.which("openssl"):
        pytest.skip("needs openssl to make a certificate")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-keyout", key, "-out", cert, *subject)  # fmt: skip
    extra = ["--memcache-auth-file", users, "--memcache-tls-cert", cert, "--memcache-tls-key", key]
    with MemcacheAfterglow(folder=tmp_path / "folder", extra=extra) as front_end:
        context = ssl.create_default_context(cafile=str(cert))
        raw = Raw(
            context.wrap_socket(
                socket.create_connection((front_end.address, front_end.port)), server_hostname="127.0.0.1"
            )
        )
        assert raw.line(b"get a") == b"CLIENT_ERROR unauthenticated"
        assert raw.line(b"set auth 0 0 9\r\nada wrong") == b"CLIENT_ERROR authentication failure"
        assert raw.line(b"set auth 0 0 10\r\nada secret") == b"STORED"
        value = random.Random(3).randbytes(200_000).replace(b"\r", b"x")
        assert raw.set(b"a", value) == b"STORED" and raw.get(b"a") == value
        assert raw.line(b"refresh_certs") == b"OK"
        raw.close()
        plain = front_end.connect()
        plain.send(b"get a\r\n")
        assert plain.connection.recv(100)[:1] != b"V", "who speaks no TLS is refused"
        unix = socket.socket(socket.AF_UNIX)
        unix.connect(str(front_end.socket))
        assert Raw(unix).line(b"get a") == b"CLIENT_ERROR unauthenticated"


def test_users_are_read_again_and_the_file_is_private(tmp_path):
    users = tmp_path / "users"
    users.write_text("ada:secret\n")
    users.chmod(0o644)
    front_end = MemcacheAfterglow(folder=tmp_path / "folder", extra=["--memcache-auth-file", users])
    with pytest.raises(Failure, match="chmod 600"):
        front_end.start()
    users.chmod(0o600)
    with MemcacheAfterglow(folder=tmp_path / "second", extra=["--memcache-auth-file", users]) as front_end:
        ada, bob = b"set auth 0 0 10\r\nada secret", b"set auth 0 0 10\r\nbob secret"
        assert front_end.connect().line(ada) == b"STORED"
        assert front_end.connect().line(bob) == b"CLIENT_ERROR authentication failure"
        users.write_text("bob:secret\n")
        os.kill(front_end.pid, signal.SIGHUP)
        poll("the users to be read again", lambda: front_end.connect().line(bob) == b"STORED", 10)
        assert front_end.connect().line(ada) == b"CLIENT_ERROR authentication failure"


def test_limits_on_connections_and_idleness(tmp_path):
    extra = ["--memcache-connections", "4", "--memcache-idle-timeout", "1s"]
    with MemcacheAfterglow(folder=tmp_path, extra=extra) as front_end:
        held = [front_end.connect() for _ in range(4)]
        for connection in held:
            assert connection.line(b"mn") == b"MN"
        assert front_end.connect().until(b"\r\n") == b"ERROR Too many open connections\r\n"
        # Nothing is said any more: they are closed.
        for connection in held:
            assert connection.connection.recv(1) == b""
        poll("room again", lambda: front_end.metrics().value("memcached_current_connections") == 0, 10)
        assert front_end.connect().line(b"mn") == b"MN"
