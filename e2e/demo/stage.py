"""The servers and the load client of the demo, and which CPUs they have."""

import contextlib
import json
import os
import subprocess
import sys
import time

from afterglow_e2e.afterglow import Afterglow, binary
from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.process import ROOT, Failure, pin

from . import plan

OUT = ROOT / "target" / "demo"


def cpus():
    """CPUs for the servers and for the load client: a half each, or all for both where there is
    only one.
    """
    mine = sorted(os.sched_getaffinity(0))
    half = len(mine) // 2
    return (set(mine[:half]), set(mine[half:])) if half else (set(mine), set(mine))


class Stage:
    """Cassandra, Afterglow in front of it, and how to load and measure both."""

    def __init__(self, keep=False):
        self.began = time.monotonic()
        self.keep = keep
        self.server_cpus, self.client_cpus = cpus()
        self.stack = contextlib.ExitStack()
        self.cassandra = self.afterglow = None
        OUT.mkdir(parents=True, exist_ok=True)
        for old in OUT.glob("*-*.json"):
            old.unlink()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.stack.close()

    def say(self, text):
        print(f"[{time.monotonic() - self.began:5.0f} s] {text}", flush=True)

    def boot_cassandra(self):
        self.cassandra = Cassandra(heap=plan.HEAP, detached=self.keep)
        self.stack.callback(self.cassandra.stop)
        self.cassandra.start()

    def boot_afterglow(self):
        """On the servers' CPUs from the start: it makes one reactor for each CPU it is given."""
        self.afterglow = Afterglow(
            self.cassandra.contact,
            flash=plan.FLASH,
            memory=plan.MEMORY,
            policies=(plan.POLICY,),
            profile="release",
            detached=self.keep,
        )
        self.stack.callback(self.afterglow.stop)
        self.start_afterglow()

    def start_afterglow(self):
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.server_cpus)
        try:
            self.afterglow.start()
        finally:
            os.sched_setaffinity(0, mine)

    def pin_servers(self):
        pin(self.cassandra.pid, self.server_cpus)

    def server(self, side):
        return self.cassandra if side == plan.DIRECT else self.afterglow

    def workload(self, command, *arguments, cpus=None, quiet=True):
        """Start the load client."""
        table = (
            "--records",
            plan.RECORDS,
            "--fields",
            plan.FIELDS,
            "--field-size",
            plan.FIELD_BYTES,
        )
        taskset = ("taskset", "--cpu-list", ",".join(map(str, sorted(cpus)))) if cpus else ()
        full = [*taskset, binary("afterglow-bench", "release"), command, *table, *arguments]
        with (OUT / "client.log").open("ab") as log:
            return subprocess.Popen(
                [str(part) for part in full],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log if quiet else sys.stderr,
                start_new_session=True,
            )

    def finish(self, client, allowed=(0,)):
        """Wait for the load client, and take it along if we are interrupted meanwhile."""
        try:
            status = client.wait()
        finally:
            if client.poll() is None:
                client.kill()
                client.wait()
        if status not in allowed:
            end = (OUT / "client.log").read_text(errors="replace")[-2000:]
            raise Failure(
                f"the load client ended with status {status}; the end of {OUT}/client.log:\n{end}"
            )

    def load(self):
        client = self.workload(
            "load-cql", "--hosts", self.cassandra.contact, "--create", quiet=False
        )
        self.finish(client)

    def run(self, side, scenario, name, *arguments, watch=True, allowed=(0,), quiet=True):
        """Start a run of reads; the function returned waits for it and gives the result."""
        server, file = self.server(side), OUT / f"{name}.json"
        extra = []
        if watch:
            extra += ["--pid", f"cassandra={self.cassandra.pid}"]
        if watch and side == plan.THROUGH:
            extra += [
                "--pid",
                f"afterglow={self.afterglow.pid}",
                "--metrics",
                f"127.0.0.1:{self.afterglow.admin}",
            ]
        client = self.workload(
            "run-cql",
            *("--hosts", server.contact, "--label", side, "--scenario", scenario, "--json", file),
            *(
                "--distribution",
                "zipfian",
                "--connections",
                plan.CONNECTIONS,
                "--in-flight",
                plan.IN_FLIGHT,
            ),
            *extra,
            *arguments,
            cpus=self.client_cpus,
            quiet=quiet,
        )

        def result():
            self.finish(client, allowed)
            return json.loads(file.read_text())

        return result

    def warm(self, side):
        """Closed loop until throughput is level."""
        name = f"warm-{'direct' if side == plan.DIRECT else 'through'}"
        phases = [("--warmup", "flat", "--warmup-max", f"{plan.WARM_SECONDS}s")]
        if side == plan.DIRECT:
            phases.insert(0, ("--warmup", f"{plan.JVM_SECONDS}s"))
        for phase in phases:
            self.run(
                side, "warming up", name, *phase, "--duration", "1s", watch=False, quiet=False
            )()

    def plots(self):
        """The load client's own report over all runs."""
        runs = sorted(OUT.glob("pair*.json"))
        command = [binary("afterglow-bench", "release"), "report", *runs, "--baseline", plan.DIRECT]
        command += ["--title", "Afterglow demo", "--html", OUT / "report.html"]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)

    def leave_running(self):
        """Nothing of this ends with us; `make demo-stop` ends it."""
        self.stack.pop_all()
        folders = [str(self.cassandra.folder), str(self.afterglow.folder)]
        state = {"pids": [self.afterglow.pid, self.cassandra.pid], "folders": folders}
        (OUT / "running.json").write_text(json.dumps(state))
