"""`make ring-upgrade`: release 0.1, which knows no ring, is replaced by a ring under load, as
docs/guide/ring.md says it step by step. Then the ring's members are restarted one after the other.

Clients have idempotent statements and ask again for as long as their timeout allows; they are told
of the single instance alone, and find the others by their driver. No request may fail after that,
and no read may be stale. Each failed attempt is counted.

Then what the guide warns of: release 0.1 beside a ring that has the lease, whose writes the ring
does not hear of. And the way back to 0.1.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from cassandra import ConsistencyLevel
from cassandra.cluster import NoHostAvailable

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.drivers import connect
from afterglow_e2e.process import Failure, poll
from afterglow_e2e.release import build_release_0_1
from afterglow_e2e.ring import Ring

from .hits import Hits
from .load import Load, PythonDriver, prepare

TIMEOUT = 15
ROWS = 2_000
QUORUM = ConsistencyLevel.LOCAL_QUORUM
# What docs/guide/ring.md says for the way back.
BACK = (
    "UPDATE afterglow.lease SET owner = null WHERE scope = 'cql' IF EXISTS",
    "TRUNCATE afterglow.ring",
)


def reason(error):
    """An error in a word or two."""
    if isinstance(error, NoHostAvailable) and getattr(error, "errors", None):
        inner = next(iter(error.errors.values()))
        return f"NoHostAvailable({type(inner).__name__})"
    return type(error).__name__


class Patient(PythonDriver):
    """Asks again, as an application does whose statements are idempotent."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.tries = Counter()

    def ask(self, statement, values):
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                return super().ask(statement, values)
            except Exception as error:
                what = "write" if statement is self.put else "read"
                self.tries[f"{what}: {reason(error)}"] += 1
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


class Phases:
    """What clients saw, from one name to the next."""

    def __init__(self, load, hits):
        self.load, self.hits, self.rows, self.name = load, hits, [], None

    def tries(self):
        return sum((client.driver.tries for client in self.load.clients), Counter())

    def begin(self, name):
        self.end()
        self.name, self.began, self.before = name, time.monotonic(), self.tries()
        self.at, self.points = self.load.total("reads"), len(self.hits.points)
        for client in self.load.clients:
            client.seen.longest_read = client.seen.longest_write = 0.0
        self.hits.note(name)

    def end(self):
        if not self.name:
            return
        points = self.hits.points[self.points :]
        reads = sum(point[2] for point in points)
        ratio = sum(point[1] * point[2] for point in points) / max(reads, 1)
        self.rows.append(
            f"| {self.name} | {time.monotonic() - self.began:.0f} s "
            f"| {self.load.total('reads') - self.at} | {ratio:.1%} "
            f"| {self.load.longest('longest_read'):.2f} s "
            f"| {self.load.longest('longest_write'):.2f} s "
            f"| {dict(self.tries() - self.before) or 'none'} |"
        )
        print(self.rows[-1], flush=True)
        self.name = None


class Upgrade:
    """The single instance, the ring that takes its place, and their clients."""

    def __init__(self, node, table, old, beside):
        self.node, self.table, self.program, self.first = node, table, old, beside
        self.ring = Ring(node.contact, 3)
        # The third is the single instance until then: with its address and its data.
        *self.others, self.single = self.ring.members
        self.settings, self.single.extra = self.single.extra, ()
        self.single.program = old

    def log_of(self, member, since=0):
        return member.log_text()[since:]

    def run(self):
        self.single.start()
        self.lease_is("held", self.single)
        hits = Hits(self.ring)
        drivers = [Patient([self.single], self.table, 5) for _ in range(3)]
        with Load(self.ring, self.table, rows=ROWS, drivers=drivers) as load:
            load.read_all()
            hits.start()
            self.phases = phases = Phases(load, hits)
            phases.begin("0.1 alone")
            time.sleep(10)
            if self.first:
                self.beside()
            self.switch()
            phases.begin("the members get their parts of the rows")
            if not self.first:
                for member in self.others:
                    member.start()
            self.ring.settle()
            phases.begin("the ring")
            time.sleep(10)
            self.rolling(load)
            phases.end()
        hits.stop.set()
        print(f"reads {load.total('reads')}, writes {load.total('writes')}", flush=True)
        load.check(writes=True)
        return load

    def lease_is(self, state, member):
        def shown():
            status, text = member.get("/metrics")
            line = f'afterglow_lease_state{{state="{state}"}} 1'
            return status == 200 and line in text.replace(',frontend="cql"', "")

        poll(f"the lease to be {state}", shown, 90)

    def beside(self):
        """Members beside the single instance, before it is stopped."""
        self.phases.begin("members start beside it")
        for member in self.others:
            member.start()
        for member in self.others:
            self.lease_is("held_by_other", member)
        said = "an instance without this ring holds the lease"
        if said not in self.others[0].log_text():
            raise Failure("a member does not say who has the lease")
        time.sleep(5)

    def switch(self):
        """The single instance is stopped, and comes back as a member."""
        self.phases.begin("it comes back as a member")
        began = time.monotonic()
        self.single.terminate()
        stopped = time.monotonic()
        self.single.extra, self.single.program = self.settings, None
        self.single.start()
        started = time.monotonic()
        self.lease_is("held", self.single)
        print(
            f"stopped after {stopped - began:.2f} s, ready again {started - stopped:.2f} s later; "
            f"the ring has the lease after {time.monotonic() - began:.2f} s at most",
            flush=True,
        )
        before = self.phases.load.total("writes")
        poll("writes to go on", lambda: self.phases.load.total("writes") > before + 20, 60)

    def rolling(self, load):
        """Each member is stopped and started again."""
        for number, member in enumerate(self.ring.members):
            others = {(m.address, m.port) for m in self.ring.members if m is not member}
            spared = lambda of=others: all(c.known() & of for c in load.clients)  # noqa: E731
            poll("drivers to know another instance", spared, 120, every=0.1)
            self.phases.begin(f"member {number + 1} is restarted")
            began = time.monotonic()
            member.terminate()
            stopped = time.monotonic()
            member.start()
            print(
                f"stopped after {stopped - began:.2f} s, ready {time.monotonic() - stopped:.2f} s "
                "later",
                flush=True,
            )
            self.ring.settle()

    def back(self, load):
        """All members are stopped. Release 0.1 refuses their format, and starts on nothing."""
        for member in self.ring.members:
            member.terminate()
        with connect(self.node, consistency=ConsistencyLevel.EACH_QUORUM) as direct:
            for statement in BACK:
                direct.execute(statement)
        self.single.extra, self.single.program = (), self.program
        seen = len(self.single.log_text())
        try:
            self.single.start()
        except Failure:
            said = self.log_of(self.single, seen)
            if "is of format 2, this version reads format 1" not in said:
                raise
            print("0.1 refuses the data directory, and says why")
        else:
            raise Failure("0.1 has started on data of another format")
        shutil.rmtree(self.single.data)
        self.single.start()
        self.lease_is("held", self.single)
        with connect(self.single, consistency=QUORUM) as session:
            read = session.prepare(f"SELECT v FROM {self.table} WHERE k = ? AND c = 0")
            for row, least in enumerate(load.rows.acknowledged):
                for _ in range(2):
                    found = session.execute(read, (row,)).one()
                    if int(found.v if found else 0) < least:
                        raise Failure(f"row {row} is stale after the way back")
        print(f"0.1 serves again: {self.log_of(self.single, seen).splitlines()[:12]}", flush=True)
        self.single.terminate()


def wrong_order(node, table, old):
    """Two instances of 0.1; the ring takes the lease when one has ended. The other goes on writing,
    and the ring does not hear of it. The tables are emptied from the cache once it has ended.
    """
    with contextlib.ExitStack() as stack:
        holder, second = (Afterglow(node.contact, program=old) for _ in range(2))
        for instance in (holder, second):
            stack.callback(instance.stop)
            instance.start()
        second.child.pause()
        ring = stack.enter_context(Ring(node.contact, 1))
        holder.terminate()
        ring.settle()
        second.child.resume()
        (member,) = ring.members
        past = stack.enter_context(connect(second, consistency=QUORUM))
        reader = stack.enter_context(connect(member, consistency=QUORUM))

        def value(row):
            found = reader.execute(f"SELECT v FROM {table} WHERE k = {row} AND c = 0").one()
            return int(found.v)

        def write(session, row, number):
            session.execute(f"INSERT INTO {table} (k, c, v) VALUES ({row}, 0, '{number}')")

        rows = range(200)
        for row in rows:
            write(reader, row, 1_000_000)
            value(row)
        for row in rows:
            write(past, row, 1_000_001)
        stale = sum(value(row) < 1_000_001 for row in rows)
        second.terminate()
        still = sum(value(row) < 1_000_001 for row in rows)
        command = [*member.command()[:1], "invalidate", table, "--data-dir", member.data]
        subprocess.run(command, check=True, capture_output=True)
        mended = sum(value(row) < 1_000_001 for row in rows)
    print(
        f"wrong order: of {len(rows)} rows that 0.1 wrote past the ring {stale} are stale, {still} "
        f"once it has ended, {mended} after `afterglow invalidate {table}`",
        flush=True,
    )
    if mended:
        raise Failure("rows are stale after they were dropped")


def main():
    parser = argparse.ArgumentParser(prog="ring.upgrade", description=__doc__)
    parser.add_argument("--old", type=Path, help="program of release 0.1 (default: built)")
    parser.add_argument(
        "--beside", action="store_true", help="the other members are there before it is stopped"
    )
    options = parser.parse_args()
    os.environ.setdefault("AFTERGLOW_PROFILE", "release")
    old = options.old.resolve() if options.old else build_release_0_1()
    with Cassandra(heap="1G") as node:
        with connect(node) as session:
            table = prepare(session, "shop")
        upgrade = Upgrade(node, table, old, options.beside)
        try:
            load = upgrade.run()
            upgrade.back(load)
        finally:
            upgrade.ring.stop()
        wrong_order(node, table, old)
    print("| | lasts | reads | hits | longest read | longest write | failed attempts |")
    print("\n".join(["|---|---:|---:|---:|---:|---:|---|", *upgrade.phases.rows]))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"ring-upgrade failed: {failure}")
