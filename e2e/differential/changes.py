"""Statements that change a schema, or take all rows of a table away; rare because they are slow.
And stories of a row and its partition, which the cache has when the table changes.
"""

from .grammar import BIGINT, INT, TEXT, Builder
from .schema import KEYSPACE

# The user type has no more fields than this: none can be dropped.
MOST_FIELDS = 6


class Changes:
    """Mixed into the grammar, which has `random`, `tables`, `fields`, and what reads and writes."""

    def change(self):
        """One of any kind."""
        if self.random.random() < 0.3:
            return self.truncation(self.some_emptied())
        return self.alteration()

    def some_emptied(self):
        fitting = [table for table in self.tables if table.counter or not table.transacts]
        return self.random.choice(fitting)

    def truncation(self, table):
        out = Builder(self, "truncate", table, style="literal")
        return out.add("TRUNCATE ").table(table).done()

    def changed(self, table, text):
        return Builder(self, "schema change", table, style="literal").add(text).done()

    def alteration(self):
        """ALTER of the table that is there for it, or of the user type."""
        random = self.random
        table = next(table for table in self.tables if table.alters)
        ways = (self.add, self.drop, self.grow, self.rename, self.live, self.comment)
        way = random.choices(ways, (5, 4, 2, 3, 3, 1))[0]
        if way == self.grow and len(self.fields) >= MOST_FIELDS:
            way = self.rename
        return way(table)

    def add(self, table):
        self.added += 1
        name, kind = f"x{self.added}", self.random.choice((INT, TEXT, BIGINT))
        table.added.append(name)
        table.columns.append(type(table.columns[0])(name, kind))
        return self.changed(table, f"ALTER TABLE {KEYSPACE}.{table.name} ADD {name} {kind}")

    def drop(self, table):
        if not table.added:
            return self.add(table)
        name = table.added.pop(0)
        table.columns = [column for column in table.columns if column.name != name]
        return self.changed(table, f"ALTER TABLE {KEYSPACE}.{table.name} DROP {name}")

    def grow(self, _table):
        """A field more in the user type."""
        table = next(table for table in self.tables if table.name == "nested")
        name = f"f{len(self.fields)}"
        self.fields.append((name, INT))
        return self.changed(table, f"ALTER TYPE {KEYSPACE}.place ADD {name} int")

    def rename(self, table):
        """A clustering column has another name, for the rest of the run or until the next time."""
        column = table.of("clustering")[0]
        before, column.name = column.name, "d" if column.name == "c" else "c"
        text = f"ALTER TABLE {KEYSPACE}.{table.name} RENAME {before} TO {column.name}"
        return self.changed(table, text)

    def live(self, table):
        """Another time to live of what says none."""
        life = self.random.choice((0, 50000, 100000))
        text = f"ALTER TABLE {KEYSPACE}.{table.name} WITH default_time_to_live = {life}"
        return self.changed(table, text)

    def comment(self, table):
        text = f"ALTER TABLE {KEYSPACE}.{table.name} WITH comment = '{self.random.randrange(1000)}'"
        return self.changed(table, text)

    def replacement(self, table):
        """The table is dropped, and another takes its name: without what was added, and in the
        other order.
        """
        yield self.changed(table, f"DROP TABLE {KEYSPACE}.{table.name}")
        table.columns = [column for column in table.columns if column.name not in table.added]
        table.added = []
        for column in table.of("clustering"):
            column.order = "ASC" if column.order == "DESC" else "DESC"
        yield from (self.changed(table, text) for text in table.create())

    def story_of_changes(self):
        """A row and its partition are cached, all rows go or the table changes, and so on."""
        random = self.random
        table = next(table for table in self.tables if table.alters)
        values = {column: column.make(random)[0] for column in table.key}

        def key():
            return [(column.name, literal) for column, literal in values.items()]

        def reads():
            """Of the row and of the partition, each cached by the first."""
            out = Builder(self, "story, slice", table, read=True)
            partition = dict(key()[: len(table.of("partition"))])
            return [self.look(table, key()), self.partition_slice(out, table, partition)]

        story = []
        for _ in range(random.randrange(2, 5)):
            story += [self.whole(table, key()), *reads(), *reads()]
            luck = random.random()
            if luck < 0.3:
                story.append(self.truncation(table))
            elif luck < 0.5:
                story += self.replacement(table)
            else:
                story.append(self.alteration())
            story += [*reads(), self.part(table, key())]
        return [*story, *reads()]
