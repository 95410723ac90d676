"""Drivers of other languages: the Java driver 4, gocql 2, the Node driver 4 and the C++ driver,
each in a program of its own.
"""

import pytest
from test_reads import PLAIN_TYPES, name_of

from afterglow_e2e.clients import Client, Refused, build
from afterglow_e2e.drivers import answer, connect
from afterglow_e2e.process import connections_to, poll

LANGUAGES = ("java", "go", "node", "cpp")
# What the client cannot copy: see e2e/cql-clients/README.md.
NOT_COPIED = {"go": ("tuple<int, text, boolean>",), "cpp": ("decimal", "time")}
# What each agrees on with a Cassandra 5.0.
VERSIONS = {"java": 5, "go": 5, "node": 4, "cpp": 4}


@pytest.fixture(scope="module")
def rows(direct, keyspace):
    """The table that all clients use, each with keys of its own."""
    direct.execute(f"CREATE TABLE {keyspace}.rows (k int, c int, v text, PRIMARY KEY (k, c))")
    return keyspace


@pytest.fixture(scope="module")
def clients(afterglow, rows, tmp_path_factory):
    """Connects the client of a language to Afterglow, once."""
    known = {}

    def client(language):
        if language not in known:
            command = build(language)
            if command is None:
                pytest.skip(f"the tools for {language} are missing: make tools says which")
            known[language] = Client(
                command, afterglow, rows, tmp_path_factory.mktemp(language) / "log"
            )
        return known[language]

    yield client
    for connected in known.values():
        connected.close()


@pytest.fixture(params=LANGUAGES)
def language(request):
    return request.param


@pytest.fixture
def client(clients, language):
    return clients(language)


@pytest.fixture
def key(language):
    return 1000 * (1 + LANGUAGES.index(language))


def test_the_driver_knows_and_dials_only_afterglow(client, language, afterglow, cassandra, direct):
    assert client("version") == VERSIONS[language]
    assert client("hosts") == [afterglow.contact]
    assert connections_to(afterglow.address, afterglow.port, client.pid)
    assert not connections_to(cassandra.address, cassandra.port, client.pid)
    # The listing would have shown one: ours does.
    assert connections_to(cassandra.address, cassandra.port)


def test_prepared_reads_are_hits_and_never_old(client, key, expect):
    assert client("read", key, 1)[1] is None
    for value in ("one", "two", "Grüße, 世界"):
        client("write", key, 1, value)
        assert client("read", key, 1) == [["k", "c", "v"], [key, 1, value]]
        with expect(hits=3):
            for _ in range(3):
                assert client("read", key, 1) == [["k", "c", "v"], [key, 1, value]]


def test_batches_pages_and_lightweight_transactions(client, key):
    key += 1
    client("read", key, 7)
    client("batch", key, 49)
    assert client("read", key, 7)[1] == [key, 7, "b7"]
    assert client("read", key, 49)[1] == [key, 49, "text"]
    assert client("page", key, 7) == [50, 8]
    assert client("page", key, 5000) == [50, 1]
    assert client("cas", key, 50, "first") is True
    assert client("cas", key, 50, "second") is False
    assert client("read", key, 50)[1] == [key, 50, "first"]


@pytest.fixture(scope="module")
def wide(direct, keyspace):
    """A row with a value of every plain type."""
    columns = ", ".join(f"{name_of(kind)} {kind}" for kind in PLAIN_TYPES)
    names, marks = ", ".join(map(name_of, PLAIN_TYPES)), ", ".join("?" for _ in PLAIN_TYPES)
    direct.execute(f"CREATE TABLE {keyspace}.wide (k int PRIMARY KEY, {columns})")
    insert = direct.prepare(f"INSERT INTO {keyspace}.wide (k, {names}) VALUES (?, {marks})")
    direct.execute(insert, (-1, *PLAIN_TYPES.values()))
    return f"{keyspace}.wide"


def test_every_plain_type_survives_the_way_through_driver_and_cache(
    client, language, key, wide, direct, afterglow
):
    kinds = [kind for kind in PLAIN_TYPES if kind not in NOT_COPIED.get(language, ())]
    select = f"SELECT {', '.join(map(name_of, kinds))} FROM {wide} WHERE k = %s"
    right = answer(direct, select, (-1,))

    def copied_from_the_cache():
        before = afterglow.metrics().hits()
        assert client("copy", "wide", -1, key) == len(kinds) + 1
        assert answer(direct, select, (key,)) == right
        return afterglow.metrics().hits() > before

    # Not the first time: what the database answers has to survive as well, and Afterglow has to
    # know the table.
    copied_from_the_cache()
    poll("the row to be copied from the cache", copied_from_the_cache, 20)


def test_a_schema_change_reaches_the_connected_driver(client, language, direct, rows):
    name = f"seen_by_{language}"
    direct.execute(f"CREATE TABLE {rows}.{name} (k int PRIMARY KEY)")  # past Afterglow
    poll("the driver to hear of a table", lambda: client("columns", name) == ["k"], 30)
    client("ddl", f"ALTER TABLE {name} ADD v text")
    poll("the driver to hear of a column", lambda: client("columns", name) == ["k", "v"], 30)


def alter_in_a_loop(client, key, name, rounds):
    """Columns come while prepared statements are in use; how often the driver heard UNPREPARED
    meanwhile.
    """
    client("write", key, 0, "before")
    client("read", key, 0)
    before = client("unprepared")
    for number in range(rounds):
        client("ddl", f"ALTER TABLE rows ADD {name}{number} int")
        client("write", key, number, f"v{number}")
        for _ in range(3):
            names, row = client("read", key, number)
            assert f"{name}{number}" in names and row[names.index("v")] == f"v{number}"
            assert len(names) == len(row)
    return client("unprepared") - before


def test_alter_table_in_a_loop_is_never_heard_of_as_unprepared(client, language, key):
    assert alter_in_a_loop(client, key + 2, f"{language}_a", 8) == 0


# Directly the C++ driver goes on with the columns that its first PREPARE has told.
@pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "cpp"])
def test_directly_the_same_loop_is_heard_of(client, language, key, cassandra, rows, tmp_path):
    with Client(build(language), cassandra, rows, tmp_path / "log") as straight:
        assert connections_to(cassandra.address, cassandra.port, straight.pid)
        # Whether a statement comes before the news of a column is chance: as often as above.
        loops = (alter_in_a_loop(straight, key + 3, f"{language}_d{n}_", 2) for n in range(4))
        assert any(heard > 0 for heard in loops)


def works(client, *command):
    try:
        return client(*command)
    except Refused:
        return False


def test_a_restart_of_the_node_and_of_afterglow(clients, afterglow, cassandra, rows):
    connected = {language: clients(language) for language in LANGUAGES if build(language)}
    for language, client in connected.items():
        client("write", LANGUAGES.index(language), 0, "before")
        client("read", LANGUAGES.index(language), 0)

    def all_well(value):
        heard = {language: client("unprepared") for language, client in connected.items()}
        for language, client in connected.items():
            key = LANGUAGES.index(language)
            poll(
                f"{language} to write again",
                lambda c=client, k=key: works(c, "write", k, 0, value),
                60,
            )
            for _ in range(3):
                names, row = client("read", key, 0)
                assert row[names.index("v")] == value, language
            assert connections_to(afterglow.address, afterglow.port, client.pid)
            assert not connections_to(cassandra.address, cassandra.port, client.pid)
        return {
            language: client("unprepared") - heard[language]
            for language, client in connected.items()
        }

    with connect(afterglow) as session:
        # This node does not write its schema to disk at once, and starts with what is there.
        cassandra.nodetool("flush", "system_schema")
        cassandra.restart()
        query = f"SELECT count(*) FROM {rows}.rows WHERE k = 0"
        poll("Afterglow to pass reads on again", lambda: answer(session, query)[0] == ["count"], 60)
    assert set(all_well("after the node's restart").values()) == {0}
    for number, end in enumerate((afterglow.kill, afterglow.terminate)):
        end()
        afterglow.start()
        assert set(all_well(f"after our restart {number}").values()) == {0}
