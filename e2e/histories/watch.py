"""What the instances of a ring count and say of it, a few times a second: hits in calm time, and
within two seconds of a takeover.
"""

import threading
import time
from collections import Counter

from afterglow_e2e.afterglow import Metrics

EVERY = 0.2
# So long after a takeover hits count as its own.
SOON = 2.0
# Rows that an instance had cached, for clients of its own and for those of others.
CACHED = ("dram", "buffer", "flash")
NAMES = ("afterglow_hits_total", "afterglow_request_duration_seconds_count")


class Watch(threading.Thread):
    """`with Watch(...)`: it looks until the end of the block. Who is in `still` is not asked."""

    def __init__(self, ring, still):
        super().__init__(daemon=True)
        self.ring, self.still, self.stopping = ring, still, threading.Event()
        # Of each process what it counted last, and when it was asked for that.
        self.last, self.asked_at = {}, {}
        self.known, self.version = {}, 0
        self.takeovers, self.taken_at, self.calm_from = 0, float("-inf"), float("inf")
        # What was seen when, for who wants to know what happened.
        self.log = []
        # Counted in all, within SOON of a takeover, and in calm time.
        self.all, self.soon, self.calm = Counter(), Counter(), Counter()
        # How many looks found each member with a lease.
        self.leased = Counter()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.join(30)

    def run(self):
        while not self.stopping.wait(EVERY):
            # First who owns what: what is counted next belongs to that.
            for status in sorted(self.statuses(), key=lambda status: status["version"]):
                self.follow(status)
            before = self.all.copy()
            for member in self.answering():
                self.count(member)
            new = self.all - before
            self.log.append(f"{time.monotonic_ns()} {reads(new)} reads, {hits(new)} hits")

    def rest(self, seconds):
        """Nothing is broken for so long."""
        self.calm_from = time.monotonic()
        time.sleep(seconds)
        self.calm_from = float("inf")

    def answering(self):
        return [each for each in self.ring.running() if each not in self.still]

    def statuses(self):
        asked = [(member, self.ring.ask(member, "status")) for member in self.answering()]
        self.leased.update(member for member, status in asked if status and status["lease_ms"])
        return [status for _, status in asked if status]

    def follow(self, status):
        if status["version"] <= self.version:
            return
        self.version = status["version"]
        now = {each["id"]: each for each in status["members"]}
        owned = [f"{each['id'][:4]} {each['state']} {each['shards']}" for each in now.values()]
        self.log.append(f"{time.monotonic_ns()} map {self.version}: {', '.join(owned)}")
        for id, before in self.known.items():
            after = now.get(id, {"state": "accused", "shards": 0})
            both_accused = before["state"] == after["state"] == "accused"
            if both_accused and before["shards"] > 0 == after["shards"]:
                self.takeovers += 1
                self.taken_at = time.monotonic()
        self.known = now

    def count(self, member):
        process, began = member.pid, time.monotonic()
        status, text = member.get("/metrics", seconds=1)
        if status != 200:
            return
        wanted = "\n".join(line for line in text.splitlines() if line.startswith(NAMES))
        metrics, counts = Metrics(wanted), Counter()
        for name, label in zip(NAMES, ("tier", "path"), strict=True):
            for word, number in metrics.by(name, label).items():
                counts[f"{label} {word}"] = int(number)
        self.add(process, began, time.monotonic(), counts)

    def add(self, process, began, now, counts):
        """What a process had counted some time between `began` and `now`."""
        new = counts - self.last.get(process, Counter())
        # That is of after the last question that it answered, which may be long ago.
        since = self.asked_at.get(process, float("-inf"))
        self.last[process], self.asked_at[process] = counts, began
        self.all += new
        if self.taken_at <= since and now - self.taken_at <= SOON:
            self.soon += new
        if self.calm_from <= since:
            self.calm += new


def hits(counts):
    """Reads of rows that were cached."""
    return sum(counts[f"tier {tier}"] for tier in CACHED)


def asked(counts):
    """Reads that clients were answered by the owner of the row, another instance."""
    return counts["path ring"]


def reads(counts):
    """Reads that clients asked."""
    return sum(counts[f"path {path}"] for path in ("dram", "flash", "ring", "miss", "pass"))


def share(counts):
    """Which part of the reads found a cached row."""
    return hits(counts) / max(reads(counts), 1)
