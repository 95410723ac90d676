"""Stories of one row: it is written as a whole, then read and written in turns. A cached row can
follow such writes. And stories of one partition: slices of it in turns with writes, or with
batches that also make rows of keys that the server chooses.
"""

from .grammar import INT, Builder


class Stories:
    """Mixed into the grammar, which has `random`, `tables`, `short`, and what reads and writes."""

    # What is still to be told.
    told = ()

    def next_told(self):
        """The next statement of a story, or the kind and the statements of a BATCH request."""
        if not self.told:
            stories = (
                self.story,
                self.story_of_slices,
                self.story_of_batches,
                self.story_of_changes,
            )
            # The last is slow: each change takes as long as hundreds of other statements.
            tell = self.random.choices(stories, (55, 34, 10, 0 if self.short else 1))[0]
            self.told = tell()
        return self.told.pop(0)

    def story(self):
        random = self.random
        fitting = [t for t in self.tables if t.of("regular") and not t.counter and not t.makes]
        table = random.choice(fitting)
        key = [(column.name, column.make(random)[0]) for column in table.key]
        story = [self.whole(table, key)]
        for _ in range(random.randrange(3, 8)):
            story += [self.look(table, key), self.part(table, key)]
        return [*story, self.look(table, key)]

    def look(self, table, key):
        out = Builder(self, "story, read", table, read=True)
        return self.pinned(out.add("SELECT * FROM ").table(table), key).done()

    def pinned(self, out, key):
        return out.add(" WHERE ", " AND ".join(f"{name} = {literal}" for name, literal in key))

    def whole(self, table, key, out=None):
        """All regular columns of the row; into `out`, for a batch in text."""
        out, values = out or Builder(self, "story, insert", table), table.of("regular")
        names = [name for name, _ in key] + [column.name for column in values]
        out.add("INSERT INTO ").table(table).add(" (", ", ".join(names), ") VALUES (")
        out.add("".join(f"{literal}, " for _, literal in key)).listed(values, out.column).add(")")
        self.using(out, table)
        return out.done()

    def part(self, table, key, out=None):
        """Some columns of the row, or now and then all; into `out`, for a batch in text."""
        random = self.random
        if random.random() < 0.2:
            return self.whole(table, key, out)
        out, values = out or Builder(self, "story, update", table), table.of("regular")
        values = random.sample(values, random.randrange(1, min(3, len(values)) + 1))
        self.using(out.add("UPDATE ").table(table), table)
        out.add(" SET ").listed(values, lambda column: out.add(column.name, " = ").column(column))
        return self.pinned(out, key).done()

    def story_of_slices(self):
        """Slices of one partition that the cache may have, and writes to its table: of a row of the
        partition, or any.
        """
        random = self.random
        fitting = [
            table
            for table in self.tables
            if table.of("clustering")
            and table.of("regular")
            and not (table.of("static") or table.counter or table.makes)
        ]
        # Most tables have one clustering column.
        several = [table for table in fitting if len(table.of("clustering")) > 1]
        table = random.choice(several if several and random.random() < 0.25 else fitting)
        partition = {column.name: column.make(random)[0] for column in table.of("partition")}

        def look():
            out = Builder(self, "story, slice", table, read=True)
            return self.partition_slice(out, table, partition)

        def change():
            if random.random() < 0.4:
                return self.write(table)
            rows = [(column.name, column.make(random)[0]) for column in table.of("clustering")]
            return random.choice((self.whole, self.part))(table, [*partition.items(), *rows])

        story = [change() for _ in range(3)]
        for _ in range(random.randrange(3, 8)):
            story += [*(look() for _ in range(random.randrange(1, 4))), change()]
        return [*story, look()]

    def story_of_batches(self):
        """Slices of one partition in turns with batches: they write a named row of it, and mostly
        one whose key the server makes, in the partition or in one of its own.
        """
        random, table = self.random, next(table for table in self.tables if table.makes)
        k, c = table.key
        partition = {k.name: k.make(random)[0]}

        def look():
            out = Builder(self, "story, slice", table, read=True)
            return self.partition_slice(out, table, partition)

        def parts():
            """What writes each of the batch's statements into a builder."""
            row = [*partition.items(), (c.name, c.make(random)[0])]
            some = [lambda out: random.choice((self.whole, self.part))(table, row, out)]
            if random.random() < 0.9:
                some.append(lambda out: self.new_row(table, partition[k.name], "now()", out))
            if random.random() < 0.4:
                other = random.choice(("now()", c.make(random)[0]))
                some.append(lambda out: self.new_row(table, "uuid()", other, out))
            return random.sample(some, len(some))

        def change():
            if random.random() < 0.5:
                out = Builder(self, "story, batch in text", table)
                out.add("BEGIN ", random.choice(("", "UNLOGGED ")), "BATCH ")
                for write in parts():
                    write(out)
                    out.add("; ")
                return out.add("APPLY BATCH").done()
            builders = []
            for write in parts():
                style = random.choice(("literal", "positional"))
                builders.append(Builder(self, "in a batch", table, style=style))
                write(builders[-1])
            return random.choice((0, 1)), [out.done() for out in builders]

        story = [change()]
        for _ in range(random.randrange(3, 8)):
            story += [*(look() for _ in range(random.randrange(1, 4))), change()]
        return [*story, look()]

    def new_row(self, table, k, c, out):
        """A row of such a key, one of which the server makes."""
        out.add("INSERT INTO ").table(table)
        out.add(f" ({', '.join(column.name for column in table.key)}, v) VALUES ({k}, {c}, ")
        out.term(INT.make).add(")")
        return self.using(out, table)
