"""Runs the cases: loads the data once for each shape, boots each node once, warms it, measures all
its loads.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
import zlib

from afterglow_e2e.afterglow import binary
from afterglow_e2e.process import Failure

from . import plan
from .machine import Disk, Group, forget
from .nodes import KEYSPACE, Node, Template, create

CONNECTIONS = 4
# What a disk needs beside the data: the second copy while a table is compacted, and updates.
ROOM = 2.3


def seed(case):
    """All nodes are asked for the same records, none for those that it was asked for just
    before.
    """
    return zlib.crc32(case.scenario.encode())


class Bench:
    """`folder` holds the disks' images: kept, its data need not be loaded again."""

    def __init__(self, undo, folder, out, options):
        self.undo, self.folder, self.out, self.options = undo, folder, out, options
        self.began = time.monotonic()
        self.disks, self.most = {}, {}
        out.mkdir(parents=True, exist_ok=True)
        self.log = out / "client.log"

    def say(self, text):
        print(f"[{time.monotonic() - self.began:5.0f} s] {text}", file=sys.stderr, flush=True)

    def disk(self, name, size):
        if name not in self.disks:
            self.disks[name] = Disk(
                self.undo, self.folder / f"{name}.img", self.folder / name, int(size)
            )
        return self.disks[name]

    def data(self):
        return int(plan.DATA * self.options.scale)

    def prepare(self, shape):
        """The disk with the shape's table on it, loaded and compacted."""
        disk = self.disk(shape.name, ROOM * self.data() + plan.GIB)
        template = Template(disk)
        if template.exists():
            return disk, template
        # One that was interrupted begins anew.
        disk.empty()
        self.say(f"loading {shape.records(self.options.scale):,} records of {shape.name}")
        # Alone it may have more memory.
        with Node(template.used, heap=2 * plan.GIB) as node:
            create(node, shape)
            self.workload(
                "load-cql", shape, "--hosts", node.contact, "--connections", CONNECTIONS, "--quiet"
            )
            node.ask("flush", KEYSPACE)
            self.say("compacting")
            node.ask("compact", KEYSPACE, shape.table)
            node.drain(seconds=300)
        template.keep()
        disk.trim()
        self.say(f"{template.size(shape) / 1e9:.2f} GB on disk")
        return disk, template

    def workload(self, command, shape, *arguments, records=None):
        """The load client, to its end, with all records or the first ones."""
        records = records or shape.records(self.options.scale)
        table = ("--keyspace", KEYSPACE, "--table", shape.table, "--records", records)
        table += (
            "--fields",
            shape.fields,
            "--field-size",
            shape.field_bytes,
            "--zeros",
            plan.ZEROS,
        )
        full = [binary("afterglow-bench", "release"), command, *table, *arguments]
        with self.log.open("ab") as log:
            done = subprocess.run(
                [str(part) for part in full], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if done.returncode != 0:
            end = self.log.read_text(errors="replace")[-2000:]
            raise Failure(
                f"the load client ended with status {done.returncode}; the end of {self.log}:\n{end}"
            )

    def run(self, cases):
        """The results of the cases, each of which is also written to its file."""
        results = {}
        for loads in plan.by_node(cases):
            first = loads[0]
            with self.node(first) as started:
                for case in loads:
                    started.warm(case)
                    results[case] = self.result(case, started)
                # Reads change nothing that the next run could mind.
                if started.filled and all(case.mix == "reads" for case in loads):
                    started.stop_warm()
        return [results[case] for case in cases]

    def fill(self, case):
        """Warms a node's cache and stops the node: the next run begins with both."""
        with self.node(case, keep=True) as started:
            if case.cache != "none":
                started.read_hot_set(case)
            started.warm(case)
            started.stop_warm()

    @contextlib.contextmanager
    def node(self, case, keep=False):
        """The node of a case, running, with what was kept of it."""
        shape = plan.SHAPES[case.shape]
        disk, template = self.prepare(shape)
        kept = disk.path / case.node / "kept"
        filled = kept.exists()
        flash = self.disk(
            f"flash-{case.node}" if keep or filled else "flash", 1.3 * self.data() + plan.GIB
        )
        if filled:
            # What it is after this run nobody knows, unless the run says so.
            kept.unlink()
        else:
            flash.empty()
            template.fresh(case.node)
        # No smaller than the engine makes one.
        size = max(int(case.flash * self.data()) >> 20 << 20, 256 * plan.MIB)
        group = Group(self.undo, f"afterglow-bench-{os.getpid()}", int(plan.MEMORY * case.memory))
        forget(template.loaded)
        self.say(f"{case.node}, {'filled before' if filled else 'cold'}")
        with Node(kept.parent, case.cache, (flash.path / "cache", size), group) as node:
            node.await_cache()
            if not filled:
                node.cache_rows(shape, case.cache in ("rows", "default rows"))
            yield Started(self, node, disk, flash, group, kept, filled)
        group.remove()

    def result(self, case, started):
        """What is measured of a case on its node, which is warm."""
        options, file = self.options, self.out / "run.json"
        self.say(f"{case.scenario}: {case.label}")
        started.group.throttle(
            started.disk,
            plan.Speed(options.disk_bytes, options.disk_operations) if case.throttled else None,
        )
        rate = self.rate(case)
        before = started.counters()
        started.workload(
            case,
            *(["--rate", rate] if rate else []),
            *(
                "--seed",
                seed(case),
                "--warmup",
                "0s",
                "--duration",
                f"{options.seconds}s",
                "--json",
                file,
            ),
        )
        after = started.counters()
        result = json.loads(file.read_text())
        result["inside"] = {name: after[name] - before.get(name, 0) for name in after}
        result["case"] = {
            "throttled": case.throttled,
            "memory": case.memory * plan.MEMORY,
            "part": case.part,
        }
        if case.cache == "none" and case.rate is None:
            self.most[case.part, case.shape, case.mix] = result["per_second"]
        name = "-".join(
            f"{case.scenario} {case.label}".replace("%", "")
            .replace(",", "")
            .replace(":", "")
            .split()
        )
        (self.out / f"{name}.json").write_text(json.dumps(result, indent=1))
        return result

    def rate(self, case):
        if case.rate is None:
            return None
        most = self.most.get((case.part, case.shape, case.mix))
        if most is None:
            raise Failure(
                f"{case.scenario}: needs stock's most, which the same run measures: choose its cache too"
            )
        return int(most * case.rate)


class Started:
    """A running node, and the load that it is warm for."""

    def __init__(self, bench, node, disk, flash, group, kept, filled):
        self.bench, self.node, self.disk, self.flash, self.group = bench, node, disk, flash, group
        self.kept, self.filled = kept, filled
        self.mix = None

    def read_hot_set(self, case):
        """Once, one after the other: drawing them by chance would take many times as long to come
        to the last.
        """
        shape, scale = plan.SHAPES[case.shape], self.bench.options.scale
        hot = int(shape.records(scale) * plan.HOT_SET)
        self.bench.say(f"reading {hot:,} hot records")
        self.group.throttle(self.disk)
        load = [
            "--hosts",
            self.node.contact,
            "--distribution",
            "sequential",
            "--connections",
            CONNECTIONS,
        ]
        load += [
            "--in-flight",
            shape.in_flight,
            "--warmup",
            "0s",
            "--duration",
            "3600s",
            "--ops",
            hot,
            "--quiet",
        ]
        self.bench.workload("run-cql", shape, *load, records=hot)

    def stop_warm(self):
        """Stop the node in order, and say that the next run may begin with it."""
        self.node.drain(seconds=300)
        self.kept.touch()

    def warm(self, case):
        """The same load for all, at the disk's full speed: a cache has then what it would have
        after hours.
        """
        if self.mix == case.mix:
            return
        # A cache that is full for one mix has little to learn for the other.
        seconds = (
            self.bench.options.warm if self.mix is None else max(self.bench.options.warm // 3, 1)
        )
        self.mix = case.mix
        self.group.throttle(self.disk)
        self.workload(case, "--warmup", f"{seconds}s", "--duration", "1s")

    def workload(self, case, *arguments):
        """The load client with the load of a case, to its end."""
        shape = plan.SHAPES[case.shape]
        load = [
            "--hosts",
            self.node.contact,
            "--distribution",
            "hotspot",
            "--hot-set",
            plan.HOT_SET,
        ]
        load += [
            "--connections",
            CONNECTIONS,
            "--in-flight",
            shape.in_flight,
            "--pid",
            f"cassandra={self.node.pid}",
        ]
        load += [
            "--read-ratio",
            plan.MIXES[case.mix],
            "--label",
            case.label,
            "--scenario",
            case.scenario,
            "--quiet",
        ]
        self.bench.workload("run-cql", shape, *load, *arguments)

    def counters(self):
        read = {"data_read": self.disk.bytes_read(), "flash_read": self.flash.bytes_read()}
        return read | self.node.cache_figures()
