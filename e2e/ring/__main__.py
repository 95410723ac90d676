"""`make demo-ring`: a stock Cassandra, two instances as one cache, three drivers (Python, Java, Go)
under load. One instance is killed and comes back, the other stands still for 10 s, the two are cut
off from each other for 10 s, one leaves and joins again. Prints what clients saw; the hit ratio
over time is a plot in target/ring/report.html. It fails if a read is stale, if any request fails
(all are idempotent), or if too few reads are hits at the end, once both have their rows again.

Each instance is a host of its own, with a network namespace; as root. Elsewhere both have this
machine's network, and a relay before each blocks its links. Drivers' timeouts are 15 s.
"""

import os
import sys
import time
from contextlib import ExitStack

from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.drivers import connect
from afterglow_e2e.network import Network, lacking
from afterglow_e2e.process import ROOT, Failure
from afterglow_e2e.ring import Ring

from .hits import Hits, mean
from .load import TIMEOUT, Load, PythonDriver, prepare
from .report import write_report
from .told import told_drivers

OUT = ROOT / "target" / "ring"
KEYSPACE = "shop"
STILL = 10  # seconds that an instance stands still, and that the two are cut off
DRIVERS = 3
# At the end at least this part of the reads are hits; more than 90 % is usual. `LAST`: of how many
# seconds.
LEAST_HITS = 0.6
LAST = 8


class Links:
    """Those between the two instances: of the network, or through relays."""

    def __init__(self, network, relays):
        self.network, self.relays = network, relays

    def cut(self):
        for relay in self.relays:
            relay.block()
        if self.network:
            one, other = self.network.hosts
            self.network.cut(one, other)
            self.network.cut(other, one)

    def mend(self):
        for relay in self.relays:
            relay.unblock()
        if self.network:
            one, other = self.network.hosts
            self.network.mend(one, other)
            self.network.mend(other, one)


def cut_off(links, hits):
    """Neither instance hears from the other; both reach the database and their clients."""
    links.cut()
    hits.note(f"the two are cut off from each other for {STILL} s")
    time.sleep(STILL)
    links.mend()
    hits.note("they reach each other again")


def scenes(ring, links, hits):
    first, second = ring.members
    time.sleep(10)
    hits.note("instance 1 is killed with -9")
    first.kill()
    time.sleep(10)
    hits.note("instance 1 is started again")
    first.start()
    time.sleep(15)
    hits.note(f"instance 2 stands still for {STILL} s")
    second.child.pause()
    time.sleep(STILL)
    second.child.resume()
    hits.note("instance 2 goes on")
    ring.settle()
    hits.note("both have the same part of the rows")
    cut_off(links, hits)
    ring.settle()
    hits.note("both have the same part of the rows")
    ring.command(first, "leave")
    hits.note("instance 1 has left the ring")
    time.sleep(5)
    hits.note("instance 1 is stopped and started, and joins again")
    first.terminate()
    first.start()
    ring.settle()
    hits.note("both have the same part of the rows")
    time.sleep(10)


def judge(load, hits):
    """What clients saw, in lines.

    Raises:
        Failure: They saw what they must not, or the ring answers too little from its caches.
    """
    steady = mean(hits.points[-LAST:])
    lines = [
        f"reads {load.total('reads')}, writes {load.total('writes')}",
        f"errors of reads {len(load.total('failed_reads'))}, of writes "
        f"{len(load.total('failed_writes'))}",
        f"longest read {load.longest('longest_read'):.1f} s, longest write "
        f"{load.longest('longest_write'):.1f} s",
        f"stale reads {len(load.total('stale'))}",
        f"hit ratio at the end {steady:.1%}",
    ]
    print("\n".join(lines), flush=True)
    load.check(writes=True)
    if steady < LEAST_HITS:
        raise Failure(f"fewer than {LEAST_HITS:.0%} of the last reads are hits")
    return lines


def drivers(members, table):
    """Java, Go and Python; Python for those whose tools are missing."""
    told = told_drivers(members, KEYSPACE, OUT)
    python = [PythonDriver(members, table) for _ in range(DRIVERS - len(told))]
    return python + told


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("AFTERGLOW_PROFILE", "release")
    with ExitStack() as stack:
        network = None
        if reason := lacking():
            print(f"links are cut by relays: {reason}", file=sys.stderr)
        else:
            network = stack.enter_context(Network(2, 1))
        homes = [(f"127.0.3.{n}", ()) for n in (1, 2)]
        if network:
            homes = [(host.address, host.wrapper) for host in network.hosts]
        node = stack.enter_context(
            Cassandra(heap="1G", address=network.ours[1] if network else None)
        )
        with connect(node) as session:
            table = prepare(session, KEYSPACE)
        ring = Ring(node.contact, 2, homes=homes, relayed=not network)
        # As the nodes of a cluster have: some drivers know one port alone.
        for member in ring.members:
            member.port = ring.members[0].port
        show(stack.enter_context(ring), Links(network, ring.relays), table)


def show(ring, links, table):
    hits = Hits(ring)
    hits.start()
    hits.note("two instances are open")
    ring.settle()
    using = drivers(ring.members, table)
    names = ", ".join(driver.name for driver in using)
    hits.note("both have the same part of the rows")
    hits.note(f"drivers begin, with timeouts of {TIMEOUT} s: {names}")
    with Load(ring, table, drivers=using) as load:
        load.read_all()
        scenes(ring, links, hits)
    hits.stop.set()
    lines = judge(load, hits)
    report = write_report(OUT / "report.html", hits, lines)
    print(f"report: {report}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"demo-ring failed: {failure}")
