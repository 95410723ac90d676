"""The memcached front end with the clients of the ecosystem."""

import os
import random
import re
import subprocess
import sys
import tarfile
from importlib import metadata

import pylibmc
import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheServerError

from afterglow_e2e.memcache import (
    CLIENTS,
    GO,
    MemcacheAfterglow,
    client_jars,
    peer,
    peer_environment,
)
from afterglow_e2e.process import ROOT, run


def test_pymemcache(front_end):
    client = Client((front_end.address, front_end.port), timeout=20)
    client.flush_all()
    assert client.get("a") is None
    client.set("a", b"1", flags=7)
    assert client.add("a", b"2", noreply=False) is False
    assert client.append("a", b"0", noreply=False) is True
    assert client.incr("a", 5) == 15
    value, token = client.gets("a")
    assert client.cas("a", b"x", token) is True
    assert client.cas("a", b"y", token) is False
    assert client.cas("zz", b"y", token) is None
    assert isinstance(client.stats("cachedump", "1", "1"), dict)
    client.set_many({f"k{i}": str(i).encode() for i in range(300)}, noreply=False)
    found = client.get_many([f"k{i}" for i in range(400)])
    assert len(found) == 300 and found["k123"] == b"123"
    assert client.touch("a", 100, noreply=False) is True
    assert client.delete("a", noreply=False) is True
    assert client.delete("a", noreply=False) is False
    assert client.stats()[b"curr_connections"] >= 1
    assert client.version().startswith(b"1.6.")
    with pytest.raises(MemcacheServerError, match="too large"):
        client.set("large", b"x" * (1 << 20), noreply=False)
    client.close()


def pymemcache_tests():
    """The tests that come with pymemcache's source, of the version that is installed."""
    version, folder = metadata.version("pymemcache"), ROOT / "target" / "peers"
    source = folder / f"pymemcache-{version}"
    if not source.exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
            "-d",
            folder,
        ]
        if subprocess.run([*command, f"pymemcache=={version}"]).returncode:
            pytest.skip("needs the source of pymemcache")
        with tarfile.open(folder / f"{source.name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return source / "pymemcache" / "test"


def passes(*command):
    return subprocess.run([str(part) for part in command], timeout=150).returncode == 0


def test_pymemcache_s_own_tests_pass():
    suite = pymemcache_tests()
    with MemcacheAfterglow(memory="64MiB") as front_end:
        where = [
            "--rootdir",
            suite,
            "--server",
            front_end.address,
            "--port",
            front_end.port,
            suite / "test_integration.py",
        ]
        # Neither our settings nor a cache beside its sources.
        ours = [
            "-c",
            os.devnull,
            "-p",
            "no:cacheprovider",
            "-q",
            "-W",
            "ignore",
            "-m",
            "integration",
        ]
        out = run(sys.executable, "-m", "pytest", *ours, "-k", "not test_touch", *where)
        # Its objects live for one second, which may end between a set and the touch behind it. It
        # passes at once or in one of a few more runs.
        touch = [sys.executable, "-m", "pytest", *ours, "-k", "test_touch", *where]
        assert any(passes(*touch) for _ in range(10))
        # One of them lowers the memory for objects to 50 MiB, each time anew.
        lowered = front_end.metrics().value("afterglow_engine_dram_capacity_bytes")
    assert int(re.search(r"(\d+) passed", out)[1]) >= 94, out
    assert lowered < 50 << 20


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_pylibmc(front_end, binary):
    client = pylibmc.Client(
        [f"{front_end.address}:{front_end.port}"],
        binary=binary,
        behaviors={"ketama": True, "cas": True},
    )
    client.flush_all()
    assert client.get("a") is None
    assert client.set("a", {"some": ["object"]})
    assert client.get("a") == {"some": ["object"]}
    assert not client.add("a", 1) and client.replace("a", 5)
    assert client.incr("a", 2) == 7 and client.decr("a", 3) == 4
    value, token = client.gets("a")
    assert client.cas("a", 9, token) and not client.cas("a", 10, token)
    assert not client.set_multi({f"k{i}": i for i in range(200)})
    assert client.get_multi([f"k{i}" for i in range(300)]) == {f"k{i}": i for i in range(200)}
    assert client.set("t", "text") and client.append("t", "!") and client.prepend("t", "!")
    assert client.get("t") == "!text!"
    assert client.touch("t", 100) and client.delete("t") and not client.delete("t")
    blob = random.Random(1).randbytes(700_000)
    assert client.set("blob", blob) and client.get("blob") == blob
    assert client.get_stats()[0][1]["threads"]


def test_gomemcache(front_end, tmp_path):
    if not GO:
        pytest.skip("needs Go")
    program = tmp_path / "session"
    run(GO, "build", "-o", program, ".", cwd=CLIENTS / "go")
    assert "all is well" in run(program, f"{front_end.address}:{front_end.port}")


def test_spymemcached(front_end):
    # The folder of target/ that Maven leaves beside the POM holds nothing.
    classpath = f"{client_jars()}/*"
    source = CLIENTS / "java" / "Session.java"
    assert "all is well" in run(
        "java", "-cp", classpath, source, f"{front_end.address}:{front_end.port}"
    )


def test_memccapable(front_end):
    program = peer("memccapable")
    if program is None:
        pytest.skip("needs libmemcached-tools")
    out = run(
        program, "-h", front_end.address, "-p", front_end.port, "-t", 20, env=peer_environment()
    )
    assert "All tests passed" in out and out.count("[pass]") >= 54, out
