"""Processes of a ring that do not reach each other; `make history RING=4` is the long form."""

import socket
from contextlib import ExitStack, closing

import pytest
from ring.load import Load, PythonDriver, prepare

from afterglow_e2e.network import Network, lacking
from afterglow_e2e.process import free_port, poll
from afterglow_e2e.relay import Relay
from afterglow_e2e.ring import SHARDS, Ring

# A write through who is cut off waits for 10 s, and is tried at another one then.
TIMEOUT = 60
HOMES = [(f"127.0.3.{n}", ()) for n in (21, 22)]


class Apart:
    """A ring whose members can be cut off from each other; all of them reach the database. Where
    there are no network namespaces it has two members, with a relay before each.
    """

    def __init__(self, stack, cassandra):
        self.network, homes = None, HOMES
        if not lacking():
            self.network = stack.enter_context(Network(3, 1))
            homes = [(host.address, host.wrapper) for host in self.network.hosts]
            for host in self.network.hosts:
                self.show(stack, host, cassandra)
        ring = Ring(cassandra.contact, len(homes), homes=homes, relayed=not self.network)
        # As the nodes of a cluster have: some drivers know one port alone.
        for member in ring.members:
            member.port = ring.members[0].port
        self.ring = stack.enter_context(ring)

    @staticmethod
    def show(stack, host, cassandra):
        """The database is in another network. It is at its own address in this one too."""
        here = (cassandra.address, cassandra.port)
        relay = Relay(*here, here, listener=host.listen(*here))
        stack.callback(relay.close)

    def cut_off_the_first(self):
        for way in self.ways():
            self.network.cut(*way)
        for relay in self.ring.relays:
            relay.block()

    def mend(self):
        for way in self.ways():
            self.network.mend(*way)
        for relay in self.ring.relays:
            relay.unblock()

    def ways(self):
        """From the first host to each other one, and back."""
        first, *others = self.network.hosts if self.network else [None]
        return [way for other in others for way in ((first, other), (other, first))]

    def who_lost(self):
        """(who is no member any more, another that is one), once there is somebody. Of two members
        that do not reach each other either may be the one.
        """
        for member in self.ring.members:
            status = self.ring.ask(member, "status")
            if not status or not status["lease_ms"]:
                continue
            owners = {each["id"] for each in status["members"] if each["shards"]}
            owned = sum(each["shards"] for each in status["members"])
            if len(owners) == len(self.ring.members) - 1 and owned == SHARDS:
                return self.lost(owners), member
        return None

    def lost(self, owners):
        ids = [(self.ring.status(member)["me"], member) for member in self.ring.members]
        (lost,) = (member for id, member in ids if id not in owners)
        return lost

    def is_member(self, member):
        status = self.ring.ask(member, "status")
        return (
            status
            and status["lease_ms"] > 0
            and len(status["members"]) == len(self.ring.members)
            and all(each["state"] == "active" for each in status["members"])
        )


@pytest.fixture
def apart(cassandra, direct, keyspace, no_ring):
    with ExitStack() as stack:
        yield Apart(stack, cassandra)


@pytest.mark.timeout(400)
def test_no_read_is_stale_through_who_is_cut_off_and_comes_back(apart, direct, keyspace):
    ring, table = apart.ring, prepare(direct, keyspace)
    ring.settle()
    # One that writes through all, and a reader of each member alone.
    writer = PythonDriver(ring.members, table, TIMEOUT)
    readers = [PythonDriver([each], table, TIMEOUT, is_pinned=True) for each in ring.members]
    with Load(ring, table, rows=80, writes=3, drivers=[writer, *readers]) as load:
        for client in load.clients[1:]:
            client.writes = 10**9
        load.read_all()

        def await_all(what):
            """Each client reads on, and the writer writes on."""
            reads, writes = [c.seen.reads for c in load.clients], load.total("writes")

            def went_on():
                more = [c.seen.reads - n for c, n in zip(load.clients, reads, strict=True)]
                return min(more) > 100 and load.total("writes") > writes + 10 or load.crashed()

            poll(f"clients to go on {what}", went_on, 120)

        apart.cut_off_the_first()
        lost, other = poll("others to own the rows of who is cut off", apart.who_lost, 90)
        poll("it to have no lease", lambda: ring.status(lost)["lease_ms"] == 0, 30)
        await_all("while it is cut off")
        assert ring.status(lost)["lease_ms"] == 0
        poll("another to have one", lambda: ring.status(other)["lease_ms"] > 0, 30)
        assert not apart.network or lost is ring.members[0]
        apart.mend()
        for member in ring.members:
            poll("it to be a member again", lambda of=member: apart.is_member(of), 120)
        await_all("afterwards")
    load.check(writes=True)


def test_a_relay_that_lets_nothing_through_keeps_connections_and_tells_nobody():
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        relay = Relay("127.0.0.1", port, server.getsockname())
        with closing(relay), socket.create_connection(("127.0.0.1", port), 10) as client:
            far, _ = server.accept()
            with far:
                far.settimeout(10)
                client.sendall(b"before")
                assert far.recv(6) == b"before"
                relay.block()
                client.sendall(b"late")
                far.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    far.recv(4)
                relay.unblock()
                far.settimeout(10)
                assert far.recv(4) == b"late"
