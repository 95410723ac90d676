"""Runs the cases: prepares the data once for each shape, boots a node for each case, warms it, measures it."""

import json
import subprocess
import sys
import time

from afterglow_e2e.afterglow import binary
from afterglow_e2e.process import Failure

from . import plan
from .machine import Disk, Group, forget
from .nodes import KEYSPACE, Node, Template, create

CONNECTIONS = 4
# What a disk needs beside the data: the second copy while a table is compacted, and updates.
ROOM = 2.3


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
            self.disks[name] = Disk(self.undo, self.folder / f"{name}.img", self.folder / name, int(size))
        return self.disks[name]

    def data(self):
        return int(plan.DATA * self.options.scale)

    def prepare(self, shape):
        """The disk with the shape's table on it, loaded and compacted."""
        disk = self.disk(shape.name, ROOM * self.data() + plan.GIB)
        template = Template(disk)
        if template.exists():
            return disk, template
        self.say(f"loading {shape.records(self.options.scale):,} records of {shape.name}")
        # Alone it may have more memory.
        with Node(template.used, heap=2 * plan.GIB) as node:
            create(node, shape)
            self.workload("load-cql", shape, "--hosts", node.contact, "--connections", CONNECTIONS, "--quiet")
            node.ask("flush", KEYSPACE)
            self.say("compacting")
            node.ask("compact", KEYSPACE, shape.table)
            node.drain(seconds=300)
        template.keep()
        self.say(f"{template.size(shape) / 1e9:.2f} GB on disk")
        return disk, template

    def workload(self, command, shape, *arguments, allowed=(0,)):
        """The load client, to its end."""
        table = ("--keyspace", KEYSPACE, "--table", shape.table, "--records", shape.records(self.options.scale))
        table += ("--fields", shape.fields, "--field-size", shape.field_bytes, "--zeros", plan.ZEROS)
        full = [binary("afterglow-workload", "release"), command, *table, *arguments]
        with self.log.open("ab") as log:
            done = subprocess.run([str(part) for part in full], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if done.returncode not in allowed:
            end = self.log.read_text(errors="replace")[-2000:]
            raise Failure(f"the load client ended with status {done.returncode}; the end of {self.log}:\n{end}")

    def run(self, case):
        """The result of one case, as it is written to its file."""
        shape = plan.SHAPES[case.shape]
        disk, template = self.prepare(shape)
        # No smaller than the engine makes one.
        size = max(int(case.flash * self.data()) >> 20 << 20, 256 * plan.MIB)
        flash = self.disk("flash", 1.3 * self.data() + plan.GIB)
        flash.empty()
        group = Group(self.undo, "afterglow-bench", int(plan.MEMORY * case.memory))
        folder = template.fresh()
        forget(template.loaded)
        self.say(f"{case.scenario}: {case.label}")
        with Node(folder, case.cache, (flash.path / "cache", size), group) as node:
            node.await_cache()
            node.cache_rows(shape, case.cache in ("rows", "default rows"))
            result = self.measure(case, shape, node, disk, flash, group)
        name = "-".join(f"{case.scenario} {case.label}".replace("%", "").replace(",", "").replace(":", "").split())
        (self.out / f"{name}.json").write_text(json.dumps(result, indent=1))
        group.remove()
        return result

    def measure(self, case, shape, node, disk, flash, group):
        options, file = self.options, self.out / "run.json"
        load = ["--hosts", node.contact, "--distribution", "hotspot", "--hot-set", plan.HOT_SET]
        load += ["--connections", CONNECTIONS, "--in-flight", shape.in_flight, "--pid", f"cassandra={node.pid}"]
        load += ["--read-ratio", plan.MIXES[case.mix], "--label", case.label, "--scenario", case.scenario, "--quiet"]
        # The same load for all, at the disk's full speed: a cache has then what it would have after hours.
        self.workload("run-cql", shape, *load, "--warmup", f"{options.warm}s", "--duration", "1s")
        if case.throttled:
            group.throttle(disk, plan.Speed(options.disk_bytes, options.disk_operations))
        rate = self.rate(case)
        load += ["--rate", rate] if rate else []
        before = self.counters(node, disk, flash)
        self.workload(
            "run-cql",
            shape,
            *(*load, "--seed", 2, "--warmup", "0s", "--duration", f"{options.seconds}s", "--json", file),
        )
        after = self.counters(node, disk, flash)
        result = json.loads(file.read_text())
        result["inside"] = {name: after[name] - before.get(name, 0) for name in after}
        result["case"] = {"throttled": case.throttled, "memory": case.memory * plan.MEMORY, "part": case.part}
        if case.cache == "none" and case.rate is None:
            self.most[case.part, case.shape, case.mix] = result["per_second"]
        return result

    def rate(self, case):
        if case.rate is None:
            return None
        most = self.most.get((case.part, case.shape, case.mix))
        if most is None:
            raise Failure(f"{case.scenario}: needs stock's most, which the same run measures: choose its cache too")
        return int(most * case.rate)

    @staticmethod
    def counters(node, disk, flash):
        return {"data_read": disk.bytes_read(), "flash_read": flash.bytes_read(), **node.cache_figures()}
