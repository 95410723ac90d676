"""`afterglow top`: printed once, in a terminal with keys, and without a server."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios

import pytest

from afterglow_e2e.afterglow import binary
from afterglow_e2e.memcache import MemcacheAfterglow
from afterglow_e2e.process import free_port, poll


@pytest.fixture(scope="module")
def instance():
    with MemcacheAfterglow() as instance:
        connection = instance.connect()
        for n in range(50):
            assert connection.set(b"k%d" % n, b"value") == b"STORED"
            assert connection.get(b"k%d" % n) == b"value"
        connection.close()
        yield instance


def top(instance, *flags):
    command = [binary(), "top", "--admin", f"127.0.0.1:{instance.admin}", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def line(text, *parts):
    """The line that has all these."""
    (found,) = [line for line in text.splitlines() if all(part in line for part in parts)]
    return found.split()


def test_a_frame_is_printed_as_plain_text(instance):
    done = top(instance, "--once")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert line(done.stdout, "afterglow", "ready")[1] == f"127.0.0.1:{instance.admin}"
    assert "50" in line(done.stdout, "memcache get")
    assert "50" in line(done.stdout, "memcache store")
    segments = top(instance, "--once", "--view", "segments").stdout
    known = instance.metrics().value("afterglow_engine_flash_segments_free")
    assert f"{known:.0f}" in line(segments, "free", "MiB")


def test_without_a_server_or_a_terminal_it_says_so(instance):
    port = free_port()
    done = subprocess.run(
        [binary(), "top", "--once", "--admin", f"127.0.0.1:{port}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"error: no answer from 127.0.0.1:{port}: ")
    assert top(instance).returncode == 2 and "--once" in top(instance).stderr
    assert top(instance, "--view", "everything").returncode == 2


class Terminal:
    """`afterglow top` in a terminal of 100 columns and 40 lines."""

    def __init__(self, instance):
        self.ours, theirs = pty.openpty()
        self.lines = 40
        self.resize()
        command = [binary(), "top", "--admin", f"127.0.0.1:{instance.admin}", "--interval", "200ms"]
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True
        )
        os.close(theirs)
        os.set_blocking(self.ours, False)
        self.seen = b""

    def resize(self):
        """Makes it a line shorter or longer: all of it is drawn anew then, not what has changed."""
        self.lines = 79 - self.lines
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", self.lines, 100, 0, 0))

    def press(self, key):
        """Presses a key; what was seen so far is forgotten."""
        self.seen = b""
        os.write(self.ours, key)

    def shows(self, word):
        """Whether the word has been drawn since. Words alone: a space may be skipped over."""
        try:
            while data := os.read(self.ours, 1 << 16):
                self.seen += data
        except OSError:
            pass  # Nothing more for now, or the program has ended.
        if word not in self.seen:
            self.resize()
        return word in self.seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(instance, number):
    terminal = Terminal(instance)
    try:
        before = termios.tcgetattr(terminal.ours)
        poll("the overview", lambda: terminal.shows(b"amplification"), 30)
        assert termios.tcgetattr(terminal.ours) != before, "keys are read one by one"
        terminal.process.send_signal(number)
        poll("its end", lambda: terminal.process.poll() is not None, 30)
        assert terminal.process.returncode == 0
        assert terminal.shows(b"\x1b[?1049l"), "the screen is that of before"
        assert termios.tcgetattr(terminal.ours) == before
    finally:
        terminal.process.kill()
        os.close(terminal.ours)


def test_a_terminal_that_is_gone_ends_it_without_a_crash(instance):
    terminal = Terminal(instance)
    try:
        poll("the overview", lambda: terminal.shows(b"amplification"), 30)
        os.close(terminal.ours)
        poll("its end", lambda: terminal.process.poll() is not None, 30)
        assert terminal.process.returncode == 1
    finally:
        terminal.process.kill()


@pytest.mark.parametrize("lines, columns", [(1, 1), (2, 3), (5, 20), (3, 300), (300, 2)])
def test_a_terminal_of_any_size_will_do(instance, lines, columns):
    terminal = Terminal(instance)
    try:
        for key in b"12345":
            size = struct.pack("HHHH", lines, columns, 0, 0)
            fcntl.ioctl(terminal.ours, termios.TIOCSWINSZ, size)
            os.write(terminal.ours, bytes([key]))
            size = struct.pack("HHHH", 40 + key % 2, 100, 0, 0)
            fcntl.ioctl(terminal.ours, termios.TIOCSWINSZ, size)
            terminal.seen = b""
            poll("a large frame", lambda: terminal.shows(b"quit"), 30)
        os.write(terminal.ours, b"q")
        poll("its end", lambda: terminal.process.poll() is not None, 30)
        assert terminal.process.returncode == 0
    finally:
        terminal.process.kill()
        os.close(terminal.ours)


def test_keys_choose_views_and_a_server_that_goes_is_told(instance):
    terminal = Terminal(instance)
    try:
        poll("the overview", lambda: terminal.shows(b"amplification"), 30)
        terminal.press(b"4")
        poll("the segments", lambda: terminal.shows(b"reclaiming"), 30)
        terminal.press(b"\t")
        poll("the hot keys", lambda: terminal.shows(b"hottest"), 30)
        instance.kill()
        poll("its absence", lambda: terminal.shows(b"away"), 30)
        terminal.press(b"q")
        assert poll("its end", lambda: terminal.process.poll() is not None, 30)
        assert terminal.process.returncode == 0
        assert terminal.shows(b"\x1b[?1049l"), "the terminal is as it was"
    finally:
        terminal.process.kill()
        os.close(terminal.ours)
