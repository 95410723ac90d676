"""How many reads a ring answers from its caches, second by second."""

import threading
import time

from afterglow_e2e.afterglow import Metrics


class Hits(threading.Thread):
    """The hit ratio of the whole ring, second by second, and what happened when."""

    def __init__(self, ring):
        super().__init__(daemon=True)
        self.ring, self.began, self.stop = ring, time.monotonic(), threading.Event()
        self.points, self.events, self.last = [], [], {}

    def note(self, what):
        at = time.monotonic() - self.began
        self.events.append((at, what))
        print(f"[{at:5.1f} s] {what}", flush=True)

    def run(self):
        while not self.stop.wait(1):
            hits = reads = 0
            for number, member in enumerate(self.ring.members):
                counts = self.counts(member)
                before = self.last.get(number)
                self.last[number] = counts
                # A process that has begun anew counts from nothing.
                if counts and before and counts[1] >= before[1]:
                    hits += counts[0] - before[0]
                    reads += counts[1] - before[1]
            ratio = hits / reads if reads else 0.0
            self.points.append((time.monotonic() - self.began, ratio, reads))

    def counts(self, member):
        """Hits, and reads that clients asked of this member."""
        status, text = member.get("/metrics") if member.running() else (0, "")
        if status != 200:
            return None
        metrics = Metrics(text)
        answered = metrics.by("afterglow_request_duration_seconds_count", "path")
        served = sum(answered.get(path, 0) for path in ("dram", "flash", "ring"))
        missed = sum(answered.get(path, 0) for path in ("miss", "pass"))
        missed -= reads_of_system(metrics)
        return served, served + missed


def reads_of_system(metrics):
    """Reads of the database's own tables, with which a driver begins at a member. They are not in
    any cache, and no traffic of it."""
    return sum(
        count
        for name, labels, count in metrics.samples
        if name == "afterglow_table_requests_total"
        and labels["path"] in ("miss", "pass")
        and labels["keyspace"].startswith("system")
    )


def mean(points):
    """The hit ratio over some seconds, by reads."""
    reads = sum(reads for *_, reads in points)
    return sum(ratio * reads for _, ratio, reads in points) / max(reads, 1)
