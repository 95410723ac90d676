"""`--slow-request-log`: lines of real requests, and no line for what must not be in a log."""

import json

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.drivers import await_caching, connect
from afterglow_e2e.memcache import MemcacheAfterglow
from afterglow_e2e.process import poll

# Whatever is asked takes longer.
ALL = ["--slow-request-log", "0ms", "--log-format", "json"]


def lines(instance):
    """The lines of the slow-request log."""
    whole = [line for line in instance.log_text().splitlines() if line.startswith("{")]
    found = [json.loads(line) for line in whole]
    return [line for line in found if line["target"] == "afterglow::slow"]


def work(instance, keys):
    """Stores and reads each key once, one request after the other."""
    connection = instance.connect()
    for n in range(keys):
        assert connection.set(b"secret:%d" % n, b"value") == b"STORED"
        assert connection.get(b"secret:%d" % n) == b"value"
    connection.close()


def test_slow_requests_are_logged_with_what_they_were_and_without_keys():
    with MemcacheAfterglow(extra=ALL) as instance:
        work(instance, 3)
        poll("the lines", lambda: len(lines(instance)) >= 6, 20)
        for line in lines(instance):
            assert line["frontend"] == "memcache" and line["kind"] == "batch"
            assert line["requests"] == 1 and line["took_us"] >= 0
        paths = [line["path"] for line in lines(instance)]
        assert paths == ["write", "dram"] * 3
        assert "secret" not in instance.log_text()


def test_a_store_that_waits_is_named_only_where_keys_are_shown():
    for shown in [False, True]:
        extra = [*ALL, "--memcache-durability", "synced", *(["--show-keys"] if shown else [])]
        with MemcacheAfterglow(extra=extra) as instance:
            connection = instance.connect()
            assert connection.set(b"secret:1", b"value") == b"STORED"
            connection.close()
            poll("the line", lambda instance=instance: lines(instance), 20)
            (line,) = lines(instance)
            assert (line["kind"], line["path"]) == ("store", "write")
            assert line.get("key") == ("secret:1" if shown else None)


def test_the_log_is_limited_in_rate_and_the_rest_is_counted():
    with MemcacheAfterglow(extra=ALL) as instance:
        work(instance, 500)
        counted = instance.metrics().by("afterglow_slow_requests_total", "outcome")
        assert sum(counted.values()) == 1000
        assert counted["logged"] >= 20
        assert len(lines(instance)) == counted["logged"]


def test_nothing_is_logged_unless_it_is_asked_for():
    with MemcacheAfterglow() as instance:
        work(instance, 3)
        assert "slow request" not in instance.log_text()
        assert instance.metrics().total("afterglow_slow_requests_total", missing_ok=True) == 0


def test_statements_are_logged_with_kind_table_and_key(cassandra):
    with Afterglow(cassandra.contact, extra=[*ALL, "--show-keys"]) as instance:
        await_caching(instance)
        with connect(instance) as session:
            session.execute(
                "CREATE KEYSPACE slow_log WITH replication ="
                " {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            session.execute("CREATE TABLE slow_log.t (k text PRIMARY KEY, v int)")
            # What came before would have used the lines up.
            poll("lines to be left", lambda: quiet(instance), 30, every=2.5)
            session.execute("INSERT INTO slow_log.t (k, v) VALUES ('it''s', 1)")
            for _ in range(2):
                session.execute("SELECT v FROM slow_log.t WHERE k = 'it''s'")
        found = [line for line in lines(instance) if line.get("table") == "slow_log.t"]
        kinds = [line["kind"] for line in found]
        assert kinds.count("read") == 2 and "write" in kinds
        assert [line["key"] for line in found if line["kind"] == "read"] == ["'it''s'"] * 2
        session_lines = [line for line in lines(instance) if line["kind"] == "session"]
        assert session_lines and "table" not in session_lines[0]


def quiet(instance):
    """Whether so few requests came since the last call that lines are left for more."""
    counted = instance.metrics().total("afterglow_slow_requests_total")
    before, quiet.counted = getattr(quiet, "counted", None), counted
    return before is not None and counted - before < 5
