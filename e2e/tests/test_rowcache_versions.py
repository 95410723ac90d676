"""The same jar in the older Cassandras, on Java 11."""

import pytest

from afterglow_e2e.drivers import connect
from afterglow_e2e.plugin import OLDER, RowCacheNode
from afterglow_e2e.rowrace import prepare, race


@pytest.mark.timeout(240)
@pytest.mark.parametrize("version", OLDER)
def test_rows_are_served_never_stale_and_warm_after_a_clean_stop(version):
    with RowCacheNode(version=version) as node:
        with connect(node, timeout=60) as session:
            prepare(session)
            assert race(session, 160) == 0
            assert hits(session) == 32, "the last read of each partition fills the cache"
        node.drain()
        node.start()
        with connect(node, timeout=60) as session:
            before = requests(session)
            answers = [session.execute(f"SELECT v FROM race.t WHERE p = {p} AND c = 7").one().v for p in range(32)]
            assert set(answers) == {10}
            assert requests(session) == (before[0] + 32, before[1] + 32)


def requests(session):
    """Hits and requests of the row cache."""
    row = session.execute("SELECT hit_count, request_count FROM system_views.caches WHERE name = 'rows'").one()
    return row.hit_count, row.request_count


def hits(session):
    """Hits of reading each partition twice."""
    for _ in range(2):
        before = requests(session)
        for p in range(32):
            session.execute(f"SELECT v FROM race.t WHERE p = {p} AND c = 7")
    return requests(session)[0] - before[0]
