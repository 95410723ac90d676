"""How many clients there may be, and what each costs."""

import resource
import struct

import pytest

from afterglow_e2e import rawcql
from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.fakedatabase import FakeDatabase, cache_a_row
from afterglow_e2e.process import poll
from afterglow_e2e.rawcql import RawClient

KIB = 1024


@pytest.fixture(scope="module")
def instance(tmp_path_factory):
    """An Afterglow before a database in memory: connections are the matter here."""
    with (
        FakeDatabase(tmp_path_factory.mktemp("fake")) as database,
        Afterglow(database.address) as instance,
    ):
        yield instance


@pytest.fixture(autouse=True)
def many_files():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def resident(instance):
    return instance.metrics().value("process_resident_memory_bytes")


def test_idle_and_busy_connections_are_cheap(instance, many_files):
    idle, busy, pipelined = min(10_000, many_files - 3000), 1000, 16
    with RawClient(instance.address, instance.port) as first:
        cache_a_row(instance, first, "x" * 100)
        clients = []
        try:
            before = resident(instance)
            for number in range(idle):
                clients.append(RawClient(instance.address, instance.port, (3, 4)[number % 2]))
            each = (resident(instance) - before) / idle
            print(f"{idle} idle connections: {each / KIB:.1f} KiB each")
            assert each < 40 * KIB
            # Then some of them ask all at once, and again and again, and never wait for one answer
            # alone.
            before = resident(instance)
            body = rawcql.long_string("SELECT v FROM ks.t WHERE k = 'a'") + rawcql.parameters()
            workers = clients[:busy]
            for _ in range(5):
                for client in workers:
                    version = client.version
                    request = [
                        struct.pack(">BBhBI", version, 0, n, rawcql.QUERY, len(body)) + body
                        for n in range(pipelined)
                    ]
                    client.socket.sendall(b"".join(request))
                for client in workers:
                    for _ in range(pipelined):
                        assert client.receive().opcode == rawcql.RESULT
            more = (resident(instance) - before) / busy
            print(f"{busy} of them busy, {pipelined} requests each: {more / KIB:.1f} KiB more")
            assert each + more < 40 * KIB
        finally:
            for client in clients:
                client.close()
        # They go as they came.
        poll("the connections to end", lambda: open_connections(instance) <= 1, 30)
        assert first.query("SELECT v FROM ks.t WHERE k = 'a'").opcode == rawcql.RESULT


def open_connections(instance):
    return instance.metrics().total("afterglow_client_connections_open")
