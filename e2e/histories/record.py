"""What clients did and saw, as events of registers, for `afterglow-testkit check-history` to judge.

A register is one cell: column v or w of a row, or the static column s of a partition. It may also
be v of a row that only conditional statements write. Every write but conditional ones has a
timestamp of the client's. So the writes of a register have an order, whatever the order in which
they were sent. It is by timestamp; of equal ones a deletion comes after a value, a larger value
after a smaller one.
"""

import json
import re
import subprocess
import threading
import time

from afterglow_e2e.afterglow import binary

SECOND = 10**9
# No cell is served beyond its end, also where Afterglow's clock is stepped. The wall clock and the
# one that events go by may run apart by this much in the life of a cell.
APART = SECOND // 10
# What the checker says of it.
VERDICT = re.compile(
    r"(\d+) reads judged, (\d+) writes acknowledged, (\d+) of unknown outcome\n(?:(\d+) READS)?"
)


def verdict(said):
    """What the checker has counted, by name; nothing where it came to no verdict."""
    judged = VERDICT.search(said)
    names = ("reads", "acknowledged", "unknown", "stale_or_wrong")
    return dict(zip(names, (int(n or 0) for n in judged.groups()), strict=True)) if judged else {}


class Record:
    """All events of a run. Threads append."""

    # Another program that is to judge the same file.
    second = None

    def __init__(self):
        self.lock = threading.Lock()
        self.events = []
        self.micros = time.time_ns() // 1000
        self.tie = None
        self.number = 0

    @staticmethod
    def now():
        return time.monotonic_ns()

    def value(self):
        """A number never written before."""
        with self.lock:
            self.number += 1
            return self.number

    def timestamp(self, random, mortal):
        """A write time: later than all before, tied with one of them, or in the past. What is
        `mortal` never ties.
        """
        with self.lock:
            luck = random.random()
            if luck < 0.1 and self.tie and not mortal:
                return self.tie
            # Even when new, odd when in the past: the two never meet.
            self.micros = max(self.micros + 2, time.time_ns() // 2000 * 2)
            if luck < 0.2 and not mortal:
                return self.micros - 2 * random.randrange(1, 10**6) - 1
            self.tie = None if mortal else self.micros
            return self.micros

    def wrote(self, cells, start, acknowledged, timestamp=None, life=None, by=None):
        """A write of {register: value or None} through the server `by`; `life` is its TTL in
        seconds.
        """
        end = self.now() if acknowledged else None
        with self.lock:
            for register, value in cells.items():
                deletes = value is None
                order = None if timestamp is None else (timestamp, deletes, value or 0, 0)
                self.events.append(("write", register, value, start, end, order, by))
                if life is not None and not deletes:
                    # Seconds are counted whole, rounded down from when the coordinator took the
                    # write.
                    gone = None if end is None else end + life * SECOND + APART
                    begins = start + (life - 1) * SECOND - APART
                    self.events.append(
                        (
                            "write",
                            register,
                            None,
                            max(start, begins),
                            gone,
                            (timestamp, 0, value, 1),
                            by,
                        )
                    )

    def read(self, cells, start, by=None):
        """A read that the server `by` answered with {register: value or None}."""
        end = self.now()
        with self.lock:
            self.events += [
                ("read", register, value, start, end, None, by) for register, value in cells.items()
            ]

    def save(self, path):
        """One JSON object a line; orders become numbers."""
        ranks = {}
        for kind, register, _, _, _, order, _ in self.events:
            if kind == "write" and order is not None:
                ranks.setdefault(register, set()).add(order)
        ranks = {
            of: {order: rank for rank, order in enumerate(sorted(all_of), 1)}
            for of, all_of in ranks.items()
        }
        with path.open("w") as out:
            for kind, register, value, start, end, order, by in self.events:
                event = {"op": kind, "key": register, "value": value, "start": start, "end": end}
                if order is not None:
                    event["order"] = ranks[register][order]
                if by is not None:
                    event["by"] = by
                out.write(json.dumps(event) + "\n")

    def close(self, path, profile, counted, words):
        """(fine, words) of a run: whether no read is stale or wrong. The events stay in `path` only
        where one is; then the words have `counted` too.
        """
        fine, said = self.judge(path, profile)
        words = f"{words}: {said.strip()}"
        if fine:
            path.unlink()
        else:
            words += f"\n{path} has all events; {counted}"
        return fine, words

    def judge(self, path, profile):
        """Whether no read is stale or wrong, and what the checker says."""
        self.save(path)
        command = [binary("afterglow-testkit", profile), "check-history", path]
        said = subprocess.run(command, capture_output=True, text=True)
        fine, words = said.returncode == 0, said.stdout + said.stderr
        if self.second:
            said = subprocess.run([self.second, path], capture_output=True, text=True)
            fine, words = fine and said.returncode == 0, words + said.stdout + said.stderr
        return fine, words
