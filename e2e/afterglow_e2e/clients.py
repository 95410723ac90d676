"""Programs of `e2e/cql-clients`: built where their tools are, and told what to do line by line."""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from .process import ROOT, Failure, tail

SOURCES = ROOT / "e2e" / "cql-clients"
BUILT = ROOT / "target" / "cql-clients"
RUST = Path(
    os.environ.get(
        "AFTERGLOW_RUST_DRIVER", ROOT / "target/rust-driver/debug/afterglow-rust-driver-test"
    )
)
GO = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
TOOLS = {
    "java": shutil.which("mvn"),
    "go": GO,
    "node": shutil.which("npm") and shutil.which("node"),
    "cpp": sys.executable,
}


def run(*command, **more):
    """A tool that is to succeed; what it said is shown if it does not."""
    command = [str(part) for part in command]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **more
    )
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}:\n{done.stdout[-3000:]}")
    return done.stdout


def build(language):
    """The command line of the client in this language; None where the tools to build it are
    missing.
    """
    if not TOOLS[language]:
        return None
    source, target = SOURCES / language, BUILT / language
    target.mkdir(parents=True, exist_ok=True)
    builders = {"java": build_java, "go": build_go, "node": build_node, "cpp": build_cpp}
    return builders[language](source, target)


def rust():
    """The same of the Rust client: cargo builds it, and it takes its arguments in its own way."""
    if not RUST.exists():
        raise Failure(f"{RUST} is not built: run `make build`")
    return ["sh", "-c", f'exec "{RUST}" "$1:$2" "$3" --commands', "rust"]


def build_java(source, target):
    fetched(
        target,
        source / "pom.xml",
        "mvn",
        "-q",
        "-B",
        "dependency:copy-dependencies",
        f"-DoutputDirectory={target}",
    )
    return ["java", "-Xmx256M", "-cp", f"{target}/*", source / "Client.java"]


def build_go(source, target):
    run(GO, "build", "-o", target / "client", ".", cwd=source)
    return [target / "client"]


def build_node(source, target):
    shutil.copy(source / ".npmrc", target)
    shutil.copy(source / "package-lock.json", target)
    shutil.copy(source / "client.js", target)
    fetched(target, source / "package.json", "npm", "ci", "--silent", "--no-audit", "--no-fund")
    return [TOOLS["node"], target / "client.js"]


def build_cpp(source, _):
    """The driver is in a package of Python's, which `make tools` has installed."""
    return [TOOLS["cpp"], source / "client.py"]


def fetched(target, manifest, *command):
    """Run a command in `target` with a copy of a manifest, unless that was done with the same one
    before.
    """
    stamp = target / "complete"
    if not stamp.exists() or stamp.read_text() != manifest.read_text():
        shutil.copy(manifest, target)
        run(*command, cwd=target)
        shutil.copy(manifest, stamp)


class Refused(RuntimeError):
    """The driver reported an error."""


class Client:
    """One such program, connected; `client("read", 1, 2)` does what that says and gives what it
    answered.
    """

    def __init__(self, command, server, keyspace, log, *more):
        self.log = log
        arguments = [server.address, server.port, keyspace, *more]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [str(part) for part in [*command, *arguments]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            assert self._answer(90) == "connected"
        except BaseException:
            self.close()
            raise

    @property
    def pid(self):
        return self.process.pid

    def _listen(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _answer(self, seconds):
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            raise self._failure(f"was silent for {seconds} s") from None
        if line is None:
            raise self._failure("ended")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["ok"]

    def _failure(self, what):
        return Failure(f"{self.process.args} {what}; the end of its log:\n{tail(self.log)}")

    def __call__(self, *command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._answer(60)

    def close(self):
        """It has nothing to put in order."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
