"""`make bench-pairs`: whether a change makes requests dearer. Two builds of `afterglow` run beside
each other and are loaded in turn; what counts is the server's CPU a request. Beside a storm it is
how long a lone client waits. Prints medians, and the median of the pairs' ratios. Fails where one
is above the bound.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from afterglow_e2e.afterglow import binary
from afterglow_e2e.process import ROOT, Failure
from afterglow_e2e.release import build_release_0_1

from . import cost, cql, memcache, storm

CASES = {
    **{f"cql-{kind}": (cql, kind) for kind in cql.POLICIES},
    **{f"memcache-{kind}": (memcache, kind) for kind in memcache.SIZES},
    "memcache-storm": (storm, "storm"),
}


def main():
    options = parse()
    os.environ.setdefault("AFTERGLOW_PROFILE", "release")
    before = options.before.resolve() if options.before else build_release_0_1()
    after = options.after.resolve() if options.after else binary()
    for program in (before, after):
        if not os.access(program, os.X_OK):
            raise Failure(f"{program} is no program: name one that `cargo build --release` made")
    cost.alone()
    parent = ROOT / "target" / "scratch"
    parent.mkdir(parents=True, exist_ok=True)
    dear, how = [], {"secured": ("after",)} if options.tls else {}
    if options.rate:
        how["rate"] = options.rate
    for name in options.cases.split(","):
        module, kind = CASES[name]
        with (
            tempfile.TemporaryDirectory(prefix="pairs-", dir=parent) as folder,
            module.measured(
                kind, {"before": before, "after": after}, Path(folder), options.seconds, **how
            ) as run,
        ):
            ratio = compare(name, run, options.pairs)
        most = options.most_wait if module is storm else options.most
        if ratio > most:
            dear.append(f"dearer than {most} times: {name} {ratio:.3f}")
    if dear:
        raise Failure(", ".join(dear))


def parse():
    parser = argparse.ArgumentParser(prog="pairs", description=__doc__)
    parser.add_argument(
        "--before", type=Path, help="program of before (default: release 0.1, built)"
    )
    parser.add_argument("--after", type=Path, help="program of now (default: the release build)")
    parser.add_argument("--pairs", type=int, default=11, help="how many (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=1, help="of each run (default: %(default)s)"
    )
    parser.add_argument(
        "--most", type=float, default=1.03, help="highest ratio (default: %(default)s)"
    )
    parser.add_argument(
        "--most-wait",
        type=float,
        default=1.1,
        help="highest ratio of waits, which differ more from run to run (default: %(default)s)",
    )
    parser.add_argument(
        "--cases", default=",".join(CASES), help="some of %(default)s; default: all"
    )
    parser.add_argument(
        "--tls", action="store_true", help="clients of the program of now come over TLS (CQL only)"
    )
    parser.add_argument(
        "--rate",
        type=int,
        help="requests a second, in equal distances (CQL only; default: as fast as answers come)",
    )
    options = parser.parse_args()
    if unknown := set(options.cases.split(",")) - CASES.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if options.rate is not None and options.rate < 1:
        parser.error(f"--rate {options.rate} sends nothing: give 1 or more a second")
    for word, given in (("--tls", options.tls), ("--rate", options.rate)):
        if given and any(CASES[name][0] is not cql for name in options.cases.split(",")):
            parser.error(f"{word} is for the front end of CQL: add --cases cql-hits,cql-passing")
    return options


def compare(name, run, pairs):
    """Measures pairs in turn, prints a line, and gives the median ratio of CPU a request, or of
    waits at the median.
    """
    costs = {"before": [], "after": []}
    for number in range(pairs):
        # The order changes, so that what grows with time is shared.
        for which in sorted(costs, reverse=number % 2 == 0):
            costs[which].append(run(which, number))
    first = costs["before"][0]
    cost_of = waits if isinstance(first, cost.Wait) else cpu
    return cost_of(name, costs["before"], costs["after"])


def ratios(what, then, now):
    """Of the pairs, the lowest first."""
    return sorted(what(b) / what(a) for a, b in zip(then, now, strict=True))


def cpu(name, then, now):
    """Prints what requests cost, and gives the median ratio."""
    of_pairs = ratios(lambda run: run.cpu, then, now)
    rate = statistics.median(ratios(lambda run: run.rate, then, now))
    before, after = (statistics.median(run.cpu for run in runs) for runs in (then, now))
    middle = statistics.median(of_pairs)
    print(
        f"{name:16} CPU {before:6.2f} us before, {after:6.2f} after: {middle:.3f}"
        f" ({of_pairs[0]:.3f} to {of_pairs[-1]:.3f}); requests a second {rate:.3f}",
        flush=True,
    )
    return middle


def waits(name, then, now):
    """Prints how long a client waited, and gives the median ratio of its p50."""
    of_pairs = ratios(lambda run: run.p50, then, now)
    tail = statistics.median(ratios(lambda run: run.p99, then, now))
    before, after = (statistics.median(run.p50 for run in runs) for runs in (then, now))
    late, later = (statistics.median(run.p99 for run in runs) for runs in (then, now))
    middle = statistics.median(of_pairs)
    print(
        f"{name:16} p50 {before:6.3f} ms before, {after:6.3f} after: {middle:.3f}"
        f" ({of_pairs[0]:.3f} to {of_pairs[-1]:.3f});"
        f" p99 {late:.3f} before, {later:.3f} after: {tail:.3f}",
        flush=True,
    )
    return middle


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"bench-pairs failed: {failure}")
