"""The comparison of two builds: its figures, its bound, and what it says of wrong flags."""

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
import threading

import pytest
from pairs import cost, cql, storm
from pairs.__main__ import main as pairs

from afterglow_e2e.afterglow import binary
from afterglow_e2e.loadclient import together
from afterglow_e2e.memcache import Raw
from afterglow_e2e.process import Failure, poll

LINE = re.compile(
    r"(\S+) +CPU +([\d.]+) us before, +([\d.]+) after: ([\d.]+) \(([\d.]+) to ([\d.]+)\)"
)

WAITS = re.compile(
    r"(\S+) +p50 +([\d.]+) ms before, +([\d.]+) after: ([\d.]+) \(([\d.]+) to ([\d.]+)\);"
    r" p99 ([\d.]+) before, ([\d.]+) after: ([\d.]+)$"
)


def compare(*flags, count=2):
    """One build beside itself, so often."""
    program = binary()
    command = [sys.executable, "-m", "pairs", "--before", program, "--after", program]
    return subprocess.run(
        [*command, "--pairs", str(count), "--seconds", "0.2", *flags],
        capture_output=True,
        text=True,
        env=os.environ | {"AFTERGLOW_PROFILE": program.parent.name},
    )


@pytest.mark.long
def test_two_builds_are_compared_and_the_bound_is_held():
    done = compare("--cases", "cql-hits,cql-passing,memcache-get", "--most", "50")
    assert done.returncode == 0, done.stderr
    lines = {match[1]: match for match in map(LINE.match, done.stdout.splitlines())}
    assert lines.keys() == {"cql-hits", "cql-passing", "memcache-get"}, done.stdout
    for match in lines.values():
        before, after, middle, least, most = map(float, match.groups()[1:])
        assert before > 0 and after > 0 and least <= middle <= most, match[0]

    done = compare("--cases", "memcache-get", "--most", "0.01", count=1)
    assert done.returncode == 1 and "dearer than 0.01 times: memcache-get" in done.stderr, (
        done.stderr
    )


def test_a_build_whose_clients_come_over_tls_is_compared_with_itself(monkeypatch, capsys):
    program, loads = binary(), []

    def noted(runs):
        loads.extend((file.name.split("-")[1], "--tls-ca" in words) for file, words in runs)
        return together(runs)

    monkeypatch.setattr(cql, "together", noted)
    # Else the tests after this one would have one core.
    monkeypatch.setattr(cost, "alone", lambda: None)
    monkeypatch.setenv("AFTERGLOW_PROFILE", program.parent.name)
    words = ("--before", program, "--after", program, "--pairs", "2", "--seconds", "0.2")
    words = ("pairs", *words, "--cases", "cql-hits", "--tls", "--most", "50")
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    pairs()
    match = LINE.match(capsys.readouterr().out.strip())
    before, after, _, _, _ = map(float, match.groups()[1:])
    assert before > 0 and after > 0, match[0]
    # What ciphers take depends on the machine; who speaks TLS does not.
    assert set(loads) == {("before", False), ("after", True)}

    done = compare("--cases", "cql-hits,memcache-get", "--tls")
    assert done.returncode == 2 and "add --cases cql-hits,cql-passing" in done.stderr


@pytest.mark.long
def test_waits_beside_a_storm_are_compared_and_have_a_bound_of_their_own():
    # The bound of CPU is not for waits.
    done = compare("--cases", "memcache-storm", "--most", "0", "--most-wait", "1e9")
    assert done.returncode == 0, done.stderr
    match = WAITS.match(done.stdout.strip())
    before, after, middle, least, most, late, later, tail = map(float, match.groups()[1:])
    assert match[1] == "memcache-storm" and 0 < least <= middle <= most and tail > 0, match[0]
    assert 0 < before <= late and 0 < after <= later, match[0]

    done = compare("--cases", "memcache-storm", "--most-wait", "0", count=1)
    assert done.returncode == 1 and "dearer than 0.0 times: memcache-storm" in done.stderr


@contextlib.contextmanager
def answering(answer):
    """A server that says something on each connection and no more; its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=storm.CONNECTIONS) as server:
        accepted = []

        def run():
            for _ in range(storm.CONNECTIONS):
                accepted.append(server.accept()[0])
                # Who has heard enough may be gone.
                with contextlib.suppress(OSError):
                    answer(accepted[-1])

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield server.getsockname()
        thread.join()
        for connection in accepted:
            connection.close()


def close(connection):
    connection.sendall(b"END\r\n")
    connection.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda connection: connection.sendall(b"END\r\n"), "it was no storm"),
        (close, "the server has closed one of them"),
        (lambda connection: connection.sendall(b"END\r\nEND\r\n"), "one of them got a miss"),
    ],
)
def test_a_storm_that_is_none_is_told(answer, told):
    with (
        answering(answer) as address,
        pytest.raises(Failure, match=told),
        storm.storm(address, b"get one\r\n", len(b"END\r\n")) as is_storm,
    ):
        if told != "it was no storm":
            poll("an error", is_storm, 20)


def test_a_lone_client_that_gets_a_miss_is_told():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(Failure, match="which is no hit"):
        theirs.sendall(b"END\r\n")
        client = Raw(ours)
        storm.lone(client, random.Random(0), 10, 0, storm.answer_len(100), lambda: True)


def test_wrong_flags_are_told():
    done = compare("--cases", "cql-hits,nothing")
    assert done.returncode == 2 and "no such case: nothing; there are cql-hits" in done.stderr
    done = compare("--before", "/etc/passwd")
    assert done.returncode == 1 and "/etc/passwd is no program" in done.stderr
