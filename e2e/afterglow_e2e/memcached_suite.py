"""memcached's own tests, from Debian's source package, against Afterglow.

They start a program `memcached-debug` of the folder they run in. Here that is a script which hands
over to `afterglow serve` with the options that mean the same.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

from .afterglow import binary
from .memcache import PEERS
from .process import Failure, run

VERSION = "1.6.18"
SOURCE = PEERS / f"memcached-{VERSION}"
PERL = shutil.which("perl")
# What a test may take, on a machine that does other things too.
LIMIT = 300


def source():
    """The folder of memcached's source; the first time apt fetches and checks it.

    None where it cannot be had.
    """
    if not SOURCE.exists() and shutil.which("apt-get"):
        try:
            fetch()
        except Failure as error:
            print(f"no source of memcached {VERSION}: {error}", file=sys.stderr)
    return SOURCE if SOURCE.exists() else None


def fetch():
    """Fetches it with lists of our own, from where this machine has its packages."""
    state = PEERS / "apt"
    for name in ("lists/partial", "cache/archives/partial", "sources"):
        (state / name).mkdir(parents=True, exist_ok=True)
    apt = Path("/etc/apt")
    for path in (apt / "sources.list", *apt.glob("sources.list.d/*")):
        if path.is_file() and path.suffix in (".list", ".sources"):
            lines = re.sub(r"(?m)^(deb |Types:.*$)", deb_src, path.read_text())
            (state / "sources" / path.name).write_text(lines)
    options = [
        *("-o", "Dir::Etc::SourceList=/dev/null"),
        *("-o", f"Dir::Etc::SourceParts={state / 'sources'}"),
        *("-o", f"Dir::State::Lists={state / 'lists'}"),
        *("-o", f"Dir::Cache={state / 'cache'}"),
    ]
    # Lists of others may be out of reach: what counts is whether the source is found.
    subprocess.run(["apt-get", *options, "update"], capture_output=True, timeout=300)
    known = run("apt-cache", *options, "showsrc", "memcached")
    versions = re.findall(rf"(?m)^Version: ({re.escape(VERSION)}\S*)", known)
    if not versions:
        raise Failure(f"not among {re.findall('(?m)^Version: (.*)', known)}")
    named = f"memcached={versions[-1]}"
    fetching = ("apt-get", *options, "source", "--only-source", "--download-only", named)
    run(*fetching, cwd=PEERS, timeout=300)
    with tarfile.open(next(PEERS.glob(f"memcached_{VERSION}.orig.tar.*"))) as archive:
        archive.extractall(PEERS, filter="data")


def deb_src(found):
    """A line of sources for packages, made one for sources alone."""
    return "deb-src " if found[0].startswith("deb ") else "Types: deb-src"


# Runs as `memcached-debug`: the options, then `exec`.
SERVER = """#!{python}
import os, pathlib, sys, tempfile

given = sys.argv[1:]
if given == ["-h"]:
    print("-s, --unix-socket=<file>")
    sys.exit()
data = pathlib.Path(tempfile.mkdtemp(prefix="data-"))
port = socket = None
host, options, switches = "127.0.0.1", [], {switches}
words = iter(given)
for word in words:
    flag = word[:2]
    if flag in switches:
        options += switches[flag]
        continue
    value = word[2:] or next(words)
    if flag == "-p":
        port = value
    elif flag == "-l":
        host = value
    elif flag == "-s":
        socket = value
    elif flag == "-c":
        options += ["--memcache-connections", value]
    elif flag == "-t":
        options += ["--reactors", value]
    elif flag == "-I":
        size = value.upper() + ("iB" if value[-1].isalpha() else "B")
        options += ["--memcache-item-size", size]
    elif flag == "-Y":
        # The one of the package may be read by others.
        users = data / "users"
        users.touch(0o600)
        users.write_text(pathlib.Path(value).read_text())
        options += ["--memcache-auth-file", str(users)]
    elif flag == "-o":
        for option in value.split(","):
            name, _, much = option.partition("=")
            if name == "idle_timeout":
                options += ["--memcache-idle-timeout", much + "s"]
address = f"{{host}}:{{port}}" if port else "off"
command = ["{afterglow}", "serve", "--memcache", address, "--admin", "off"]
command += ["--memcache-unix", socket] if socket else []
command += ["--data-dir", str(data), "--flash-size", "1GiB", "--memory", "64MiB", *options]
log = os.open(data / "log", os.O_CREAT | os.O_WRONLY)
os.dup2(log, 1)
os.dup2(log, 2)
os.execv(command[0], command)
"""
SWITCHES = {
    "-F": ["--memcache-no-flush"],
    "-W": ["--memcache-no-watch"],
    "-X": ["--memcache-no-dump"],
    **{flag: [] for flag in ("-C", "-M", "-S", "-v", "-k", "-L")},
}


def prepare(folder):
    """Makes `folder` one that the tests can be run in."""
    for name in ("t", "doc"):
        (folder / name).symlink_to(SOURCE / name)
    (folder / "tmp").mkdir()
    server = SERVER.format(python=sys.executable, switches=SWITCHES, afterglow=binary())
    for name, text in {
        "memcached-debug": server,
        "timedrun": '#!/bin/sh\nshift\nexec "$@"\n',
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def said(name, folder):
    """What a test says: how many things were as expected, and the numbers of those that were not.
    With it what it wrote of them.
    """
    prepare(folder)
    child = subprocess.Popen(
        [PERL, "-I", "t/lib", f"t/{name}.t"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, errors = child.communicate(timeout=LIMIT)
    finally:
        # Also the servers that it has not stopped.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        shutil.rmtree(folder / "tmp", ignore_errors=True)
    out, errors = (text.decode(errors="replace") for text in (out, errors))
    numbers = [re.findall(rf"(?m)^{word} (\d+)", out) for word in ("ok", "not ok")]
    good, bad = ({int(number) for number in found} for found in numbers)
    plan = re.search(r"(?m)^1\.\.(\d+)\s*$", out)
    if not plan or len(good) + len(bad) != int(plan[1]):
        raise Failure(f"{name} did not come to its end: {out[-2000:]}{errors[-2000:]}")
    return len(good), bad, errors
