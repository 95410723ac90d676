"""`--take-over`: a process takes the listening sockets of another; nobody is refused."""

import contextlib
import socket
import statistics
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
# The longest that clients wait while a process takes over, as `operations.md` says. It is the
# longest wait of each of several turns of which the median counts: one may meet a busy machine.
LONGEST, TURNS = 2, 3


class Knocking:
    """Connects again and again, one connection at a time, and asks. Knows who was refused, who lost
    a connection, and how long each answer took.
    """

    def __init__(self, port):
        self.port, self.refused = port, 0
        # When each connection began: (began, seconds) of answers, (began, how) of lost ones.
        self.answers, self.lost = [], []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    @property
    def answered(self):
        return len(self.answers)

    def run(self):
        while not self.over.is_set():
            began = time.monotonic()
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=30) as client:
                    client.sendall(OPTIONS)
                    answer = client.recv(1)
            except ConnectionRefusedError:
                self.refused += 1
            except OSError as error:
                self.lost.append((began, repr(error)))
            else:
                if not answer:
                    self.lost.append((began, "closed"))
                    continue
                assert answer[0] == ANSWER
                self.answers.append((began, time.monotonic() - began))

    def longest(self, since):
        """The longest wait of a connection that was answered after that."""
        return max(took for began, took in self.answers if began + took > since)

    def lost_since(self, since):
        return [(began, how) for began, how in self.lost if began > since]

    def await_answers(self, count):
        known = self.answered
        poll("clients to be answered", lambda: self.answered >= known + count, 30)

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


def hand_over(stack, old, clients):
    """A successor that serves, and the longest wait meanwhile in seconds. Open connections are
    closed at a stop: at most the one is lost that was open at the end of the old process.
    """
    began = time.monotonic()
    new = stack.enter_context(successor(old))
    poll("the old process to end", lambda: not old.running(), 60, check=new.child.check)
    ended = time.monotonic()
    assert old.child.process.wait(30) == 0
    poll("the new one to serve", new.ready, 60, check=new.child.check)
    clients.await_answers(20)
    lost = clients.lost_since(began)
    assert len(lost) <= 1, f"connections were lost: {lost}"
    assert not clients.lost_since(ended), f"lost after the end of the old process: {lost}"
    assert clients.refused == 0, "connections were refused"
    return new, clients.longest(began)


def test_nobody_is_refused_and_the_successor_is_warm(cassandra, direct, table, tmp_path, capsys):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text)")
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(Afterglow(cassandra.contact, folder=tmp_path))
        await_caching(old)
        with connect(old) as session:
            for k in range(ROWS):
                session.execute(f"INSERT INTO {table} (k, v) VALUES ({k}, 'v{k}')")
                session.execute(f"SELECT v FROM {table} WHERE k = {k}")
        clients = stack.enter_context(Knocking(old.port))
        clients.await_answers(20)
        assert not clients.lost, f"lost while nothing happened: {clients.lost}"
        waits = []
        # The second takes over from one that took over, and the third again.
        for turn in range(TURNS):
            new, wait = hand_over(stack, old, clients)
            waits.append(wait)
            if turn == 0:
                await_caching(new)
                before = new.metrics().hits()
                with connect(new) as session:
                    for k in range(ROWS):
                        read = f"SELECT v FROM {table} WHERE k = {k}"
                        assert session.execute(read).one().v == f"v{k}"
                assert new.metrics().hits() - before >= 0.99 * ROWS
            old = new
        with capsys.disabled():
            said = ", ".join(f"{wait:.3f}" for wait in waits)
            print(f"\nthe longest waits for an answer were {said} s")
        assert statistics.median(waits) <= LONGEST, f"clients waited {waits} s"
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
