"""The long form: `make differential`, or `python3 -m differential --statements 100000 --release
5.0`.
"""

import argparse
import contextlib
import multiprocessing
import random as randomness
import secrets
import sys
import time
from collections import Counter

from afterglow_e2e.afterglow import Afterglow, describe
from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.drivers import await_caching
from afterglow_e2e.process import Failure

from .compare import ALLOWED
from .work import work

RELEASES = {"5.0": "5.0.5", "4.1": "4.1.9", "3.11": "3.11.19"}
# Random statements are mostly new ones; with the default a server forgets them as they come. A
# timeout is a difference that says nothing, and comes with the defaults where the machine does much
# else.
SETTINGS = {
    "prepared_statements_cache_size": "200MiB",
    "read_request_timeout": "30000ms",
    "range_request_timeout": "30000ms",
    "write_request_timeout": "30000ms",
}


def campaign(direct, instance, options):
    """All workers; true if nothing differs."""
    before = instance.metrics()
    share = -(-options.statements // options.workers)
    jobs = [
        (
            direct.contact,
            instance.contact,
            n,
            f"{options.seed}-{n}",
            share,
            options.release,
            options.short,
        )
        for n in range(options.workers)
    ]
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        results = pool.starmap(work, jobs)
    seconds = time.monotonic() - began
    done, requests, errors, kinds, allowed, differences = (
        sum((result[at] for result in results), start)
        for at, start in enumerate((0, 0, 0, Counter(), Counter(), []))
    )
    after = instance.metrics()
    for kind, count in sorted(kinds.items()):
        print(f"  {count:8}  {kind}")
    for name, count in allowed.items():
        print(f"  {count:8}  allowed: {name} ({ALLOWED[name]})")
    print(f"  front end: {describe(after, before)}")
    hits, updated = after.hits() - before.hits(), after.updated() - before.updated()
    print(
        f"Cassandra {RELEASES[options.release]}, seed {options.seed}: {done} statements, "
        f"{requests} requests compared, {errors} answers were errors, {hits:.0f} hits, "
        f"{updated:.0f} rows updated by writes, {seconds:.0f} s: "
        f"{len(differences)} differences"
    )
    if not hits or not updated:
        print("no read was a hit, or no row followed a write: too little was shown of the cache")
    return not differences and hits > 0 and updated > 0


def main():
    parser = argparse.ArgumentParser(prog="differential", description=__doc__)
    parser.add_argument(
        "--statements",
        type=int,
        default=100_000,
        help="how many (default: %(default)s)",
    )
    parser.add_argument(
        "--release",
        choices=RELEASES,
        default="5.0",
        help="Cassandra's (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        default=secrets.token_hex(4),
        help="of all choices (default: a new one)",
    )
    parser.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="fewer tables")
    parser.add_argument(
        "--profile",
        default="release",
        help="which build of Afterglow (default: %(default)s)",
    )
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    try:
        with contextlib.ExitStack() as stack:
            direct = stack.enter_context(
                Cassandra(version=RELEASES[options.release], heap="1200M", settings=SETTINGS)
            )
            # Units of some partitions, or of all, are cut off behind their first rows.
            unit = randomness.Random(options.seed).choice(("256KiB", "150B"))
            print(f"units of {unit} at most", file=sys.stderr, flush=True)
            # Where a write was at ANY, no row follows later ones for so long.
            extra = ("--unknown-outcome-hold", "6s", "--partition-unit-size", unit)
            instance = stack.enter_context(
                Afterglow(direct.contact, profile=options.profile, extra=extra)
            )
            await_caching(instance, seconds=120, version=4)
            return 0 if campaign(direct, instance, options) else 1
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
