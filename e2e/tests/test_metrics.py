"""What `/metrics` says: parsed as OpenMetrics by Prometheus' own parser, and held against what was
done.
"""

import urllib.request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families

from afterglow_e2e.afterglow import Afterglow, Metrics
from afterglow_e2e.fakedatabase import FakeDatabase, cache_a_row
from afterglow_e2e.families import CQL, MEMCACHE, judge
from afterglow_e2e.memcache import MemcacheAfterglow
from afterglow_e2e.process import Failure
from afterglow_e2e.rawcql import RawClient

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def page(instance, accept):
    """The content type and the text of /metrics."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{instance.admin}/metrics", headers={"Accept": accept}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def families(instance):
    """All families by name. The parser refuses names that collide, samples out of place and a
    missing end.
    """
    kind, text = page(instance, OPEN_METRICS)
    assert kind.startswith(OPEN_METRICS)
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in found, f"{family.name} comes twice"
        assert family.documentation, f"{family.name} says nothing of itself"
        found[family.name] = family
    return found


def value(found, sample, **labels):
    """The sum of the samples of this name with these labels; one at least must be there."""
    family = found[sample.removesuffix("_total").removesuffix("_count")]
    values = [
        s.value for s in family.samples if s.name == sample and labels.items() <= s.labels.items()
    ]
    assert values, f"no sample {sample} {labels}"
    return sum(values)


def test_a_metric_that_is_not_there_is_a_mistake_and_no_zero():
    read = Metrics('# TYPE hits counter\nhits{tier="dram"} 2\nhits{tier="flash"} 3\nmisses 0\n')
    assert (
        read.total("hits") == 5
        and read.total("hits", tier="flash") == 3
        and read.total("misses") == 0
    )
    for name, labels in [("hit", {}), ("hits", {"tier": "disk"}), ("hits", {"kind": "dram"})]:
        with pytest.raises(Failure, match=f"no sample {name} "):
            read.total(name, **labels)
        assert read.total(name, missing_ok=True, **labels) == 0


@pytest.fixture
def instance():
    with MemcacheAfterglow() as instance:
        yield instance


def test_metrics_of_a_memcache_server_are_what_was_done(instance):
    with instance.connect().connection as connection:
        client = connection.makefile("rwb")

        def ask(line, end=b"\r\n"):
            client.write(line)
            client.flush()
            answer = b""
            while not answer.endswith(end):
                answer += client.readline()
            return answer

        for n in range(10):
            assert ask(b"set k%d 0 0 3\r\nabc\r\n" % n) == b"STORED\r\n"
        for n in range(14):
            found = ask(b"get k%d\r\n" % n, b"END\r\n")
            assert found.startswith(b"VALUE") == (n < 10)
        for n in range(14):
            found = ask(b"gat 100 k%d\r\n" % n, b"END\r\n")
            assert found.startswith(b"VALUE") == (n < 10)
            assert ask(b"mg k%d v T100\r\n" % n)[:2] == (b"VA" if n < 10 else b"EN")
            if n < 10:
                assert ask(b"") == b"abc\r\n"
        assert ask(b"touch k9 100\r\n") == b"TOUCHED\r\n"
        for n in range(3):
            assert ask(b"delete k%d\r\n" % n) == b"DELETED\r\n"
        assert ask(b"incr none 1\r\n") == b"NOT_FOUND\r\n"
        done = families(instance)
        assert value(done, "afterglow_client_connections_total", frontend="memcache") == 1
        assert value(done, "afterglow_client_connections_open", frontend="memcache") == 1
    judge(done, MEMCACHE)
    commands = {
        ("set", "hit"): 10,
        ("get", "hit"): 10,
        ("get", "miss"): 4,
        ("delete", "hit"): 3,
        ("delete", "miss"): 0,
        ("incr", "miss"): 1,
        ("incr", "hit"): 0,
    }
    for (command, status), count in commands.items():
        assert value(done, "memcached_commands_total", command=command, status=status) == count, (
            command
        )
    assert value(done, "afterglow_hits_total", frontend="memcache") == 31, (
        "get, gat, mg with T and touch"
    )
    assert value(done, "afterglow_misses_total", frontend="memcache") == 12
    assert value(done, "afterglow_engine_stored_puts_total") >= 20, (
        "what gets another expiry is stored anew"
    )
    assert value(done, "afterglow_engine_removes_total") == 3
    assert value(done, "afterglow_engine_device_reads_total") == 0
    assert value(done, "afterglow_client_received_bytes_total", frontend="memcache") > 10 * len(
        "set k0 0 0 3"
    )
    # There is no database, so nothing of one is said to be down.
    assert not [name for name in done if name.startswith("afterglow_backend")]


@pytest.fixture
def cql(tmp_path):
    """An Afterglow before a database in memory."""
    with FakeDatabase(tmp_path) as database, Afterglow(database.address) as instance:
        yield instance


def test_metrics_of_a_cql_server_are_what_was_done(cql):
    with RawClient(cql.address, cql.port) as client:
        cache_a_row(cql, client, "x")
        before = families(cql)
        for n in range(10):
            client.query(f"INSERT INTO ks.t (k, v) VALUES ('k{n}', 'x')")
        for _ in range(3):
            for n in range(10):
                client.query(f"SELECT v FROM ks.t WHERE k = 'k{n}'")
        client.query("DELETE FROM ks.t WHERE k = 'k0'")
        after = families(cql)
    assert set(after) == set(before), "families neither come nor go"
    judge(after, CQL)

    def grown(sample, **labels):
        return value(after, sample, **labels) - value(before, sample, **labels)

    assert grown("afterglow_requests_total", frontend="cql", request="query") == 41
    assert grown("afterglow_hits_total", frontend="cql") == 20
    ages = "afterglow_table_hit_age_seconds"
    assert grown(f"{ages}_count", keyspace="ks", table="t") == 20, "each hit has its age"
    assert grown("afterglow_misses_total", frontend="cql", reason="absent") == 10
    assert grown("afterglow_fills_total", frontend="cql", outcome="installed") == 10
    assert grown("afterglow_writes_total", frontend="cql", scope="row") == 11
    assert grown("afterglow_invalidations_total", frontend="cql", scope="row") == 11
    assert grown("afterglow_write_outcomes_total", frontend="cql", outcome="dropped") == 11
    assert grown("afterglow_engine_stored_puts_total", namespace="cql") == 10
    assert grown("afterglow_backend_requests_total") >= 21, "fills and writes"
    assert grown("afterglow_errors_total") == 0
    assert value(after, "afterglow_lease_state", state="held") == 1
    assert value(after, "afterglow_backend_up") == 1
    assert value(after, "afterglow_client_connections_open", frontend="cql") == 1


def test_prometheus_reads_the_older_format_too(instance):
    kind, text = page(instance, "text/plain")
    assert kind.startswith("text/plain; version=0.0.4")
    old = {family.name for family in prometheus_families(text)}
    assert old == set(families(instance))


def test_few_series_are_histograms(instance):
    found = families(instance).values()
    series = [sample for family in found for sample in family.samples]
    buckets = [sample for sample in series if sample.name.endswith("_bucket")]
    assert len(buckets) < len(series) / 2
