"""Values of the memcached front end in parts: up to 64 MiB, through both protocols, with readers
beside writers, clients that go or do not read, kills and damage.
"""

import hashlib
import random
import socket
import struct
import threading

import pytest

from afterglow_e2e.memcache import MemcacheAfterglow
from afterglow_e2e.process import Failure, poll

OPTIONS = ["--memcache-item-size", "64MiB"]


def start(folder):
    front_end = MemcacheAfterglow(folder=folder, flash="2GiB", memory="256MiB", extra=OPTIONS)
    return front_end.start()


def generation(number, size):
    """A value that says in each 16 bytes which it is."""
    return (b"%016d" % number * (size // 16 + 1))[:size]


def receive(raw, size):
    while len(raw.buffer) < size:
        data = raw.connection.recv(1 << 20)
        if not data:
            raise Failure("the connection ended within a value")
        raw.buffer += data
    value, raw.buffer = raw.buffer[:size], raw.buffer[size:]
    return value


def get(raw, key):
    raw.buffer = bytearray(raw.buffer)
    raw.send(b"get " + key + b"\r\n")
    head = raw.until(b"\r\n")
    if head == b"END\r\n":
        return None
    value = receive(raw, int(head.split()[3]))
    assert raw.until(b"\r\n") == b"\r\n" and raw.until(b"\r\n") == b"END\r\n"
    return bytes(value)


def loaded(front_end):
    metrics = front_end.metrics
    poll("the index", lambda: metrics().value("afterglow_engine_loading") == 0, 60)


def clients(front_end):
    return front_end.metrics().total("afterglow_client_connections_open", frontend="memcache")


def packet(opcode, key, extras=b"", value=b""):
    body = len(extras) + len(key) + len(value)
    head = struct.pack("!BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0, body, 7, 0)
    return head + extras + key + value


def test_values_up_to_the_limit_through_both_protocols_and_restarts(tmp_path):
    front_end = start(tmp_path)
    try:
        hashes = {}
        raw, binary = front_end.connect(), front_end.connect()
        for size in (5 << 20, 16 << 20, (64 << 20) - 73):
            for protocol, key in ((raw, b"t%d" % size), (binary, b"b%d" % size)):
                value = random.Random(size).randbytes(size)
                hashes[key] = hashlib.sha256(value).digest()
                if protocol is raw:
                    assert raw.set(key, value) == b"STORED"
                    continue
                binary.send(packet(1, key, struct.pack("!II", 5, 0), value))
                assert struct.unpack("!H", receive(binary, 24)[6:8]) == (0,)
                binary.send(packet(0, key))
                head = receive(binary, 24)
                assert struct.unpack("!I", head[8:12]) == (size + 4,)
                assert bytes(receive(binary, size + 4))[4:] == value
        assert raw.set(b"over", bytes(64 << 20)) == b"SERVER_ERROR object too large for cache"
        for how in ("", "kill", "terminate"):
            if how:
                getattr(front_end, how)()
                front_end.start()
                loaded(front_end)
                raw = front_end.connect()
            for key, digest in list(hashes.items()):
                value = get(raw, key)
                assert value is not None, (how, key)
                assert hashlib.sha256(value).digest() == digest, (how, key)
        assert front_end.metrics().total("memcached_parts_lost_total") == 0
    finally:
        front_end.stop()


def test_what_was_answered_is_there_after_a_kill_that_follows_at_once(tmp_path):
    front_end = start(tmp_path)
    try:
        for turn in range(3):
            raw = front_end.connect()
            values = {b"%d.%d" % (turn, n): generation(turn * 10 + n, 9 << 20) for n in range(4)}
            for key, value in values.items():
                assert raw.set(key, value) == b"STORED"
            keys = list(values)
            assert raw.line(b"touch %s 1000" % keys[0]) == b"TOUCHED"
            assert raw.line(b"mg %s T1000" % keys[1]) == b"HD"
            raw.send(b"append %s 0 0 3\r\nabc\r\n" % keys[2])
            assert raw.until(b"\r\n") == b"STORED\r\n"
            values[keys[2]] += b"abc"
            front_end.kill()
            front_end.start()
            loaded(front_end)
            raw = front_end.connect()
            for key, value in values.items():
                assert get(raw, key) == value, key
    finally:
        front_end.stop()


def test_each_read_beside_overwrites_is_one_value_and_none_older_than_one_acknowledged(tmp_path):
    front_end = start(tmp_path)
    sizes = (6 << 20, 100, 9 << 20)
    try:
        acknowledged, over, wrong = [0], threading.Event(), []

        def read():
            raw, hits = front_end.connect(), 0
            while not over.is_set() or hits == 0:
                least = acknowledged[0]
                value = get(raw, b"k")
                if value is None:
                    continue
                hits += 1
                number = int(value[:16])
                if value != generation(number, sizes[number % 3]) or number < least:
                    wrong.append((number, least, len(value)))
                    return

        readers = [threading.Thread(target=read) for _ in range(3)]
        raw = front_end.connect()
        for number in range(1, 40):
            assert raw.set(b"k", generation(number, sizes[number % 3])) == b"STORED"
            acknowledged[0] = number
            if number == 1:
                for reader in readers:
                    reader.start()
        over.set()
        for reader in readers:
            reader.join()
        assert not wrong
    finally:
        front_end.stop()


def test_clients_that_go_or_do_not_read_cost_nobody_anything(tmp_path):
    front_end = start(tmp_path)
    try:
        raw = front_end.connect()
        old = generation(1, 20 << 20)
        assert raw.set(b"k", old) == b"STORED"
        goes = front_end.connect()
        goes.send(b"set k 0 0 %d\r\n" % (20 << 20) + generation(2, 11 << 20))
        goes.close()
        slow = front_end.connect()
        slow.send(b"get k\r\n" * 8)
        assert get(raw, b"k") == old
        held = front_end.metrics().value("process_resident_memory_bytes")
        assert held < 600 << 20
        assert slow.until(b"\r\n") == b"VALUE k 0 %d\r\n" % len(old)
        slow.buffer = bytearray(slow.buffer)
        assert receive(slow, len(old)) == old
    finally:
        front_end.stop()


@pytest.mark.parametrize("where", [0, 7])
def test_a_damaged_part_closes_the_connection_or_is_a_miss(tmp_path, where):
    front_end = start(tmp_path)
    try:
        value = random.Random(9).randbytes(12 << 20)
        assert front_end.connect().set(b"k", value) == b"STORED"
        front_end.terminate()
        flash = next(path for path in (tmp_path / "data").rglob("*") if path.stat().st_size >> 30)
        content = flash.read_bytes()
        at = content.index(value[(where << 20) + 9000 : (where << 20) + 9100])
        with flash.open("r+b") as file:
            file.seek(at)
            file.write(bytes([content[at] ^ 1]))
        del content
        front_end.start()
        loaded(front_end)
        raw = front_end.connect()
        if where == 0:
            assert get(raw, b"k") is None
        else:
            raw.send(b"get k\r\n")
            came = b"".join(iter(lambda: raw.connection.recv(1 << 20), b""))
            head, _, came = came.partition(b"\r\n")
            assert head == b"VALUE k 0 %d" % len(value)
            assert len(came) < len(value) and value.startswith(came)
            assert front_end.metrics().total("memcached_parts_lost_total") == 1
        assert get(front_end.connect(), b"k") is None
    finally:
        front_end.stop()


def test_a_client_that_resets_while_its_append_waits_takes_nothing_away(tmp_path):
    front_end = start(tmp_path)
    try:
        raw = front_end.connect()
        assert raw.set(b"long", generation(1, 40 << 20)) == b"STORED"
        for number in range(3):
            value = generation(number, 6 << 20)
            assert raw.set(b"k", value) == b"STORED"
            goes = front_end.connect()
            # Its turn does not come: what stands before it is not read.
            goes.send(b"get long\r\nappend k 0 0 3\r\nabc\r\n")
            assert goes.until(b"\r\n").startswith(b"VALUE long")
            newer = generation(number + 10, 6 << 20)
            assert raw.set(b"k", newer) == b"STORED"
            linger = struct.pack("ii", 1, 0)
            goes.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            goes.close()
            poll("the connection to end", lambda: clients(front_end) == 1, 30)
            found = get(raw, b"k")
            assert found in (newer, newer + b"abc"), found and len(found)
    finally:
        front_end.stop()
