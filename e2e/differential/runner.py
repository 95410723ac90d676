"""Sends the same statements down both paths and compares what comes back."""

import itertools
import random as randomness
import struct
import time
from collections import Counter, deque

from afterglow_e2e import rawcql
from afterglow_e2e.process import Failure

from . import compare
from .changes import Changes
from .fleeting import Fleeting
from .floors import Again
from .grammar import NONSENSE, Reads, made_invalid
from .modify import Writes
from .requests import Options, Side
from .schema import KEYSPACE, tables, types, view
from .stories import Stories

SYSTEM = (
    "SELECT key, cluster_name, partitioner, cql_version, release_version, data_center, rack FROM system.local",
    "SELECT JSON cluster_name, rack FROM system.local WHERE key = 'local'",
    "SELECT count(*) FROM system.local",
    "SELECT data_center AS dc FROM system.local WHERE key = 'local' LIMIT 1",
    "SELECT nothing FROM system.local",
    "SELECT * FROM system.nowhere",
    "SELECT keyspace_name, durable_writes, replication FROM system_schema.keyspaces WHERE keyspace_name = 'KSNAME'",
    "SELECT * FROM system_schema.columns WHERE keyspace_name = 'KSNAME'",
    "SELECT * FROM system_schema.types WHERE keyspace_name = 'KSNAME'",
    "SELECT table_name, default_time_to_live, comment FROM system_schema.tables WHERE keyspace_name = 'KSNAME'",
    "SELECT * FROM system_schema.indexes WHERE keyspace_name = 'KSNAME'",
)
# Prepared statements that are kept to be executed again.
KEPT = 60


class Grammar(Reads, Writes, Changes, Stories):
    """All statements, from one seed."""

    def __init__(self, seed, release, short):
        self.random, self.release, self.added = randomness.Random(seed), release, 0
        self.short = short
        self.fields, self.tables = tables(self.random, release, short)
        # Write times given so far that another may tie with.
        self.given = []

    def some_table(self, counter=False):
        fitting = [table for table in self.tables if not counter or table.counter]
        return self.random.choice(fitting)

    def moment(self, mortal=False):
        """A write time: mostly the present, else a tie, the past, or seconds ahead. What
        is `mortal` ties with nothing: which of two such cells ends later depends on their seconds.
        """
        luck = self.random.random()
        if luck < 0.8 or not self.given or mortal:
            ahead = 5_000_000 if luck < 0.03 and not mortal else 1
            now = time.time_ns() // 1000 + self.random.randrange(ahead)
            self.given = [] if mortal else [*self.given[-50:], now]
            return now
        # Nothing in between: a write without a timestamp got another one on each side.
        return self.given[-1] if luck < 0.9 else self.random.choice(self.given)

    def statement(self):
        """The next statement, or the kind and the statements of a BATCH request."""
        random = self.random
        luck = random.random()
        if self.told and luck < 0.9 or luck < 0.05:
            return self.next_told()
        if luck < 0.55:
            return self.select()
        if luck < 0.86:
            return self.write()
        if luck < 0.89:
            return self.text_batch()
        if luck < 0.93:
            return self.make_invalid(random.choice((self.select, self.write))())
        if luck < 0.935:
            return self.fixed("nonsense", random.choice(NONSENSE))
        if luck < 0.94:
            return self.fixed("system", random.choice(SYSTEM))
        if luck < 0.9405:
            return self.change()
        return self.select()

    def make_invalid(self, statement):
        if statement.table.makes:
            return statement  # it may come to read rows that each side has others of
        statement.kind, statement.read = "invalid", False
        statement.text = made_invalid(self.random, statement.text)
        if self.random.random() < 0.2 and statement.markers:
            statement.markers.pop()
        return statement

    def fixed(self, kind, text):
        out = self.select()
        out.kind, out.text, out.markers, out.table, out.named = (
            kind,
            text,
            [],
            None,
            False,
        )
        out.read = kind == "system"
        return out


class Runner(Fleeting):
    """Runs statements; `kinds`, `allowed` and `differences` say what happened. `again` says which
    reads were hits if `hits` tells how many there were.
    """

    def __init__(self, direct, through, number, seed, release, short, hits=None):
        self.versions = (3, 4) if release == "3.11" else (3, 4, 5)
        self.grammar = Grammar(seed, release, short)
        self.random = self.grammar.random
        self.direct = Side(direct, f"difa{number}", self.versions)
        self.through = Side(through, f"difb{number}", self.versions)
        self.sides = (self.direct, self.through)
        # What Afterglow's side of the database says when it is asked directly: whether a difference
        # is the cache's.
        self.past = Side(direct, f"difb{number}", self.versions)
        self.keyspaces = tuple(side.keyspace for side in self.sides)
        self.kinds, self.allowed = Counter(), Counter()
        self.differences, self.errors = [], 0
        self.requests = self.rows = 0
        self.kept, self.recent = [], deque(maxlen=400)
        self.again = Again(hits)
        self.seed = seed

    def create(self):
        """Both keyspaces and everything in them, each through its own path."""
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        texts = [
            f"DROP KEYSPACE IF EXISTS {KEYSPACE}",
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}",
        ]
        texts.append(types(self.grammar.fields))
        for table in self.grammar.tables:
            texts += table.create()
            if table.view:
                texts.append(view(table))
        for text in texts:
            answers = [side.clients[4].query(side.text(text)) for side in self.sides]
            # Their warnings count the tables that there are.
            if any(answer.error for answer in answers):
                raise Failure(f"{text}\n  direct  {answers[0]}\n  through {answers[1]}")
        for version in self.versions:
            for side in (*self.sides, self.past):
                answer = side.clients[version].query(side.text(f"USE {KEYSPACE}"))
                assert answer.error is None, answer

    def both(self, version, request):
        """Answers of both sides to what `request(side)` makes: opcode, body, header flags."""
        for side in self.sides:
            opcode, body, flags = request(side)
            side.clients[version].send(opcode, body, flags)
        self.requests += 1
        return [side.clients[version].receive() for side in self.sides]

    def step(self):
        """One statement, in one version, in one way."""
        random, version = self.random, self.random.choice(self.versions)
        if random.random() < 0.04:
            return self.batch(version)
        if self.kept and random.random() < 0.3:
            statement = random.choice(self.kept)
            if statement.table is None or not statement.table.alters or random.random() < 0.9:
                return self.execute(statement, version)
        statement = self.grammar.statement()
        if isinstance(statement, tuple):
            return self.batch(version, *statement)
        if statement.kind in ("schema change", "truncate"):
            return self.query(statement, version)
        if random.random() < (0.35 if statement.markers else 0.06):
            return self.execute(statement, version)
        return self.query(statement, version)

    def query(self, statement, version):
        options, values = self.prepare_options(statement, version)
        names = statement.names if statement.named else None

        def request(side):
            body = rawcql.long_string(self.text_of(side, statement, options)) + options.encode(
                side, values, names
            )
            return self.framed(rawcql.QUERY, options, body)

        self.kinds[statement.kind] += 1
        self.exchange(statement, version, options, request, f"QUERY {values}")

    def text_of(self, side, statement, options):
        """The text; without the keyspace's name where the request has it, or now and then the
        connection.
        """
        text = statement.text
        if options.keyspace or options.unqualified:
            text = text.replace(f"{KEYSPACE}.", "")
        return side.text(text)

    @staticmethod
    def framed(opcode, options, body):
        flags, body = options.frame(body)
        return opcode, body, flags

    def prepare_options(self, statement, version):
        dies = statement.table is not None and statement.table.mortal
        moment = self.grammar.moment(mortal=dies or "TTL" in statement.text)
        options = Options(self.random, version, statement, moment)
        options.unqualified = not options.keyspace and self.random.random() < 0.05
        values = options.values = statement.values(self.random)
        # The database refuses them in v3, and takes unset for null there.
        options.names = self.random.sample(range(len(values)), len(values))
        if statement.named and self.random.random() < 0.03:
            values = values[:-1]
            options.names = list(range(len(values)))
        return options, values

    def execute(self, statement, version):
        """PREPARE where this side has not yet, then EXECUTE."""
        options, values = self.prepare_options(statement, version)
        options.keyspace = options.unqualified = False
        if not self.prepare(statement, version):
            self.kinds[f"{statement.kind}, not prepared"] += 1
            return
        if statement not in self.kept:
            self.kept.append(statement)
            if len(self.kept) > KEPT:
                self.kept.pop(self.random.randrange(KEPT))
        names = statement.names if statement.named and self.random.random() < 0.7 else None

        def request(side):
            prepared_id, metadata_id = side.prepared[statement.text]
            body = rawcql.short_bytes(prepared_id)
            if version >= 5:
                body += rawcql.short_bytes(metadata_id or b"\0" * 16)
            return self.framed(rawcql.EXECUTE, options, body + options.encode(side, values, names))

        self.kinds[f"{statement.kind}, prepared"] += 1
        self.exchange(statement, version, options, request, f"EXECUTE {values}", [statement])

    def prepare(self, statement, version):
        """Whether both sides have an id for the statement now."""
        known = all(statement.text in side.prepared for side in self.sides)
        if known and (version < 5 or all(side.prepared[statement.text][1] for side in self.sides)):
            for side in self.sides:
                side.prepared.move_to_end(statement.text)  # what was used last is forgotten last
            return True

        def request(side):
            return self.prepare_request(statement, version, side)

        answers = self.both(version, request)
        options = Options(self.random, version, statement, 0)
        self.judge(statement, version, options, answers, request, "PREPARE")
        parts = [compare.Parts(answer) for answer in answers]
        if any(part.kind != compare.PREPARED for part in parts):
            return False
        for side, part in zip(self.sides, parts, strict=True):
            side.prepared[statement.text] = part.prepared_id, part.metadata_id
            side.prepared.move_to_end(statement.text)
            if len(side.prepared) > 2000:
                side.prepared.popitem(last=False)
        return True

    @staticmethod
    def prepare_request(statement, version, side):
        flags = struct.pack(">I", 0) if version >= 5 else b""
        return rawcql.PREPARE, rawcql.long_string(side.text(statement.text)) + flags, 0

    def batch(self, version, *batched):
        """A BATCH request of texts and prepared statements: these, or random ones."""
        kind, statements = batched or self.grammar.batched()
        whole = self.grammar.fixed(f"batch {('logged', 'unlogged', 'of counters')[kind]}", "")
        whole.text = "; ".join(statement.text for statement in statements)
        whole.conditional = any(statement.conditional for statement in statements)
        options, _ = self.prepare_options(whole, version)
        options.page_size, options.skip_metadata = None, False
        ready = [self.random.random() < 0.4 and self.prepare(one, version) for one in statements]
        drawn = [one.values(self.random) for one in statements]

        def request(side):
            body = bytes([kind]) + struct.pack(">H", len(statements))
            for statement, prepared, values in zip(statements, ready, drawn, strict=True):
                if prepared:
                    body += b"\1" + rawcql.short_bytes(side.prepared[statement.text][0])
                else:
                    body += b"\0" + rawcql.long_string(self.text_of(side, statement, options))
                body += struct.pack(">H", len(values)) + b"".join(map(rawcql.value, values))
            flags, tail = options.tail(side)
            body += struct.pack(">H", options.consistency) + options.flags(flags) + tail
            return self.framed(rawcql.BATCH, options, body)

        self.kinds[whole.kind] += 1
        used = [one for one, prepared in zip(statements, ready, strict=True) if prepared]
        self.exchange(whole, version, options, request, f"BATCH {drawn}", used)

    def exchange(self, statement, version, options, request, what, used=()):
        """Send, compare, and ask again: reads through Afterglow alone, and further pages. `used`:
        what is prepared.
        """
        if not statement.read and (options.timestamp is None or " IF " in statement.text):
            # The coordinator's clock has milliseconds: let that of the last write time be over.
            time.sleep(0.002)
        answers = self.unprepared(used, version, request, self.both(version, request))
        if not statement.read:
            self.recent.append(
                f"v{version} {what} level {options.consistency} {options.timestamp} {statement.text}"
            )
        known = len(self.differences)
        self.judge(statement, version, options, answers, request, what)
        if not statement.read:
            return
        for _ in range(self.random.choice((0, 1, 1, 2))):
            if len(self.differences) > known:
                return  # what was read before is not there any more
            client, asked = self.through.clients[version], request(self.through)
            again = self.again.ask(statement, lambda to=client, it=asked: to.request(*it))
            self.requests += 1
            self.judge(
                statement,
                version,
                options,
                [answers[0], again],
                request,
                f"{what}, asked again",
            )
        for page in range(2, 7):
            states = [compare.Parts(answer).paging_state for answer in answers]
            if not all(states):
                break
            options.paging_state = dict(zip(self.sides, states, strict=True))
            options.paging_state[self.past] = states[1]
            answers = self.unprepared(used, version, request, self.both(version, request))
            self.judge(statement, version, options, answers, request, f"{what}, page {page}")

    def unprepared(self, used, version, request, answers):
        """A server that forgot a statement is told it again, as drivers do, and asked again; the
        other side is not.
        """
        for at, side in enumerate(self.sides):
            for _ in range(10 if used else 0):
                if not answers[at].error or answers[at].error[0] != 0x2500:
                    break
                if side is self.direct:
                    self.allowed["prepared again"] += 1
                else:
                    self.kinds["UNPREPARED heard through Afterglow"] += 1
                for statement in used:
                    opcode, body, flags = self.prepare_request(statement, version, side)
                    part = compare.Parts(side.clients[version].request(opcode, body, flags))
                    if part.kind == compare.PREPARED:
                        side.prepared[statement.text] = (
                            part.prepared_id,
                            part.metadata_id,
                        )
                opcode, body, flags = request(side)
                answers[at] = side.clients[version].request(opcode, body, flags)
        return answers

    def judge(self, statement, version, options, answers, request, what):
        if answers[0].error:
            self.errors += 1
        for side, answer in zip(self.sides, answers, strict=True):
            self.learn(statement, side, answer)
        if compare.same(*answers, self.keyspaces):
            return
        name = compare.allowed(statement, *answers, self.keyspaces, options.skip_metadata)
        if name is None and self.hides(statement, options, answers):
            name = "rows that a projection hides"
        if name is None:
            name = self.settles(statement, version, options, request)
        if name is not None:
            self.allowed[name] += 1
            return
        self.report(statement, version, options, answers, what, request)

    @staticmethod
    def learn(statement, side, answer):
        """The columns' new id, for the next request, as drivers do."""
        parts = (
            compare.Parts(answer)
            if answer.version & 127 >= 5 and answer.opcode == rawcql.RESULT
            else None
        )
        if (
            parts
            and parts.kind == compare.ROWS
            and parts.new_metadata_id
            and statement.text in side.prepared
        ):
            side.prepared[statement.text] = (
                side.prepared[statement.text][0],
                parts.new_metadata_id,
            )

    def report(self, statement, version, options, answers, what, request):
        state = {
            name: value for name, value in vars(options).items() if value and name != "paging_state"
        }
        lines = [
            f"{statement.kind}, v{version}, {what}",
            f"  {statement.text}",
            f"  {state}",
        ]
        lines += [
            f"  {name:8}{answer!r}"[:1200]
            for name, answer in zip(("direct", "through"), answers, strict=True)
        ]
        if statement.read:
            said = self.ask_past(statement, version, request)
            lines.append(f"  past Afterglow: {said!r}"[:1200])
        if statement.table is not None:
            here = [write for write in self.recent if f".{statement.table.name}" in write]
            lines += [f"  before: {write}" for write in here[-12:]]
            lines += self.evidence(statement.table)
            self.empty(statement.table)
        self.differences.append("\n".join(lines))

    def evidence(self, table):
        """What the database has in both copies, with write times: is it they that differ, or what
        Afterglow says?
        """
        values = [
            column for column in table.values if not column.kind.multicell and not column.counter
        ]
        asked = ", ".join(
            [column.name for column in table.key]
            + [f"writetime({column.name})" for column in values]
        )
        for side in (self.direct, self.past):
            answer = side.clients[4].query(
                side.text(f"SELECT JSON {asked} FROM {KEYSPACE}.{table.name} LIMIT 20")
            )
            yield f"  {side.keyspace.decode()} has {bytes(answer.body)!r}"[:3000]

    def empty(self, table):
        """What differs now would differ again and again. What Paxos has agreed upon may come back
        after a TRUNCATE.
        """
        texts = [f"TRUNCATE {KEYSPACE}.{table.name}"]
        keys = table.of("partition")
        for pairs in (
            itertools.product(*(column.domain for column in keys)) if not table.counter else ()
        ):
            equal = [
                f"{column.name} = {literal}"
                for column, (literal, _) in zip(keys, pairs, strict=True)
            ]
            texts.append(f"DELETE FROM {KEYSPACE}.{table.name} WHERE {' AND '.join(equal)}")
        for side in self.sides:
            for text in texts:
                side.clients[4].query(side.text(text))

    def close(self):
        for side in (*self.sides, self.past):
            for client in side.clients.values():
                client.close()
