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
from .floors import REFRESHED, hits_of
from .work import work

UNITS = ("256KiB", "150B")
# Statements at least of the worker that is alone.
MEASURED = 1500
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
    """All workers; true if nothing differs, and enough was shown of the cache."""
    before = instance.metrics()
    share = -(-options.statements // options.workers)

    def job(n, statements):
        seed = f"{options.seed}-{n}"
        return direct.contact, instance.contact, n, seed, statements, options.release, options.short

    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        results = pool.starmap(work, [job(n, share) for n in range(options.workers)])
    # One more alone, so that it can be said which of its reads are hits.
    alone = max(MEASURED, options.statements // 20)
    results.append(work(*job(options.workers, alone), hits=lambda: hits_of(instance)))
    seconds = time.monotonic() - began
    done, requests, errors, kinds, allowed, differences = (
        sum((result[at] for result in results), start)
        for at, start in enumerate((0, 0, 0, Counter(), Counter(), []))
    )
    again, after = results[-1][-1], instance.metrics()
    for kind, count in sorted(kinds.items()):
        print(f"  {count:8}  {kind}")
    for name, count in allowed.items():
        print(f"  {count:8}  allowed: {name} ({ALLOWED[name]})")
    print(f"  front end: {describe(after, before)}")
    print(f"  hits of reads asked again: {again}")
    hits, updated = after.hits() - before.hits(), after.updated() - before.updated()
    again_read = after.refreshed() - before.refreshed()
    print(
        f"Cassandra {RELEASES[options.release]}, seed {options.seed}, units of {options.unit}: "
        f"{done} statements, {requests} requests compared, {errors} answers were errors, "
        f"{hits:.0f} hits, {updated:.0f} rows updated by writes and {again_read:.0f} read again "
        f"after them, {seconds:.0f} s: {len(differences)} differences"
    )
    missing = list(again.complaints(options.release))
    missing += ["no read was a hit"] * (not hits) + ["no row followed a write"] * (not updated)
    if again_read < done // REFRESHED:
        missing.append(f"only {again_read:.0f} rows were read again after writes")
    if missing:
        print(f"too little was shown of the cache: {'; '.join(missing)}")
    return not differences and not missing


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
    parser.add_argument(
        "--partition-unit-size",
        dest="unit",
        help=f"of Afterglow (default: one of {' and '.join(UNITS)}, by the seed)",
    )
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    try:
        with contextlib.ExitStack() as stack:
            direct = stack.enter_context(
                Cassandra(version=RELEASES[options.release], heap="1200M", settings=SETTINGS)
            )
            # Units of some partitions, or of all, are cut off behind their first rows.
            options.unit = options.unit or randomness.Random(options.seed).choice(UNITS)
            print(f"units of {options.unit} at most", file=sys.stderr, flush=True)
            # Where a write was at ANY, no row follows later ones for so long.
            extra = ("--unknown-outcome-hold", "6s", "--partition-unit-size", options.unit)
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
