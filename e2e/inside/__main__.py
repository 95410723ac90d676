"""Stock Cassandra against Cassandra with a cache on flash, with data several times larger than
memory.

    make bench-cassandra                                    everything: some hours
    make bench-cassandra BENCH_FLAGS="--short"              every part on little data, to see that
                                                            it runs: no figures
    make bench-cassandra BENCH_FLAGS="--parts network --shapes 1k --mixes reads"

Parts: `network`: the disk of the data is held to the speed of a network volume, that of the cache
is not. `equal`: neither is. `memory`: a cache on flash against twice the memory. `sizes`: three
sizes of flash. `rates`: latency at target rates. `plain`: a table that is not compressed. All but
`equal` are on the slow disk.
"""

import argparse
import json
import sys
from pathlib import Path

from afterglow_e2e.process import ROOT, Failure, scratch

from . import plan
from .bench import Bench
from .machine import missing
from .report import report, wrongs
from .undo import Undo

OUT = ROOT / "target" / "bench" / "cassandra"


def words(choices):
    def parse(text):
        chosen = text.split(",")
        if unknown := [word for word in chosen if word not in choices]:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)} among {', '.join(choices)}")
        return chosen

    return parse


def options():
    parser = argparse.ArgumentParser(
        prog="inside", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts, caches = list(plan.cases()), ["none", "chunks", "rows"]
    parser.add_argument("--parts", type=words(parts), default=parts, help=f"of {','.join(parts)}")
    parser.add_argument("--shapes", type=words(plan.SHAPES), help=f"of {','.join(plan.SHAPES)}")
    parser.add_argument("--mixes", type=words(plan.MIXES), help=f"of {','.join(plan.MIXES)}")
    parser.add_argument("--caches", type=words(caches), help=f"of {','.join(caches)}")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of 3 GiB of data (default: %(default)s)"
    )
    parser.add_argument(
        "--warm",
        type=int,
        default=90,
        help="seconds of load before measuring (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=int, default=30, help="seconds measured (default: %(default)s)"
    )
    parser.add_argument(
        "--disk-bytes",
        type=int,
        default=plan.NETWORK.bytes,
        help="of the slow disk (%(default)s/s)",
    )
    parser.add_argument(
        "--disk-operations",
        type=int,
        default=plan.NETWORK.operations,
        help="its reads (%(default)s/s)",
    )
    parser.add_argument(
        "--dir", type=Path, help="where the disks' images are, kept for the next time"
    )
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="load the data into --dir and fill the caches for one run, or more that only read; measure nothing",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="little data, seconds instead of minutes: not for figures",
    )
    parser.add_argument(
        "--report",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="tables of earlier results, nothing run",
    )
    given = parser.parse_args()
    if given.short:
        given.scale, given.warm, given.seconds = 0.06, 5, 5
    if given.prepare and not given.dir:
        parser.error("--prepare needs --dir")
    return given


def run(given):
    if lacks := missing():
        raise Failure(
            "the benchmark cannot run here, it needs:\n" + "\n".join(f"  {lack}" for lack in lacks)
        )
    with Undo() as undo:
        folder = given.dir
        if folder is None:
            folder = Path(scratch("bench-cassandra-"))
            undo.note("folder", folder)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(undo, folder.resolve(), OUT, given)
        cases = plan.chosen(given.parts, given.shapes, given.mixes, given.caches)
        if given.prepare:
            for loads in plan.by_node(cases):
                bench.fill(loads[0])
            return []
        return bench.run(cases)


def main():
    given = options()
    try:
        results = (
            [json.loads(path.read_text()) for path in given.report] if given.report else run(given)
        )
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if not results:
        return 0
    text = report(results)
    if not given.report:
        (OUT / "report.md").write_text(text)
    print(text, end="")
    return 1 if any(line.startswith("FAULT") for line in wrongs(results)) else 0


if __name__ == "__main__":
    sys.exit(main())
