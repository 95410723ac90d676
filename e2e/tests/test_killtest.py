"""The kill -9 campaign of `afterglow-testkit`, short: no stale and no wrong value, warm after every
kind of end, and planted lies are found.
"""

import json
import re
import shutil
import subprocess

import pytest

from afterglow_e2e.afterglow import binary


def campaign(directory, *options, timeout=240):
    command = [
        binary("afterglow-testkit"),
        "killtest",
        "--afterglow",
        binary(),
        "--dir",
        directory,
        "--json",
        *options,
    ]
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=timeout
    )


ROOMY = {"kill", "recovery", "stop", "clean", "memory", "pause", "doubt"}


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (["--rounds", 8, "--place", "roomy"], ROOMY),
        # On little flash, a full disk, a device that goes and one that fails, too.
        pytest.param(["--rounds", 16], {*ROOMY, "checkpoint", "io-errors"}, marks=pytest.mark.long),
    ],
)
def test_every_kind_of_end_leaves_the_cache_right_and_warm(options, kinds, tmp_path):
    """Against a database in memory that tells what it was asked for."""
    sizes = ["--keys", 3000, "--sample", 400, "--life-max", "1500ms"]
    done = campaign(tmp_path / "killtest", *options, *sizes)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    rounds = json.loads(done.stdout)["rounds"]
    assert kinds <= {done["kind"] for done in rounds}
    assert sum(done["kept"]["on_flash"] for done in rounds if done["kept"]) > 1000


def test_no_stale_read_across_kills_before_a_real_database(cassandra, tmp_path):
    options = ["--rounds", 6, "--place", "roomy", "--keys", 1000, "--backend", cassandra.contact]
    done = campaign(tmp_path / "killtest", *options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert len(json.loads(done.stdout)["rounds"]) == 6


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        (["--stale-reads", 0.2], "Stale"),
        (["--lie", "emptied"], "too much was missing after the restart"),
        # What came back may be older than all that the checker remembers: then nobody wrote it.
        pytest.param(["--lie", "rolled-back"], "Stale|NeverWritten", marks=pytest.mark.long),
    ],
)
def test_a_planted_lie_is_found(lie, found, tmp_path):
    options = ["--rounds", 4, "--place", "roomy", "--keys", 2000, "--sample", 400]
    # Short lives may end before anything has reached flash, or lose to the lie what would have told
    # of it: then they take longer.
    for life in ["1500ms", "6s", "6s", "20s"]:
        shutil.rmtree(tmp_path / life, ignore_errors=True)
        done = campaign(tmp_path / life, *options, "--life-max", life, *lie)
        if re.search(found, done.stderr):
            assert done.returncode == 1, done.stderr
            return
    raise AssertionError(done.stdout[-2000:] + done.stderr)
