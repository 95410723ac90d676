"""One run: fresh tables, clients at work, faults, and the judgement."""

import random as randomness
import secrets
import sys
import time

from afterglow_e2e.afterglow import describe
from afterglow_e2e.process import Failure, poll
from afterglow_e2e.rawcql import ONE, RawClient

from .bounded import POLICIES
from .clients import Clients, schema
from .faults import Faults
from .floors import GRACE, complaints
from .record import Record, verdict

EVERYTHING = ("kill", "kill", "terminate", "succeed", "hold", "cut", "slow", "step", "invalidate")
# A node of Cassandra takes long to come back, so this is for the campaign only.
FELL = ("fell",)
# A killed node replays its log before it answers; on a machine that does much else besides that
# takes minutes.
BACK = 300


class Run:
    """What a run needs and what came of it."""

    def __init__(
        self,
        seed,
        instance,
        nodes,
        relay=None,
        clock=None,
        wanted=EVERYTHING,
        levels=None,
        factor=1,
        write_levels=None,
        limited=False,
    ):
        self.seed, self.instance, self.nodes, self.factor = seed, instance, nodes, factor
        random = randomness.Random(f"faults-{seed}")
        self.faults = Faults(random, instance, nodes, relay, clock, wanted)
        self.levels, self.write_levels, self.limited = levels, write_levels, limited
        self.keyspace = None
        self.record, self.figures = Record(), {}

    def create(self):
        """The tables, made through Afterglow in a keyspace of their own: what an earlier run left
        is of no concern.
        """
        poll("the tables to be made", self.made, BACK, every=0.5)

    def made(self):
        """Whether all of them were; asked again, in another keyspace.

        None is dropped. A node that was away hears of a drop and of what follows it at once. It can
        end up with tables whose every read and PREPARE fails (Cassandra 5.0.5: "Unknown CF").
        """
        self.keyspace = f"histories_{secrets.token_hex(4)}"
        try:
            for text in schema(self.keyspace, self.factor):
                # A busy machine can take longer over a schema than clients wait for a row.
                with RawClient(self.instance.address, self.instance.port, timeout=60) as client:
                    answer = client.query(text, consistency=ONE)
                if answer.error:
                    raise Failure(f"{text}: {answer.error}")
            return True
        except (OSError, Failure) as reason:
            print(f"no tables yet: {reason!r}", file=sys.stderr)
            return False

    def go(self, seconds, folder, profile):
        """(fine, words): whether the history can be explained, and what there was of it."""
        self.create()
        options = {"levels": self.levels} if self.levels else {}
        options |= {"write_levels": self.write_levels, "truncates": len(self.nodes) == 1}
        if self.instance.policies == POLICIES:
            options["nodes"] = self.nodes
        before, self.faults.keyspace = time.monotonic(), self.keyspace
        self.faults.counted.begin()
        with Clients(self.record, [self.instance], self.keyspace, self.seed, **options) as clients:
            try:
                self.faults.run(seconds)
            finally:
                for node in self.nodes:
                    node.resume()
            self.await_enough(clients, seconds)
        counted, last = self.faults.counted.sums(), describe(self.instance.metrics())
        asked = clients.reads
        poll(
            "the database to answer a sweep of all rows",
            lambda: self.swept(clients),
            BACK,
            every=0.5,
        )
        words = (
            f"seed {self.seed}{' with small units' * self.limited}: {time.monotonic() - before:.0f} s, "
            f"{clients.reads} reads, {clients.writes} writes, {clients.failures} failures, faults {self.faults.counts}, {counted['hits']} hits, "
            f"{counted['passed']} passed, {counted['updated']} rows updated by writes, "
            f"{counted['refreshed']} read again after them, {counted['beyond']} reads beyond a unit, "
            f"{counted['repeated']} writes in doubt sent again and {counted['settled']} settled"
        )
        path = folder / f"history-{self.seed}.jsonl"
        fine, words = self.record.close(path, profile, last, words)
        judged = verdict(words)
        wrong = [f"clients died: {clients.errors}"] if clients.errors else []
        if judged:
            told = {"seconds": seconds, "lulls": self.faults.lulls, "asked": asked}
            self.figures = counted | judged | told | {"limited": self.limited}
            wrong += complaints(self.figures)
        return fine and bool(judged) and not wrong, "\n".join([words, *wrong])

    def await_enough(self, clients, seconds):
        """Until clients have seen enough of the cache, or it is too late."""
        end = time.monotonic() + GRACE
        while time.monotonic() < end:
            seen = {"asked": clients.reads, "acknowledged": clients.writes, "seconds": seconds}
            if not any(complaints(self.faults.counted.sums() | seen)):
                return
            time.sleep(0.5)

    @staticmethod
    def swept(clients):
        try:
            clients.sweep()
            return True
        except Exception as reason:
            print(f"not swept yet: {reason!r}", file=sys.stderr)
            return False
