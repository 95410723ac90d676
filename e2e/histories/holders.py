"""The lease changes hands while an acknowledged write is missing on a quorum of three nodes.

Writes at ONE go to a single node that takes the others for dead: it sends them nothing. Then that
one hangs, the others answer, and another instance takes the lease and caches what a quorum finds.
That may be old, but not for ever. Once every node has the write and the short life of such rows is
over, each read must show it. From then on a write at ONE counts as acknowledged here.
"""

import random as randomness
import re
import secrets
import shutil
import time

from afterglow_e2e.afterglow import Afterglow, describe
from afterglow_e2e.process import Failure, poll, tail
from afterglow_e2e.rawcql import LOCAL_QUORUM, ONE, RawClient

from .clients import Client, Lost, number, schema
from .clients import register as cell
from .record import Record

ALL = 5
PARTITIONS, ROWS = 4, 3
# How the holder ends, and who comes next: another instance, or the same without its files or with
# them.
ENDS = ("terminate", "kill", "replace", "restart", "crash")
# `kill -9` leaves the lease held for a minute; a node that hung is taken for dead for some seconds
# more.
BACK = 300
# Longest life of a row that was filled while writes were in doubt.
SHORT_LIFE = 61
# A node takes others for dead after some twenty seconds, and keeps what it would send them.
CONVICTED = 120
# Longer than any round, so that the doubt of no hand-over ends before its writes are everywhere.
HOLD = ("--unknown-outcome-hold", "30m")


def others(nodes):
    """The contact points beyond the first one, which is named apart."""
    return tuple(part for node in nodes[1:] for part in ("--backend", node.contact))


def options(nodes):
    """Of instances over these nodes."""
    return (*HOLD, *others(nodes))


class Shared:
    """What the statements of `Client` need: here one client does everything, in order."""

    def __init__(self, record, keyspace):
        self.record, self.keyspace, self.levels = record, keyspace, (LOCAL_QUORUM,)
        self.reads = self.writes = 0


class Holders:
    """One run: `rounds` changes of the holder, each with writes in doubt, and the judgement."""

    def __init__(self, seed, nodes, profile=None, ends=ENDS, instances=None):
        self.seed, self.nodes, self.ends = seed, nodes, ends
        self.random = randomness.Random(f"holders-{seed}")
        self.instances = instances or [
            Afterglow(nodes[0].contact, profile=profile, extra=options(nodes)) for _ in range(2)
        ]
        self.holder = 0
        self.record = Record()
        self.shared = Shared(self.record, f"holders_{secrets.token_hex(4)}")
        self.counts = {}
        # Rows that the next holder found older than what was acknowledged, and hits that it served
        # meanwhile.
        self.behind = self.hits = 0

    @property
    def instance(self):
        return self.instances[self.holder]

    # Clients

    def persist(self, what, attempt):
        """Until it is answered. Nodes hang: a request may go to one of them first, and a connection
        with it.
        """

        def answered():
            try:
                return attempt() or True
            except (OSError, Lost, AssertionError):
                return False

        return poll(what, answered, BACK, every=0.2, check=self.instance.child.check)

    def with_client(self, server, work, version=4):
        client = Client.__new__(Client)
        client.shared, client.record, client.random, client.version = (
            self.shared,
            self.record,
            self.random,
            version,
        )
        client.socket, client.prepared = (
            RawClient(server.address, server.port, version, timeout=5),
            {},
        )
        client.server = server.contact
        try:
            return work(client)
        finally:
            client.close()

    def write_all(self, level):
        """A new value in every row; [(register, value, start, timestamp)] of what was
        acknowledged.
        """
        written = []
        for partition in range(PARTITIONS):
            for row in range(ROWS):
                self.persist(
                    f"a write at {level} to be acknowledged",
                    lambda at=(partition, row): self.with_client(
                        self.instance, lambda client: written.append(self.write(client, *at, level))
                    ),
                )
        return written

    def write(self, client, partition, row, level):
        value, timestamp = self.record.value(), self.record.timestamp(self.random, mortal=True)
        text = "INSERT INTO KS.plain (k, c, v) VALUES (?, ?, ?)"
        values = [number(partition), number(row), value.to_bytes(8, "big")]
        register, start = cell(partition, row, "v"), self.record.now()
        acknowledged = False
        try:
            answer = client.execute(text, values, level, timestamp)
            if answer.error:
                raise Lost(answer.error)
            acknowledged = True
        finally:
            # At ONE it counts when it is everywhere: `settle` says so.
            if level != ONE or not acknowledged:
                self.record.wrote({register: value}, start, acknowledged, timestamp)
        self.shared.writes += 1
        return register, value, start, timestamp

    def read_all(self, server, level=LOCAL_QUORUM, judged=False):
        """{register: value} of every row."""
        found = {}

        def read(client, partition, row):
            start = self.record.now()
            text = "SELECT v FROM KS.plain WHERE k = ? AND c = ?"
            rows = client.rows(text, [number(partition), number(row)], level)
            register = cell(partition, row, "v")
            found[register] = rows[0][0] if rows else None
            if judged:
                self.record.read({register: found[register]}, start)
                self.shared.reads += 1

        for partition in range(PARTITIONS):
            for row in range(ROWS):
                self.persist(
                    f"a read at {level} to be answered",
                    lambda at=(partition, row): self.with_client(
                        server, lambda client: read(client, *at)
                    ),
                )
        return found

    # The nodes and the holder

    def only(self):
        """The node that has the writes at ONE alone."""
        return self.random.choice(self.nodes)

    def answering(self, nodes):
        """Only these do; the others hang."""
        for node in self.nodes:
            if node in nodes:
                node.resume()
            else:
                node.pause()

    def only_answers(self, alone):
        """The others hang, and it knows: they are sent nothing that they would find later."""
        known = alone.log.stat().st_size
        self.answering([alone])
        others = [node.address for node in self.nodes if node is not alone]

        def convicted():
            with alone.log.open("rb") as log:
                log.seek(known)
                told = log.read().decode(errors="replace")
            return all(re.search(rf"/{re.escape(at)}(:\d+)? is now DOWN", told) for at in others)

        poll("the others to count as dead", convicted, CONVICTED, check=alone.child.check)

    def end(self, how):
        """The holder ends like that, and the next one starts."""
        if how in ("terminate", "restart"):
            self.instance.terminate()
        else:
            self.instance.kill()
        if how in ("terminate", "kill"):
            self.holder = 1 - self.holder
        if how == "replace":
            shutil.rmtree(self.instance.data)
        self.instance.start(BACK)
        self.await_lease()

    def await_lease(self):
        held = lambda: self.instance.metrics().total("afterglow_lease_state", state="held") == 1  # noqa: E731
        try:
            poll("the lease to be held", held, BACK, every=0.2, check=self.instance.child.check)
        except Failure as failure:
            nodes = "\n".join(tail(node.log, 10) for node in self.nodes)
            raise Failure(f"{failure}\n{tail(self.instance.log)}\nThe nodes:\n{nodes}") from failure

    def round(self, how):
        alone = self.only()
        self.write_all(LOCAL_QUORUM)
        self.read_all(self.instance, judged=True)
        self.only_answers(alone)
        doubtful = self.write_all(ONE)
        self.answering([node for node in self.nodes if node is not alone])
        self.end(how)
        before = self.instance.metrics().hits()
        # Twice: what the first one finds is what the second one is served.
        for _ in range(2):
            found = self.read_all(self.instance)
        self.hits += self.instance.metrics().hits() - before
        self.behind += sum(found[register] != value for register, value, _, _ in doubtful)
        self.settle(doubtful)
        self.read_all(self.instance, judged=True)
        self.counts[how] = self.counts.get(how, 0) + 1

    def settle(self, doubtful):
        """Every node has what was acknowledged, and no row lives on that was filled before."""
        self.answering(self.nodes)
        everywhere = self.read_all(self.nodes[0], ALL)
        for register, value, _, _ in doubtful:
            if everywhere[register] != value:
                raise Failure(
                    f"register {register} is {everywhere[register]} at ALL, not {value} as acknowledged"
                )
        time.sleep(SHORT_LIFE)
        for register, value, start, timestamp in doubtful:
            self.record.wrote({register: value}, start, True, timestamp)

    def create(self):
        with RawClient(self.instance.address, self.instance.port, timeout=60) as client:
            for text in schema(self.shared.keyspace, len(self.nodes)):
                answer = client.query(text, consistency=ONE)
                if answer.error:
                    raise Failure(f"{text}: {answer.error}")

    # The run

    def go(self, rounds, folder, profile=None):
        """(fine, words): whether the history can be explained, and what there was of it."""
        began = time.monotonic()
        try:
            self.instance.start(BACK)
            self.await_lease()
            self.create()
            for how in self.random.sample(self.ends, len(self.ends))[:rounds]:
                self.round(how)
            after = self.instance.metrics()
            if self.hits < rounds:
                raise Failure(f"{self.hits:.0f} hits in {rounds} rounds judge nothing of the cache")
        finally:
            self.answering(self.nodes)
            for instance in self.instances:
                instance.stop()
        words = (
            f"seed {self.seed}: {time.monotonic() - began:.0f} s, holders that ended {self.counts}, {self.behind} rows "
            f"found behind and {self.hits:.0f} hits meanwhile, {self.shared.reads} reads, {self.shared.writes} writes"
        )
        path = folder / f"holders-{self.seed}.jsonl"
        return self.record.close(path, profile, describe(after), words)
