"""A ring that grows and loses members under load, in short. `make ring-growth`, `make ring-drivers`
and `make ring-failovers` are the long forms, with bounds of time.
"""

import pytest
from ring.drivers import LEAST, NEVER_LEARNT, ROWS, programs, to_owner
from ring.failover import MEMBERS, Failovers
from ring.growth import judge_moves
from ring.load import Load, prepare

from afterglow_e2e.process import Failure, poll
from afterglow_e2e.ring import Ring

KILLS = 2
# The Node driver knows one port alone, so each instance has an address of its own.
HOMES = [(f"127.0.3.{n}", ()) for n in (11, 12, 13, 14)]


@pytest.fixture
def table(direct, keyspace):
    """Empty: a row of the test before could hide that one is stale."""
    table = prepare(direct, keyspace)
    direct.execute(f"TRUNCATE {table}")
    return table


@pytest.fixture
def ring(cassandra, table, no_ring):
    """Three members that share the rows, and one that does not run yet."""
    ring = Ring(cassandra.contact, MEMBERS + 1, homes=HOMES)
    for member in ring.members:
        member.port = ring.members[0].port
    try:
        for member in ring.members[:MEMBERS]:
            member.start()
        yield ring.settle()
    finally:
        ring.stop()


@pytest.mark.timeout(400)
def test_a_fourth_gets_a_quarter_and_drivers_learn_of_it(ring, table, keyspace, tmp_path):
    first, fourth = ring.members[0], ring.members[-1]
    owned = ring.owners(first)
    clients = programs(ring.members[0], tmp_path, keyspace)
    try:
        for row in range(ROWS):
            clients["python"]("write", row, 0, "0")
        with Load(ring, table, clients=1, rows=200, members=ring.running()) as load:
            load.read_all()
            fourth.start()
            ring.settle()
        load.check(writes=True)
        # It fails by itself where another part has moved, or shards between the others.
        judge_moves(owned, ring.owners(first), ring.status(fourth)["me"])
        for name, client in clients.items():
            if "a third joins" not in NEVER_LEARNT.get(name, ()):
                reads = lambda told=client: to_owner(ring, told) >= LEAST  # noqa: E731
                poll(f"{name} to send its reads to the owner", reads, 60)
    finally:
        for client in clients.values():
            client.close()


def test_shards_that_move_between_members_that_stay_are_seen():
    quarter, rest = ["a"] * 1024, ["a", "b", "c"] * 1024
    judge_moves(quarter + rest, ["d"] * 1024 + rest, "d")
    with pytest.raises(Failure, match="between members"):
        judge_moves(quarter + rest, ["d"] * 1024 + ["b", *rest[1:]], "d")
    with pytest.raises(Failure, match="a quarter"):
        judge_moves(quarter + rest, quarter + rest, "d")


@pytest.mark.timeout(400)
def test_no_statement_fails_or_is_stale_while_owners_are_killed(ring, table):
    with Load(ring, table, clients=2, rows=200, members=ring.running()) as load:
        load.read_all()
        failovers = Failovers(ring, load, "short")
        for _ in range(KILLS):
            failovers.kill(is_failover=True)
    load.check(writes=True)
    assert len(failovers.failovers) == KILLS
    # Each window has requests of its own, so none is left out.
    assert min(failovers.longest("longest_read")) > 0
