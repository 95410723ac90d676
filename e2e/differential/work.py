"""What one process of the long form does."""

import sys
import time

from .runner import Runner

# A path that answers nothing alike is known after so many differences.
ENOUGH = 40


def work(direct, through, number, seed, statements, release, short, hits=None):
    """One worker's share, with keyspaces of its own."""
    runner = Runner(direct, through, number, seed, release, short, hits)
    runner.create()
    began, done = time.monotonic(), 0
    while done < statements and len(runner.differences) < ENOUGH:
        known = len(runner.differences)
        runner.step()
        done += 1
        for difference in runner.differences[known:]:
            print(f"DIFFERENT: {difference}\n", flush=True)
        if done % 5000 == 0:
            rate = done / (time.monotonic() - began)
            print(
                f"worker {number}: {done} statements, {rate:.0f}/s, {len(runner.differences)} differ",
                file=sys.stderr,
            )
    runner.close()
    return (
        done,
        runner.requests,
        runner.errors,
        runner.kinds,
        runner.allowed,
        runner.differences,
        runner.again,
    )
