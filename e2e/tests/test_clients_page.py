"""Every program of docs/guide/clients.md runs against two servers, and does what the page says."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from afterglow_e2e.memcache import (
    CLIENTS,
    GO,
    PEERS,
    MemcacheAfterglow,
    client_jars,
    peer_environment,
)
from afterglow_e2e.process import ROOT, Child, poll, run

PAGE = ROOT / "docs" / "guide" / "clients.md"
PROGRAM = re.compile(r"<!-- run: (\S+) -->\n```\w+\n(.*?)^```$", re.S | re.M)
PROGRAMS = dict(PROGRAM.findall(PAGE.read_text()))


@pytest.fixture(scope="module")
def servers():
    with MemcacheAfterglow() as first, MemcacheAfterglow() as second:
        yield first, second


def java(folder, name):
    return ["java", "-cp", f"{client_jars()}/*", folder / name]


def go(folder, _):
    if not GO:
        pytest.skip("needs Go")
    for name in ("go.mod", "go.sum"):
        shutil.copy(CLIENTS / "go" / name, folder)
    run(GO, "build", "-o", folder / "page", ".", cwd=folder)
    return [folder / "page"]


def headers():
    """libmemcached to build with: the one that is installed, or unpacked from Debian's package."""
    if subprocess.run(["pkg-config", "--exists", "libmemcached"]).returncode == 0:
        return []
    PEERS.mkdir(parents=True, exist_ok=True)
    if not (PEERS / "usr" / "include" / "sasl").exists():
        quiet = {"cwd": PEERS, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        packages = "libmemcached-dev libhashkit-dev libsasl2-dev libmemcached11 libmemcachedutil2 libhashkit2".split()
        if subprocess.run(["apt-get", "download", *packages], **quiet).returncode:
            pytest.skip("needs libmemcached-dev")
        for package in PEERS.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, PEERS], check=True)
    libraries = next((PEERS / "usr" / "lib").glob("*-linux-gnu"))
    return ["-I", PEERS / "usr" / "include", "-L", libraries, f"-Wl,-rpath-link={libraries}"]


def c(folder, name):
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    flags = ["-Wall", "-Werror", "-o", folder / "page"]
    run("cc", *flags, folder / name, *headers(), "-lmemcached")
    return [folder / "page"]


def python(folder, name):
    # By another name it does not stand before the library that it imports.
    program = folder / f"page_{name}"
    (folder / name).rename(program)
    return [sys.executable, program]


WAYS = {".java": java, ".go": go, ".c": c, ".py": python}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_page_runs(servers, tmp_path, name):
    (tmp_path / name).write_text(PROGRAMS[name])
    command = WAYS[name[name.rindex(".") :]](tmp_path, name)
    stored = [total(server) for server in servers]
    environment = {**peer_environment(), "SERVERS": ",".join(server.contact for server in servers)}
    if not environment.get("LD_LIBRARY_PATH"):
        del environment["LD_LIBRARY_PATH"]
    assert "2 value2" in run(*command, env=environment).splitlines()
    grown = [total(server) - before for server, before in zip(servers, stored, strict=True)]
    assert sum(grown) == 100 and min(grown) >= 20, "both servers have a share of the keys"


def total(server):
    return server.metrics().value("memcached_items_total")


# Whether the keys of a dead server go to another one.
@pytest.mark.parametrize(
    ("client", "go"),
    [
        ("spymemcached", True),
        ("spymemcached-cancel", False),
        ("folsom", True),
        ("pymemcache", True),
        ("pylibmc", False),
        ("pylibmc-remove", True),
    ],
)
def test_keys_of_a_dead_server_go_where_the_page_says(tmp_path, client, go):
    if client.startswith("py"):
        command = [sys.executable, CLIENTS / "dead_server.py", client]
    else:
        command = [*java(CLIENTS / "java", "DeadServer.java"), client]
    with MemcacheAfterglow() as alive, MemcacheAfterglow() as dying:
        servers = {"SERVERS": f"{alive.contact},{dying.contact}"}
        log = tmp_path / "log"
        child = Child(client, command, log, env={**os.environ, **servers})
        try:
            rounds(child, log, 2)
            own = keys(alive)
            assert 10 < len(own) < 90
            dying.kill()
            if go:
                # spymemcached gives up for a few keys whose next places are all of one server.
                poll("keys to go there", lambda: len(keys(alive)) >= 95, 60, 0.2, child.check)
            else:
                rounds(child, log, log.read_text().count("round") + 20)
                assert keys(alive) == own
        finally:
            child.kill()


def rounds(child, log, count):
    poll("some rounds", lambda: log.read_text().count("round") >= count, 120, 0.2, child.check)


def keys(server):
    raw = server.connect()
    found = {i for i in range(100) if raw.get(b"key%d" % i) is not None}
    raw.close()
    return found


def test_every_client_of_the_page_has_a_program():
    rows = re.findall(r"^\| (\w+) \| [^-]", PAGE.read_text(), re.M)
    sections = re.findall(r"^## (\w+)$", PAGE.read_text(), re.M)
    named = [row for row in rows if row != "client"]
    assert named == sections and len(named) == len(PROGRAMS) == 6
    fences = re.findall(r"^```(\w+)$", PAGE.read_text(), re.M)
    assert len([fence for fence in fences if fence != "sh"]) == len(PROGRAMS)


def test_the_measure_that_the_page_quotes_runs(servers):
    contact = servers[0].contact
    out = run(sys.executable, CLIENTS / "batches.py", contact, env=dict(os.environ))
    one, many = (int(figure) for figure in re.findall(r"(\d+) keys/s", out))
    assert one > 0 and many > 0
