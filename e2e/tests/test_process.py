"""The servers of these tests do what they are told before a test goes on."""

import sys
from pathlib import Path

import pytest

from afterglow_e2e.process import Child

# Its first thread waits, and takes the signals; the others are always at work.
WORKERS = """
import hashlib, threading
work = lambda: [hashlib.pbkdf2_hmac("sha256", b"a", b"b", 1000) for _ in iter(int, 1)]
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
print("works", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def workers(tmp_path):
    child = Child("workers", [sys.executable, "-c", WORKERS], tmp_path / "log")
    try:
        child.wait_for("its threads", lambda: "works" in child.log.read_text(), 30)
        yield child
    finally:
        child.kill()


def states(child):
    tasks = Path(f"/proc/{child.pid}/task")
    return {
        task.joinpath("stat").read_text().rsplit(")", 1)[1].split()[0] for task in tasks.iterdir()
    }


def test_a_process_that_is_paused_does_nothing_more(workers):
    for _ in range(50):
        workers.pause()
        assert states(workers) == {"T"}
        # Twice is the same as once.
        workers.pause()
        workers.resume()
        assert workers.running()


def test_a_process_that_has_ended_can_be_paused(workers):
    workers.process.terminate()
    workers.pause()
    workers.process.wait()
    workers.pause()
    assert not workers.running()
