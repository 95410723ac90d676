"""`make ring-failovers KILLS=100`: an owner of a ring of three is killed with -9 again and again
under load, and comes back at a random moment: before it is missed, or after others own its rows.

A kill counts as a failover if others took the shards. Statements are idempotent, with timeouts of
5 s. No read and no write may fail or be stale, and no write may take longer than `LATE`. All
requests are judged from the moment on when each driver is connected to all. A member is killed only
when every driver knows another one.
"""

import argparse
import os
import random
import secrets
import sys
import time

from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.drivers import connect
from afterglow_e2e.process import Failure, poll
from afterglow_e2e.ring import SHARDS, Ring

from .load import Load, prepare

TIMEOUT = 5
# How much later than at once a write may be acknowledged: its shard has a new owner by then.
LATE = 3.0
MEMBERS = 3
# So many reads come between a kill and the next, at least.
READS = 500


class Failovers:
    """A ring under load whose members are killed in turn."""

    def __init__(self, ring, load, seed):
        self.ring, self.load, self.random = ring, load, random.Random(seed)
        self.ids = {member: ring.status(member)["me"] for member in ring.running()}
        self.failovers, self.in_place = [], 0
        # Windows of the load: before the first kill, and from each to the next.
        self.windows = [load.begin()]

    def shards(self):
        """How many shards each running member owns, as one of them says; None while nobody says."""
        for member in self.ring.running():
            status = self.ring.ask(member, "status")
            if status and status["lease_ms"] > 0:
                return {each["id"]: each["shards"] for each in status["members"]}
        return None

    def owned(self, member):
        return (self.shards() or {}).get(self.ids[member], 0)

    def taken(self, victim):
        owners = self.shards()
        return owners and self.ids[victim] not in owners and sum(owners.values()) == SHARDS

    def is_spared_by(self, victim):
        """Whether every driver knows an instance besides this one. Who comes back is a node for
        drivers once it owns rows: one that knows a single instance has nowhere to go.
        """
        others = {(m.address, m.port) for m in self.ring.running() if m is not victim}
        return all(client.known() & others for client in self.load.clients)

    def kill(self, is_failover=None):
        """Kills an owner, and starts it again: `is_failover` once others have its shards."""
        if is_failover is None:
            is_failover = self.random.random() < 0.9
        victim = self.random.choice([m for m in self.ring.running() if self.owned(m)])
        poll("drivers to know another instance", lambda: self.is_spared_by(victim), 120, every=0.1)
        before = self.load.total("reads")
        self.windows.append(self.load.begin())
        victim.kill()
        began = time.monotonic()
        if is_failover:
            poll("others to own its rows", lambda: self.taken(victim), 60, every=0.05)
            self.failovers.append(time.monotonic() - began)
        else:
            self.in_place += 1
        victim.start()
        members = lambda: len(self.shards() or ()) == MEMBERS  # noqa: E731
        poll("it to be a member again", members, 60, every=0.1)
        poll("clients to go on", lambda: self.load.total("reads") > before + READS, 60, every=0.05)

    def longest(self, name):
        """Of each window."""
        return [self.load.longest(name, window) for window in self.windows]

    def judge(self):
        """Once the load has ended: its last requests count too."""
        load, slowest = self.load, max(self.failovers, default=0)
        kills = len(self.failovers) + self.in_place
        reads, writes = self.longest("longest_read"), self.longest("longest_write")
        for number, longest in enumerate(zip(reads, writes, strict=True)):
            print(f"after kill {number}: longest read %.2f s, longest write %.2f s" % longest)
        print(
            f"{kills} kills, {len(self.failovers)} failovers: others owned the rows after "
            f"{sorted(self.failovers)[len(self.failovers) // 2]:.1f} s (median), {slowest:.1f} s "
            f"at most\n"
            f"reads {load.total('reads')}, writes {load.total('writes')}, stale "
            f"{len(load.total('stale'))}, failed reads {len(load.total('failed_reads'))}, failed "
            f"writes {len(load.total('failed_writes'))}\n"
            f"longest read {max(reads):.2f} s, longest write {max(writes):.2f} s",
            flush=True,
        )
        load.check(writes=True)
        if max(writes) > LATE:
            raise Failure(f"a write took longer than {LATE} s")


def main():
    parser = argparse.ArgumentParser(prog="ring.failover", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many (default: %(default)s)")
    parser.add_argument(
        "--seed", default=secrets.token_hex(3), help="of all choices (default: a new one)"
    )
    options = parser.parse_args()
    os.environ.setdefault("AFTERGLOW_PROFILE", "release")
    print(f"seed {options.seed}", flush=True)
    with Cassandra(heap="1G") as node:
        with connect(node) as session:
            table = prepare(session, "shop")
        with Ring(node.contact, MEMBERS) as ring:
            ring.settle()
            with Load(ring, table, timeout=TIMEOUT) as load:
                load.read_all()
                failovers = Failovers(ring, load, options.seed)
                for number in range(options.kills):
                    failovers.kill()
                    if number % 10 == 9:
                        print(f"{number + 1} kills, {load.total('reads')} reads", flush=True)
            failovers.judge()


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"ring-failovers failed: {failure}")
