"""From the package to a page in a browser, in a Debian that has nothing else, by what the page of
operations says and nothing besides.

The root is what debootstrap makes, once, in `.tools`; CLEAN_ROOT names another one to take. It has
a network of its own, so that the ports are those that the page names.
"""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from afterglow_e2e.browser import programs
from afterglow_e2e.debian import CLEAN, CleanRoot, bootstrapped, can_make_roots
from afterglow_e2e.process import ROOT, Child, Failure, poll, run

PAGE = (ROOT / "docs" / "guide" / "operations.md").read_text()
PROGRAMS = dict(re.findall(r"(?sm)<!-- run: (\S+) -->\n```sh\n(.*?)^```$", PAGE))
# What of the page is done on another machine, or has been done before.
ELSEWHERE = re.compile(r"(?m)^make packages .*$")
# A root of debootstrap has nobody but root, and no sudo.
SUDO = 'sudo() { "$@"; }\n'


@pytest.fixture
def root(tmp_path):
    try:
        lower = os.environ.get("CLEAN_ROOT") or bootstrapped()
    except Failure as failure:
        pytest.skip(f"needs a root of debootstrap, or a CLEAN_ROOT: {failure}")
    if lower is None or not can_make_roots():
        pytest.skip("needs root, overlayfs and Debian, or a CLEAN_ROOT")
    clean = CleanRoot(tmp_path / "clean", lower, network=True)
    yield clean
    clean.close()


def shell(root, script, where="/root"):
    """What a script says in the root, its errors too; typed by somebody who says yes to apt."""
    enter = root.alone if where == "network" else root.command
    command = [str(part) for part in enter("bash", "-ec", "cd /root; " + SUDO + script)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=CLEAN,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.long
def test_a_new_user_comes_from_the_package_to_a_page_in_a_browser(root, tmp_path):
    if programs() is None:
        pytest.skip("needs Debian's chromium and chromium-driver")
    profile = os.environ.get("AFTERGLOW_PROFILE", "debug")
    package = ROOT / run(ROOT / "tools" / "packages", "--profile", profile).splitlines()[-1]
    enter = ("nsenter", f"--mount=/proc/{root.holder.pid}/ns/mnt")
    run(*enter, "install", "-D", package, f"{root.path}/root/target/packages/{package.name}")
    # Whoever makes a container for packages tells apt so: it asks nobody.
    shell(root, "echo 'APT::Get::Assume-Yes true;' >/etc/apt/apt.conf.d/yes; apt-get update")
    assert not root.succeeds("test", "-e", "/usr/bin/afterglow")

    began = time.monotonic()
    said = shell(root, ELSEWHERE.sub("", PROGRAMS["install.sh"]))
    # No systemd runs there, and the installation says what to do then.
    (start,) = re.findall(r"(?m)^  (setpriv .* afterglow serve .*)$", said)
    installed = time.monotonic()
    command = root.alone("bash", "-c", f"exec {start}")
    server = Child("afterglow", command, tmp_path / "afterglow.log", env=CLEAN)
    try:
        ask = [str(part) for part in root.alone("afterglow", "health")]
        poll(
            "the server to be ready",
            lambda: subprocess.run(ask, capture_output=True).returncode == 0,
            60,
            check=server.check,
        )
        shell(root, "apt-get install netcat-openbsd")
        lines = shell(root, PROGRAMS["use.sh"], "network").splitlines()
        assert lines[:5] == ["ready", "STORED", "VALUE greeting 0 5", "hello", "END"]
        assert [line.split()[:3] for line in lines[5:] if "memcache store" in line]

        (url,) = re.findall(r"A browser on the same machine shows <(http\S+)>", PAGE)
        screenshots = os.environ.get("AFTERGLOW_SCREENSHOTS")
        picture = [f"{screenshots}/first-steps.png"] if screenshots else []
        look = (sys.executable, "-m", "afterglow_e2e.firstlook", url, *picture)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "e2e")}
        # It says other things too, such as which packages it has unpacked.
        told = run(*root.in_network(), *look, env=environment, timeout=180)
        seen = json.loads(told.splitlines()[-1])
        ended = time.monotonic()
        assert seen["title"] == "Afterglow" and seen["status"] == "ready"
        assert (seen["requests"]["get"], seen["requests"]["store"]) == ("1", "1")
        assert {"Hit ratio", "Requests", "DRAM", "Flash"} <= set(seen["tiles"])
        assert seen["console"] == [] and seen["hosts"] == ["127.0.0.1:9180"]
        print(
            f"installed after {installed - began:.0f} s, page seen after {ended - began:.0f} s",
            f"(root of {root.run('dpkg', '--list').count(chr(10) + 'ii')} packages)",
        )
        assert server.terminate(60) == 0
    finally:
        server.kill()
