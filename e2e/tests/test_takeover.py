"""`--take-over`: a process takes the listening sockets of another; nobody is refused."""

import contextlib
import socket
import threading
import time

from conftest import await_caching

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.certificates import Authority
from afterglow_e2e.drivers import connect
from afterglow_e2e.memcache import MemcacheAfterglow
from afterglow_e2e.process import Child, free_port, poll

ROWS = 200
# An OPTIONS of protocol version 4, and the first byte of its answer.
OPTIONS, ANSWER = bytes([4, 0, 0, 0, 5, 0, 0, 0, 0]), 0x84


class Knocking:
    """Connects again and again, and asks; counts who was refused, and the longest wait."""

    def __init__(self, port):
        self.port, self.refused, self.answered, self.longest = port, 0, 0, 0.0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.is_set():
            began = time.monotonic()
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=30) as client:
                    client.sendall(OPTIONS)
                    answer = client.recv(1)
            except ConnectionRefusedError:
                self.refused += 1
                continue
            except ConnectionResetError:
                continue  # it was taken by the old process just before its end
            if answer:
                assert answer[0] == ANSWER
                self.answered += 1
                self.longest = max(self.longest, time.monotonic() - began)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


@contextlib.contextmanager
def successor(of, backend=None, extra=(), **more):
    """One that was started in its place."""
    new = Afterglow(backend or of.backend, folder=of.folder, extra=["--take-over", *extra], **more)
    new.port, new.admin, new.log = of.port, of.admin, of.folder / "successor.log"
    try:
        yield new.launch()
    finally:
        new.stop()


def test_nobody_is_refused_and_the_successor_is_warm(cassandra, direct, table, tmp_path, capsys):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text)")
    with Afterglow(cassandra.contact, folder=tmp_path) as old:
        await_caching(old)
        with connect(old) as session:
            for k in range(ROWS):
                session.execute(f"INSERT INTO {table} (k, v) VALUES ({k}, 'v{k}')")
                session.execute(f"SELECT v FROM {table} WHERE k = {k}")
        with Knocking(old.port) as clients:
            poll("clients to be answered", lambda: clients.answered > 20, 30)
            with successor(old) as new:
                poll("the old process to end", lambda: not old.running(), 60)
                assert old.child.process.wait(30) == 0
                poll("the new one to serve", new.ready, 60, check=new.child.check)
                since = clients.answered
                poll("clients to be answered", lambda: clients.answered > since + 20, 30)
                assert clients.refused == 0, "connections were refused"
                with capsys.disabled():
                    print(f"\nthe longest wait for an answer was {clients.longest:.3f} s")
                await_caching(new)
                before = new.metrics().hits()
                with connect(new) as session:
                    for k in range(ROWS):
                        read = f"SELECT v FROM {table} WHERE k = {k}"
                        assert session.execute(read).one().v == f"v{k}"
                assert new.metrics().hits() - before >= 0.99 * ROWS
                # Once more, from the one that took over.
                with successor(new) as third:
                    poll("the second to end", lambda: not new.running(), 60)
                    poll("the third to serve", third.ready, 60, check=third.child.check)
                    since = clients.answered
                    poll("clients to be answered", lambda: clients.answered > since, 30)
                    clients.over.set()
                    clients.thread.join()
                    assert clients.refused == 0, "connections were refused"


def test_a_successor_that_could_not_start_leaves_the_server_alone(cassandra, tmp_path):
    with Afterglow(cassandra.contact, folder=tmp_path) as old:
        with successor(old, flash="512MiB") as new:
            assert new.child.process.wait(60) == 1
            assert "--discard-cache" in new.log_text(), new.log_text()
        assert old.running() and old.ready()
        # One that has no database would refuse everybody.
        ca = Authority(tmp_path, "ca").pem
        for wrong, says in (
            ({"backend": f"127.0.0.1:{free_port()}"}, "refused"),
            ({"extra": ("--backend-tls-ca", ca)}, "speaks no TLS"),
        ):
            with successor(old, **wrong) as new:
                assert new.child.process.wait(60) == 1
                text = new.log_text()
                assert "cannot take over, the server that runs goes on" in text, text
                assert says in text, text
            assert old.running() and old.ready()


def test_without_a_server_it_starts_as_usual(cassandra, tmp_path):
    with Afterglow(cassandra.contact, folder=tmp_path, extra=("--take-over",)) as alone:
        assert "no server runs on this data directory" in alone.log_text()
        assert alone.terminate() == 0
        # A stop leaves no socket in which clients would wait for ever.
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", alone.port)) != 0


def test_memcached_clients_wait_too(tmp_path):
    old = MemcacheAfterglow(folder=tmp_path)
    old.start()
    try:
        with socket.create_connection(("127.0.0.1", old.port), timeout=30) as client:
            client.sendall(b"set kept 0 0 2\r\nhi\r\n")
            assert client.recv(64) == b"STORED\r\n"
        command = [*old.command(), "--take-over"]
        new = Child("the successor", command, tmp_path / "successor.log")
        try:
            poll("the old process to end", lambda: not old.running(), 60, check=new.check)
            with socket.create_connection(("127.0.0.1", old.port), timeout=60) as client:

                def kept():
                    client.sendall(b"get kept\r\n")
                    return client.recv(64) == b"VALUE kept 0 2\r\nhi\r\nEND\r\n"

                # What it has on flash is found while it serves.
                poll("the object to be there", kept, 30, check=new.check)
        finally:
            new.terminate()
    finally:
        old.stop()
