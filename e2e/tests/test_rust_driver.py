"""The Rust `scylla` driver, in a program of its own: e2e/rust-driver."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(
    os.environ.get(
        "AFTERGLOW_RUST_DRIVER", ROOT / "target/rust-driver/debug/afterglow-rust-driver-test"
    )
)


def run(server, keyspace):
    assert PROGRAM.exists(), f"{PROGRAM} is not built: run `make build`"
    contact = f"{server.address}:{server.port}"
    return subprocess.run([PROGRAM, contact, keyspace], capture_output=True, text=True, timeout=120)


def test_directly_so_that_a_failure_below_is_ours(cassandra, keyspace):
    done = run(cassandra, keyspace)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("time", ["first", "again"])
def test_through_afterglow(afterglow, keyspace, time, expect):
    before = afterglow.metrics().hits()
    done = run(afterglow, keyspace)
    assert done.returncode == 0, done.stderr
    assert afterglow.metrics().hits() - before > 500
