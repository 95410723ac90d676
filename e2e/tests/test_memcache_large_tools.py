"""Values in parts as what stands around the commands sees them: TLS, watchers, dumps, hot keys,
statistics of commands, and the flags of meta commands.
"""

import json
import random
import re
import shutil
import socket
import ssl

import pytest

from afterglow_e2e.certificates import run
from afterglow_e2e.memcache import MemcacheAfterglow, Raw

SIZE = 9 << 20
OPTIONS = ["--memcache-item-size", "64MiB"]


def start(folder, extra=()):
    options = [*OPTIONS, *extra]
    return MemcacheAfterglow(folder=folder, flash="2GiB", memory="256MiB", extra=options).start()


def receive(raw, size):
    """So many bytes of a value, and the end of its line."""
    raw.buffer = bytearray(raw.buffer)
    while len(raw.buffer) < size + 2:
        data = raw.connection.recv(1 << 20)
        assert data, "the connection ended within a value"
        raw.buffer += data
    value = bytes(raw.buffer[:size])
    assert raw.buffer[size : size + 2] == b"\r\n"
    raw.buffer = bytes(raw.buffer[size + 2 :])
    return value


def get(raw, key, command=b"get"):
    raw.send(command + b" " + key + b"\r\n")
    head = raw.until(b"\r\n").split()
    value = receive(raw, int(head[3]))
    assert raw.until(b"\r\n") == b"END\r\n"
    return value


def test_tls_carries_values_of_any_size_and_clients_that_stand_still_cost_others_nothing(tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("needs openssl to make a certificate")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-keyout", key, "-out", cert, *subject)  # fmt: skip
    front_end = start(tmp_path / "f", ["--memcache-tls-cert", cert, "--memcache-tls-key", key])
    try:
        context = ssl.create_default_context(cafile=str(cert))

        def connect():
            connection = socket.create_connection((front_end.address, front_end.port))
            return Raw(context.wrap_socket(connection, server_hostname="127.0.0.1"))

        raw, silent = connect(), connect()
        for size in (SIZE, (64 << 20) - 100):
            value = random.Random(size).randbytes(size)
            assert raw.set(b"k", value) == b"STORED"
            silent.send(b"get k\r\n")
            assert get(raw, b"k") == value
        silent.send(b"set k 0 0 %d\r\nbegun" % SIZE)
        assert get(raw, b"k") == value
        assert raw.line(b"mn") == b"MN"
    finally:
        front_end.stop()


def plain(line, key, size):
    """A line that a watcher was told, without what differs from one object to another."""
    line = re.sub(rb"^ts=\S+ gid=\d+ | cfd=\d+", b"", line)
    line = line.replace(b"key=%s " % key, b"key=KEY ")
    return re.sub(rb" size=(\d+)", lambda m: b" size=%d" % (int(m[1]) - size), line)


def test_watchers_are_told_of_a_value_in_parts_what_they_are_told_of_any(tmp_path):
    front_end = start(tmp_path)
    try:
        raw, watcher = front_end.connect(), front_end.connect()
        assert watcher.line(b"watch fetchers mutations evictions") == b"OK"
        told = {}
        for key, size in ((b"small", 300), (b"large", SIZE)):
            assert raw.set(key, bytes(size)) == b"STORED"
            get(raw, key)
            get(raw, b"100 " + key, b"gat")
            for command in (b"touch %s 1000", b"mg %s s", b"incr %s 1", b"add %s 0 0 1\r\n1"):
                raw.line(command % key)
            # An append tells nothing of how long the whole became.
            for command in (b"append %s 0 0 2\r\nab", b"delete %s", b"get %s"):
                raw.line(command % key)
            lines = b""
            while not re.search(rb"key=%s status=not_found[^\n]*\n" % key, lines):
                lines += watcher.until(b"\n")
            told[key] = [plain(line, key, size) for line in lines.splitlines()]
        assert len(told[b"small"]) >= 8
        stored = rb"type=item_store key=KEY status=stored cmd=append"
        small, large = ([line for line in told[key] if stored not in line] for key in told)
        small, large = (
            [re.sub(rb" size=-\d+", b"", line) for line in lines] for lines in (small, large)
        )
        assert small == large
    finally:
        front_end.stop()


def test_dumps_list_each_value_once_and_no_part(tmp_path):
    front_end = start(tmp_path)
    try:
        raw = front_end.connect()
        for number in range(3):
            assert raw.set(b"large%d" % number, bytes(SIZE)) == b"STORED"
        assert raw.set(b"small", b"1") == b"STORED"
        names = {b"large0", b"large1", b"large2", b"small"}
        for turn in ("in memory", "on flash"):
            if turn == "on flash":
                front_end.terminate()
                front_end.start()
                raw = front_end.connect()
                while not (answer := dump(raw, b"metadump")).startswith(b"key="):
                    assert b"ERROR" in answer, answer
            lines = dump(raw, b"metadump").splitlines()[:-1]
            sizes = dict(re.match(rb"key=(\S+) .*size=(\d+)", line).groups() for line in lines)
            assert len(lines) == 4 and set(sizes) == names, turn
            assert all(int(sizes[name]) > SIZE for name in names - {b"small"}), sizes
            raw.send(b"lru_crawler mgdump all\r\n")
            keys = raw.until(b"EN\r\n").split(b"\r\n")[:-2]
            assert sorted(keys) == sorted(b"mg " + name for name in names), turn
    finally:
        front_end.stop()


def dump(raw, form):
    raw.send(b"lru_crawler %s all\r\n" % form)
    first = raw.until(b"\n")
    return first if first.startswith((b"ERROR", b"END")) else first + raw.until(b"END\r\n")


def test_each_read_of_a_value_is_one_of_its_key_in_the_statistics(tmp_path):
    front_end = start(tmp_path, ["--show-keys"])
    try:
        raw = front_end.connect()
        assert raw.set(b"user:k", bytes(SIZE)) == b"STORED"
        raw.send(b"stats reset\r\n")
        raw.until(b"RESET\r\n")
        for _ in range(20):
            assert len(get(raw, b"user:k")) == SIZE
        raw.send(b"stats\r\n")
        stats = dict(re.findall(r"STAT (\S+) (\d+)\r", raw.until(b"END\r\n").decode()))
        assert [stats[name] for name in ("cmd_get", "get_hits", "get_misses")] == ["20", "20", "0"]
        # Only a sample of the keys is counted.
        raw.send(b"mg user:k s\r\n" * 20_000)
        for _ in range(20_000):
            assert raw.until(b"\r\n") == b"HD s%d\r\n" % SIZE
        (hot,) = json.loads(front_end.get("/api/v1/hotkeys")[1])["front_ends"]
        assert [one["name"] for one in hot["keys"]] == ["user:k"]
    finally:
        front_end.stop()


def converse(raw, key, size):
    """What meta commands answer of a value of so many bytes, without its length."""
    value = random.Random(5).randbytes(size)
    store = b"ms %s %d %s\r\n"
    told = []

    def say(command, data=b""):
        raw.send(command + data)
        line = raw.until(b"\r\n")
        if line.startswith(b"VA "):
            expected = value[: int(line.split()[1])]
            assert len(expected) in (0, size) and receive(raw, len(expected)) == expected
        # As long as the value, or as the object that `me` tells of.
        line = re.sub(rb"\b(s|size=)?(%d|%d)\b" % (size, size + 64 + len(key)), b"SIZE", line)
        line = re.sub(rb"\b(c|cas=)\d+", b"TOKEN", line.replace(key, b"KEY"))
        command = re.sub(rb" %d\b" % size, b" SIZE", command.replace(key, b"KEY"))
        told.append((command, line))

    say(store % (key, size, b"k O1 F9 T500 c s"), value + b"\r\n")
    for flags in (b"h l t s f O7 k", b"v h f", b"v h l t", b"q k", b"T900 t", b"v T800 t f"):
        say(b"mg %s %s\r\n" % (key, flags))
    for flags in (b"ME", b"MR F3", b"MS T-1", b"C1", b"E77 F4", b"MX"):
        say(store % (key, size, flags), value + b"\r\n")
        say(b"mg %s v f\r\n" % key)
    # Stale, and won by the first who reads it.
    say(store % (key, size, b"E1000"), value + b"\r\n")
    for command in (b"md %s I T30", b"mg %s v t", b"mg %s v", b"mg %s s f"):
        say(command % key + b"\r\n")
    say(store % (key, size, b"C999 I"), value + b"\r\n")
    for command in (b"mg %s v R100", b"mg %s R5000 s", b"ma %s", b"me %s b", b"mg %s2 v N30 t"):
        say(command % key + b"\r\n")
    for command in (b"md %s C5", b"md %s k O3", b"mg %s v k"):
        say(command % key + b"\r\n")
    return told


def test_meta_commands_say_of_a_value_in_parts_what_they_say_of_any(tmp_path):
    front_end = start(tmp_path)
    try:
        small = converse(front_end.connect(), b"small", 700)
        large = converse(front_end.connect(), b"large", SIZE)
        assert [pair for pair in zip(small, large, strict=True) if pair[0] != pair[1]] == []
        assert len(small) > 25
    finally:
        front_end.stop()
