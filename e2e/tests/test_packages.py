"""The Debian package: built, looked at, installed, run, upgraded warm, removed and purged.

It is installed into a copy of this machine's root that forgets all changes; CLEAN_ROOT names
another one to take, such as `debootstrap --variant=minbase bookworm DIR` makes.
"""

import os
import re
import shlex
import shutil
import subprocess

import pytest

from afterglow_e2e.afterglow import binary
from afterglow_e2e.debian import CleanRoot, can_make_roots, program
from afterglow_e2e.memcache import MemcacheAfterglow, content, fill
from afterglow_e2e.process import ROOT, poll, run

UNIT = ROOT / "packaging" / "systemd" / "afterglow.service"


@pytest.fixture(scope="module")
def package():
    """The package of the binary that the other tests use."""
    if not shutil.which("dpkg-deb"):
        pytest.skip("needs dpkg")
    profile = os.environ.get("AFTERGLOW_PROFILE", "debug")
    return ROOT / run(ROOT / "tools" / "packages", "--profile", profile).splitlines()[-1]


@pytest.fixture(scope="module")
def later(package, tmp_path_factory):
    """The same package with a later version."""
    folder = tmp_path_factory.mktemp("later")
    run("dpkg-deb", "--raw-extract", package, folder / "content")
    control = folder / "content" / "DEBIAN" / "control"
    control.write_text(re.sub(r"(?m)^Version: (.*)$", r"Version: \1+later", control.read_text()))
    path = folder / "afterglow.deb"
    run("dpkg-deb", "--root-owner-group", "-z1", "--build", folder / "content", path)
    return path


@pytest.fixture
def root(tmp_path):
    """A root without the package."""
    if not can_make_roots():
        pytest.skip("needs root and overlayfs")
    clean = CleanRoot(tmp_path / "clean", os.environ.get("CLEAN_ROOT", "/"))
    clean.run("mkdir", "-p", "/mnt")
    yield clean
    clean.close()


def install(root, package, *options):
    """Installs a package as an operator does, and gives what dpkg said."""
    inside = root.path / "tmp" / "afterglow.deb"
    run("nsenter", f"--mount=/proc/{root.holder.pid}/ns/mnt", "cp", package, inside)
    return root.run("dpkg", "--install", *options, "/tmp/afterglow.deb")


@pytest.mark.long
def test_it_has_what_a_package_must_have_and_lintian_is_content(package):
    listed = run("dpkg-deb", "--contents", package)
    names = {line.split()[5].removeprefix(".") for line in listed.splitlines()}
    assert all(line.split()[1] == "root/root" for line in listed.splitlines())
    commands = re.findall(r"(?m)^  ([a-z][\w-]+)", run(binary(), "--help").split("Options:")[0])
    pages = {f"/usr/share/man/man1/afterglow-{name}.1.gz" for name in commands if name != "help"}
    assert names >= pages and len(pages) > 5
    assert names >= {
        "/usr/bin/afterglow",
        "/usr/share/man/man1/afterglow.1.gz",
        "/etc/afterglow/afterglow.toml",
        "/lib/systemd/system/afterglow.service",
        "/usr/lib/tmpfiles.d/afterglow.conf",
        "/usr/share/bash-completion/completions/afterglow",
        "/usr/share/zsh/vendor-completions/_afterglow",
        "/usr/share/fish/vendor_completions.d/afterglow.fish",
        "/usr/share/doc/afterglow/examples/alerts.yaml",
        "/usr/share/doc/afterglow/examples/dashboard.json",
    }
    # The address of whoever builds it is that person's own; all else is the package's.
    suppressed = "bogus-mail-host,bogus-mail-host-in-debian-changelog"
    command = (program("lintian"), "--allow-root", "--no-cfg", "--suppress-tags", suppressed)
    said = run(*command, "--fail-on", "error,warning", "--pedantic", package)
    assert not [line for line in said.splitlines() if line[:2] in ("E:", "W:", "I:", "P:")], said


def test_completions_are_complete_scripts(package, tmp_path):
    run("dpkg-deb", "--extract", package, tmp_path)
    script = tmp_path / "usr/share/bash-completion/completions/afterglow"
    ask = 'source "$1"; COMP_WORDS=(afterglow se); COMP_CWORD=1; _afterglow afterglow se afterglow; echo "${COMPREPLY[@]}"'
    assert run("bash", "-c", ask, "bash", script).split() == ["serve"]


def test_the_unit_is_one_that_systemd_takes(package, root):
    install(root, package, "--force-depends")
    verify = (program("systemd-analyze", "systemd"), "verify", f"--root={root.path}", "--man=no")
    entered = ("nsenter", f"--mount=/proc/{root.holder.pid}/ns/mnt")
    said = run(*entered, *verify, "afterglow.service")
    assert "afterglow" not in said, said


def allowed_calls():
    """The system calls that the unit's filter lets through."""
    text = UNIT.read_text()
    allow, refuse = (
        re.search(rf"(?m)^SystemCallFilter={mark}(@[\w-]+)$", text)[1] for mark in ("", "~")
    )
    analyze = program("systemd-analyze", "systemd")
    groups, group = {}, None
    for line in run(analyze, "syscall-filter").splitlines():
        if line and not line.startswith(" "):
            group = line.strip()
            groups[group] = []
        elif word := line.strip().split("#")[0]:
            groups[group].append(word)

    def whole(name):
        members = groups.get(name)
        if members is None:
            return {name}
        return set().union(*(whole(member) for member in members))

    return whole(allow) - whole(refuse)


def test_no_call_of_the_server_is_refused_by_its_unit(tmp_path):
    """Every call from start to stop is one that the filter allows, those of io_uring among them."""
    trace = tmp_path / "calls"
    wrapper = (program("strace"), "-f", "-qq", "-o", trace)
    with MemcacheAfterglow(folder=tmp_path / "a", wrapper=wrapper, memory="32MiB") as front_end:
        raw = front_end.connect()
        fill(raw, 12_000, 4000)
        for i in range(0, 12_000, 40):
            raw.get(b"o%d" % i)
        assert front_end.metrics().total("afterglow_engine_device_reads_total") > 0
        (server,) = run("pgrep", "--parent", front_end.pid, "afterglow").split()
        run("kill", "-HUP", server)
        run("kill", "-TERM", server)
        assert front_end.child.process.wait(60) == 0
    calls = set(re.findall(r"(?m)^\d+ +(?:<\.\.\. )?([a-z]\w+)[( ]", trace.read_text()))
    assert "openat" in calls and "execve" in calls, calls
    assert not calls - allowed_calls(), calls - allowed_calls()


class Service:
    """What the unit starts, with the unit's user and command line, in the root of a test."""

    def __init__(self, root, folder, instance):
        self.root, self.instance = root, instance
        text = UNIT.read_text()
        (start,) = re.findall(r"(?m)^ExecStart=(.*)$", text)
        (user,) = re.findall(r"(?m)^User=(.*)$", text)
        as_user = (
            "setpriv",
            f"--reuid={user}",
            f"--regid={user}",
            "--init-groups",
            "--no-new-privs",
        )
        command = root.command(*as_user, *shlex.split(start))
        self.instance.command = lambda: command


def test_it_is_installed_run_upgraded_warm_removed_and_purged(package, later, root, tmp_path):
    said = install(root, package)
    assert "Setting up afterglow" in said
    # No systemd runs there, so it is told how to start what the unit starts.
    (start,) = re.findall(r"(?m)^ExecStart=/usr/bin/(.*)$", UNIT.read_text())
    assert f"--init-groups {start}\n" in said
    assert root.run("stat", "-c", "%U %a", "/var/lib/afterglow").split() == ["afterglow", "700"]
    # The operator's own ports, which an upgrade must leave as they are.
    instance = MemcacheAfterglow(folder=tmp_path / "client")
    config = "/etc/afterglow/afterglow.toml"
    for default, own in (("11211", instance.port), ("9180", instance.admin)):
        root.run("sed", "-i", f"s/:{default}/:{own}/", config)
    checked = root.run(
        "setpriv",
        "--reuid=afterglow",
        "--regid=afterglow",
        "--clear-groups",
        "afterglow",
        "check-config",
        config,
    )
    assert str(instance.port) in checked and "# The configuration in force" in checked

    Service(root, tmp_path, instance)
    with instance:
        raw = instance.connect()
        fill(raw, 500, 200)
        health = ("afterglow", "health", "--admin", f"127.0.0.1:{instance.admin}")
        assert root.run(*health) == "ready\n"
        # As the package's own scripts do with systemd: the old process ends by SIGTERM, after the
        # new binary is in place.
        said = install(root, later)
        assert "+later" in said
        assert instance.terminate(60) == 0
        assert not root.succeeds(*health)
        instance.start(60)
        poll(
            "the index to be loaded",
            lambda: instance.metrics().value("afterglow_engine_loading") == 0,
            60,
        )
        raw = instance.connect()
        assert all(raw.get(b"o%d" % i) == content(i, 200) for i in range(500))

    root.run("dpkg", "--remove", "afterglow")
    assert not root.succeeds("test", "-e", "/usr/bin/afterglow")
    assert root.succeeds("test", "-s", "/var/lib/afterglow/flash")
    assert root.succeeds("test", "-e", config)
    root.run("dpkg", "--purge", "afterglow")
    assert not root.succeeds("test", "-e", "/var/lib/afterglow")
    assert not root.succeeds("test", "-e", "/etc/afterglow")
    assert root.succeeds("getent", "passwd", "afterglow")


@pytest.mark.long
def test_it_can_be_installed_again_and_go_back_and_an_edited_configuration_stays(
    package, later, root
):
    config = "/etc/afterglow/afterglow.toml"
    install(root, package)
    root.run("sed", "-i", 's/^memory = .*/memory = "65MiB"/', config)
    for one in (package, later, package):
        install(root, one)
        assert 'memory = "65MiB"' in root.run("cat", config)
        assert root.run("dpkg-query", "--show", "-f", "${db:Status-Status}", "afterglow") == (
            "installed"
        )
    root.run("dpkg", "--purge", "afterglow")
    install(root, package)
    assert 'memory = "256MiB"' in root.run("cat", config)


def test_a_wrong_configuration_is_explained_and_the_unit_does_not_try_again(package, root):
    install(root, package)
    root.run("sed", "-i", "s/^memory = /memroy = /", "/etc/afterglow/afterglow.toml")
    text = UNIT.read_text()
    (start,) = re.findall(r"(?m)^ExecStart=(.*)$", text)
    (status,) = re.findall(r"(?m)^RestartPreventExitStatus=(.*)$", text)
    command = [str(part) for part in root.command(*shlex.split(start))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == int(status), done.stderr
    assert "afterglow.toml:" in done.stderr and "did you mean `memory`?" in done.stderr


def test_a_package_needs_a_built_binary():
    done = subprocess.run(
        [ROOT / "tools" / "packages", "--profile", "nosuch"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "is not built" in done.stderr
