"""Histories over a ring: `make history RING=4 NODES=3`. The same clients go to all instances, and
what breaks is `ring_faults.py`.

A run of which the cache has no part proves nothing. So it fails also where too few reads find a
cached row while nothing is broken.
"""

import json
import random as randomness
import re
import sys
import time
from collections import Counter

from afterglow_e2e.drivers import connect
from afterglow_e2e.process import Failure, poll
from afterglow_e2e.rawcql import LOCAL_QUORUM
from afterglow_e2e.ring import Ring

from . import ring_faults, watch
from .beyond import FAR, RENEWING, Beyond
from .bounded import POLICIES
from .clients import Clients
from .faults import Clock
from .floors import short_of
from .holders import others
from .record import verdict
from .ring_faults import RingFaults
from .ring_holders import RingHolders
from .runs import BACK, Run
from .watch import Watch

# At least this part of the reads must find a cached row while nothing is broken. Two of five
# requests write, to few rows.
LEAST_HITS = 1 / 3
# A request without an answer for so long hangs. A write waits 10 s for its permits, then for the
# database; instances and nodes stand still for some seconds.
HANG = 30
# All must be members with a lease and rows so soon after the last fault.
WHOLE = 120
# Rows of unknown writes are not cached before that.
HOLD = 6
# By how many parts of 10,000 the clock of each instance is faster. The bound between two is 10.
DRIFTS = (0, 3, 6, 9)
# Sums over a campaign, and what they are called in the figures of a run.
SUMS = {
    "reads": "reads",
    "writes": "acknowledged",
    "takeovers": "takeovers",
    "soon": "hits_soon",
    "stale": "stale_or_wrong",
    "undecided": "undecided",
}
# Of these `--at-least` may demand so many.
NAMES = {"minutes", *SUMS} - {"stale", "undecided"}
# What porcupine says, where it judges too.
SECOND = re.compile(r"porcupine: (\d+) registers, .*: \d+ wrong, (\d+) undecided")


class Instances:
    """A ring whose instances have their own clocks, and hosts if there is a network. `nodes` beyond
    the first are contact points too: an instance that lost its files may begin while one is down.
    `drifts`: of their clocks; the last one's may be beyond what is allowed.
    """

    def __init__(self, contact, count, folder, profile=None, network=None, nodes=(), drifts=()):
        drifts = drifts or [0] * count
        is_beyond = drifts[-1] == FAR
        self.clocks = [Clock(folder, f"clock-{n}", drifts[n]) for n in range(count)]
        hosts = network.hosts if network else [None] * count
        homes = [
            (host.address, (*host.wrapper, *clock.wrapper))
            if host
            else ("127.0.0.1", clock.wrapper)
            for host, clock in zip(hosts, self.clocks, strict=True)
        ]
        extra = ("--unknown-outcome-hold", f"{HOLD}s", *others(nodes))
        self.ring = Ring(
            contact, count, folder, profile, extra=extra, homes=homes, policies=POLICIES
        )
        self.network = network
        self.beyond = Beyond(self.ring) if is_beyond else None

    def __enter__(self):
        self.ring.start()
        return self

    def members(self):
        """Those of the ring; without the one whose clock is beyond the bound."""
        return self.beyond.others if self.beyond else self.ring.members

    def __exit__(self, *_):
        self.ring.stop()

    def is_whole(self):
        """Whether all are members of one map, with leases, shards and links to each other."""
        statuses = [self.ring.ask(member, "status") for member in self.members()]
        return all(map(self.is_served, statuses)) and len({s["version"] for s in statuses}) == 1

    def is_served(self, status):
        if status is None or not status["lease_ms"] or status["unowned"]:
            return False
        members = status["members"]
        return len(members) == len(self.members()) and all(
            each["state"] == "active" and each["shards"] and each["linked"] is not False
            for each in members
        )

    def await_whole(self):
        began = time.monotonic()
        poll("all instances to have a lease and rows", self.is_whole, WHOLE, every=0.2)
        if self.beyond:
            self.beyond.await_seen()
        return time.monotonic() - began


def wanted(instances, relay):
    """Every fault that can be made."""
    network, count = instances.network, len(instances.ring.members)
    all_of = ring_faults.MEMBERS + ring_faults.DATABASE
    if relay:
        all_of += ring_faults.RELAYED
    if network:
        all_of += ring_faults.APART + ring_faults.MANY * (count > 2)
    if instances.beyond:
        return tuple(name for name in all_of if name not in RENEWING)
    return all_of


class RingRun:
    """One run: fresh tables, calm, faults, calm, a sweep through every instance, the judgement."""

    def __init__(self, seed, instances, nodes, relay=None, faults=None):
        self.seed, self.instances, self.nodes = seed, instances, nodes
        self.ring = instances.ring
        count = len(nodes)
        # At ONE a node that missed a write may be asked: right, but not linearizable.
        self.options = {"levels": (LOCAL_QUORUM,)} if count > 1 else {}
        self.run = Run(seed, self.ring.members[0], nodes, wanted=(), factor=count)
        self.record = self.run.record
        self.faults = RingFaults(
            randomness.Random(f"faults-{seed}"),
            self.ring,
            nodes,
            faults or wanted(instances, relay),
            relay,
            instances.clocks,
            instances.network,
        )
        if instances.beyond:
            self.faults.taken.add(instances.beyond.member)
        self.figures = {}

    def work(self, seen, seconds, calm):
        seen.rest(calm)
        try:
            self.faults.run(seconds)
        finally:
            for one in (*self.nodes, *(member.child for member in self.faults.still)):
                one.resume()
        self.figures["whole_after"] = round(self.instances.await_whole(), 1)
        time.sleep(HOLD)
        seen.rest(calm)

    def go(self, seconds, calm, folder, profile):
        """(fine, words): whether the history can be explained and shows something."""
        self.instances.await_whole()
        self.run.create()
        began, wrong = time.monotonic(), []
        clients = Clients(
            self.record,
            self.ring.members,
            self.run.keyspace,
            self.seed,
            count=4 * len(self.ring.members),
            readers=2 * len(self.ring.members),
            patience=HANG,
            nodes=self.nodes,
            truncates=len(self.nodes) == 1,
            **self.options,
        )
        with Watch(self.ring, self.faults.still) as seen, clients:
            try:
                self.work(seen, seconds, calm)
            except Failure as failure:
                wrong.append(str(failure))
        if not wrong:
            swept = lambda: self.run.swept(clients)  # noqa: E731
            poll("a sweep of all rows through all instances", swept, BACK, every=0.5)
        if beyond := self.instances.beyond:
            wrong += beyond.complaints(seen.leased[beyond.member])
        self.count(clients, seen, time.monotonic() - began)
        times = sorted(self.faults.log + seen.log, key=lambda line: int(line.split()[0]))
        (folder / f"times-{self.seed}").write_text("\n".join(times) + "\n")
        return self.judge(clients, folder, profile, wrong)

    def count(self, clients, seen, seconds):
        self.figures |= {
            "seed": self.seed,
            "instances": len(self.ring.members),
            "nodes": len(self.nodes),
            "seconds": round(seconds),
            "faults": self.faults.counts,
            "failures": clients.failures,
            "hangs": len(clients.hangs),
            "longest": round(clients.longest, 1),
            "hits": watch.hits(seen.all),
            "by_owner": watch.asked(seen.all),
            "maps": seen.version,
            "takeovers": seen.takeovers,
            "hits_soon": watch.hits(seen.soon),
            "by_owner_soon": watch.asked(seen.soon),
            "calm_reads": watch.reads(seen.calm),
            "calm_share": round(watch.share(seen.calm), 3),
        }

    def judge(self, clients, folder, profile, wrong):
        figures = self.figures
        path = folder / f"history-{self.seed}.jsonl"
        fine, said = self.record.close(path, profile, json.dumps(figures), "")
        judged = verdict(said)
        figures |= judged
        if second := SECOND.search(said):
            figures |= dict(zip(("registers", "undecided"), map(int, second.groups()), strict=True))
        wrong += complaints(figures, clients)
        fine = fine and bool(judged) and not wrong
        with (folder / "runs.jsonl").open("a") as out:
            out.write(json.dumps(figures | {"fine": fine, "wrong": wrong}) + "\n")
        return fine, "\n".join([describe(figures), *([] if fine else [said, *wrong])])


def complaints(figures, clients):
    """Why a run is not fine, whatever its reads say."""
    if clients.errors:
        yield f"clients died: {clients.errors}"
    if clients.hangs:
        yield f"no answer within {HANG} s: {clients.hangs[:5]}"
    if figures["calm_share"] < LEAST_HITS:
        yield f"fewer than {LEAST_HITS:.0%} of the reads in calm time were hits"


def describe(figures):
    """One run, or the sum of all."""
    get = Counter(figures).__getitem__
    head = f"seed {figures['seed']}: " if "seed" in figures else ""
    return (
        f"{head}{get('seconds')} s, {get('reads')} reads judged, {get('acknowledged')} writes "
        f"acknowledged, {get('unknown')} of unknown outcome, {get('failures')} failures, "
        f"{get('hangs')} hangs, longest {figures.get('longest', 0)} s, faults "
        f"{figures.get('faults')}, {get('hits')} hits ({get('by_owner')} reads answered by another "
        f"instance), {get('takeovers')} takeovers, {get('hits_soon')} hits within "
        f"{watch.SOON:g} s of one, {figures.get('calm_share', 0):.0%} hits in calm time, "
        f"{get('stale_or_wrong')} stale or wrong"
        + (
            f", {get('registers')} registers judged by porcupine, {get('undecided')} undecided"
            if get("registers")
            else ""
        )
    )


def total(runs):
    """The sum of the figures of runs."""
    names = "seconds reads acknowledged unknown failures hangs hits by_owner takeovers hits_soon"
    names = [*names.split(), "by_owner_soon", "stale_or_wrong", "registers", "undecided"]
    sums = {name: sum(run.get(name, 0) for run in runs) for name in names}
    faults = Counter()
    for run in runs:
        faults.update(run["faults"])
    shares = [run["calm_share"] for run in runs]
    longest = max((run["longest"] for run in runs), default=0)
    return sums | {"faults": dict(faults), "longest": longest, "calm_share": min(shares, default=0)}


def sums(runs):
    """What was done and seen in all runs in which clients were at work."""
    figures = total(runs)
    return {"minutes": figures["seconds"] / 60} | {name: figures[of] for name, of in SUMS.items()}


def forget(node):
    """No instance is a member of the ring any more."""

    def forgotten():
        try:
            with connect(node) as direct:
                direct.execute("TRUNCATE afterglow.ring")
            return True
        except Exception as reason:
            print(f"the ring is not forgotten yet: {reason!r}", file=sys.stderr)
            return False

    poll("the ring to be forgotten", forgotten, BACK, every=0.5)


def holders(seed, ring, nodes, folder, profile):
    """A run of another ring. The instances of this one stop, and join anew after it."""
    for member in ring.members:
        member.terminate()
    forget(nodes[0])
    said = RingHolders(seed, nodes, folder, profile).go(1, folder, profile)
    forget(nodes[0])
    ring.start()
    return said


def drifts_of(options):
    """By how much the clock of each instance is faster."""
    if options.beyond:
        return (*DRIFTS[: options.ring - 1], FAR)
    return DRIFTS if options.drift else ()


def campaign(options, nodes, relay, contact, network, folder):
    """(runs, of them fine, what is short of `--at-least`)."""
    fine, runs, done, began = 0, 0, [], time.monotonic()
    drifts = drifts_of(options)
    instances = Instances(contact, options.ring, folder, options.profile, network, nodes, drifts)
    with instances:
        while runs < options.runs and time.monotonic() - began < options.limit:
            seed = f"{options.seed}-{runs}"
            if len(nodes) > 1 and runs % 4 == 2 and not options.beyond:
                good, words = holders(seed, instances.ring, nodes, folder, options.profile)
            else:
                run = RingRun(seed, instances, nodes, relay)
                good, words = run.go(options.seconds, options.calm, folder, options.profile)
                done.append(run.figures)
            fine, runs = fine + good, runs + 1
            print(f"{'ok   ' if good else 'WRONG'} {words}", flush=True)
            if any(not member.running() for member in instances.ring.members):
                raise Failure(f"an instance is down; {folder} has its log")
    print(f"in all {describe(total(done))}")
    found = sums(done)
    said = ", ".join(f"{name} {number:.10g}" for name, number in found.items())
    print(f"sums of {len(done)} runs: {said}")
    return runs, fine, short_of(found, options.at_least)
