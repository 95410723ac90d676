"""The real `afterglow` binary, started, watched and killed; and its metrics. Standard library
only.
"""

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from .process import ROOT, Child, Failure, free_port, poll, scratch

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def binary(name="afterglow", profile=None):
    """Path of a program of ours; AFTERGLOW_PROFILE chooses among cargo's profiles, `debug` without
    it.
    """
    path = ROOT / "target" / (profile or os.environ.get("AFTERGLOW_PROFILE", "debug")) / name
    if not path.exists():
        raise Failure(f"{path} is not built: run `make build` (or `make release`)")
    return path


class Metrics:
    """One reading of /metrics. Sums over whatever labels are not named."""

    def __init__(self, text):
        self.samples = []
        for line in text.splitlines():
            if match := SAMPLE.match(line):
                name, labels, value = match.groups()
                self.samples.append((name, dict(LABEL.findall(labels or "")), float(value)))

    def total(self, name, missing_ok=False, **labels):
        """Sum of all samples of this name that carry these labels. None at all is a mistake in a
        test, not a zero, unless the test says that they may be missing.
        """
        values = [
            value
            for sample, have, value in self.samples
            if sample == name and labels.items() <= have.items()
        ]
        if not values and not missing_ok:
            raise Failure(
                f"/metrics has no sample {name} {labels}: mend the name, or say missing_ok=True"
            )
        return sum(values)

    def value(self, name):
        """The one sample of this name; a metric that is not there is a mistake in a test, not a
        zero.
        """
        (value,) = (value for sample, _, value in self.samples if sample == name)
        return value

    def by(self, name, label):
        """Sums by the values of one label."""
        values = sorted({have.get(label, "") for sample, have, _ in self.samples if sample == name})
        return {value: self.total(name, **{label: value}) for value in values}

    def hits(self, **labels):
        return self.total("afterglow_hits_total", frontend="cql", **labels)

    def updated(self):
        """Rows that stayed cached through a write, with its values."""
        return self.total("afterglow_write_outcomes_total", frontend="cql", outcome="updated")

    def refreshed(self):
        """Rows and units that were read again after a write, for the cache."""
        return self.total("afterglow_write_outcomes_total", frontend="cql", outcome="refreshed")

    def misses(self, **labels):
        return self.total("afterglow_misses_total", frontend="cql", **labels)


class Afterglow:
    """One instance with its own data folder and fixed ports; `kill()` then `start()` is a crash and
    a restart.
    """

    def __init__(
        self,
        backend,
        folder=None,
        flash="256MiB",
        memory="64MiB",
        policies=("*.*=exclusive",),
        extra=(),
        profile=None,
        wrapper=(),
        detached=False,
        address="127.0.0.1",
        tls=None,
        program=None,
    ):
        self.temporary = folder is None
        self.folder = Path(folder or scratch("afterglow-")).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data = self.folder / "data"
        self.log = self.folder / "afterglow.log"
        self.backend, self.flash, self.memory, self.policies = backend, flash, memory, policies
        self.address, self.port, self.admin = address, free_port(), free_port()
        self.extra, self.profile, self.wrapper, self.detached = extra, profile, wrapper, detached
        # The `ssl` context of its clients, where it speaks TLS.
        self.tls = tls
        # Another build than that of the profile.
        self.program = program
        self.child = None

    @property
    def contact(self):
        return f"{self.address}:{self.port}"

    @property
    def pid(self):
        return self.child.pid

    def command(self):
        return [
            *self.wrapper,
            self.program or binary(profile=self.profile),
            "serve",
            *("--cql", self.contact),
            *("--backend", self.backend),
            *("--data-dir", self.data),
            *("--flash-size", self.flash),
            *("--memory", self.memory),
            *("--admin", f"{self.address}:{self.admin}"),
            *([] if self.address.startswith("127.") else ["--admin-allow-remote"]),
            *[part for policy in self.policies for part in ("--table-policy", policy)],
            *self.extra,
        ]

    def launch(self):
        """Start the process without waiting for it."""
        self.child = Child(
            f"afterglow at {self.contact}", self.command(), self.log, detached=self.detached
        )
        return self

    def start(self, seconds=30):
        try:
            self.launch().child.wait_for("/readyz to say it is ready", self.ready, seconds)
        except BaseException:
            self.child.kill()
            raise
        return self

    @contextmanager
    def launch_only(self):
        """For a block, one that may never be ready."""
        try:
            yield self.launch()
        finally:
            self.stop()

    def get(self, path, seconds=5):
        """Status and text of a page of the admin listener, (0, reason) when there is none."""
        page = f"http://{self.address}:{self.admin}{path}"
        try:
            with urllib.request.urlopen(page, timeout=seconds) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def ready(self):
        return self.get("/readyz")[0] == 200

    def metrics(self):
        status, text = self.get("/metrics")
        if status != 200:
            self.child.check()
            raise Failure(f"/metrics of {self.contact} answered {status}: {text}")
        return Metrics(text)

    def log_text(self):
        return self.log.read_text(errors="replace")

    def running(self):
        return self.child is not None and self.child.running()

    def kill(self):
        """kill -9. The kernel takes port and locks from a process that used io_uring only a moment
        after its end.
        """
        self.child.kill()
        poll("the kernel to let go of port and locks", self._let_go, 10, every=0.002)

    def _let_go(self):
        try:
            if not self._port_is_free():
                return False
            for path in filter(Path.is_file, self.data.glob("*")):
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            return False

    def _port_is_free(self):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.address, self.port))
                return True
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    return False
            # The address is in another network namespace.
            probe.settimeout(1)
            return probe.connect_ex((self.address, self.port)) == errno.ECONNREFUSED

    def terminate(self, seconds=30):
        """SIGTERM, and wait for a clean end; its exit status."""
        return self.child.terminate(seconds)

    def succeed(self, seconds=60):
        """A successor takes the listening sockets of the process that runs, waits for its clean
        end, and serves on the same files.
        """
        old, command = self.child, [*self.command(), "--take-over"]
        new = Child(f"successor at {self.contact}", command, self.log, detached=self.detached)
        try:
            poll("the old process to end", lambda: not old.running(), seconds, check=new.check)
            if old.process.returncode != 0:
                old.check()
            self.child = new
            new.wait_for("/readyz to say it is ready", self.ready, seconds)
        except BaseException:
            new.kill()
            raise

    def invalidate(self, *what):
        """`afterglow invalidate` of this, and its end."""
        command = [self.program or binary(profile=self.profile), "invalidate", *what]
        done = subprocess.run(
            [*command, "--data-dir", self.data], capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise Failure(f"invalidate {what}: {done.stdout}{done.stderr}")

    def stop(self):
        """A clean end if it still runs, and no folder left if that was ours."""
        try:
            if self.running():
                self.child.resume()
                self.child.terminate()
        finally:
            if self.temporary:
                shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_):
        self.stop()


def describe(after, before=None):
    """What the front end counted, without zeros: what one wants to see when a test about hits
    fails.
    """
    counted = {}
    for name in (
        "hits",
        "misses",
        "passes",
        "fills",
        "writes",
        "write_outcomes",
        "invalidations",
    ):
        for sample, labels, value in after.samples:
            if sample == f"afterglow_{name}_total":
                value -= before.total(sample, missing_ok=True, **labels) if before else 0
                word = next(label for key, label in labels.items() if key != "frontend")
                if value:
                    counted[f"{name} {word}"] = int(value)
    return json.dumps(counted)
