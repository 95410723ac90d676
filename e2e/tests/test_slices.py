"""Slices of partitions and rows of several from the cache, with key columns of every type, in the
order that the database has.
"""

import random as randomness
import uuid

import pytest
from differential.values import SCALARS

from afterglow_e2e.rawcql import RawClient

# `decimal` and `duration` are in no cached key.
KINDS = [kind for kind in SCALARS if kind.key and kind.name != "decimal"]
KINDS_BY_NAME = {kind.name: kind for kind in KINDS}
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


def create_ordered(through, table, kind, order):
    made = through.query(
        f"CREATE TABLE {table} (k int, c {kind.name}, v int, PRIMARY KEY (k, c)) "
        f"WITH CLUSTERING ORDER BY (c {order})"
    )
    assert made.error is None, made


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("order", ("ASC", "DESC"))
def test_a_slice_is_the_databases_own(kind, order, table, clients, afterglow):
    random = randomness.Random(f"{kind} {order}")
    past, through = clients
    create_ordered(through, table, kind, order)
    there = []
    for number in range(ROWS):
        v = number.to_bytes(4, "big")
        text = f"INSERT INTO {table} (k, c, v) VALUES (1, ?, ?)"
        there.append(some(random, kind))
        written = through.query(text, there[-1], v)
        assert written.error is None, written
    before = afterglow.metrics().hits()
    for _ in range(READS):
        text, values = f"SELECT c, v FROM {table} WHERE k = 1", []
        if random.random() < 0.4:
            values += random.choices(there, k=random.randrange(1, 4)) + [some(random, kind)]
            text += f" AND c IN ({', '.join('?' * len(values))})"
        else:
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


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("order", ("ASC", "DESC"))
def test_a_slice_is_the_databases_own_after_each_write_of_a_row(
    kind, order, table, clients, afterglow
):
    """The unit follows the writes: what is read again is one row, at its place."""
    random = randomness.Random(f"written {kind} {order}")
    past, through = clients
    create_ordered(through, table, kind, order)
    insert = f"INSERT INTO {table} (k, c, v) VALUES (1, ?, ?)"
    there = [some(random, kind) for _ in range(ROWS)]
    for c in there:
        assert through.query(insert, c, b"\0\0\0\1").error is None
    slices = [
        f"SELECT c, v FROM {table} WHERE k = 1 ORDER BY c {way} LIMIT 20" for way in ("ASC", "DESC")
    ]
    turned = random.choice((False, True))

    def outcomes(outcome):
        metrics = afterglow.metrics()
        return metrics.total("afterglow_write_outcomes_total", frontend="cql", outcome=outcome)

    through.query(slices[turned])
    before = outcomes("refreshed")
    for number in range(READS):
        v = number.to_bytes(4, "big")
        match random.randrange(8):
            case 0:
                # An older value, which loses where there is one.
                text, values = f"{insert} USING TIMESTAMP 1", (some(random, kind), v)
            case 1:
                text, values = f"DELETE FROM {table} WHERE k = 1 AND c = ?", (random.choice(there),)
            case 2:
                # A deletion ahead of the clock hides what is written there later.
                ahead = f"USING TIMESTAMP {1 << 61}"
                text = f"DELETE FROM {table} {ahead} WHERE k = 1 AND c = ?"
                values = (random.choice(there),)
            case 3:
                text, values = insert, (random.choice(there), v)
            case 4:
                text, values = f"{insert} USING TTL 10000", (some(random, kind), v)
            case _:
                there.append(some(random, kind))
                text, values = insert, (there[-1], v)
        written = through.query(text, *values)
        assert written.error is None, f"{text} {values}: {written}"
        # Twice: the row that is read again, and what is cached then.
        for ask in (slices[turned], slices[turned], random.choice(slices)):
            expected, found = (client.query(ask) for client in (past, through))
            assert found.error is None, f"{ask}: {found}"
            assert found.message == expected.message, f"{ask} after {text} {values}"
    grown = outcomes("refreshed") - before
    assert grown > READS / 8, f"{grown:g} of {READS} writes"


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_of_several_partitions_are_the_databases_own(kind, table, clients, afterglow):
    """In the order of the keys, each once, whichever of them are cached."""
    random = randomness.Random(f"several {kind}")
    past, through = clients
    made = through.query(f"CREATE TABLE {table} (k {kind.name} PRIMARY KEY, v int)")
    assert made.error is None, made
    # An empty key is refused.
    keys = [key for key in (some(random, kind) for _ in range(24)) if key]
    for number, key in enumerate(keys[:18]):
        text = f"INSERT INTO {table} (k, v) VALUES (?, ?)"
        written = through.query(text, key, number.to_bytes(4, "big"))
        assert written.error is None, written
    before = afterglow.metrics().hits()
    for _ in range(READS):
        values = random.choices(keys, k=random.randrange(1, 8))
        text = f"SELECT k, v FROM {table} WHERE k IN "
        if random.random() < 0.5:
            text += f"({', '.join('?' * len(values))})"
        else:
            text += "?"
            elements = b"".join(len(value).to_bytes(4, "big") + value for value in values)
            values = [len(values).to_bytes(4, "big") + elements]
        text += random.choice(("", "", " LIMIT 1", " LIMIT 3", " PER PARTITION LIMIT 1"))
        page = {"page_size": random.choice((2, 3, 5, 5000))} if random.random() < 0.7 else {}
        # One round through Afterglow may fill what is missing; the next is a hit.
        found = [through.query(text, *values, **page) for _ in range(2)]
        expected = past.query(text, *values, **page)
        assert expected.error is None, expected
        for answer in found:
            assert answer.message == expected.message, f"{text} {values} {page}"
    hits = afterglow.metrics().hits() - before
    assert hits > READS / 2, f"{hits:g} hits of {READS} reads"


def written_and_new(random, table, row, v):
    """Statements of a batch: they write a row of partition 1, one more of it whose key the database
    makes, and mostly one of a partition that is new.
    """
    (partition, c), insert = row, f"INSERT INTO {table} (k, c, v) VALUES"
    named = (
        (f"{insert} (?, ?, ?)", partition, c, v),
        (f"UPDATE {table} SET v = ? WHERE k = ? AND c = ?", v, partition, c),
        (f"DELETE FROM {table} WHERE k = ? AND c = ?", partition, c),
    )
    some = [random.choice(named), (f"{insert} (?, now(), ?)", partition, v)]
    if random.random() < 0.7:
        some.append((f"{insert} (uuid(), now(), ?)", v))
    return random.sample(some, len(some))


@pytest.mark.parametrize("order", ("ASC", "DESC"))
@pytest.mark.parametrize("form", ("request", "text"))
def test_a_slice_has_the_rows_whose_keys_the_database_makes_in_a_batch(
    form, order, table, clients, afterglow, direct
):
    """One named row of the partition comes with them, and is not all that there is to read."""
    random = randomness.Random(f"batches {form} {order}")
    past, through = clients
    made = through.query(
        f"CREATE TABLE {table} (k uuid, c timeuuid, v int, PRIMARY KEY (k, c)) "
        f"WITH CLUSTERING ORDER BY (c {order})"
    )
    assert made.error is None, made
    partition = uuid.UUID(int=1).bytes
    timeuuid = next(kind for kind in KINDS if kind.name == "timeuuid")
    there = [timeuuid.make(random)[1] for _ in range(20)]
    for c in there:
        text = f"INSERT INTO {table} (k, c, v) VALUES (?, ?, ?)"
        assert through.query(text, partition, c, bytes(4)).error is None
    slices = [
        f"SELECT c, v FROM {table} WHERE k = ? ORDER BY c {way} LIMIT {limit}"
        for way in ("ASC", "DESC")
        for limit in (10, 1000)
    ]

    def same(ask, *values):
        expected, found = (client.query(ask, *values) for client in (past, through))
        assert found.error is None, f"{ask}: {found}"
        assert found.message == expected.message, f"{ask} {values}"

    for ask in slices:
        same(ask, partition)
    before = afterglow.metrics().hits()
    for number in range(READS):
        v = (number + 1).to_bytes(4, "big")
        batch = written_and_new(random, table, (partition, random.choice(there)), v)
        kind = random.choice((0, 1))
        if form == "text":
            texts = "; ".join(text for text, *_ in batch)
            values = [value for _, *values in batch for value in values]
            begin = ("BEGIN BATCH", "BEGIN UNLOGGED BATCH")[kind]
            written = through.query(f"{begin} {texts}; APPLY BATCH", *values)
        else:
            written = through.batch(*batch, kind=kind)
        assert written.error is None, f"{batch}: {written}"
        ask = random.choice(slices)
        for _ in range(2):
            same(ask, partition)
        # The rows of new partitions too, whose keys only a scan finds.
        found = direct.execute(f"SELECT k FROM {table} WHERE v = {number + 1} ALLOW FILTERING")
        for key in {row.k.bytes for row in found} - {partition}:
            for _ in range(2):
                same(slices[0], key)
    hits = afterglow.metrics().hits() - before
    assert hits > READS / 2, f"{hits:g} hits"


COUNTS = (
    "count(*) FROM {t} WHERE k = {k}",
    "COUNT(*) AS n FROM {t} WHERE k = {k} AND c > 3",
    'count(*) AS "N" FROM {t} WHERE k = {k} AND c >= 3 AND c < 12',
    "count(*) FROM {t} WHERE k = {k} AND c > 1000",
)


@pytest.mark.parametrize("version", (3, 4, 5))
def test_a_count_is_the_databases_own_byte_for_byte(version, table, cassandra, afterglow):
    """Of rows with and without an end, beside tombstones, and of a partition that is not there."""
    past, through = (
        RawClient(contact.rsplit(":", 1)[0], int(contact.rsplit(":", 1)[1]), version=version)
        for contact in (cassandra.contact, afterglow.contact)
    )
    create_ordered(through, table, KINDS_BY_NAME["int"], "DESC")
    for text in (
        *[f"INSERT INTO {table} (k, c, v) VALUES (1, {c}, {c})" for c in range(14)],
        f"UPDATE {table} USING TTL 10000 SET v = 1 WHERE k = 1 AND c = 4",
        f"DELETE FROM {table} WHERE k = 1 AND c = 5",
        f"DELETE FROM {table} WHERE k = 1 AND c > 7 AND c < 10",
        f"DELETE v FROM {table} WHERE k = 1 AND c = 11",
        f"DELETE FROM {table} WHERE k = 1 AND c = 11",
    ):
        assert through.query(text).error is None, text
    hits = afterglow.metrics().hits()
    for key in (1, 2):
        for count in COUNTS:
            text = f"SELECT {count.format(t=table, k=key)}"
            expected = past.query(text)
            for _ in range(3):
                assert through.query(text).message == expected.message, text
            if version < 5:
                expected, found = (
                    client.execute(client.prepare(text).prepared_id) for client in (past, through)
                )
                assert found.message == expected.message, text
            for limit in (" LIMIT 1", " PER PARTITION LIMIT 1"):
                assert through.query(text + limit).message == past.query(text + limit).message
    # The first of each partition fills its unit.
    reads = 2 * len(COUNTS) * (3 if version == 5 else 4)
    assert afterglow.metrics().hits() - hits == reads - 2
    for client in (past, through):
        client.close()
