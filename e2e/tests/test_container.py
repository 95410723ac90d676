"""The container image: the file that makes it, what is in it, and the server that runs from it.

No container runtime builds it here. Its steps are done by hand. The context is what .dockerignore
leaves. The image's root is what packaging/container/root makes of the binary. The server starts
from that root alone, as the image's user, with the image's command line.
"""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from afterglow_e2e import seccomp
from afterglow_e2e.afterglow import binary
from afterglow_e2e.memcache import MemcacheAfterglow, content, fill
from afterglow_e2e.process import ROOT, poll, run

FOLDER = ROOT / "packaging" / "container"
FILE = FOLDER / "Containerfile"
PROFILE = FOLDER / "seccomp.json"
TEXT = FILE.read_text().replace("\\\n", " ")


def instruction(name):
    """What comes behind an instruction, each time it is there."""
    return re.findall(rf"(?m)^\s*{name} (.*)$", TEXT)


def test_a_linter_is_content_with_the_file():
    linter = Path(sys.executable).parent / "hadolint"
    assert run(linter, "--failure-threshold", "style", FILE) == ""


def context(folder):
    """The build's context: what git has, but for what .dockerignore leaves out."""
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]

    def taken(path):
        places = [str(path), *map(str, path.parents)]
        answer = True
        for rule in rules:
            if any(fnmatch.fnmatchcase(place, rule.removeprefix("!")) for place in places):
                answer = rule.startswith("!")
        return answer

    listed = run("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard").splitlines()
    for name in filter(lambda name: taken(Path(name)), listed):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def test_the_context_has_all_that_the_build_asks_for_and_no_more(tmp_path):
    folder = context(tmp_path / "context")
    assert {path.name for path in folder.iterdir()} == {
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "crates",
        "dashboard",
        "packaging",
        "rust-toolchain.toml",
    }
    (build,) = [line for line in instruction("RUN") if "cargo build" in line]
    (package,) = re.findall(r"--package (\S+)", build)
    described = json.loads(
        run(
            "cargo",
            "metadata",
            "--locked",
            "--offline",
            "--no-deps",
            "--format-version=1",
            cwd=folder,
        )
    )
    assert package in [one["name"] for one in described["packages"]]
    assert os.access(folder / re.search(r"&& (\S+) target", build)[1], os.X_OK)
    # Files that a source has within it are there too.
    seen = 0
    for source in folder.glob("crates/*/src/**/*.rs"):
        for name in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', source.read_text()):
            assert (source.parent / name).exists(), (source, name)
            seen += 1
    assert seen > 3 and (folder / "dashboard/index.html").exists()
    channel = re.search(r'channel = "(.*)"', (ROOT / "rust-toolchain.toml").read_text())[1]
    assert instruction("FROM")[0].startswith(f"rust:{channel}-")


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The root of the image, with its volume as a runtime would give it."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    folder = tmp_path_factory.mktemp("image") / "root"
    run(FOLDER / "root", binary(), folder)
    system = folder / "system"
    copies = [line.split()[-2:] for line in instruction("COPY") if "--from" in line]
    assert copies == [["/root-of-image/system/", "/"], ["/root-of-image/state/", "/var/lib/"]]
    shutil.copytree(folder / "state", system / "var/lib", dirs_exist_ok=True)
    (user,) = instruction("USER")
    owner, group = map(int, user.split(":"))
    (volume,) = instruction("VOLUME")
    inside = system / volume.lstrip("/")
    assert inside.is_dir() and list(inside.iterdir()) == []
    os.chown(inside, owner, group)
    # What a runtime mounts.
    for name in ("proc", "dev", "sys", "tmp"):
        (system / name).mkdir()
    return system


class Container(MemcacheAfterglow):
    """The image's command line, as its user, with nothing of this machine but its kernel."""

    def __init__(self, image, folder, more=()):
        super().__init__(folder=folder)
        entry = json.loads(instruction("ENTRYPOINT")[0]) + json.loads(instruction("CMD")[-1])
        (user,) = instruction("USER")
        (work,) = instruction("WORKDIR")[1:]
        mounts = f"mount --rbind /proc {image}/proc && mount --rbind /dev {image}/dev"
        inside = (shutil.which("chroot"), f"--userspec={user}", "--groups=", image, *entry, *more)
        ports = [
            f"AFTERGLOW_MEMCACHE=127.0.0.1:{self.port}",
            f"AFTERGLOW_ADMIN=127.0.0.1:{self.admin}",
        ]
        script = f'{mounts} && cd {image}{work} && exec env -i {" ".join(ports)} "$@"'
        self.start_line = ["unshare", "--mount", "sh", "-c", script, "sh", *inside]

    def command(self):
        return self.start_line


def loaded(server):
    """Until then a read of what is not loaded yet is a miss."""
    left = "afterglow_engine_loading"
    poll("the index to be loaded", lambda: server.metrics().value(left) == 0, 60)


def test_the_server_starts_from_what_the_image_has_and_is_warm_in_the_next(image, tmp_path):
    with Container(image, tmp_path) as container:
        assert Path(f"/proc/{container.pid}/root").readlink() == image
        status = Path(f"/proc/{container.pid}/status").read_text()
        assert re.search(r"Uid:\s+65532\s+65532", status)
        raw = container.connect()
        fill(raw, 500, 200)
        (check,) = re.findall(r"CMD (\[.*\])", instruction("HEALTHCHECK")[0])
        ask = ["chroot", "--userspec=65532:65532", image, *json.loads(check)]
        healthy = subprocess.run(
            [*ask, "--admin", f"127.0.0.1:{container.admin}"], capture_output=True, text=True
        )
        assert (healthy.returncode, healthy.stdout) == (0, "ready\n"), healthy.stderr
        data = image / "var/lib/afterglow/data"
        assert data.stat().st_mode & 0o777 == 0o700 and data.stat().st_uid == 65532
        assert container.terminate() == 0
        assert subprocess.run(ask, capture_output=True).returncode != 0
        # The next container with the same volume.
        container.start()
        loaded(container)
        raw = container.connect()
        assert all(raw.get(b"o%d" % i) == content(i, 200) for i in range(500))
        assert "WARN" not in container.log_text(), container.log_text()


def test_its_configuration_is_one_that_the_server_takes(image):
    entry = json.loads(instruction("ENTRYPOINT")[0])
    as_user = ["chroot", "--userspec=65532:65532", image, *entry]
    checked = run(*as_user, "check-config", "/etc/afterglow/afterglow.toml", "--admin", "off")
    assert 'memcache = "0.0.0.0:11211"' in checked
    assert 'data-dir = "/var/lib/afterglow/data"' in checked


def under(without=None):
    """A wrapper that puts the profile in force."""
    if seccomp.library() is None:
        pytest.skip("needs libseccomp")
    more = ("--without", without) if without else ()
    module = ("-m", "afterglow_e2e.seccomp")
    return ("env", f"PYTHONPATH={ROOT / 'e2e'}", sys.executable, *module, PROFILE, *more)


def refused(text):
    return [line for line in text.splitlines() if "io_uring is refused here" in line]


@pytest.mark.parametrize("without", [None, "io_uring"], ids=["profile", "default"])
def test_the_profile_allows_all_that_a_server_needs_and_without_io_uring_epoll_is_used(
    tmp_path, without
):
    """From start to stop, with reads of flash; as the profile lets it, and as runtimes do that
    have no io_uring in theirs.
    """
    wrapper = under(without)
    with MemcacheAfterglow(folder=tmp_path, wrapper=wrapper, memory="32MiB") as server:
        mode = Path(f"/proc/{server.pid}/status").read_text()
        assert re.search(r"Seccomp:\s+2", mode), "no filter is in force"
        raw = server.connect()
        fill(raw, 12_000, 4000)
        for i in range(0, 12_000, 40):
            assert raw.get(b"o%d" % i) in (None, content(i, 4000))
        assert server.metrics().total("afterglow_engine_device_reads_total") > 0
        told = refused(server.log_text())
        # One line of the reactors, one of the engine.
        assert len(told) == (2 if without else 0), server.log_text()
        assert server.terminate() == 0
        server.start()
        loaded(server)
        assert server.connect().get(b"o11999") == content(11_999, 4000)


def test_the_profile_refuses_what_a_cache_has_no_use_for():
    for call in ("unshare --user true", "mount -t tmpfs tmpfs /mnt", "keyctl"):
        if not shutil.which(call.split()[0]):
            continue
        done = subprocess.run([*map(str, under()), *call.split()], capture_output=True, text=True)
        assert done.returncode != 0, call
    threads = "import threading; t = threading.Thread(target=print, args=('ran',)); t.start()"
    assert run(*under(), sys.executable, "-c", threads) == "ran\n"
