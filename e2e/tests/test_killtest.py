"""The kill -9 campaign of `afterglow-workload`, short, against a real Cassandra: no stale and no wrong value."""

import json
import subprocess

from afterglow_e2e.afterglow import binary

ROUNDS = 6


def test_no_stale_read_across_kills_of_the_real_binary(cassandra, tmp_path):
    command = [
        *(binary("afterglow-workload"), "killtest", "--afterglow", binary(), "--backend", cassandra.contact),
        *("--rounds", ROUNDS, "--life-max", "3s", "--dir", tmp_path / "killtest", "--json"),
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] + report["stops"] == ROUNDS and report["kills"] >= ROUNDS - 2
