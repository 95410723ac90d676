"""Connections of the memcached front end: pipelines, slow clients, sockets, users, TLS and
limits.
"""

import os
import random
import re
import shutil
import signal
import socket
import ssl
from pathlib import Path

import pytest

from afterglow_e2e.memcache import MemcacheAfterglow, Raw
from afterglow_e2e.process import Failure, poll, run


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
                socket.create_connection((front_end.address, front_end.port)),
                server_hostname="127.0.0.1",
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
    with MemcacheAfterglow(
        folder=tmp_path / "second", extra=["--memcache-auth-file", users]
    ) as front_end:
        ada, bob = b"set auth 0 0 10\r\nada secret", b"set auth 0 0 10\r\nbob secret"
        assert front_end.connect().line(ada) == b"STORED"
        assert front_end.connect().line(bob) == b"CLIENT_ERROR authentication failure"
        users.write_text("bob:secret\n")
        os.kill(front_end.pid, signal.SIGHUP)
        poll("the users to be read again", lambda: front_end.connect().line(bob) == b"STORED", 60)
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
        poll(
            "room again",
            lambda: front_end.metrics().value("memcached_current_connections") == 0,
            10,
        )
        assert front_end.connect().line(b"mn") == b"MN"
