"""`make demo-ring`: a stock Cassandra, two instances as one cache, three drivers under load. One
instance is killed and comes back, the other stands still for 10 s, one leaves and joins again.
Prints what clients saw; the hit ratio over time is a plot in target/ring/report.html.
"""

import os
import sys
import time

from afterglow_e2e.cassandra import Cassandra
from afterglow_e2e.drivers import connect
from afterglow_e2e.process import ROOT, Failure
from afterglow_e2e.ring import Ring

from .hits import Hits
from .load import Load, prepare
from .report import write_report

OUT = ROOT / "target" / "ring"
STILL = 10  # seconds that an instance stands still


def scenes(ring, hits):
    first, second = ring.members
    time.sleep(10)
    hits.note("instance 1 is killed with -9")
    first.kill()
    time.sleep(10)
    hits.note("instance 1 is started again")
    first.start()
    time.sleep(15)
    hits.note(f"instance 2 stands still for {STILL} s")
    second.child.pause()
    time.sleep(STILL)
    second.child.resume()
    hits.note("instance 2 goes on")
    ring.settle()
    hits.note("both have the same part of the rows")
    ring.command(first, "leave")
    hits.note("instance 1 has left the ring")
    time.sleep(5)
    hits.note("instance 1 is stopped and started, and joins again")
    first.terminate()
    first.start()
    ring.settle()
    hits.note("both have the same part of the rows")
    time.sleep(10)


def judge(load, hits):
    steady = [ratio for _, ratio, reads in hits.points[-8:] if reads]
    lines = [
        f"reads {load.total('reads')}, writes {load.total('writes')}",
        f"errors of reads {len(load.total('failed_reads'))}, of writes "
        f"{len(load.total('failed_writes'))}",
        f"longest read {load.longest('longest_read'):.1f} s, longest write "
        f"{load.longest('longest_write'):.1f} s",
        f"stale reads {len(load.total('stale'))}",
        f"hit ratio at the end {sum(steady) / max(len(steady), 1):.1%}",
    ]
    print("\n".join(lines), flush=True)
    load.check()
    return lines


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("AFTERGLOW_PROFILE", "release")
    with Cassandra(heap="1G") as node:
        with connect(node) as session:
            table = prepare(session, "shop")
        with Ring(node.contact, 2) as ring:
            hits = Hits(ring)
            hits.start()
            hits.note("two instances are open")
            ring.settle()
            hits.note("both have the same part of the rows; three drivers begin")
            with Load(ring, table) as load:
                load.read_all()
                scenes(ring, hits)
            hits.stop.set()
            lines = judge(load, hits)
            report = write_report(OUT / "report.html", hits, lines)
            print(f"report: {report}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"demo-ring failed: {failure}")
