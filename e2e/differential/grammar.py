"""Statements from a seed: reads of every shape, and what all statements are built with."""

import re
import struct

from afterglow_e2e.rawcql import UNSET

from .schema import KEYSPACE
from .values import SCALAR, sized

INT, TEXT, BIGINT = SCALAR["int"], SCALAR["text"], SCALAR["bigint"]


class Statement:
    """A text with `KEYSPACE` in it, and a maker of bytes for each of its markers."""

    def __init__(self, kind, table=None, read=False):
        self.kind, self.table, self.read = kind, table, read
        self.text, self.markers, self.named = "", [], False
        # Conditional ones take no timestamp, and may be batched with others of their partition
        # only.
        self.conditional = self.own_timestamp = False

    def values(self, random):
        """Bytes for each marker, drawn anew."""
        return [make(random) for _, make in self.markers]

    @property
    def names(self):
        return [name for name, _ in self.markers]


class Builder:
    """Puts one text together from left to right, so that markers are in order."""

    def __init__(self, grammar, kind, table=None, read=False, style=None):
        self.random, self.parts, self.bound = grammar.random, [], []
        self.statement = Statement(kind, table, read)
        self.style = (
            style or self.random.choices(("literal", "positional", "named"), (45, 45, 10))[0]
        )
        self.statement.named = self.style == "named"

    def add(self, *parts):
        self.parts.extend(parts)
        return self

    def table(self, table, unqualified=False):
        return self.add(table.name if unqualified else f"{KEYSPACE}.{table.name}")

    def term(self, make, key=False, kind=None):
        """A literal or a marker for one of `make`'s pairs. What is no key may be null, unset or of
        a wrong length. Markers of one `kind` may share a name.
        """
        random = self.random
        if self.style == "literal" or random.random() < 0.15:
            return self.add("null" if not key and random.random() < 0.02 else make(random)[0])
        return self.marker(make, key, kind)

    def marker(self, make, key=False, kind=None):
        """A marker for the second of `make`'s pairs."""
        random = self.random

        def data(random):
            luck = random.random()
            if luck < (0.002 if key else 0.03):
                return None
            if luck < (0.003 if key else 0.05):
                return UNSET
            if luck < (0.004 if key else 0.06):
                return random.randbytes(random.randrange(6))
            return make(random)[1]

        name = f"n{len(self.statement.markers)}" if self.style == "named" else "?"
        alike = [name for name, other in self.bound if other is kind is not None]
        if self.style == "named" and alike and random.random() < 0.3:
            name = random.choice(alike)
        self.bound.append((name, kind))
        self.statement.markers.append((name, data))
        return self.add(":" + name if self.style == "named" else "?")

    def column(self, column):
        key = column.role in ("partition", "clustering")
        return self.term(column.make, key=key, kind=column.kind)

    def among(self, column):
        """`column IN` a bound list, or values in brackets."""
        self.add(column.name, " IN ")
        if self.style != "literal" and self.random.random() < 0.6:
            return self.marker(lambda random: (None, bound_list(random, column)), key=True)
        return self.add("(").listed([column] * self.random.randrange(4), self.column).add(")")

    def listed(self, things, each, separator=", "):
        for number, thing in enumerate(things):
            if number:
                self.add(separator)
            each(thing)
        return self

    def done(self):
        self.statement.text = "".join(self.parts)
        return self.statement


def bound_list(random, column):
    """A list for IN as drivers bind it, now and then one that is broken, and elements that servers
    write in another way than they read them.
    """
    size = random.choice((0, 1, 1, 2, 2, 3, 3, 70))
    elements = [column.make(random)[1] for _ in range(size)]
    if elements and random.random() < 0.1:
        at = random.randrange(len(elements))
        elements[at] = odd_form(random, column.kind.name, elements[at])
    data = struct.pack(">i", size) + b"".join(map(sized, elements))
    if random.random() < 0.05:
        data = random.choice(
            (
                data + b"\0",
                data[:-1],
                struct.pack(">i", size + 1) + data[4:],
                struct.pack(">i", max(0, size - 1)) + data[4:],
                struct.pack(">i", -1),
            )
        )
    return data


def odd_form(random, kind, data):
    """The same value in other bytes, or nothing."""
    forms = [None, b""]
    if kind == "varint":
        forms += [(b"\xff" if data[:1] >= b"\x80" else b"\0") + data] * 4
    if kind == "boolean":
        forms += [b"\2"] * 4
    if kind == "inet" and len(data) == 4:
        forms += [bytes(10) + b"\xff\xff" + data] * 4
    if kind in ("text", "varchar"):
        forms += [b"\xc0\x80"] * 4
    return random.choice(forms)


def small(random):
    """A pair for a LIMIT."""
    number = random.choice((1, 1, 1, 2, 2, 3, 10, 1000, 0, -1))
    return str(number), number.to_bytes(4, "big", signed=True)


# Literals that fit few types.
MISTYPED = (
    "'x'",
    "1",
    "-1.5",
    "true",
    "0x00",
    "null",
    "99999999999999999999",
    "{1}",
    "[]",
    "(1, 2)",
    "NaN",
    "1h",
)


def random_order(random, things):
    return random.sample(things, len(things))


class Reads:
    """SELECT of every shape. Mixed into the grammar, which has `random`, `tables` and `release`."""

    def select(self, table=None):
        random = self.random
        table = table or self.some_table()
        shape = random.choices(
            (
                "row",
                "partition",
                "in",
                "clusterings",
                "range",
                "tuple",
                "token",
                "filter",
                "index",
                "scan",
                "part",
                "slice",
                "several",
            ),
            (50, 10, 5, 4, 6, 3, 4, 5, 5 * bool(table.indexes), 6, 2, 30, 20),
        )[0]
        if table.makes:
            shape = "row"  # each side has other rows besides those that statements name
        out = Builder(self, f"select {shape}", table, read=True)
        if shape == "slice":
            return self.partition_slice(out, table)
        if shape == "several":
            return self.several_rows(out, table)
        out.add("SELECT ")
        grouped = self.projection(out, table, shape)
        out.add(" FROM ")
        name = f"{KEYSPACE}.{table.name}"
        if table.view and random.random() < 0.2:
            name += "_view"
        out.add(name)
        filtering = self.where(out, table, shape)
        clustering = table.of("clustering")
        if grouped and random.random() < 0.7:
            columns = [column.name for column in table.key]
            out.add(
                " GROUP BY ",
                ", ".join(columns[: random.randrange(1, len(columns) + 1)]),
            )
        if clustering and random.random() < 0.08:
            out.add(" ORDER BY ", clustering[0].name, random.choice(("", " ASC", " DESC")))
        if random.random() < (0.1 if shape == "row" else 0.05):
            out.add(" PER PARTITION LIMIT ").term(small, kind="limit")
        if random.random() < (0.25 if shape == "row" else 0.1):
            out.add(" LIMIT ").term(small, kind="limit")
        if filtering or random.random() < 0.01:
            out.add(" ALLOW FILTERING")
        return out.done()

    def several_rows(self, out, table):
        """Plain columns of rows that IN names, mostly on the partition key with the rest of the key
        given, or on clustering columns.
        """
        random, names = self.random, [column.name for column in table.columns]
        some = random.sample(names, random.randrange(1, min(4, len(names)) + 1))
        out.add("SELECT ", random.choice(("*", ", ".join(some))))
        out.add(f" FROM {KEYSPACE}.{table.name} WHERE ")
        role = random.choice(("partition", "clustering"))

        def relation(column):
            if column.role == role and random.random() < 0.8:
                return out.among(column)
            return out.add(column.name, " = ").column(column)

        key = table.key
        if role == "clustering" and random.random() < 0.3:
            key = key[: random.randrange(len(table.of("partition")), len(key) + 1)]
        out.listed(random_order(random, key), relation, " AND ")
        clustering = table.of("clustering")
        if clustering and random.random() < 0.2:
            out.add(" ORDER BY ", clustering[0].name, random.choice((" ASC", " DESC")))
        if random.random() < 0.1:
            out.add(" PER PARTITION LIMIT ").term(small, kind="limit")
        if random.random() < 0.3:
            out.add(" LIMIT ").term(small, kind="limit")
        return out.done()

    def partition_slice(self, out, table, partition=None):
        """Plain columns of a partition's rows from an end or within a range, mostly as the database
        takes them. `partition`: literals of its key, by column. Clustering keys that servers make
        are not asked for: each side has its own.
        """
        random, clustering = self.random, table.of("clustering")
        hidden = clustering if table.makes else []
        names = [column.name for column in table.columns if column not in hidden]
        some = random.sample(names, random.randrange(1, min(4, len(names)) + 1))
        some = ", ".join(some)
        counts = random.random() < 0.15
        if counts:
            out.statement.kind += ", count"
            out.add("SELECT ", random.choice(("count(*)", "COUNT(*)", 'count(*) AS "N"')))
        else:
            out.add("SELECT ", some if hidden else random.choice(("*", some)))
        out.add(f" FROM {KEYSPACE}.{table.name} WHERE ")

        def equal(column):
            if partition and column.name in partition:
                return out.add(f"{column.name} = {partition[column.name]}")
            return out.add(column.name, " = ").column(column)

        out.listed(table.of("partition"), equal, " AND ")
        self.bounds(out, clustering, equal)
        # Such a count is answered from the unit, one with an order or a limit is not.
        if counts and random.random() < 0.8:
            return out.done()
        if clustering and random.random() < 0.5:
            ways = [column.order for column in clustering]
            if random.random() < 0.6:
                ways = [{"ASC": "DESC", "DESC": "ASC"}[way] for way in ways]
            if random.random() < 0.05:
                ways[-1] = random.choice(("ASC", "DESC"))
            some = random.randrange(1, len(clustering) + 1)
            order = zip(clustering[:some], ways[:some], strict=True)
            out.add(" ORDER BY ", ", ".join(f"{column.name} {way}" for column, way in order))
        if random.random() < 0.1:
            out.add(" PER PARTITION LIMIT ").term(small, kind="limit")
        if random.random() < 0.5:
            out.add(" LIMIT ").term(small, kind="limit")
        return out.done()

    def bounds(self, out, clustering, equal):
        """What a slice says of clustering columns: values of the first ones, one or several, and a
        range of the next; now and then a range of several columns at once.
        """
        random = self.random
        among = 0.08 if len(clustering) > 1 else 0.03
        if clustering and random.random() < 0.06:
            for operators in random.sample((("<", "<="), (">", ">=")), random.randrange(1, 3)):
                some = clustering[: random.randrange(1, len(clustering) + 1)]
                names = ", ".join(column.name for column in some)
                out.add(f" AND ({names}) {random.choice(operators)} (")
                out.listed(some, out.column).add(")")
            return
        for at, column in enumerate(clustering):
            # More often where there is another one behind it.
            luck = random.random() * (1 if at + 1 == len(clustering) else 0.6)
            if luck < among:
                out.add(" AND ").among(column)
                continue
            if luck < among + 0.2:
                equal(out.add(" AND ") and column)
                continue
            if luck < 0.6:
                sides = [("<", "<="), (">", ">=")]
                for side in random.sample(sides, random.randrange(1, 3)):
                    out.add(" AND ", column.name, f" {random.choice(side)} ").column(column)
            if random.random() < 0.01 and at + 1 < len(clustering):
                out.add(" AND ", clustering[-1].name, " > ").column(clustering[-1])
            break

    def projection(self, out, table, shape):
        """What is selected; true if it may be grouped."""
        random = self.random
        names = [column.name for column in table.columns]
        kind = random.choices(
            (
                "star",
                "columns",
                "alias",
                "count",
                "aggregate",
                "times",
                "json",
                "function",
                "element",
                "distinct",
            ),
            (28, 32, 7, 4, 4, 6, 6, 6, 4, 3),
        )[0]
        if kind != "star" and shape == "row":
            out.statement.kind = f"select row, {kind}"
        some = random.sample(names, random.randrange(1, min(4, len(names)) + 1))
        value = random.choice(table.values or table.key)
        if kind == "star":
            out.add("*")
        elif kind == "columns":
            out.add(", ".join(some + some[: random.random() < 0.1]))
        elif kind == "alias":
            aliases = [f" AS {random.choice(('x', 'Alias', 'ttl'))}{i}" for i in range(len(some))]
            out.add(
                ", ".join(
                    name + random.choice((alias, alias, ""))
                    for name, alias in zip(some, aliases, strict=True)
                )
            )
        elif kind == "count":
            out.add(
                random.choice(("count(*)", "count(1)", "COUNT(*) AS n", f"count({value.name})"))
            )
        elif kind == "aggregate":
            function = random.choice(("min", "max", "sum", "avg", "count"))
            out.add(
                f"{function}({value.name})",
                random.choice(("", ", count(*)", f", {table.key[0].name}")),
            )
        elif kind == "times":
            functions = ["writetime", "ttl"] + ["maxwritetime"] * (self.release == "5.0")
            out.add(
                ", ".join(
                    f"{random.choice(functions)}({c.name})"
                    for c in [value] + [value] * (random.random() < 0.2)
                )
            )
            out.add(random.choice(("", f", {value.name}")))
        elif kind == "json":
            out.add("JSON ", random.choice(("*", ", ".join(some), f"{some[0]} AS x")))
        elif kind == "function":
            self.function(out, table, value)
        elif kind == "element":
            self.element(out, value)
        else:
            statics = [column.name for column in table.of("static")]
            out.add(
                "DISTINCT ",
                ", ".join([c.name for c in table.of("partition")] + statics[: random.randrange(2)]),
            )
        return kind in ("count", "aggregate")

    def function(self, out, table, value):
        random = self.random
        partition = ", ".join(column.name for column in table.of("partition"))
        scalar = value.kind.name if value.kind.name in SCALAR else "int"
        out.add(
            random.choice(
                (
                    f"token({partition})",
                    f"toJson({value.name})",
                    f"CAST({value.name} AS {random.choice(('text', 'int', 'double', 'bigint'))})",
                    f"{scalar}AsBlob({value.name})",
                    f"blobAs{scalar.capitalize()}({scalar}AsBlob({value.name}))",
                    f"nofunction({value.name})",
                    f"toDate({value.name})",
                    f"{value.name} + 1",
                    f"(int) {value.name}",
                )
            )
        )

    def element(self, out, value):
        random, kind = self.random, value.kind
        if kind.name.startswith(("map", "set")):
            out.add(value.name, "[").term(kind.parts[0].make).add("]")
            if random.random() < 0.2:
                out.add(", ", value.name, "['a'..'n']")
        elif "place" in kind.name:
            out.add(f"{value.name}.{random.choice(('street', 'number', 'nothing'))}")
        else:
            out.add(f"{value.name}, {value.name}")

    def where(self, out, table, shape):
        """Relations of that shape; true if they need ALLOW FILTERING."""
        random = self.random
        partition, clustering = table.of("partition"), table.of("clustering")
        filtering = False

        def equal(column):
            out.add(column.name, " = ").column(column)

        out.add("" if shape == "scan" else " WHERE ")
        if shape == "row":
            self.row(out, table, equal)
        elif shape == "partition":
            out.listed(partition, equal, " AND ")
        elif shape == "in":
            first, *rest = partition
            out.among(first)
            for column in rest + clustering[: random.randrange(2)]:
                equal(out.add(" AND ") and column)
        elif shape in ("clusterings", "range", "tuple"):
            out.listed(partition, equal, " AND ")
            if clustering:
                self.slice(out.add(" AND "), clustering, shape)
        elif shape == "token":
            names = ", ".join(column.name for column in partition)
            out.add(f"token({names}) {random.choice(('<', '<=', '>', '>='))} ")
            if random.random() < 0.5:
                out.term(BIGINT.make)
            else:
                out.add("token(").listed(partition, out.column).add(")")
        elif shape in ("filter", "index"):
            named = [column for column in table.values if column.name in table.indexes]
            column = random.choice(named if shape == "index" and named else table.columns)
            filtering = shape == "filter"
            self.filter(out, column)
        elif shape == "part":
            out.listed(random.sample(table.key, max(1, len(table.key) - 1)), equal, " AND ")
        return filtering

    def row(self, out, table, equal):
        """Relations that pin down a row, or seem to: a tuple of any key columns, a column twice, a
        mistyped literal.
        """
        random, key = self.random, random_order(self.random, table.key)
        luck = random.random()
        if luck < 0.06:
            size = random.randrange(1, len(key) + 1)
            clustering = table.of("clustering")
            some = random.choice((key, clustering or key))[:size]
            out.add("(", ", ".join(column.name for column in some), ") = (").listed(
                some, out.column
            ).add(")")
            key = [column for column in key if column not in some]
            out.add(" AND " if key else "")
        elif luck < 0.08:
            key.append(random.choice(key))
        elif luck < 0.10:
            column = key.pop(random.randrange(len(key)))
            out.add(column.name, " = ", random.choice(MISTYPED), " AND " if key else "")
        out.listed(key, equal, " AND ")

    def slice(self, out, clustering, shape):
        random = self.random
        operators = ("<", "<=", ">", ">=")
        if shape == "clusterings":
            out.among(clustering[0])
        elif shape == "range":
            out.add(clustering[0].name, f" {random.choice(operators[:2])} ").column(clustering[0])
            if random.random() < 0.5:
                out.add(" AND ", clustering[0].name, f" {random.choice(operators[2:])} ").column(
                    clustering[0]
                )
        else:
            some = clustering[: random.randrange(1, len(clustering) + 1)]
            out.add(
                "(",
                ", ".join(column.name for column in some),
                f") {random.choice((*operators, '=', 'IN'))} ",
            )
            several = out.parts[-1].endswith("IN ")
            out.add("((" if several else "(").listed(some, out.column).add("))" if several else ")")

    def filter(self, out, column):
        random, kind = self.random, column.kind
        if kind.name.startswith(("list", "set", "map")) and random.random() < 0.8:
            keyed = kind.name.startswith("map")
            if keyed and random.random() < 0.3:
                out.add(column.name, "[").term(kind.parts[0].make).add("] = ").term(
                    kind.parts[1].make
                )
            else:
                by_key = keyed and random.random() < 0.5
                out.add(column.name, " CONTAINS KEY " if by_key else " CONTAINS ")
                out.term(kind.parts[-1 if keyed and not by_key else 0].make)
        else:
            out.add(
                column.name,
                f" {random.choice(('=', '=', '=', '<', '>=', '!=', 'LIKE'))} ",
            ).column(column)


TOKEN = re.compile(r"\s+|'(?:[^']|'')*'|\w+|.", re.DOTALL)
INTRUDERS = (
    "SELECT", "FROM", "WHERE", "AND", "IF", "NULL", "?", ":x", "(", ")", ",", ";", "'", '"', "--", "/*", "*/", "*",
    "1", "-1", "0x", "99999999999999999999", "IN", "TOKEN", "JSON", "USING", "TTL", "LIMIT", "=", "<", "[", "]", "{",
    "nothing", "DISTINCT", "AS", "IS NOT NULL", "\0", "é", "$$", ".", "..", "EXISTS", "BATCH", "SET", "VALUES",
)  # fmt: skip
NONSENSE = (
    "", ";", " ", "SELECT", "HELLO WORLD", "-- nothing", "/* open", "SELECT * FROM", "INSERT", "UPDATE", "BEGIN BATCH",
    "APPLY BATCH", "BEGIN BATCH APPLY BATCH", "SELECT * FROM KSNAME.nowhere", "SELECT * FROM nokeyspace.t",
    "DELETE FROM KSNAME.nowhere WHERE k = 1", "UPDATE KSNAME.nowhere SET v = 1 WHERE k = 1", "USE nowhere",
    "TRUNCATE KSNAME.nowhere", "DROP TABLE KSNAME.nowhere", "DROP INDEX KSNAME.nowhere",
    "CREATE TABLE KSNAME.plain (k int PRIMARY KEY)",
    "CREATE TABLE KSNAME.bad (k nonsense PRIMARY KEY)", "ALTER TABLE KSNAME.plain DROP k",
    "ALTER TABLE KSNAME.plain ADD v int",
    "GRANT SELECT ON KSNAME.plain TO nobody", "SELECT 1", "SELECT now() FROM KSNAME.nowhere",
    "CREATE TYPE KSNAME.place (a int)",
)  # fmt: skip


def made_invalid(random, text):
    """The text with one to three of its words removed, repeated, swapped or replaced."""
    words = TOKEN.findall(text)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(words))
        how = random.randrange(4)
        if how == 0:
            words[at] = ""
        elif how == 1:
            words.insert(at, words[at])
        elif how == 2:
            other = random.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        else:
            words[at] = random.choice(INTRUDERS)
    return "".join(words)
