"""The alert rules and the dashboard, held against a running server and Prometheus' own tool."""

import json
import re

import pytest
import yaml

from afterglow_e2e.debian import program
from afterglow_e2e.memcache import MemcacheAfterglow
from afterglow_e2e.process import ROOT, free_port, run

FOLDER = ROOT / "packaging" / "monitoring"
# Labels that Prometheus itself puts onto what it scrapes, and those of its alerts.
OF_PROMETHEUS = {"instance", "job", "alertname", "alertstate", "severity"}
SELECTOR = re.compile(r"\b((?:afterglow|process|memcached)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


def dashboard():
    return json.loads((FOLDER / "dashboard.json").read_text())


def panels():
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules():
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions():
    """Every expression of both, by the name of what has it, with the labels its texts name."""
    for rule in rules():
        texts = " ".join(rule["annotations"].values())
        yield rule["alert"], rule["expr"], set(re.findall(r"\$labels\.(\w+)", texts))
    for panel in panels():
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            yield panel["title"], target["expr"], named


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """What a server with both front ends shows, in a ring of its own."""
    secret = tmp_path_factory.mktemp("ring") / "secret"
    secret.write_text("a secret of the tests, which is long enough")
    secret.chmod(0o600)
    cql = ("--cql", "127.0.0.1:0", "--backend", "127.0.0.1:9")
    ring = ("--ring-address", f"127.0.0.1:{free_port()}", "--ring-secret", str(secret))
    front_end = MemcacheAfterglow(extra=(*cql, *ring))
    front_end.ready = lambda: front_end.get("/metrics")[1].find("afterglow_backend_up") > 0
    with front_end:
        raw = front_end.connect()
        # Durations have no samples before there is one.
        assert raw.set(b"key", b"value") == b"STORED" and raw.get(b"key") == b"value"
        yield front_end.metrics().samples


def test_every_metric_and_label_is_one_that_a_server_has(samples):
    seen = 0
    for name, expression, named in expressions():
        labels = set(OF_PROMETHEUS)
        for metric, matchers in SELECTOR.findall(expression):
            have = [found for sample, found, _ in samples if sample == metric]
            assert have, f"{name}: no server has {metric}"
            seen += 1
            labels |= set().union(*have)
            for label, _, value in MATCHER.findall(matchers):
                if label in OF_PROMETHEUS:
                    continue
                there = {found.get(label) for found in have}
                for word in value.split("|"):
                    assert word in there, f"{name}: {metric} has no {label}={word}"
        for grouped in GROUPING.findall(expression):
            for label in filter(None, re.split(r"[\s,]+", grouped)):
                assert label in labels, f"{name}: no metric of it has the label {label}"
        assert named <= labels, f"{name}: {named - labels}"
    assert seen > 60


def test_prometheus_takes_the_rules_and_each_alert_fires_when_it_should_and_only_then(tmp_path):
    promtool = program("promtool", "prometheus")
    assert f"{len(rules())} rules found" in run(promtool, "check", "rules", FOLDER / "alerts.yaml")
    assert "SUCCESS" in run(promtool, "test", "rules", FOLDER / "alerts_test.yaml")
    tested = (FOLDER / "alerts_test.yaml").read_text()
    assert [rule["alert"] for rule in rules() if rule["alert"] not in tested] == []


def test_prometheus_takes_every_expression_of_the_dashboard(tmp_path):
    variables = {"$__rate_interval": "5m", "$instance": ".*", "$job": ".*"}
    records = []
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, value in variables.items():
                expression = expression.replace(variable, value)
            assert "$" not in expression, f"{panel['title']}: an unknown variable: {expression}"
            records.append({"record": f"panel:{panel['id']}:{target['refId']}", "expr": expression})
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    said = run(program("promtool", "prometheus"), "check", "rules", file)
    assert f"{len(records)} rules found" in said


def test_no_panel_covers_another():
    taken = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24 and not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert variables == {"datasource", "job", "instance"}
