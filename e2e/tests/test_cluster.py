"""A real cluster of three nodes: statements go to the nodes that have the rows, and a node may die and come back."""

import contextlib

import pytest
from cassandra import ConsistencyLevel
from conftest import await_caching

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.cassandra import BOOT_SECONDS, KEEPS_WHAT_IT_ACKNOWLEDGED, Cassandra
from afterglow_e2e.drivers import connect
from afterglow_e2e.process import poll

# Three nodes start one after the other within the first test.
pytestmark = pytest.mark.timeout(3 * BOOT_SECONDS)
KEYS = range(12)


@pytest.fixture(scope="module")
def cluster():
    """Three nodes, one after the other, and an Afterglow that is told of the first two."""
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(3):
            seed = nodes[0] if nodes else None
            node = Cassandra(
                heap="384M", address=f"127.0.0.{21 + number}", seed=seed, settings=KEEPS_WHAT_IT_ACKNOWLEDGED
            )
            nodes.append(stack.enter_context(node))
        with connect(nodes[0]) as direct:
            peers = "SELECT host_id, tokens FROM system.peers_v2"
            poll(
                "the nodes to know each other",
                lambda: sum(bool(row.tokens) for row in direct.execute(peers)) == 2,
                BOOT_SECONDS,
            )
            for name, factor in (("one", 1), ("three", 3)):
                replication = f"{{'class': 'SimpleStrategy', 'replication_factor': {factor}}}"
                direct.execute(f"CREATE KEYSPACE {name} WITH replication = {replication}")
        instance = Afterglow(nodes[0].contact, extra=("--backend", nodes[1].contact))
        stack.enter_context(instance)
        await_caching(instance)
        yield nodes, instance


def touched(session, statement, values):
    """Addresses of the nodes that had a part in a statement, its coordinator first."""
    trace = session.execute(statement, values, trace=True).get_query_trace(max_wait_sec=20)
    others = {event.source for event in trace.events} - {trace.coordinator}
    return [trace.coordinator, *others]


def test_statements_go_to_the_node_that_has_the_row(cluster):
    nodes, instance = cluster
    with connect(instance) as session:
        session.execute("CREATE TABLE one.t (k int PRIMARY KEY, v text)")
        insert = session.prepare("INSERT INTO one.t (k, v) VALUES (?, ?)")
        select = session.prepare("SELECT v FROM one.t WHERE k = ?")

        def alone():
            seen = [touched(session, insert, (k, "v")) for k in KEYS] + [touched(session, select, (k,)) for k in KEYS]
            return all(len(nodes) == 1 for nodes in seen) and {nodes[0] for nodes in seen}

        assert poll("each statement to stay on one node", alone, BOOT_SECONDS) == {node.address for node in nodes}


def test_a_node_may_die_and_come_back(cluster):
    nodes, instance = cluster
    quorum = ConsistencyLevel.LOCAL_QUORUM
    with connect(instance, consistency=quorum, timeout=30) as session:
        session.execute("CREATE TABLE three.t (k int PRIMARY KEY, v text)")
        insert = session.prepare("INSERT INTO three.t (k, v) VALUES (?, ?)")
        select = session.prepare("SELECT v FROM three.t WHERE k = ?")
        for number, victim in enumerate((nodes[2], nodes[0])):
            before, after = f"before{number}", f"after{number}"
            for k in KEYS:
                session.execute(insert, (k, before))
            victim.kill()
            with contextlib.suppress(Exception):
                # What was just being sent there is lost; nothing after it is.
                session.execute(insert, (99, after))
            poll("a write without the dead node", lambda text=after: written(session, insert, text), BOOT_SECONDS)
            for k in KEYS:
                session.execute(insert, (k, after))
                assert session.execute(select, (k,)).one() == (after,)
            victim.start()
            poll(
                "the node to be used again",
                lambda address=victim.address: any(touched(session, select, (k,))[0] == address for k in KEYS),
                BOOT_SECONDS,
            )


def written(session, insert, text):
    with contextlib.suppress(Exception):
        session.execute(insert, (98, text))
        return True
    return False
