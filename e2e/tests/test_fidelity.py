"""What is not cached is answered byte for byte as the database does; errors included."""

import struct
import uuid

import pytest

from afterglow_e2e import rawcql
from afterglow_e2e.process import poll
from afterglow_e2e.rawcql import RawClient


@pytest.fixture(params=[3, 4], ids=["v3", "v4"])
def pair(request, afterglow, cassandra):
    with (
        RawClient(afterglow.address, afterglow.port, request.param) as through,
        RawClient(cassandra.address, cassandra.port, request.param) as direct,
    ):
        yield through, direct


@pytest.fixture(scope="module")
def rows(direct, keyspace, afterglow):
    name = f"{keyspace}.rows"
    direct.execute(f"CREATE TABLE {name} (k int, c int, v text, w blob, PRIMARY KEY (k, c))")
    direct.execute(
        f"CREATE TABLE {name}_static (k int, c int, v text, s text static, PRIMARY KEY (k, c))"
    )
    for c in range(5):
        direct.execute(f"INSERT INTO {name} (k, c, v) VALUES (1, {c}, 'v{c}')")
        direct.execute(f"INSERT INTO {name}_static (k, c, v, s) VALUES (1, {c}, 'v{c}', 's')")
    with RawClient(afterglow.address, afterglow.port) as client:

        def hit():
            before = afterglow.metrics().hits()
            client.query(f"SELECT v FROM {name} WHERE k = 1 AND c = 0")
            return afterglow.metrics().hits() > before

        poll("Afterglow to know the table", hit, 20)
    return name


ERRORS = (
    "",
    ";",
    "SELECT",
    "SELEC * FROM t",
    "HELLO WORLD",
    "SELECT * FROM nowhere.t",
    "SELECT * FROM t",
    "SELECT * FROM {t}_not",
    "SELECT nothing FROM {t} WHERE k = 1 AND c = 1",
    "SELECT v FROM {t} WHERE k = 'text' AND c = 1",
    "SELECT v FROM {t} WHERE k = 1 AND c = 99999999999",
    "SELECT v FROM {t} WHERE c = 1",
    "SELECT v FROM {t} WHERE v = 'x'",
    "SELECT v FROM {t} WHERE k = 1 AND k = 2 AND c = 1",
    "SELECT v FROM {t} WHERE k = ? AND c = 1",
    "SELECT v FROM {t} WHERE k = null AND c = 1",
    "SELECT nofunction(v) FROM {t} WHERE k = 1 AND c = 1",
    "SELECT v FROM {t} WHERE k = 1 AND c = 1 LIMIT 0",
    "SELECT v FROM {t} WHERE k = 1 AND c = 1 -- no newline",
    "SELECT v FROM {t} WHERE k = 1 AND c = 1; SELECT v FROM {t} WHERE k = 1 AND c = 2",
    "SELECT v FROM {t} WHERE k = 1 AND c = 1 extra",
    "INSERT INTO {t} (k) VALUES (1, 2)",
    "INSERT INTO {t} (c, v) VALUES (1, 'x')",
    "UPDATE {t} USING TTL -1 SET v = 'x' WHERE k = 1 AND c = 1",
    "UPDATE {t} USING TIMESTAMP 1 SET v = 'x' WHERE k = 1 AND c = 1 IF EXISTS",
    "UPDATE {t} SET k = 2 WHERE k = 1 AND c = 1",
    "BEGIN BATCH SELECT * FROM {t}; APPLY BATCH",
    "BEGIN BATCH UPDATE {t} SET v = 'x' WHERE k = 1 AND c = 1;",
    "CREATE TABLE {t} (k int PRIMARY KEY)",
    "CREATE KEYSPACE system WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
    "DROP TABLE {t}_not",
    "USE nowhere",
    "TRUNCATE {t}_not",
    "GRANT SELECT ON {t} TO nobody",
)


@pytest.mark.parametrize("text", ERRORS)
def test_errors_of_queries(pair, rows, text):
    through, direct = pair
    text = text.format(t=rows)
    right = direct.query(text)
    assert right.error
    for _ in range(2):
        assert through.query(text) == right
    # and the connection lives on
    assert through.query(f"SELECT v FROM {rows} WHERE k = 1 AND c = 1").error is None


@pytest.mark.parametrize("text", ERRORS)
def test_errors_of_prepare(pair, rows, text):
    through, direct = pair
    text = text.format(t=rows)
    got, right = through.prepare(text), direct.prepare(text)
    if right.error:
        assert got == right
    else:  # prepared all the same; its warnings depend on what a connection prepared before
        assert got.prepared_id == right.prepared_id


CACHED = (
    "SELECT * FROM {t} WHERE k = 1 AND c = 1",
    "SELECT v, c FROM {t} WHERE k = 1 AND c = 3",
    "SELECT v FROM {t} WHERE k = 1 AND c = 77",
    "SELECT v AS other, k FROM {t} WHERE k = 1 AND c = 2",
    "SELECT * FROM {t}_static WHERE k = 1 AND c = 1",
    "SELECT * FROM {t} WHERE k = 1",
    "SELECT count(*) FROM {t} WHERE k = 1",
)
PASSED = (
    "SELECT s FROM {t}_static WHERE k = 1 AND c = 1",
    "SELECT * FROM {t}",
    "SELECT count(*) FROM {t}",
    "SELECT JSON * FROM {t} WHERE k = 1 AND c = 1",
    "SELECT release_version, cluster_name, partitioner, cql_version FROM system.local",
    "SELECT keyspace_name FROM system_schema.keyspaces",
    "USE system",
)


@pytest.mark.parametrize("text", CACHED + PASSED)
@pytest.mark.parametrize("skip_metadata", [False, True])
def test_answers_byte_for_byte(pair, rows, afterglow, text, skip_metadata):
    through, direct = pair
    hits = afterglow.metrics().hits()
    right = direct.query(text.format(t=rows), skip_metadata=skip_metadata)
    for _ in range(3):  # missed, then hit where it can be
        assert through.query(text.format(t=rows), skip_metadata=skip_metadata) == right
    assert (afterglow.metrics().hits() > hits) == (text in CACHED)


@pytest.mark.parametrize("skip_metadata", [False, True])
def test_prepared_answers_byte_for_byte(pair, rows, skip_metadata):
    through, direct = pair
    text = f"SELECT * FROM {rows} WHERE k = ? AND c = ?"
    prepared = direct.prepare(text)
    assert through.prepare(text) == prepared
    for c in (1, 99):
        values = struct.pack(">i", 1), struct.pack(">i", c)
        right = direct.execute(prepared.prepared_id, *values, skip_metadata=skip_metadata)
        for _ in range(3):
            assert (
                through.execute(prepared.prepared_id, *values, skip_metadata=skip_metadata) == right
            )


def test_wrong_values_of_a_prepared_read(pair, rows):
    through, direct = pair
    prepared = through.prepare(f"SELECT v FROM {rows} WHERE k = ? AND c = ?").prepared_id
    assert direct.prepare(f"SELECT v FROM {rows} WHERE k = ? AND c = ?").prepared_id == prepared
    one = struct.pack(">i", 1)
    for values in (
        (),
        (one,),
        (one, one, one),
        (one, b"x"),
        (one, b""),
        (b"", one),
        (one, None),
        (None, one),
    ):
        right = direct.execute(prepared, *values)
        for _ in range(2):
            assert through.execute(prepared, *values) == right, values


def test_an_id_nobody_prepared_is_unprepared(pair):
    through, direct = pair
    nobody = uuid.uuid4().bytes
    code, _ = direct.execute(nobody).error
    assert code == 0x2500
    assert through.execute(nobody) == direct.execute(nobody)


def test_misuse_gets_the_protocol_error_a_server_gives(pair):
    through, direct = pair
    for opcode, body in (
        (rawcql.REGISTER, struct.pack(">H", 1) + rawcql.string("NONSENSE")),
        (
            rawcql.STARTUP,
            struct.pack(">H", 1) + rawcql.string("CQL_VERSION") + rawcql.string("3.0.0"),
        ),
        (
            rawcql.QUERY,
            rawcql.long_string("SELECT key FROM system.local") + rawcql.parameters(page_size=0),
        ),
    ):
        right = direct.request(opcode, body)
        got = through.request(opcode, body)
        assert (got.opcode, got.error) == (right.opcode, right.error)
    if through.version == 3:
        body = (
            struct.pack(">H", 0)
            + rawcql.long_string("SELECT key FROM system.local")
            + rawcql.parameters()
        )
        assert through.request(rawcql.QUERY, body, flags=4) == direct.request(
            rawcql.QUERY, body, flags=4
        )
    assert through.request(rawcql.OPTIONS).opcode == rawcql.SUPPORTED


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("compression", ["lz4", "LZ4", "snappy", "zstd", ""])
def test_compression_is_agreed_upon_as_with_a_server(afterglow, cassandra, version, compression):
    options = {"CQL_VERSION": "3.0.0", "COMPRESSION": compression}
    body = struct.pack(">H", 2) + b"".join(
        rawcql.string(part) for pair in options.items() for part in pair
    )
    answers = []
    for server in (afterglow, cassandra):
        with RawClient(server.address, server.port, version=version, startup=False) as client:
            answers.append(client.request(rawcql.STARTUP, body))
    through, direct = answers
    # A server compresses even READY, which we may leave as it is.
    assert (through.opcode, through.error, through.version) == (
        direct.opcode,
        direct.error,
        direct.version,
    )


@pytest.mark.parametrize("version", [1, 2, 6, 7, 0x41, 0x42])
def test_a_version_not_spoken_is_refused_as_a_server_does(afterglow, cassandra, version):
    answers = []
    for server in (afterglow, cassandra):
        with RawClient(server.address, server.port, version=version, startup=False) as client:
            answers.append(client.request(rawcql.OPTIONS))
    through, direct = answers
    # Header and all: its version is where a driver goes next.
    assert through.opcode == rawcql.ERROR and through == direct
    assert through.stream == direct.stream


def test_the_version_in_the_making_is_refused_also_when_asked_for(afterglow):
    # A server speaks it then. Its text names it nevertheless, as Cassandra's does.
    with RawClient(afterglow.address, afterglow.port, version=6, startup=False) as client:
        answer = client.request(rawcql.OPTIONS, flags=0x10)
    text = "Invalid or unsupported protocol version (6); supported versions are (3/v3, 4/v4, 5/v5, 6/v6-beta)"
    assert answer.error == (10, text) and answer.version == 0x80 | 5


def test_options_offers_nothing_that_leads_past_us(afterglow, cassandra):
    with RawClient(afterglow.address, afterglow.port, startup=False) as client:
        answer = client.request(rawcql.OPTIONS)
    assert answer.opcode == rawcql.SUPPORTED
    assert b"CQL_VERSION" in answer.body and b"SCYLLA" not in answer.body
