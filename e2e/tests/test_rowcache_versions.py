"""The same jar in the older Cassandras, on Java 11, with both caches at once."""

import struct
import zipfile

import pytest

from afterglow_e2e.cassandra import SHORT_LIVED
from afterglow_e2e.chunkload import create, settled, write, wrong
from afterglow_e2e.drivers import connect
from afterglow_e2e.plugin import OLDER, RowCacheNode, build
from afterglow_e2e.rowrace import prepare, race

KEYS = range(300)
JAVA_8 = 52
VERIFIED = {"afterglow.chunkcache.verify": "true"}


def test_everything_in_the_jar_is_for_java_8():
    with zipfile.ZipFile(build()) as jar:
        classes = [name for name in jar.namelist() if name.endswith(".class")]
        forms = {name: struct.unpack(">IHH", jar.read(name)[:8]) for name in classes}
    assert "io/afterglow/cassandra/ChunkCacheAgent.class" in forms
    assert {name: form for name, form in forms.items() if form != (0xCAFEBABE, 0, JAVA_8)} == {}


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", OLDER)
def test_rows_and_chunks_are_right_and_warm_after_a_clean_stop(version):
    """Rows are never stale, and chunks equal to those of the SSTables, which are mapped into memory
    here.
    """
    with RowCacheNode(
        version=version, chunks="64MiB", properties=VERIFIED, options=SHORT_LIVED
    ) as node:
        node.await_chunks()
        with connect(node, timeout=60) as session:
            prepare(session)
            assert race(session, 160) == 0
            assert hits(session) == 32, "the last read of each partition fills the cache"
            create(session, "t")
            write(session, "t", KEYS)
            node.ask("flush", "chunks", "t")
            for _ in range(3):
                assert wrong(session, "t", KEYS) == []
            figures = settled(node)
            assert figures["Fills"] > 0
            assert figures["Compared"] == figures["Hits"] > len(KEYS)
            assert figures["Different"] == figures["Errors"] == 0
        node.drain()
        assert node.said("Afterglow chunk cache: stopped cleanly") == 1
        node.start()
        node.await_chunks()
        with connect(node, timeout=60) as session:
            before = requests(session)
            answers = [
                session.execute(f"SELECT v FROM race.t WHERE p = {p} AND c = 7").one().v
                for p in range(32)
            ]
            assert set(answers) == {10}
            assert requests(session) == (before[0] + 32, before[1] + 32)
            assert wrong(session, "t", KEYS) == []
            figures = node.figures()
            assert figures["Compared"] > 10 * figures["Misses"], "warm at once"
            assert figures["Different"] == figures["Fills"] == 0
            node.ask("compact", "chunks", "t")
            assert node.figures()["FilesDropped"] == 1


def requests(session):
    """Hits and requests of the row cache."""
    row = session.execute(
        "SELECT hit_count, request_count FROM system_views.caches WHERE name = 'rows'"
    ).one()
    return row.hit_count, row.request_count


def hits(session):
    """Hits of reading each partition twice."""
    for _ in range(2):
        before = requests(session)
        for p in range(32):
            session.execute(f"SELECT v FROM race.t WHERE p = {p} AND c = 7")
    return requests(session)[0] - before[0]
