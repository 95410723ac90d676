"""Slices of partitions from the cache, with clustering columns of every type, in the order that the
database has.
"""

import random as randomness
import uuid

import pytest
from differential.values import SCALARS

from afterglow_e2e.rawcql import RawClient

# `decimal` and `duration` are in no cached key.
KINDS = [kind for kind in SCALARS if kind.key and kind.name != "decimal"]
# More rows than the smallest fill of a unit reads.
ROWS, READS = 80, 60


@pytest.fixture
def clients(cassandra, afterglow):
    """Past Afterglow, and through it."""
    both = []
    for contact in (cassandra.contact, afterglow.contact):
        host, port = contact.rsplit(":", 1)
        both.append(RawClient(host, int(port)))
    yield both
    for client in both:
        client.close()


def some(random, kind):
    """A value that the kind has a place for: no not-a-number."""
    if kind.name == "uuid" and random.random() < 0.8:
        version = random.choice((1, 1, 3, 4, 5))
        return uuid.UUID(int=random.getrandbits(128), version=version).bytes
    if kind.name == "timeuuid" and random.random() < 0.8:
        return uuid.UUID(int=random.getrandbits(128), version=1).bytes
    while True:
        literal, data = kind.make(random)
        if literal != "NaN":
            return data


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("order", ("ASC", "DESC"))
def test_a_slice_is_the_databases_own(kind, order, table, clients, afterglow):
    random = randomness.Random(f"{kind} {order}")
    past, through = clients
    made = through.query(
        f"CREATE TABLE {table} (k int, c {kind.name}, v int, PRIMARY KEY (k, c)) "
        f"WITH CLUSTERING ORDER BY (c {order})"
    )
    assert made.error is None, made
    for number in range(ROWS):
        v = number.to_bytes(4, "big")
        text = f"INSERT INTO {table} (k, c, v) VALUES (1, ?, ?)"
        written = through.query(text, some(random, kind), v)
        assert written.error is None, written
    before = afterglow.metrics().hits()
    for _ in range(READS):
        text, values = f"SELECT c, v FROM {table} WHERE k = 1", []
        for operators in random.sample((("<", "<="), (">", ">=")), random.randrange(3)):
            text += f" AND c {random.choice(operators)} ?"
            values.append(some(random, kind))
        text += random.choice(("", " ORDER BY c ASC", " ORDER BY c DESC"))
        text += random.choice(("", " LIMIT 1", f" LIMIT {random.randrange(1, ROWS)}"))
        expected, found = (client.query(text, *values) for client in (past, through))
        assert found.error is None, f"{text} {values}: {found}"
        assert found.message == expected.message, f"{text} {values}"
    hits = afterglow.metrics().hits() - before
    assert hits > READS / 2, f"{hits:g} hits of {READS} reads"
