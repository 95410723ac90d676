"""cqlsh says through Afterglow what it says directly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_reads import PLAIN_TYPES, name_of

from afterglow_e2e.process import connections_to, poll

CQLSH = Path(sys.executable).parent / "cqlsh"


@pytest.fixture(scope="module")
def shop(direct, keyspace):
    """Tables with what a schema may have."""
    columns = ", ".join(f"{name_of(kind)} {kind}" for kind in PLAIN_TYPES)
    names, marks = ", ".join(map(name_of, PLAIN_TYPES)), ", ".join("?" for _ in PLAIN_TYPES)
    for text in (
        f"CREATE TYPE {keyspace}.point (x int, y int)",
        f"CREATE TABLE {keyspace}.items"
        f" (k int, c int, v text, m map<text, int>, p {keyspace}.point, PRIMARY KEY (k, c))"
        " WITH CLUSTERING ORDER BY (c DESC) AND comment = 'all we sell' AND default_time_to_live = 86400",
        f"CREATE INDEX by_v ON {keyspace}.items (v)",
        f"CREATE TABLE {keyspace}.wide (k int PRIMARY KEY, {columns})",
        f"CREATE TABLE {keyspace}.copied (k int PRIMARY KEY, v text)",
    ):
        direct.execute(text)
    add = direct.prepare(
        f"INSERT INTO {keyspace}.items (k, c, v, m, p) VALUES (1, ?, ?, {{'a': 1}}, {{x: 2}})"
    )
    for c in range(30):
        direct.execute(add, (c, f"v{c}"))
    insert = direct.prepare(f"INSERT INTO {keyspace}.wide (k, {names}) VALUES (1, {marks})")
    direct.execute(insert, tuple(PLAIN_TYPES.values()))
    return keyspace


@pytest.fixture
def environment(tmp_path):
    """No settings, history or colours of whoever runs this."""
    return {
        **os.environ,
        "HOME": str(tmp_path),
        "CQL_HISTORY": str(tmp_path / "history"),
        "COLUMNS": "200",
    }


@pytest.fixture
def cqlsh(environment):
    def run(server, script, *options):
        command = [
            CQLSH,
            server.address,
            str(server.port),
            "--request-timeout=30",
            "--connect-timeout=30",
            *options,
        ]
        done = subprocess.run(
            command, input=script, capture_output=True, text=True, timeout=100, env=environment
        )
        return done.stdout, done.stderr

    return run


SCRIPT = """\
SHOW VERSION
DESCRIBE KEYSPACES
DESCRIBE KEYSPACE
DESCRIBE TABLES
DESCRIBE TABLE items
DESCRIBE TYPE point
DESCRIBE INDEX by_v
DESCRIBE CLUSTER
DESCRIBE TABLE nothing
SELECT * FROM wide WHERE k = 1;
SELECT * FROM wide WHERE k = 1;
SELECT c, v, m, p FROM items WHERE k = 1 AND c = 3;
SELECT JSON c, v FROM items WHERE k = 1 AND c = 3;
PAGING 7
SELECT c, v FROM items WHERE k = 1;
CONSISTENCY LOCAL_QUORUM
SELECT c, v FROM items WHERE k = 1 AND c = 4;
EXPAND ON
SELECT c, v FROM items WHERE k = 1 AND c = 4;
EXPAND OFF
SELECT nothing FROM items;
SELEKT;
SELECT cluster_name, key FROM system.local;
USE system;
SELECT cluster_name FROM local;
SELECT keyspace_name FROM system_schema.tables WHERE keyspace_name = 'system_traces';
"""


def test_describe_select_and_paging_print_what_they_print_directly(
    cqlsh, afterglow, cassandra, shop
):
    straight = cqlsh(cassandra, SCRIPT, "-k", shop)
    assert "all we sell" in straight[0] and "Grüße" in straight[0] and "v29" in straight[0]
    for _ in range(2):
        assert cqlsh(afterglow, SCRIPT, "-k", shop) == straight


def test_tracing_tells_of_a_real_session(cqlsh, afterglow, shop):
    script = "TRACING ON\n" + "SELECT v FROM items WHERE k = 1 AND c = 5;\n" * 3
    said, errors = cqlsh(afterglow, script, "-k", shop)
    assert not errors
    assert (
        said.count("Tracing session:") == 3
        and said.count("Request complete") == 3
        and said.count("v5") >= 3
    )


def test_copy_out_and_in(cqlsh, afterglow, direct, shop, expect, tmp_path):
    for k in range(200):
        direct.execute(f"INSERT INTO {shop}.copied (k, v) VALUES ({k}, 'old {k}')")
    read = "SELECT v FROM copied WHERE k = 7;"
    with expect(hits=1):
        assert "old 7" in cqlsh(afterglow, read * 2, "-k", shop)[0]
    out, back = tmp_path / "out.csv", tmp_path / "in.csv"
    said, errors = cqlsh(
        afterglow, f"COPY copied (k, v) TO '{out}' WITH NUMPROCESSES = 2;", "-k", shop
    )
    assert "200 rows exported" in said, said + errors
    rows = sorted(out.read_text().splitlines())
    assert len(rows) == 200 and "7,old 7" in rows
    back.write_text("\n".join(row.replace("old", "new") for row in rows) + "\n")
    said, errors = cqlsh(
        afterglow, f"COPY copied (k, v) FROM '{back}' WITH NUMPROCESSES = 2;", "-k", shop
    )
    assert "200 rows imported" in said, said + errors
    assert {row.v for row in direct.execute(f"SELECT v FROM {shop}.copied")} == {
        f"new {k}" for k in range(200)
    }
    assert "new 7" in cqlsh(afterglow, read, "-k", shop)[0]


def test_it_dials_only_afterglow_and_outlives_a_restart_of_it(
    environment, afterglow, cassandra, shop, tmp_path
):
    said = tmp_path / "said"
    with said.open("wb") as out:
        shell = subprocess.Popen(
            [CQLSH, afterglow.address, str(afterglow.port), "--request-timeout=30", "-k", shop],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**environment, "PYTHONUNBUFFERED": "1"},
        )

    def asks(c):
        shell.stdin.write(f"SELECT v FROM items WHERE k = 1 AND c = {c};\n".encode())
        shell.stdin.flush()
        return f"v{c}" in said.read_text()

    try:
        poll("an answer", lambda: asks(11), 60, every=0.2)
        assert connections_to(afterglow.address, afterglow.port, shell.pid)
        assert not connections_to(cassandra.address, cassandra.port, shell.pid)
        afterglow.kill()
        afterglow.start()
        poll("an answer after our restart", lambda: asks(12), 60, every=0.2)
    finally:
        shell.kill()
        shell.wait()
