"""Statements that write: INSERT, UPDATE, DELETE, conditions, batches."""

import json

from .grammar import INT, Builder

LIFE = ("100000", "50000", "0")


def document_of(members):
    """JSON with names as often as they are there."""
    return "{" + ", ".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in members) + "}"


def odd_document(random, members):
    """JSON that names the same row in another way, that is broken, or that servers refuse."""
    members = [*members]
    at = random.randrange(len(members))
    name, value = members[at]
    how = random.randrange(10)
    if how == 0:
        members[at] = name.upper(), value
    elif how == 1:
        members[at] = f'"{name}"', value
    elif how == 2:
        members[at] = name, str(value)
    elif how == 3:
        members.insert(random.randrange(len(members) + 1), random.choice(members))
    elif how == 4:
        members.append((name.upper(), random.choice(members)[1]))
    elif how == 5:
        members[at] = name, random.choice((None, 1.0, "", True, [], {"k": 1}, 2**40))
    elif how == 6:
        members.append(("nothing", 1))
    elif how == 7:
        # A server folds the first over the second, before that is folded itself.
        other = name.upper(), random.choice(members)[1]
        members[at : at + 1] = [(f'"{name.upper()}"', value), other]
    elif how == 8:
        return document_of(members) + random.choice(("x", "{}", ",", " "))
    else:
        del members[at]
    return document_of(members)


class Writes:
    """Mixed into the grammar, which has `random`, `tables`, `release` and `moment()`."""

    def modification(self, table=None, out=None, conditional=None):
        """Any write of a row or more; into `out`, for a batch in text."""
        random = self.random
        table = table or self.some_table()
        if conditional is None:
            conditional = random.random() < (0.5 if table.name == "paxos" else 0.02)
        conditional = conditional and table.transacts
        kinds = (
            ("update",)
            if table.counter and random.random() < 0.9
            else ("insert", "insert", "update", "delete")
        )
        kind = random.choice(kinds)
        if out is None:
            label = "counter" if table.counter else f"{kind}, conditional" if conditional else kind
            out = Builder(self, label, table)
        out.statement.conditional |= conditional
        getattr(self, kind)(out, table, conditional)
        return out

    def write(self, table=None):
        """A statement of its own."""
        return self.modification(table).done()

    def using(self, out, table, life=True):
        """USING TIMESTAMP, TTL or both, or neither."""
        random = self.random
        clauses = []
        if random.random() < 0.25 and not out.statement.conditional or random.random() < 0.01:
            clauses.append("TIMESTAMP")
        if life and random.random() < (0.7 if table.expires else 0.12):
            clauses.append("TTL")
        random.shuffle(clauses)

        def clause(what):
            out.add(what, " ")
            if what == "TIMESTAMP":
                out.statement.own_timestamp = True
                mortal = table.mortal or "TTL" in clauses
                out.term(lambda random: self.timestamp_pair(random, mortal), key=True)
            elif table.expires:
                out.add(random.choice("123"))
            else:
                out.term(
                    lambda random: (lambda n: (n, int(n).to_bytes(4, "big")))(random.choice(LIFE)),
                    key=True,
                )

        if clauses:
            out.add(" USING ").listed(clauses, clause, " AND ")

    def timestamp_pair(self, _random, mortal=True):
        moment = self.moment(mortal)
        return str(moment), moment.to_bytes(8, "big")

    def insert(self, out, table, conditional):
        random = self.random
        if random.random() < 0.12:
            return self.insert_json(out, table, conditional)
        if table.makes and random.random() < 0.4:
            return self.insert_made(out, table, conditional)
        columns = table.key + random.sample(table.values, random.randrange(len(table.values) + 1))
        if random.random() < 0.02:
            columns = columns[1:] or columns
        if random.random() < 0.3:
            random.shuffle(columns)
        out.add("INSERT INTO ").table(table).add(
            " (", ", ".join(column.name for column in columns), ") VALUES ("
        )
        out.listed(columns, out.column).add(")")
        if conditional:
            out.add(" IF NOT EXISTS")
        return self.using(out, table)

    def insert_json(self, out, table, conditional):
        random = self.random
        chosen = [c for c in table.columns if c in table.key or random.random() < 0.6]

        def document(random):
            def plain(column):
                literal, data = column.make(random)
                if column.kind.name in (
                    "int",
                    "bigint",
                    "smallint",
                    "tinyint",
                    "varint",
                ):
                    return int(literal)
                if column.kind.name in ("text", "varchar", "ascii"):
                    return data.decode()
                return literal.strip("'") if random.random() < 0.9 else None

            members = [(column.name, plain(column)) for column in chosen]
            text = odd_document(random, members) if random.random() < 0.3 else document_of(members)
            return "'" + text.replace("'", "''") + "'", text.encode()

        out.statement.kind += ", json"
        out.add("INSERT INTO ").table(table).add(" JSON ").term(document, key=True)
        out.add(random.choice(("", "", " DEFAULT UNSET", " DEFAULT NULL")))
        if conditional:
            out.add(" IF NOT EXISTS")
        self.using(out, table)

    def insert_made(self, out, table, conditional):
        """A row whose key the database makes: of a partition of its own, or in one that others
        know.
        """
        random, (k, c) = self.random, table.key
        makers = ["uuid()", "now()"] + ["currentTimeUUID()"] * (self.release != "3.11")
        out.statement.kind += ", made key"
        out.add("INSERT INTO ").table(table).add(f" ({k.name}, {c.name}, v) VALUES (")
        if random.random() < 0.5:
            out.add(random.choice(makers), ", ", random.choice(("now()", c.make(random)[0])))
        else:
            out.column(k).add(", ", random.choice(makers[1:]))
        out.add(", ").term(INT.make).add(")")
        if conditional:
            out.add(" IF NOT EXISTS")
        return self.using(out, table)

    def where_key(self, out, table, columns):
        chance = 0.02 if out.statement.conditional else 0.12

        def relation(column):
            if self.random.random() < chance:
                return out.among(column)
            return out.add(column.name, " = ").column(column)

        out.add(" WHERE ").listed(columns, relation, " AND ")

    def update(self, out, table, conditional):
        random = self.random
        out.add("UPDATE ").table(table)
        self.using(out, table)
        statics, regular = table.of("static"), table.of("regular")
        only_static = bool(statics) and random.random() < 0.3
        values = (statics if only_static else statics[: random.randrange(2)] + regular) or table.key
        values = random.sample(values, random.randrange(1, min(3, len(values)) + 1))
        out.add(" SET ").listed(values, lambda column: self.assignment(out, column))
        only_static = only_static and random.random() < 0.9
        self.where_key(out, table, table.of("partition") if only_static else table.key)
        if conditional:
            self.condition(out, table)

    def assignment(self, out, column):
        random, kind, name = self.random, column.kind, column.name
        if column.counter:
            out.add(f"{name} = {name} {random.choice('+-')} ")
            return out.term(
                lambda random: (lambda n: (str(n), n.to_bytes(8, "big")))(random.randrange(5)),
                key=True,
            )
        if not kind.multicell or random.random() < 0.35:
            return out.add(name, " = ").term(column.make)
        if kind.name.startswith("list"):
            if random.random() < 0.3:
                return out.add(name, f"[{random.randrange(3)}] = ").term(kind.parts[0].make)
            if random.random() < 0.4:
                return out.add(name, " = ").term(kind.make).add(" + ", name)
            return out.add(f"{name} = {name} {random.choice('+-')} ").term(kind.make)
        if kind.name.startswith("set"):
            return out.add(f"{name} = {name} {random.choice('+-')} ").term(kind.make)
        if kind.name.startswith("map"):
            if random.random() < 0.5:
                return (
                    out.add(name, "[").term(kind.parts[0].make).add("] = ").term(kind.parts[1].make)
                )
            return out.add(f"{name} = {name} + ").term(kind.make)
        field, inner = random.choice(kind.parts)
        return out.add(f"{name}.{field} = ").term(inner.make)

    def condition(self, out, table):
        random = self.random
        if random.random() < 0.3 or not table.values:
            return out.add(random.choice((" IF EXISTS", " IF EXISTS", " IF NOT EXISTS")))

        def one(column):
            kind = column.kind
            if kind.multicell and kind.name.startswith("map") and random.random() < 0.5:
                return (
                    out.add(column.name, "[")
                    .term(kind.parts[0].make)
                    .add("] = ")
                    .term(kind.parts[1].make)
                )
            operator = random.choice(("=", "=", "=", "!=", "<", ">", "IN"))
            out.add(column.name, f" {operator} ")
            if operator == "IN":
                return out.add("(").listed([column] * 2, out.column).add(")")
            return out.term(column.make)

        out.add(" IF ")
        return out.listed(
            random.sample(table.values, random.randrange(1, min(2, len(table.values)) + 1)),
            one,
            " AND ",
        )

    def delete(self, out, table, conditional):
        random = self.random
        clustering, values = table.of("clustering"), table.values
        shape = random.choices(
            ("row", "cells", "element", "partition", "range", "in", "part"),
            (35, 20, 8, 8, 10, 6, 1),
        )[0]
        if out.statement.kind == "delete":
            out.statement.kind = f"delete {shape}"
        out.add("DELETE ")
        if shape == "cells" and values:
            out.add(
                ", ".join(
                    c.name
                    for c in random.sample(values, random.randrange(1, min(3, len(values)) + 1))
                )
            )
        elif shape == "element" and (
            chosen := [column for column in values if column.kind.multicell]
        ):
            column = random.choice(chosen)
            if column.kind.name.startswith("list"):
                out.add(f"{column.name}[{random.randrange(3)}]")
            elif column.kind.name.startswith(("map", "set")):
                out.add(column.name, "[").term(column.kind.parts[0].make, key=True).add("]")
            else:
                out.add(f"{column.name}.{random.choice(column.kind.parts)[0]}")
        out.add(" FROM ").table(table)
        self.using(out, table, life=random.random() < 0.01)
        partition = table.of("partition")
        if shape == "partition":
            self.where_key(out, table, partition)
        elif shape == "part":
            self.where_key(out, table, table.key[1:] or table.key)
        elif shape in ("range", "in") and clustering:
            self.where_key(out, table, partition)
            out.add(" AND ")
            shape = "clusterings" if shape == "in" else random.choice(("range", "tuple"))
            self.slice(out, clustering, shape)
        else:
            self.where_key(out, table, table.key)
        if conditional:
            self.condition(out, table)

    def text_batch(self):
        """BEGIN BATCH ... APPLY BATCH."""
        random = self.random
        counters = random.random() < 0.15
        kind = "COUNTER " if counters else random.choice(("", "", "UNLOGGED "))
        out = Builder(self, "batch in text")
        out.add("BEGIN ", kind, "BATCH ")
        if random.random() < 0.2:
            out.add("USING TIMESTAMP ").term(self.timestamp_pair, key=True).add(" ")
            out.statement.own_timestamp = True
        table = self.some_table(counter=counters)
        for _ in range(random.randrange(1, 5)):
            if random.random() < 0.4:
                table = self.some_table(counter=counters)
            self.modification(table, out, conditional=random.random() < 0.03)
            out.add("; ")
        return out.add("APPLY BATCH", random.choice(("", ";"))).done()

    def batched(self):
        """Statements of a BATCH request, and its kind: 0 logged, 1 not, 2 counters."""
        random = self.random
        kind = random.choice((0, 0, 1, 1, 2))
        table = self.some_table(counter=kind == 2)
        conditional = table.name == "paxos" and random.random() < 0.3
        statements = []
        for _ in range(random.randrange(1, 6)):
            if random.random() < 0.4 and not conditional:
                table = self.some_table(counter=kind == 2)
            style = random.choice(("literal", "positional"))
            out = Builder(self, "in a batch", table, style=style)
            statements.append(self.modification(table, out, conditional=conditional).done())
        return kind, statements
