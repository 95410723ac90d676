"""The campaign: `make history RUNS=200`. Each run is a minute of clients and faults, on fresh
tables.

With three nodes, every second run has clients that write at ONE, and Afterglow raise such writes to
LOCAL_QUORUM. The third run of every four changes the holder of the lease instead, while writes are
in doubt. With `--ring` several instances are one cache: see `rings.py`. There that run has
shards change their owner.
"""

import argparse
import contextlib
import random as randomness
import secrets
import sys
import time
from pathlib import Path

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.cassandra import KEEPS_WHAT_IT_ACKNOWLEDGED, SHORT_LIVED, Cassandra
from afterglow_e2e.drivers import await_caching
from afterglow_e2e.network import Network, lacking
from afterglow_e2e.process import Failure, free_port, scratch
from afterglow_e2e.rawcql import LOCAL_QUORUM, ONE
from afterglow_e2e.relay import Relay

from . import second
from .bounded import POLICIES
from .faults import Clock
from .floors import SUMS, missing, short_of, sums, wanted_at_least
from .holders import Holders
from .record import Record
from .rings import NAMES, campaign
from .runs import EVERYTHING, FELL, Run

EXTRA = ("--unknown-outcome-hold", "6s")
# Writes at the second and third level are like those at the first one then.
RAISED = ("--table-write-level", "*.*=LOCAL_QUORUM")
# Every second run has units that end behind the first rows of a partition. These are fewer bytes
# than its eight rows take.
LIMITED = ("--partition-unit-size", "150B")
LOCAL_ONE = 10
WRITTEN = (LOCAL_QUORUM, ONE, LOCAL_ONE)


def cluster(stack, count, addresses=None):
    """So many nodes; the first is reached through a relay, by the address that it tells.
    `addresses` are the relay's and those of the nodes.
    """
    near, *own = addresses or [f"127.0.1.{randomness.randrange(2, 250)}", *[None] * count]
    port, nodes = free_port(), []
    for number in range(count):
        # The node tells the relay's address for its own, so that nobody goes round it.
        settings = KEEPS_WHAT_IT_ACKNOWLEDGED | (
            {"broadcast_rpc_address": near} if number == 0 else {}
        )
        node = Cassandra(
            heap="1G" if count == 1 else "384M",
            address=own[number],
            port=port,
            seed=nodes[0] if nodes else None,
            settings=settings,
            options=SHORT_LIVED,
        )
        nodes.append(stack.enter_context(node))
    relay = Relay(near, port, (nodes[0].address, nodes[0].port))
    stack.callback(relay.close)
    # Each of them: an instance asks any how many replicas its own keyspace can have.
    for node in nodes:
        node.await_neighbours(count - 1)
    return nodes, relay, f"{near}:{port}"


def holders(seed, instance, nodes, folder, profile):
    """A run of other instances, which need the lease that `instance` has."""
    instance.terminate()
    # Two to four minutes each.
    said = Holders(seed, nodes, profile).go(2, folder, profile)
    instance.start()
    await_caching(instance)
    return said


def prepared(instance, nodes, runs):
    """(levels, limited) of a run: the levels of its writes, or None for those of its reads, and
    whether units are small. The instance starts anew where it has other settings.
    """
    raises = nodes > 1 and runs % 2 == 1
    # Each kind of run of three nodes has both, in turns of four.
    limited = (runs + runs // 4) % 2 == 1
    extra = EXTRA + RAISED * raises + LIMITED * limited
    if instance.extra != extra:
        instance.terminate()
        instance.extra = extra
        instance.start()
        await_caching(instance)
    return WRITTEN if raises else None, limited


def alone(options, nodes, relay, contact, folder):
    """(runs, of them fine, what they do not show) with one instance."""
    fine, runs, done = 0, 0, []
    began, clock = time.monotonic(), Clock(folder)
    instance = Afterglow(
        contact,
        folder=folder,
        profile=options.profile,
        policies=POLICIES,
        wrapper=clock.wrapper,
        extra=EXTRA,
    )
    with instance:
        await_caching(instance)
        wanted = EVERYTHING + FELL * (options.nodes > 1 or options.seconds >= 60)
        # At ONE a node that missed a write may be asked: right, but not linearizable.
        levels = None if options.nodes == 1 else (LOCAL_QUORUM,)
        while runs < options.runs and time.monotonic() - began < options.limit:
            seed = f"{options.seed}-{runs}"
            written, limited = prepared(instance, options.nodes, runs)
            if options.nodes > 1 and runs % 4 == 2:
                good, words = holders(seed, instance, nodes, folder, options.profile)
            else:
                more = {"write_levels": written, "limited": limited}
                run = Run(
                    seed, instance, nodes, relay, clock, wanted, levels, options.nodes, **more
                )
                good, words = run.go(options.seconds, folder, options.profile)
                done += [run.figures] if run.figures else []
            fine, runs = fine + good, runs + 1
            print(f"{'ok   ' if good else 'WRONG'} {words}", flush=True)
    found = sums(done)
    said = ", ".join(f"{name} {number:.10g}" for name, number in found.items())
    print(f"sums of {len(done)} runs: {said}")
    return runs, fine, [*missing(done), *short_of(found, options.at_least)]


def several(options, stack, folder):
    """(runs, of them fine, what is short of `--at-least`) with a ring."""
    network = None
    if reason := lacking():
        print(f"no link is cut: {reason}", file=sys.stderr)
    else:
        network = stack.enter_context(Network(options.ring, options.nodes + 1))
    # The first of our addresses is where clients come from.
    addresses = network and network.ours[1:]
    nodes, relay, contact = cluster(stack, options.nodes, addresses)
    return campaign(options, nodes, relay, contact, network, folder)


def parse():
    """The options."""
    parser = argparse.ArgumentParser(prog="histories", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="of each (default: %(default)s)")
    parser.add_argument(
        "--ring",
        type=int,
        choices=(2, 3, 4),
        help="instances of a ring (default: one, and no ring)",
    )
    parser.add_argument(
        "--calm",
        type=float,
        default=8,
        help="seconds without faults before and after them, with --ring (default: %(default)s)",
    )
    parser.add_argument(
        "--nodes", type=int, choices=(1, 3), default=1, help="of Cassandra (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", default=secrets.token_hex(3), help="of all choices (default: a new one)"
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="begin no run after so many seconds"
    )
    parser.add_argument(
        "--profile", default="release", help="which build of Afterglow (default: %(default)s)"
    )
    parser.add_argument(
        "--porcupine", action="store_true", help="have porcupine judge each history too; needs Go"
    )
    parser.add_argument(
        "--drift",
        action="store_true",
        help="let the clocks of a ring's instances differ, nearly as far as they may; wants a "
        "profile whose build has the feature test-clock",
    )
    parser.add_argument(
        "--beyond",
        action="store_true",
        help="the same, and the clock of the last instance is beyond the bound: it must have no "
        "lease and say so",
    )
    parser.add_argument(
        "--at-least",
        metavar="NAME=NUMBER,...",
        help="fail where a sum over all runs is below this: minutes, reads, writes; of a ring also "
        "takeovers, soon (hits within 2 s of one); without one hits, updated, refreshed, settled",
    )
    options = parser.parse_args()
    options.drift = options.drift or options.beyond
    if options.beyond and (options.ring or 0) < 3:
        parser.error("--beyond wants --ring 3 or 4: of two clocks none is known to be right")
    try:
        known = NAMES if options.ring else {"minutes", *SUMS}
        options.at_least = wanted_at_least(options.at_least, known) if options.at_least else {}
    except ValueError as error:
        parser.error(f"--at-least: {error}")
    if options.drift and not (options.ring and options.profile.startswith("test-clock/")):
        parser.error("--drift wants --ring and a build with test-clock: see `make history-drift`")
    if options.porcupine:
        Record.second = second.build()
        if Record.second is None:
            parser.error("no Go here: install it, or leave --porcupine out")
    return options


def main():
    options, short = parse(), []
    folder = Path(scratch("histories-"))
    began = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            if options.ring:
                runs, fine, short = several(options, stack, folder)
            else:
                runs, fine, short = alone(options, *cluster(stack, options.nodes), folder)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2
    print(
        f"{runs} runs, {fine} without a stale or wrong read, {options.nodes} nodes, {time.monotonic() - began:.0f} s"
    )
    if short:
        print(f"error: the campaign is too small: {'; '.join(short)}", file=sys.stderr)
    return 0 if fine == runs and not short else 1


if __name__ == "__main__":
    sys.exit(main())
