"""Writes whose outcome is unknown are sent again until a real database has them, whatever they
write to their partition. Then the partition is cached again.

The database stands still while it is sent them, and the connections are cut before it reads them.
So nobody can say whether it does what it finds there once it goes on.
"""

import secrets
import time

import pytest
from conftest import await_caching

from afterglow_e2e.afterglow import Afterglow, describe
from afterglow_e2e.drivers import connect
from afterglow_e2e.process import free_port, poll
from afterglow_e2e.rawcql import LOCAL_QUORUM, QUERY, RawClient, long_string, parameters
from afterglow_e2e.relay import Relay

# How a partition of three rows is changed, and which of them have which value then.
SHAPES = {
    "update": ("UPDATE {t} {at} SET v = 9 WHERE k = {k} AND c = 1", {1: 9, 2: 1, 3: 1}),
    "null": ("INSERT INTO {t} (k, c, v) VALUES ({k}, 1, null) {at}", {1: None, 2: 1, 3: 1}),
    "row": ("DELETE FROM {t} {at} WHERE k = {k} AND c = 2", {1: 1, 3: 1}),
    "column": ("DELETE v FROM {t} {at} WHERE k = {k} AND c = 3", {1: 1, 2: 1, 3: None}),
    "rows": ("DELETE FROM {t} {at} WHERE k = {k} AND c IN (1, 3)", {2: 1}),
    "range": ("DELETE FROM {t} {at} WHERE k = {k} AND c > 1", {1: 1}),
    "partition": ("DELETE FROM {t} {at} WHERE k = {k}", {}),
    "batch": (
        "BEGIN BATCH {at} DELETE FROM {t} WHERE k = {k} AND c = 1; "
        "INSERT INTO {t} (k, c, v) VALUES ({k}, 4, 9); APPLY BATCH",
        {2: 1, 3: 1, 4: 9},
    ),
    "unlogged": (
        "BEGIN UNLOGGED BATCH UPDATE {t} {at} SET v = 9 WHERE k = {k} AND c = 2; "
        "DELETE FROM {t} {at} WHERE k = {k} AND c = 3; APPLY BATCH",
        {1: 1, 2: 9},
    ),
}

ALL = 5
# Afterglow waits for a coordinator whose connection was lost as long as this, and a minute without
# it. It has as long to send the writes again.
HOLD = 40


class Overheard(Relay):
    """A relay that knows what the node was sent."""

    def __init__(self, *args):
        self.ears = []
        super().__init__(*args)

    def _copy(self, source, sink, pair):
        if source is pair[0]:
            sink = Ear(sink)
            self.ears.append(sink)
        super()._copy(source, sink, pair)

    def has_passed(self, text):
        return any(text in ear.heard for ear in self.ears)


class Ear:
    """A socket that keeps what was sent to it."""

    def __init__(self, sink):
        self.sink, self.heard = sink, b""

    def sendall(self, data):
        self.sink.sendall(data)
        self.heard += data


@pytest.fixture
def doubtful(cassandra):
    """An instance whose connections to the database can be cut and overheard."""
    address = "127.0.1.252"
    relay = Overheard(address, free_port(address), (cassandra.address, cassandra.port))
    options = ("--unknown-outcome-hold", f"{HOLD}s")
    try:
        with Afterglow("{}:{}".format(*relay.listener.getsockname()), extra=options) as instance:
            await_caching(instance)
            yield instance, relay
    finally:
        relay.close()


def answered(client, text, consistency=LOCAL_QUORUM):
    answer = client.query(text, consistency=consistency)
    assert not answer.error, f"{text}: {answer.error}"


def fill(client, table, keys):
    for text in (
        f"CREATE KEYSPACE {table[:-2]} WITH replication = "
        "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}",
        f"CREATE TABLE {table} (k int, c int, v int, PRIMARY KEY (k, c))",
    ):
        answered(client, text)
    # Timestamps near the clock: others are not sent again.
    at = time.time_ns() // 1000 - 1_000_000
    for k in keys.values():
        for c in (1, 2, 3):
            insert = f"INSERT INTO {table} (k, c, v) VALUES ({k}, {c}, 1) USING TIMESTAMP {at}"
            answered(client, insert)


def send_all(clients, texts, relay, cassandra):
    """All are in doubt at the same time: the node has been sent them, and has read none of them."""
    cassandra.pause()
    try:
        for client, text in zip(clients, texts, strict=True):
            client.send(QUERY, long_string(text) + parameters(consistency=LOCAL_QUORUM))
        sent = lambda: all(relay.has_passed(text.encode()) for text in texts)  # noqa: E731
        poll("the node to be sent all writes", sent, 30)
        relay.cut()
        for client, text in zip(clients, texts, strict=True):
            assert client.receive().error, f"{text}: it has an outcome"
    finally:
        cassandra.resume()


def test_a_write_in_doubt_is_settled_and_its_partition_cached_again(doubtful, cassandra):
    instance, relay = doubtful
    table = f"doubts_{secrets.token_hex(4)}.t"
    keys = {name: number for number, name in enumerate(SHAPES)}
    clients = [RawClient(instance.address, instance.port, timeout=60) for _ in keys]
    fill(clients[0], table, keys)
    for client in clients:
        # Never from the cache. So the reactor that serves it has a connection from then on. Without
        # one the write would not be sent while the node stands still, and be in no doubt.
        answered(client, f"SELECT v FROM {table} WHERE k = 0 AND c = 7", ALL)
    before = instance.metrics()
    at = f"USING TIMESTAMP {time.time_ns() // 1000}"
    texts = [text.format(t=table, k=keys[name], at=at) for name, (text, _) in SHAPES.items()]
    send_all(clients, texts, relay, cassandra)
    for client in clients:
        client.close()

    def grown(name):
        return instance.metrics().total(name) - before.total(name)

    def settled():
        assert grown("afterglow_unsettled_writes_total") == 0, describe(instance.metrics())
        return grown("afterglow_settled_writes_total") == len(SHAPES)

    poll("all writes to be settled", settled, 2 * HOLD)
    assert grown("afterglow_repeated_writes_total") >= len(SHAPES)
    assert instance.metrics().total("afterglow_quarantined_partitions") == 0
    with connect(instance) as session, connect(cassandra) as direct:
        for name, (_, expected) in SHAPES.items():
            text = f"SELECT c, v FROM {table} WHERE k = {keys[name]}"
            hits = instance.metrics().hits()
            for asked in (session, session, direct):
                assert dict(asked.execute(text)) == expected, name
            # A row that may be a marker alone keeps its partition out of the cache.
            cached = None not in expected.values()
            assert instance.metrics().hits() - hits == cached, name
