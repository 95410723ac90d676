"""The chunk cache inside a stock Cassandra: chunks of SSTables are served from flash, and never a
wrong one.
"""

import shutil

import pytest

from afterglow_e2e.cassandra import SHORT_LIVED
from afterglow_e2e.chunkload import create, saved, settled, write, wrong
from afterglow_e2e.drivers import connect
from afterglow_e2e.plugin import ChunkCacheNode, generation, place

pytestmark = pytest.mark.timeout(600)
KEYS = range(600)


def fill(node, table="t", chunk=16):
    """A table on disk, with all of its chunks taken in: the figures then."""
    with connect(node, timeout=60) as session:
        create(session, table, chunk)
        write(session, table, KEYS)
        node.ask("flush", "chunks")
        for _ in range(3):
            assert wrong(session, table, KEYS) == []
    return settled(node)


@pytest.fixture(scope="module")
def node():
    with ChunkCacheNode(options=SHORT_LIVED) as node:
        node.await_chunks()
        yield node


def test_chunks_are_kept_and_go_with_their_files(node):
    """Of both kinds of readers: what is compressed, and what is not."""
    for table, chunk in (("t", 64), ("plain", 0)):
        before = node.figures()
        after = fill(node, table, chunk)
        assert after["Fills"] > before["Fills"], table
        assert after["Hits"] - before["Hits"] > len(KEYS), "the third reading at least is answered"
        assert after["Errors"] == after["Refused"] == 0
    with connect(node, timeout=60) as session:
        write(session, "t", KEYS, version=1)
        before = node.figures()
        node.ask("flush", "chunks", "t")
        node.ask("compact", "chunks", "t")
        compacted = node.figures()
        assert compacted["FilesDropped"] > before["FilesDropped"]
        assert compacted["Bypassed"] > before["Bypassed"], "compaction is not looked up"
        assert compacted["Hits"] == before["Hits"]
        for _ in range(3):
            assert wrong(session, "t", KEYS, version=1) == []
        session.execute("TRUNCATE chunks.t")
        assert session.execute("SELECT v FROM chunks.t WHERE p = 1").one() is None


def test_chunks_are_served_after_kill_9_and_equal_the_tables(node):
    fill(node, "kept")
    saved(node)
    # From now on each hit is read from its SSTable too.
    node.properties["afterglow.chunkcache.verify"] = "true"
    node.restart()
    node.await_chunks()
    with connect(node, timeout=60) as session:
        assert wrong(session, "kept", KEYS) == []
        figures = settled(node)
        assert figures["Hits"] > 10 * figures["Misses"], "warm at once"
        assert figures["Fills"] == 0
        assert node.verify()["the chunk cache works"]["State"] == "on, verifying"
        # Files come and go under the reads.
        create(session, "moving")
        for version in range(3):
            write(session, "moving", KEYS, version)
            node.ask("flush", "chunks", "moving")
            for _ in range(3):
                assert wrong(session, "moving", KEYS, version) == []
            node.ask("compact", "chunks", "moving")
        figures = settled(node)
        assert figures["Compared"] == figures["Hits"] > 2 * len(KEYS)
        assert figures["Different"] == 0
        assert wrong(session, "kept", KEYS) == []


@pytest.mark.long
def test_a_restored_snapshot_is_read_as_it_is(node):
    """Its files come back under the names of those that are cached: while the node is down, and by
    `refresh`.
    """
    before = fill(node, "restored", 64)
    assert before["Different"] == 0
    folder = node.files_of("chunks", "restored")
    node.nodetool("snapshot", "-t", "first", "chunks")
    with connect(node, timeout=60) as session:
        write(session, "restored", KEYS, version=1)
        node.ask("flush", "chunks", "restored")
        node.ask("compact", "chunks", "restored")
        for _ in range(3):
            assert wrong(session, "restored", KEYS, version=1) == []
    saved(node)
    snapshot = list((folder / "snapshots" / "first").glob("*-big-*"))
    number = generation(folder)
    node.drain()
    for file in folder.glob("*-big-*"):
        file.unlink()
    place(snapshot, folder, number)
    # What was written after the snapshot is not to come back from there.
    shutil.rmtree(node.folder / "data" / "commitlog")
    node.start()
    node.await_chunks()
    with connect(node, timeout=60) as session:
        for _ in range(3):
            assert wrong(session, "restored", KEYS) == []
        session.execute("TRUNCATE chunks.restored")
        assert wrong(session, "restored", range(20)) == list(range(20))
        place(snapshot, folder, number)
        node.nodetool("refresh", "chunks", "restored")
        for _ in range(3):
            assert wrong(session, "restored", KEYS) == []
