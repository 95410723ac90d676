"""The Kubernetes manifests: valid, of one piece, and such that the server takes its configuration.

No cluster runs here: what a kubelet would do with them is not tested.
"""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from afterglow_e2e.afterglow import binary
from afterglow_e2e.memcache import MemcacheAfterglow
from afterglow_e2e.process import ROOT, run, scratch

FOLDER = ROOT / "packaging" / "kubernetes"
BASE = FOLDER / "base"
OVERLAYS = ["base", "io-uring", "users"]
UNITS = {
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def files():
    return [path for path in sorted(BASE.glob("*.yaml")) if path.name != "kustomization.yaml"]


def size(text):
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS[unit]


def built(overlay):
    """All objects of an overlay, as `kubectl apply -k` sends them."""
    if not shutil.which("kubectl"):
        pytest.skip("needs kubectl")
    return documents(run("kubectl", "kustomize", FOLDER / overlay))


def only(objects, kind):
    (found,) = [one for one in objects if one["kind"] == kind]
    return found


@pytest.fixture(scope="module")
def stateful_set():
    return documents((BASE / "statefulset.yaml").read_text())[0]


@pytest.fixture(scope="module")
def pod(stateful_set):
    return stateful_set["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def settings():
    return tomllib.loads((BASE / "afterglow.toml").read_text())


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_every_file_is_valid(path):
    for document in documents(path.read_text()):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_builds_and_is_valid(overlay):
    objects = built(overlay)
    for one in objects:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    spec = only(objects, "StatefulSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert mounts == volumes | {"cache"}
    mapped = only(objects, "ConfigMap")
    names = [volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume]
    assert names == [mapped["metadata"]["name"]]
    assert mapped["data"] == {"afterglow.toml": (BASE / "afterglow.toml").read_text()}
    local = spec["securityContext"]["seccompProfile"]["type"] == "Localhost"
    assert local == (overlay == "io-uring")
    assert any("auth-file" in word for word in container["args"]) == (overlay == "users")


def test_every_file_is_one_that_is_applied_or_a_template():
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in files()} == {*listed, "local-volume.yaml"}


def test_they_are_of_one_piece(stateful_set, pod):
    """Names, labels and ports that must be the same are."""
    (container,) = pod["containers"]
    labels = stateful_set["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    service, disruption, network = (
        documents((BASE / f"{name}.yaml").read_text())[0]
        for name in ("service", "disruption", "network")
    )
    assert stateful_set["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    for port in service["spec"]["ports"]:
        assert ports[port["targetPort"]] == port["port"]
    for selector in (
        stateful_set["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        disruption["spec"]["selector"]["matchLabels"],
        network["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    for rule in network["spec"]["ingress"]:
        assert all(port["port"] in ports for port in rule["ports"])
    (claim,) = stateful_set["spec"]["volumeClaimTemplates"]
    storage = documents((BASE / "storage.yaml").read_text())[0]
    volume = documents((BASE / "local-volume.yaml").read_text())[0]
    assert storage["volumeBindingMode"] == "WaitForFirstConsumer"
    assert (
        claim["spec"]["storageClassName"]
        == volume["spec"]["storageClassName"]
        == storage["metadata"]["name"]
    )
    assert (
        claim["spec"]["resources"]["requests"]["storage"] == volume["spec"]["capacity"]["storage"]
    )
    assert claim["spec"]["accessModes"] == volume["spec"]["accessModes"]
    # The user of the image.
    user = (ROOT / "packaging/container/Containerfile").read_text()
    owner = re.search(r"(?m)^USER (\d+):", user)[1]
    assert str(pod["securityContext"]["runAsUser"]) == owner


def test_probes_ask_pages_that_a_server_has(pod, settings):
    (container,) = pod["containers"]
    assert settings["admin"].endswith(":9180") and settings["admin-allow-remote"]
    with MemcacheAfterglow() as server:
        for probe in ("livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["port"] == "admin"
            assert server.get(asked["path"])[0] == 200


def test_the_configuration_is_taken_with_the_arguments_of_the_pod(pod, tmp_path):
    """As the server reads it. What another machine cannot have is replaced: places, addresses,
    sizes.
    """
    (container,) = pod["containers"]
    place = next(m["mountPath"] for m in container["volumeMounts"] if m["name"] == "config")
    command, *arguments = container["args"]
    assert command == "serve" and arguments == ["--config", f"{place}/afterglow.toml"]
    users = tmp_path / "users"
    users.write_text("ada:secret\n")
    users.chmod(0o600)
    patched = yaml.safe_load((FOLDER / "users/kustomization.yaml").read_text())["patches"][0]
    more = [op["value"] for op in yaml.safe_load(patched["patch"]) if op["path"].endswith("args/-")]
    mount = next(
        op["value"]["mountPath"]
        for op in yaml.safe_load(patched["patch"])
        if op["path"].endswith("volumeMounts/-")
    )
    assert all(mount in word for word in more)
    here = ["--data-dir", tmp_path / "data", "--flash-size", "64MiB", "--memory", "64MiB"]
    ports = ["--memcache", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    checked = run(
        binary(),
        "check-config",
        BASE / "afterglow.toml",
        *here,
        *ports,
        *(word.replace(mount, str(tmp_path)) for word in more),
    )
    assert "reactors = 4" in checked and "admin-allow-remote = true" in checked
    assert str(users) in checked


def test_sizes_fit_each_other(pod, stateful_set, settings):
    (container,) = pod["containers"]
    limits = container["resources"]["limits"]
    assert size(limits["memory"]) >= size(settings["memory"]) + (1 << 30)
    assert container["resources"]["requests"]["memory"] == limits["memory"]
    assert int(container["resources"]["requests"]["cpu"]) == settings["reactors"]
    (claim,) = stateful_set["spec"]["volumeClaimTemplates"]
    storage = size(claim["spec"]["resources"]["requests"]["storage"])
    assert storage >= size(settings["flash-size"]) * 1.02
    (volume,) = [m for m in container["volumeMounts"] if m["name"] == "cache"]
    assert settings["data-dir"] == f"{volume['mountPath']}/data"
    # What the server asks of a service manager for a stop: docs/guide/operations.md.
    stop = 10 + 20 + -(-size(settings["memory"]) // (20 << 20))
    assert pod["terminationGracePeriodSeconds"] >= stop
    assert "drain-timeout" not in settings


@pytest.fixture
def open_folder():
    """A folder that every user may enter."""
    folder = Path(scratch("secret-"))
    folder.chmod(0o755)
    try:
        if not all(parent.stat().st_mode & 0o001 for parent in folder.parents):
            pytest.skip(f"others may not enter {folder}")
        yield folder
    finally:
        shutil.rmtree(folder)


def test_a_secret_is_read_as_kubernetes_mounts_it(open_folder):
    """With an fsGroup the file is root's, of mode 0440, and of that group."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    secret, data = open_folder / "users", open_folder / "data"
    secret.write_text("ada:secret\n")
    data.mkdir()
    os.chown(data, 65532, 65532)
    config = open_folder / "afterglow.toml"
    config.write_text("")
    config.chmod(0o644)
    program = open_folder / "afterglow"
    os.link(binary(), program)

    def check(group, mode):
        os.chown(secret, 0, group)
        secret.chmod(mode)
        as_user = ["setpriv", "--reuid=65532", "--regid=65532", "--groups=65532"]
        command = [*as_user, program, "check-config", config, "--memcache-auth-file", secret]
        small = ["--data-dir", data, "--flash-size", "64MiB", "--memory", "64MiB"]
        ports = ["--memcache", "127.0.0.1:0", "--admin", "off"]
        done = subprocess.run(
            [str(word) for word in [*command, *small, *ports]], capture_output=True, text=True
        )
        return done.returncode == 0, done.stderr

    good, said = check(65532, 0o440)
    assert good, said
    for group, mode in ((65532, 0o444), (65532, 0o460)):
        good, said = check(group, mode)
        assert not good and "other users can read it" in said
