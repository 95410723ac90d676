"""The campaign: `make history RUNS=200`. Each run is a minute of clients and faults, on fresh
tables.

With three nodes, the third run of every four changes the holder of the lease instead, while writes
are in doubt.
"""

import argparse
import contextlib
import random as randomness
import secrets
import sys
import time
from pathlib import Path

from afterglow_e2e.afterglow import Afterglow
from afterglow_e2e.cassandra import BOOT_SECONDS, KEEPS_WHAT_IT_ACKNOWLEDGED, SHORT_LIVED, Cassandra
from afterglow_e2e.drivers import await_caching, connect
from afterglow_e2e.process import Failure, free_port, poll, scratch
from afterglow_e2e.rawcql import LOCAL_QUORUM

from .faults import Clock, Relay
from .holders import Holders
from .runs import EVERYTHING, FELL, Run


def cluster(stack, count):
    """So many nodes; the first is reached through a relay, by the address that it tells."""
    near, port = f"127.0.1.{randomness.randrange(2, 250)}", free_port()
    nodes = []
    for number in range(count):
        # The node tells the relay's address for its own, so that nobody goes round it.
        settings = KEEPS_WHAT_IT_ACKNOWLEDGED | (
            {"broadcast_rpc_address": near} if number == 0 else {}
        )
        node = Cassandra(
            heap="1G" if count == 1 else "384M",
            port=port,
            seed=nodes[0] if nodes else None,
            settings=settings,
            options=SHORT_LIVED,
        )
        nodes.append(stack.enter_context(node))
    relay = Relay(near, port, (nodes[0].address, nodes[0].port))
    stack.callback(relay.close)
    if count > 1:
        with connect(nodes[0]) as direct:
            peers = "SELECT tokens FROM system.peers"
            poll(
                "the nodes to know each other",
                lambda: len(list(direct.execute(peers))) == count - 1,
                BOOT_SECONDS,
            )
    return nodes, relay, f"{near}:{port}"


def holders(seed, instance, nodes, folder, profile):
    """A run of other instances, which need the lease that `instance` has."""
    instance.terminate()
    # Two to four minutes each.
    said = Holders(seed, nodes, profile).go(2, folder, profile)
    instance.start()
    await_caching(instance)
    return said


def main():
    parser = argparse.ArgumentParser(prog="histories", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="of each (default: %(default)s)")
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
    options = parser.parse_args()
    folder = Path(scratch("histories-"))
    fine = runs = 0
    began = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            nodes, relay, contact = cluster(stack, options.nodes)
            clock = Clock(folder)
            instance = stack.enter_context(
                Afterglow(
                    contact,
                    folder=folder,
                    profile=options.profile,
                    wrapper=clock.wrapper,
                    extra=("--unknown-outcome-hold", "6s"),
                )
            )
            await_caching(instance)
            wanted = EVERYTHING + FELL * (options.nodes > 1 or options.seconds >= 60)
            # At ONE a node that missed a write may be asked: right, but not linearizable.
            levels = None if options.nodes == 1 else (LOCAL_QUORUM,)
            while runs < options.runs and time.monotonic() - began < options.limit:
                seed = f"{options.seed}-{runs}"
                if options.nodes > 1 and runs % 4 == 2:
                    good, words = holders(seed, instance, nodes, folder, options.profile)
                else:
                    run = Run(seed, instance, nodes, relay, clock, wanted, levels, options.nodes)
                    good, words = run.go(options.seconds, folder, options.profile)
                fine, runs = fine + good, runs + 1
                print(f"{'ok   ' if good else 'WRONG'} {words}", flush=True)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2
    print(
        f"{runs} runs, {fine} without a stale or wrong read, {options.nodes} nodes, {time.monotonic() - began:.0f} s"
    )
    return 0 if fine == runs else 1


if __name__ == "__main__":
    sys.exit(main())
