"""The benchmark of the caches inside Cassandra: what it reports, and that it leaves nothing when it
is killed.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from afterglow_e2e.process import ROOT, alive, poll
from inside import machine, plan
from inside.report import report, wrongs

# Does to the machine what a benchmark does, says that it is done, and waits for its end.
WORKER = """
import subprocess, sys, time
from pathlib import Path
from inside.machine import Disk, Group
from inside.undo import Undo

folder = Path(sys.argv[1])
undo = Undo()
undo.note("folder", folder)
disk = Disk(undo, folder / "disk.img", folder / "disk", 64 << 20)
group = Group(undo, sys.argv[2], 256 << 20)
group.throttle(disk, type("Speed", (), {"bytes": 1 << 20, "operations": 100}))
inside = subprocess.Popen(group.enter(["sleep", "600"]))
print(inside.pid, flush=True)
time.sleep(600)
"""


def result(label, per_second, cpu, part="network", read_ratio=1.0, inside=None, **errors):
    latency = {"mean_us": 1500.0, "p99_us": 9000.0, "p999_us": 20000.0}
    return {
        "label": label,
        "scenario": f"{part}: 1k, reads",
        "operations": 1000,
        "per_second": per_second,
        "reads": latency,
        "servers": [{"us_per_operation": cpu}],
        "client": {"void": False},
        "load": {"read_ratio": read_ratio},
        "case": {"part": part},
        "errors": {"wrong": 0, "refused": [], "unsent": 0, **errors},
        "inside": {"data_read": 18_000_000, "flash_read": 0, **(inside or {})},
    }


def test_each_row_is_compared_with_stock_and_with_what_was_aimed_at():
    stock = result("stock", 1000.0, 400.0)
    chunks = result(
        "flash chunks", 3100.0, 300.0, inside={"Hits": 90, "Misses": 10, "flash_read": 16_500_000}
    )
    rows = result("flash rows", 2900.0, 200.0)
    lines = report([stock, chunks, rows]).splitlines()
    cells = {
        cells[1]: cells[2:]
        for cells in ([c.strip() for c in line.split("|")] for line in lines)
        if len(cells) > 2
    }
    assert cells["stock"][:-1] == "1,000 1.00 1.50 9.00 20.00 400 1.00 18.0 0.0 -".split()
    assert (
        cells["flash chunks"][:-1] == "3,100 3.10 1.50 9.00 20.00 300 0.75 18.0 16.5 90.0%".split()
    )
    assert sum(line.startswith("reached: flash chunks") for line in lines) == 1
    assert sum(line.startswith("MISSED: flash rows") for line in lines) == 1


def test_a_wrong_read_is_a_fault():
    assert wrongs([result("stock", 1.0, 1.0)]) == []
    (line,) = wrongs([result("flash chunks", 1.0, 1.0, wrong=1)])
    assert line.startswith("FAULT: network: 1k, reads, flash chunks")


def test_every_part_has_a_stock_node_to_compare_with():
    for part, cases in plan.cases().items():
        for scenario in {case.scenario for case in cases}:
            labels = [case.label for case in cases if case.scenario == scenario]
            assert len(set(labels)) == len(labels), scenario
            assert sum(label.startswith("stock") for label in labels) == 1, scenario
        assert plan.chosen([part]) == cases


def test_a_node_is_started_once_for_all_its_loads():
    cases = plan.chosen(list(plan.cases()))
    nodes = plan.by_node(cases)
    assert sorted(map(repr, cases)) == sorted(repr(case) for loads in nodes for case in loads)
    assert len({loads[0].node for loads in nodes}) == len(nodes)
    for loads in nodes:
        like = {(case.shape, case.cache, case.memory, case.flash) for case in loads}
        assert len(like) == 1, "what one node is must be the same for all its loads"
        mixes = [case.mix for case in loads]
        assert mixes == sorted(mixes, key="mixed".__eq__), (
            "updates come last: all others read the tables as loaded"
        )


def test_limits_in_control_groups_of_version_2(tmp_path):
    """What is written where; no more, where the kernel has its limits in version 1."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    assert machine.controllers(tmp_path) == 2
    (tmp_path / "bench").mkdir()
    undo, disk = SimpleNamespace(note=lambda *_: None), SimpleNamespace(number="7:3")
    group = machine.Group(undo, "bench", 1 << 30, root=tmp_path)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +io"
    assert (tmp_path / "bench" / "memory.max").read_text() == "1073741824"
    group.throttle(disk, plan.Speed(1000, 10))
    assert (tmp_path / "bench" / "io.max").read_text() == "7:3 rbps=1000 riops=10"
    group.throttle(disk)
    assert (tmp_path / "bench" / "io.max").read_text() == "7:3 rbps=max riops=max"
    told = subprocess.run(
        group.enter(["sh", "-c", "echo $$"]), capture_output=True, text=True, check=True
    ).stdout
    assert (tmp_path / "bench" / "cgroup.procs").read_text() == told, (
        "it is in the group before it begins"
    )


@pytest.mark.skipif(bool(machine.missing()), reason="; ".join(machine.missing()))
def test_nothing_is_left_when_it_is_killed(tmp_path):
    folder, name = tmp_path / "bench", f"afterglow-test-{os.getpid()}"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "e2e")}
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, folder, name],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        inside = int(worker.stdout.readline())
        groups = list(Path("/sys/fs/cgroup").glob(f"*/{name}")) or [Path("/sys/fs/cgroup") / name]
        assert all(path.exists() for path in groups)
        assert os.path.ismount(folder / "disk")
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    poll("everything to be undone", lambda: not folder.exists(), 60)
    assert not any(path.exists() for path in groups)
    assert not alive(inside)
    listed = (
        subprocess.run(["losetup", "--json"], capture_output=True, text=True, check=True).stdout
        or "{}"
    )
    assert not [
        each
        for each in json.loads(listed).get("loopdevices", [])
        if str(folder) in each["back-file"]
    ]
