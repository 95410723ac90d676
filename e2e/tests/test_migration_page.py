"""Every program of docs/guide/migration.md runs, from a real memcached to Afterglow, and does what
the page says.
"""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from afterglow_e2e.afterglow import binary
from afterglow_e2e.memcache import MemcacheAfterglow, Memcached, peer, peer_environment, say
from afterglow_e2e.process import ROOT, free_port, poll

PAGE = ROOT / "docs" / "guide" / "migration.md"
PROGRAM = re.compile(r"<!-- run: (\S+) -->\n```\w+\n(.*?)^```$", re.S | re.M)
PROGRAMS = dict(PROGRAM.findall(PAGE.read_text()))
RAN = set()
# With these some megabytes are enough for extstore to write.
SMALL_PAGES = "ext_page_size=2,ext_wbuf_size=2,hot_lru_pct=1,warm_lru_pct=1"


@pytest.fixture(params=["memcached", "extstore"])
def old(request, tmp_path):
    if peer("memcached") is None:
        pytest.skip("needs memcached")
    more = [
        "-o",
        f"{SMALL_PAGES},ext_path={tmp_path}/ext:64m,ext_item_age=0",
    ]
    with Memcached(["-m", "64", *(more if request.param == "extstore" else [])]) as server:
        yield server


@pytest.fixture
def new(tmp_path):
    with MemcacheAfterglow(folder=tmp_path / "new") as server:
        yield server


class Operator:
    """Who follows the page: a folder with its files, and its variables."""

    def __init__(self, folder, old, new):
        self.folder = folder / "operator"
        self.folder.mkdir()
        for name, text in PROGRAMS.items():
            (self.folder / name).write_text(text)
        environment = peer_environment()
        libraries = environment.pop("LD_LIBRARY_PATH")
        path = [Path(sys.executable).parent, binary().parent, peer("memcstat").parent]
        self.environment = {
            **environment,
            **({"LD_LIBRARY_PATH": libraries} if libraries else {}),
            "PATH": ":".join([*map(str, path), os.environ["PATH"]]),
            "OLD": f"127.0.0.1:{old.port}",
            "NEW": new.contact,
            "AFTERGLOW_ADMIN": f"127.0.0.1:{new.admin}",
        }

    def run(self, name, **variables):
        """What a program of the page says."""
        RAN.add(name)
        how = {".sh": ["sh", "-e", name], ".py": [sys.executable, name]}[Path(name).suffix]
        done = subprocess.run(
            how,
            cwd=self.folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def operator(tmp_path, old, new):
    return Operator(tmp_path, old, new)


def test_the_old_server_tells_what_the_page_asks_for(operator, old):
    raw = old.connect()
    for i in range(50):
        assert raw.set(b"k%d" % i, b"v" * 100) == b"STORED"
    said = operator.run("look.sh")
    assert re.search(r"curr_items: 50\n", said) and "limit_maxbytes: 67108864" in said
    if "ext_path" in " ".join(map(str, old.child.process.args)):
        assert "extstore_objects_used: " in operator.run("extstore.sh")


def test_requests_of_clients_become_a_plan(operator, old):
    raw, ended = old.connect(), threading.Event()
    for i in range(20):
        raw.set(b"k%d" % i, b"v" * 100)

    def load():
        connection = old.connect()
        while not ended.wait(0.001):
            for i in range(25):
                connection.get(b"k%d" % i)

    worker = threading.Thread(target=load)
    worker.start()
    try:
        said = operator.run("plan.sh", SECONDS_WATCHED="2")
    finally:
        ended.set()
        worker.join()
    RAN.add("requests.py")
    lines = set((operator.folder / "requests.txt").read_text().splitlines())
    assert {"k0 102", "k19 103", "k24 "} <= lines
    assert "--memory 1GiB" in said and "20GiB" in said


def test_the_example_configuration_is_one_that_the_server_takes(operator, tmp_path):
    file = operator.folder / "afterglow.toml"
    text = PROGRAMS["afterglow.toml"]
    RAN.add("afterglow.toml")
    for there, here in [
        ("10.0.0.5:11211", f"127.0.0.1:{free_port()}"),
        ("/mnt/nvme", tmp_path),
        ("20GiB", "256MiB"),
        ("/var/lib/afterglow", tmp_path / "data"),
        ('memory = "1GiB"', 'memory = "64MiB"'),
    ]:
        assert there in text
        text = text.replace(there, str(here))
    file.write_text(text)
    said = operator.run("check.sh", AFTERGLOW_ADMIN="off")
    assert "memcache-connections = 4096" in said and 'memcache-item-size = "2MiB"' in said


def test_each_phase_of_dual_writes_can_be_taken_back(operator, old, new):
    old.connect().set(b"user:3", b"eve")
    assert operator.run("dual.py", PHASE="fill") == "fill b'ada' None b'eve'\n"
    assert new.connect().get(b"user:1") == b"ada"
    assert new.connect().get(b"user:2") is None
    assert operator.run("dual.py", PHASE="switch") == "switch b'ada' None b'eve'\n"
    # Back from there: the old server has every write.
    assert old.connect().get(b"user:1") == b"ada" and old.connect().get(b"user:2") is None
    old.connect().line(b"delete user:1")
    assert operator.run("dual.py", PHASE="done") == "done b'ada' None None\n"
    assert old.connect().get(b"user:1") is None, "it is not written any more"
    # Back from here: the old server is emptied first.
    operator.run("back.sh")
    assert old.connect().get(b"user:3") is None


def test_a_copy_has_values_flags_and_expiry_and_replaces_nothing(operator, old, new):
    raw = old.connect()
    for i in range(400):
        size = 30_000 if i % 2 else 100
        order = b"set k%d %d %d %d\r\n%s\r\n" % (
            i,
            i,
            i % 3 * 1000,
            size,
            b"%06d" % i * (size // 6) + b"x" * (size % 6),
        )
        raw.send(order)
        assert raw.until(b"\r\n") == b"STORED\r\n"
    raw.line(b"set odd/%key 0 0 1\r\n1")
    if "ext_path" in " ".join(map(str, old.child.process.args)):
        found = rb"STAT extstore_objects_used ([1-9]\d*)\r\n"
        poll("objects in extstore", lambda: re.search(found, say(raw, b"stats\r\n")), 30)
    mine = new.connect()
    mine.set(b"k0", b"newer")
    assert operator.run("copy.py") == "400 of 401 objects copied\n"
    assert mine.get(b"k0") == b"newer" and mine.get(b"odd/%key") == b"1"
    for i in range(1, 400):
        theirs, ours = (said.line(b"mg k%d f t s" % i) for said in (raw, mine))
        left = [int(re.search(rb" t(-?\d+)", answer)[1]) for answer in (theirs, ours)]
        # A second or two may pass in between.
        assert abs(left[0] - left[1]) <= (0 if left[0] == -1 else 100), (theirs, ours)
        assert [re.sub(rb" t-?\d+", b"", answer) for answer in (theirs, ours)][0].startswith(
            b"HD f%d s" % i
        )
        assert raw.get(b"k%d" % i) == mine.get(b"k%d" % i)


def test_the_new_server_is_watched_as_the_page_says(operator, new):
    raw = new.connect()
    raw.set(b"k", b"v")
    raw.get(b"k")
    said = operator.run("watch.sh")
    assert "ready" in said and re.search(r"get_hits: 1\n", said)


def redis_rows():
    """Commands of the table of Redis, in its order."""
    section = PAGE.read_text().split("## From Redis")[1]
    rows = re.findall(r"^\| (`.*) \| (none|`[^|]*`) \|(.*)\|$", section, re.M)
    return [(redis, command.strip("`"), note) for redis, command, note in rows]


def test_every_counterpart_of_a_command_of_redis_is_one(new):
    rows = redis_rows()
    assert len(rows) > 20
    raw = new.connect()
    raw.set(b"k", b"v")
    for redis, command, _ in rows:
        if command == "none":
            continue
        words = command.split()
        if words[0] in ("set", "add", "replace", "append"):
            command += "\r\n" + "x" * int(words[4])
        if redis.startswith("`INCR n`, "):
            raw.set(b"n", b"7")
        if words[0] == "ma":
            raw.line(b"delete n")
        if words[0] == "watch":
            assert new.connect().line(command.encode()) == b"OK"
            continue
        if words[0] == "flush_all":
            assert new.connect().line(b"flush_all") == b"OK"
            continue
        answer = say(raw, command.encode() + b"\r\n")
        assert b"ERROR" not in answer, (redis, command, answer)
        first = answer.split(b"\r\n")[0]
        if words[0] == "delete":
            assert first == b"DELETED"
            raw.set(b"k", b"v")
        elif words[0] == "add":
            assert first == b"NOT_STORED"
        elif words[0] not in ("lru_crawler", "mn"):
            # They find what was stored before.
            absent = {b"NOT_FOUND", b"EN", b"NF", b"NOT_STORED", b"END"}
            assert first not in absent, (redis, command, answer)


def test_every_program_of_the_page_was_run():
    """The last of this file: nothing on the page is left out."""
    assert set(PROGRAMS) == RAN
    fences = re.findall(r"^```(\w+)$", PAGE.read_text(), re.M)
    assert len(fences) == len(PROGRAMS)
