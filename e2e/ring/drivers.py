"""`make ring-drivers`: how many reads each driver sends to the owner, after each change of a ring.

Three instances have an address each and one port, because the Node driver knows one port alone. In
turn one joins, is killed, comes back and leaves. After each change every driver has 30 s, then
reads every row once. What it sent to another instance than the owner is counted by that instance.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.clients import Client, build, rust
from afterglow_e2e.drivers import connect
from afterglow_e2e.process import Failure, poll
from afterglow_e2e.ring import Ring

from .load import TokenAware

KEYSPACE = "shop"
ROWS = 400
# Seconds that a driver has to learn of a change.
SECONDS = 30
LEAST = 0.99
# What some drivers never learn, as docs/internals/ring.md says: these parts are shown, not judged.
NEVER_LEARNT = {
    "go": {"the second is killed"},
    "node": {"a third joins", "the second is killed", "it comes back"},
}

OLD_OWNER = {"from": "old_owner"}


def programs(server, folder, keyspace=KEYSPACE):
    """A client for each driver whose tools are here, connected; what is missing is said."""
    clients = {"python": TokenAware(server, keyspace)}
    for language in ("java", "go", "node", "cpp"):
        command = build(language)
        if command is None:
            print(f"{language} is left out: its tools are missing", flush=True)
            continue
        clients[language] = Client(command, server, keyspace, folder / f"{language}.log")
    clients["rust"] = Client(rust(), server, keyspace, folder / "rust.log")
    return clients


def elsewhere(ring):
    """Reads of rows that the instance that was asked does not own. The first read of a row after a
    move, which the owner finds at the old owner, counts as one of the ring too: not here.
    """
    count = 0
    for member in ring.running():
        metrics = member.metrics()
        count += metrics.hits(tier="ring")
        count -= metrics.total("afterglow_carried_total", missing_ok=True, **OLD_OWNER)
        count += metrics.total("afterglow_passes_total", missing_ok=True, reason="not_owner")
    return count


def to_owner(ring, client):
    """The part of the reads that the owner was asked at once."""
    before = elsewhere(ring)
    for row in range(ROWS):
        client("read", row, 0)
    return 1 - (elsewhere(ring) - before) / ROWS


class Changes:
    """What befalls the ring, and what each driver makes of it."""

    def __init__(self, ring, clients):
        self.ring, self.clients, self.seen = ring, clients, []

    def judge(self, what):
        """Every driver has some seconds; what they then know is written down."""
        time.sleep(SECONDS)
        shares = {name: to_owner(self.ring, client) for name, client in self.clients.items()}
        self.seen.append((what, shares))
        row = "  ".join(f"{name} {share:6.1%}" for name, share in shares.items())
        print(f"{what:22} {row}", flush=True)

    def run(self):
        first, second, third = self.ring.members
        self.judge("two instances")
        third.start()
        self.ring.settle()
        self.judge("a third joins")
        second.kill()
        poll("others to own its rows", lambda: self.owners() == 2, 60)
        self.judge("the second is killed")
        second.start()
        self.ring.settle()
        self.judge("it comes back")
        self.ring.command(third, "leave")
        poll("two to own all", lambda: self.owners() == 2, 60)
        self.judge("the third leaves")
        assert first.running()

    def owners(self):
        status = self.ring.status(self.ring.members[0])
        return sum(each["shards"] > 0 for each in status["members"])

    def check(self):
        missed = []
        for what, shares in self.seen:
            for name, share in shares.items():
                if share >= LEAST:
                    continue
                told = f"{name} sends {share:.1%} to the owner after: {what}"
                if what in NEVER_LEARNT.get(name, ()):
                    print(f"{told}; it never learns that", flush=True)
                else:
                    missed.append(told)
        if missed:
            raise Failure("; ".join(missed))


def main():
    parser = argparse.ArgumentParser(prog="ring.drivers", description=__doc__)
    parser.parse_args()
    os.environ.setdefault("AFTERGLOW_PROFILE", "release")
    with Cassandra(heap="1G") as node, tempfile.TemporaryDirectory() as logs:
        with connect(node) as session:
            session.execute(
                f"CREATE KEYSPACE {KEYSPACE} WITH replication = "
                "{'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            session.execute(
                f"CREATE TABLE {KEYSPACE}.rows (k int, c int, v text, PRIMARY KEY (k, c))"
            )
        ring = Ring(node.contact, 3, homes=[(f"127.0.3.{n}", ()) for n in (1, 2, 3)])
        for member in ring.members:
            member.port = ring.members[0].port
        clients = {}
        try:
            for member in ring.members[:2]:
                member.start()
            ring.settle()
            clients = programs(ring.members[0], Path(logs))
            for row in range(ROWS):
                clients["python"]("write", row, 0, "value")
            changes = Changes(ring, clients)
            changes.run()
            changes.check()
        finally:
            for client in clients.values():
                client.close()
            ring.stop()


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"ring-drivers failed: {failure}")
