"""Drivers stay on Afterglow: it is the only node they know, and they learn of schema changes
through it.
"""

import struct

import pytest

from afterglow_e2e.drivers import answer, connect
from afterglow_e2e.process import connections_to, poll
from afterglow_e2e.rawcql import EVENT, QUERY, REGISTER, RawClient, long_string, parameters, string


def test_the_driver_knows_and_dials_only_afterglow(afterglow, cassandra, direct):
    before = connections_to(cassandra.address, cassandra.port)
    assert before  # the check sees our direct session, so it would see others
    for version in (3, 4, 5):
        with connect(afterglow, version=version) as session:
            session.cluster.refresh_nodes()
            hosts = session.cluster.metadata.all_hosts()
            assert [(host.endpoint.address, host.endpoint.port) for host in hosts] == [
                (afterglow.address, afterglow.port)
            ]
            assert all(host.is_up and host.host_id for host in hosts)
            assert session.cluster.metadata.token_map is not None
            assert connections_to(cassandra.address, cassandra.port) <= before
            assert connections_to(afterglow.address, afterglow.port)


def test_peers_are_empty_and_local_is_us(cached, direct, afterglow):
    local = cached.execute("SELECT * FROM system.local WHERE key = 'local'").one()
    real = direct.execute("SELECT * FROM system.local WHERE key = 'local'").one()
    assert local._fields == real._fields
    assert local.rpc_address == afterglow.address and local.rpc_port == afterglow.port
    for same in (
        "cluster_name",
        "partitioner",
        "release_version",
        "data_center",
        "rack",
        "schema_version",
    ):
        assert getattr(local, same) == getattr(real, same)
    assert list(cached.execute("SELECT * FROM system.peers")) == []
    assert list(cached.execute("SELECT * FROM system.peers_v2")) == []
    assert cached.execute("SELECT count(*) FROM system.local").one() == (1,)


def test_system_statements_in_every_shape_a_driver_uses(cached, direct):
    for text in (
        "SELECT cluster_name FROM system.local WHERE key='local'",
        "SELECT release_version AS r, data_center FROM system.local",
        "SELECT peer FROM system.peers",
        "SELECT key FROM system.local WHERE key = 'other'",
        "SELECT schema_version FROM system.local WHERE key='local'",
        "SELECT nothing FROM system.local",
        "SELECT * FROM system.nothing",
        "SELECT cluster_name, release_version FROM system.local GROUP BY key",
        "SELECT cluster_name FROM system.local ORDER BY key",
        "SELECT cluster_name FROM system.local WHERE key = 'local' ORDER BY rack",
        "SELECT token(key), CAST(rack AS blob), data_center FROM system.local",
        "SELECT max(cluster_name), count(rack) FROM system.local",
        "SELECT WRITETIME(cluster_name) FROM system.local WHERE key = 'local'",
        "SELECT rack FROM system.local WHERE token(key) > 0",
        "SELECT key FROM system.local PER PARTITION LIMIT 1",
        "SELECT * FROM system_schema.types",
    ):
        assert answer(cached, text) == answer(direct, text), text
    # A clock of the database's, as applications ask for it; prepared too.
    clock = "SELECT toTimestamp(now()) AS now FROM system.local"
    assert cached.execute(clock).one().now and cached.execute(cached.prepare(clock)).one().now
    # What would show the database's own address is refused.
    assert (
        answer(cached, "SELECT CAST(rpc_address AS text) FROM system.local")[0] == "InvalidRequest"
    )
    prepared = cached.prepare("SELECT cluster_name FROM system.local WHERE key = ?")
    assert cached.execute(prepared, ("local",)).one() == ("stock",)


def test_schema_changes_reach_a_connected_driver(cached, direct, keyspace, table):
    name = table.split(".")[1]
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int)")  # past Afterglow

    def columns():
        known = cached.cluster.metadata.keyspaces.get(keyspace)
        return known.tables[name].columns if known and name in known.tables else {}

    # A driver reads the whole schema after an event; nothing of that is quick on a busy machine.
    poll("the driver to hear of a new table", lambda: "v" in columns(), 90)
    cached.execute(f"ALTER TABLE {table} ADD extra text")
    poll("the driver to hear of a new column", lambda: "extra" in columns(), 90)
    direct.execute(f"DROP TABLE {table}")
    poll("the driver to hear of a dropped table", lambda: not columns(), 90)


def test_a_schema_change_past_us_ends_what_was_cached(cached, direct, table, expect, settle):
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int)")
    direct.execute(f"INSERT INTO {table} (k, v) VALUES (1, 1)")
    select = f"SELECT k, v FROM {table} WHERE k = 1"
    settle(cached, select)
    cached.execute(select)
    with expect(hits=1):
        assert cached.execute(select).one() == (1, 1)
    direct.execute(f"ALTER TABLE {table} ADD w int")
    select = f"SELECT * FROM {table} WHERE k = 1"
    poll("the new column to be seen", lambda: answer(cached, select) == answer(direct, select), 20)


def test_schema_agreement_is_real(cached, table):
    cached.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v int)")
    assert cached.cluster.control_connection.wait_for_schema_agreement()
    cached.execute(f"INSERT INTO {table} (k, v) VALUES (1, 2)")
    assert cached.execute(f"SELECT v FROM {table} WHERE k = 1").one() == (2,)


@pytest.mark.parametrize("protocol", [4, 5])
def test_the_database_tells_of_a_change_before_it_shows_its_version(
    cassandra, direct, table, protocol
):
    """What the version that is read after an event stands for: a server that broke this would have
    us miss a change.
    """
    version = "SELECT schema_version FROM system.local WHERE key = 'local'"
    direct.execute(f"CREATE TABLE {table} (k int PRIMARY KEY)")
    watched = RawClient(cassandra.address, cassandra.port, protocol)
    with watched as watcher, RawClient(cassandra.address, cassandra.port) as other:
        assert (
            watcher.request(REGISTER, struct.pack(">H", 1) + string("SCHEMA_CHANGE")).error is None
        )
        shown = watcher.query(version).body
        for number in range(10):
            other.send(QUERY, long_string(f"ALTER TABLE {table} ADD c{number} int") + parameters())
            told = 0
            while (seen := asked(watcher, version)) and seen[1] == shown:
                told += seen[0]
            assert told + seen[0], "a version that nobody was told of"
            shown = seen[1]
            assert other.receive().error is None


def asked(watcher, version):
    """How many events came before the answer, and the answer."""
    watcher.send(QUERY, long_string(version) + parameters(version=watcher.version))
    events = 0
    while (answer := watcher.receive()).opcode == EVENT:
        events += 1
    return events, answer.body
