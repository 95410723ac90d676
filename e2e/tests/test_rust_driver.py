"""The Rust `scylla` driver, in a program of its own: e2e/rust-driver."""

import subprocess

import pytest

from afterglow_e2e.clients import RUST


def run(server, keyspace):
    assert RUST.exists(), f"{RUST} is not built: run `make build`"
    contact = f"{server.address}:{server.port}"
    return subprocess.run([RUST, contact, keyspace], capture_output=True, text=True, timeout=120)


def test_directly_so_that_a_failure_below_is_ours(cassandra, keyspace):
    done = run(cassandra, keyspace)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("time", ["first", "again"])
def test_through_afterglow(afterglow, keyspace, time, expect):
    before = afterglow.metrics().hits()
    done = run(afterglow, keyspace)
    assert done.returncode == 0, done.stderr
    assert afterglow.metrics().hits() - before > 500
