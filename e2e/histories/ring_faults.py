"""What breaks in a ring during a run, from a seed: up to three things at a time, and all of it
whole again at the end.

Each fault is a generator. It yields how many seconds pass before it goes on.
"""

import heapq
import itertools
import shutil
import signal
import time

from afterglow_e2e.cassandra import answers_cql
from afterglow_e2e.process import Failure

# Of the instances, and of the database.
MEMBERS = ("kill", "kill", "terminate", "freeze", "freeze", "leave", "deaths", "step")
DATABASE = ("hold", "fell")
# What needs a relay before the database, hosts with a network of their own, and more than two of
# them.
RELAYED = ("cut", "slow")
APART = ("part", "part", "part", "stray", "narrow")
MANY = ("isolate",)
# So long an instance may take to be ready and to end, and a node to be ready.
START, STOP, BOOT = 90, 30, 300
# How many faults at a time.
MOST = 3


class RingFaults:
    """Breaks things for a time; `counts` says how often what, `log` what when."""

    def __init__(self, random, ring, nodes, wanted, relay=None, clocks=(), network=None):
        self.random, self.ring, self.nodes, self.wanted = random, ring, nodes, wanted
        self.relay, self.clocks, self.network = relay, clocks, network
        self.counts, self.log = {}, []
        # Instances and nodes that a fault has already, and instances that stand still.
        self.taken, self.still, self.fallen = set(), set(), False

    def run(self, seconds):
        """For that long, and until what was broken is whole."""
        end, ties = time.monotonic() + seconds, itertools.count()
        waiting, next_at = [], time.monotonic()
        while waiting or time.monotonic() < end:
            now = time.monotonic()
            if next_at <= now < end and len(waiting) < MOST:
                name = self.random.choice(self.wanted)
                heapq.heappush(waiting, (now, next(ties), name, getattr(self, name)()))
                # Together with the one before, or when shards have had time to move.
                soon, late = (0, 1.5), (5, 11)
                next_at = now + self.random.uniform(*(soon if self.random.random() < 0.4 else late))
            if waiting and waiting[0][0] <= now:
                _, _, name, fault = heapq.heappop(waiting)
                self.proceed(waiting, next(ties), name, fault)
            time.sleep(0.01)

    def proceed(self, waiting, tie, name, fault):
        try:
            pause = next(fault)
            heapq.heappush(waiting, (time.monotonic() + pause, tie, name, fault))
        except StopIteration as done:
            # None where there was nothing to break.
            if done.value:
                self.counts[name] = self.counts.get(name, 0) + 1

    def note(self, *words):
        """Where and what, with the time on the clock of the history."""
        self.log.append(f"{time.monotonic_ns()} {' '.join(map(str, words))}")

    def take(self, among, count=1):
        """So many that no other fault has; fewer where there are fewer."""
        free = [one for one in among if one not in self.taken]
        chosen = self.random.sample(free, min(count, len(free)))
        self.taken.update(chosen)
        return chosen

    def number(self, member):
        return self.ring.members.index(member)

    # Instances

    def away(self, member, seconds, wipes=0.25):
        """Starts it again after so long, now and then without its files."""
        yield seconds
        if self.random.random() < wipes:
            shutil.rmtree(member.data)
            self.note("instance", self.number(member), "has lost its files")
        member.launch()
        self.note("instance", self.number(member), "starts")
        deadline = time.monotonic() + START
        while member.get("/readyz", seconds=1)[0] != 200:
            member.child.check()
            if time.monotonic() > deadline:
                raise Failure(f"{member.contact} is not ready {START} s after its start")
            yield 0.1
        self.taken.discard(member)

    def stop(self, member):
        """SIGTERM, and its clean end."""
        member.child.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP
        while member.running():
            if time.monotonic() > deadline:
                raise Failure(f"{member.contact} has not ended {STOP} s after SIGTERM")
            yield 0.05
        if member.child.process.returncode != 0:
            member.child.check()

    def absence(self):
        """Short enough to keep its shards, or long enough to lose them."""
        return self.random.uniform(*self.random.choice(((0, 0.4), (1, 7))))

    def kill(self):
        """kill -9 of one, and a start."""
        for member in self.take(self.ring.members):
            self.note("instance", self.number(member), "is killed")
            member.kill()
            yield from self.away(member, self.absence())
            return True

    def terminate(self):
        """An orderly stop, and a start."""
        for member in self.take(self.ring.members):
            self.note("instance", self.number(member), "is stopped")
            yield from self.stop(member)
            yield from self.away(member, self.absence())
            return True

    def deaths(self):
        """Several die within a second."""
        count = self.random.randrange(2, len(self.ring.members) + 1)
        dead = self.take(self.ring.members, count)
        for member in dead:
            self.note("instance", self.number(member), "is killed")
            member.kill()
            yield self.random.uniform(0, 0.8)
        yield self.absence()
        for member in self.random.sample(dead, len(dead)):
            yield from self.away(member, self.random.uniform(0, 1))
        return bool(dead)

    def freeze(self):
        """One stands still. Shorter than the hold of writes."""
        for member in self.take(self.ring.members):
            self.note("instance", self.number(member), "stands still")
            self.still.add(member)
            member.child.pause()
            yield self.random.uniform(0.3, 5)
            member.child.resume()
            self.still.discard(member)
            self.note("instance", self.number(member), "goes on")
            self.taken.discard(member)
            return True

    def leave(self):
        """One hands over and leaves, answers for a while without shards, and joins again."""
        for member in self.take(self.ring.members):
            self.note("instance", self.number(member), "is to leave")
            self.ring.ask(member, "leave")
            deadline = time.monotonic() + 15
            while self.is_member(member) and time.monotonic() < deadline:
                yield 0.1
            self.note("instance", self.number(member), "is a member:", self.is_member(member))
            yield self.random.uniform(0, 4)
            yield from self.stop(member)
            yield from self.away(member, self.random.uniform(0, 1))
            return True

    def is_member(self, member):
        status = self.ring.ask(member, "status")
        return status is not None and any(each["id"] == status["me"] for each in status["members"])

    def step(self):
        """The wall clock of one, a second back or forth."""
        self.random.choice(self.clocks).step(self.random.choice((-1, 0, 1)))
        yield 0
        return True

    # Links between instances

    def part(self):
        """One link is cut, in one direction or both."""
        one, other = self.random.sample(self.network.hosts, 2)
        ways = [(one, other), (other, one)][: self.random.randrange(1, 3)]
        return self.severed(ways)

    def isolate(self):
        """All links of one are cut, in one direction or both."""
        one = self.random.choice(self.network.hosts)
        others = [host for host in self.network.hosts if host is not one]
        ways = [(one, other) for other in others], [(other, one) for other in others]
        chosen = self.random.choice((ways[0], ways[1], ways[0] + ways[1]))
        return self.severed(chosen)

    def severed(self, ways):
        hosts = self.network.hosts
        names = [f"{hosts.index(one)}>{hosts.index(other)}" for one, other in ways]
        self.note("cut", *names)
        for way in ways:
            self.network.cut(*way)
        yield self.random.uniform(0.5, 7)
        for way in ways:
            self.network.mend(*way)
        self.note("mended", *names)
        return True

    def stray(self):
        """One does not reach the database."""
        host, database = self.random.choice(self.network.hosts), self.network.ours[1:]
        self.note("instance", self.network.hosts.index(host), "loses the database")
        self.network.lose(host, database)
        yield self.random.uniform(0.5, 5)
        self.network.reach(host, database)
        self.note("instance", self.network.hosts.index(host), "reaches the database")
        return True

    def narrow(self):
        """All that one sends comes late."""
        for host in self.take(self.network.hosts):
            number = self.network.hosts.index(host)
            self.note("instance", number, "has a narrow link")
            self.network.narrow(host, self.random.choice((16, 32, 64)))
            yield self.random.uniform(1, 7)
            self.network.widen(host)
            self.note("instance", number, "has a wide link")
            self.taken.discard(host)
            return True

    # The database

    def hold(self):
        """A node that hangs."""
        for node in self.take(self.nodes):
            self.note("node", self.nodes.index(node), "hangs")
            node.pause()
            yield self.random.uniform(0.2, 3)
            node.resume()
            self.note("node", self.nodes.index(node), "goes on")
            self.taken.discard(node)
            return True

    def fell(self):
        """kill -9 of a node, and a start on the same files."""
        # One at a time: without a quorum nothing goes on for as long as a node takes to come back.
        if self.fallen:
            return False
        for node in self.take(self.nodes):
            self.fallen = True
            self.note("node", self.nodes.index(node), "is killed")
            node.kill()
            node.launch()
            deadline = time.monotonic() + BOOT
            while not answers_cql(node.address, node.port, 0.2):
                node.child.check()
                if time.monotonic() > deadline:
                    raise Failure(f"{node.contact} does not answer {BOOT} s after its start")
                yield 0.5
            self.note("node", self.nodes.index(node), "answers")
            self.fallen = False
            self.taken.discard(node)
            return True

    def cut(self):
        """Every connection through the relay, some times over."""
        for _ in range(self.random.randrange(1, 6)):
            self.relay.cut()
            yield self.random.uniform(0, 0.3)
        return True

    def slow(self):
        """Everything through the relay comes late."""
        self.relay.delay = self.random.uniform(0.002, 0.2)
        yield self.random.uniform(0.5, 3)
        self.relay.delay = 0.0
        return True
