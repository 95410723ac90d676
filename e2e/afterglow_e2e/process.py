"""Child processes that never outlive us, and conditions polled with a deadline. Standard library
only.
"""

import contextlib
import errno
import itertools
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parents[2]


class Failure(RuntimeError):
    """Something did not come up or did not behave; the message says what, and shows the end of its
    log.
    """


def poll(what, condition, seconds, every=0.05, check=lambda: None):
    """Ask `condition` until it gives something true and return that; `check` may raise to give up
    early.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        check()
        if time.monotonic() > deadline:
            raise Failure(f"gave up after {seconds:g} s waiting for {what}")
        time.sleep(every)


def scratch(prefix):
    """A new folder under target/: /tmp may be in memory, and flash should be on a disk."""
    parent = ROOT / "target" / "scratch"
    parent.mkdir(parents=True, exist_ok=True)
    return tempfile.mkdtemp(prefix=prefix, dir=parent)


def pin(pid, cpus):
    """Keep every thread of a process, and those it will make, on these CPUs."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cpus)


def ports():
    """Ports below those that the kernel gives to connections, in turn: none comes again soon. Each
    lane of the tests has its own, and each process begins elsewhere.
    """
    lane = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % LANES
    size = (PORTS[1] - PORTS[0]) // LANES
    begin = random.randrange(size)
    for number in itertools.count(begin):
        yield PORTS[0] + lane * size + number % size


PORTS, LANES = (10_000, 32_000), 4
NEXT_PORT = ports()


def is_free(address, port):
    """Whether nobody listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True


def free_port(address="127.0.0.1"):
    """A TCP port nobody listens on at `address` now, and that nobody here was given before."""
    return next(port for port in NEXT_PORT if is_free(address, port))


def addresses():
    """Addresses of this host in turn, none of them twice among the next 240: a node takes the same
    ports as its neighbours. Each process begins elsewhere.
    """
    begin = random.randrange(240)
    for number in itertools.count(begin):
        yield f"127.0.0.{10 + number % 240}"


NEXT_ADDRESS = addresses()


def connections_to(address, port, pid="self"):
    """Sockets of a process (ours, unless said otherwise) that are connected to address:port."""
    packed = struct.unpack("=I", socket.inet_aton(address))[0]
    # Clients in Java and Go use sockets of IPv6 for addresses of IPv4.
    wanted = {f"{packed:08X}:{port:04X}", f"0000000000000000FFFF0000{packed:08X}:{port:04X}"}
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    inodes = {row[9] for row in rows if row[2] in wanted}
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            match = re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink()))
            if match and match[1] in inodes:
                found.add(match[0])
    return found


def tail(path, lines=25):
    """The last lines of a log, indented, for an error message."""
    try:
        text = Path(path).read_text(errors="replace").splitlines()
    except OSError as error:
        return f"    (no log: {error})"
    return "\n".join("    " + line[:300] for line in text[-lines:])


def cpu_seconds(pid):
    """User and system time a process has used so far, all threads, in seconds (10 ms steps)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def alive(pid):
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Child:
    """One program writing to one log file, in a session of its own: Ctrl-C reaches only us, who
    then stop it in order.

    Unless `detached`, the kernel kills it when the thread that started it ends, so that not even
    `kill -9` of a test run leaves servers behind.
    """

    def __init__(self, name, command, log, env=None, detached=False, cwd=None):
        self.name, self.log = name, Path(log)
        if not detached and (setpriv := shutil.which("setpriv")):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process.poll() is None

    def check(self):
        """Raise if it has ended, with the end of its log."""
        code = self.process.poll()
        if code is not None:
            how = (
                f"was killed by {signal.Signals(-code).name}"
                if code < 0
                else f"ended with status {code}"
            )
            raise Failure(f"{self.name} {how}; the end of {self.log}:\n{tail(self.log)}")

    def wait_for(self, what, condition, seconds):
        """Poll a condition while the process lives."""
        try:
            return poll(what, condition, seconds, check=self.check)
        except Failure as failure:
            if self.running():
                raise Failure(
                    f"{self.name}: {failure}; the end of {self.log}:\n{tail(self.log)}"
                ) from None
            raise

    def signal(self, number):
        if self.running():
            self.process.send_signal(number)

    def pause(self):
        """Stop it where it stands (SIGSTOP): a server that hangs, as its peers see it.

        A signal is only sent by then: each thread goes on until it takes note of it. So wait until
        all have.
        """
        if self.running():
            self.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        """kill -9, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def terminate(self, seconds=30):
        """SIGTERM; its exit status. Killed, with a Failure, if it has not ended in time."""
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failure(
                f"{self.name} did not end within {seconds:g} s of SIGTERM; the end of {self.log}:\n{tail(self.log)}"
            ) from None

    def cpu_seconds(self):
        return cpu_seconds(self.pid)


def stop_pid(pid, seconds=20):
    """End a process that is not our child: SIGTERM, then SIGKILL after a while."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
            poll(f"process {pid} to end", lambda: not alive(pid), seconds)
            return
        except OSError as error:
            if error.errno == errno.ESRCH:
                return
            raise
        except Failure:
            continue


def run(*command, timeout=150, **more):
    """Runs a program to its end, and gives what it said."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        **more,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
