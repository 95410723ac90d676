"""The tables that statements are generated over: every type, every kind of table and column."""

from .values import (
    SCALAR,
    SCALARS,
    list_of,
    map_of,
    set_of,
    tuple_of,
    user_type,
    vector_of,
)

INT, TEXT, BIGINT, BLOB, UUID, TIMEUUID = (
    SCALAR[name] for name in ("int", "text", "bigint", "blob", "uuid", "timeuuid")
)
COUNTER = SCALAR["bigint"]
# Stands in every text where a keyspace's name goes; each side has its own.
KEYSPACE = "KSNAME"


class Column:
    """A column; `role` is partition, clustering, static or regular. Keys have few values, so that
    statements meet. A clustering column has an `order`.
    """

    def __init__(self, name, kind, role="regular", counter=False, order="ASC"):
        self.name, self.kind, self.role, self.counter = name, kind, role, counter
        self.order, self.domain = order, None

    def declared(self):
        return f"{self.name} {'counter' if self.counter else self.kind}{' static' if self.role == 'static' else ''}"

    def make(self, random):
        if self.domain is not None and random.random() < 0.98:
            return random.choice(self.domain)
        return self.kind.make(random)


class Table:
    """A table and what may be done with it."""

    def __init__(
        self,
        name,
        columns,
        options=(),
        indexes=(),
        view=False,
        alters=False,
        expires=False,
        makes=False,
        transacts=True,
    ):
        self.name, self.columns, self.options, self.indexes = (
            name,
            columns,
            options,
            indexes,
        )
        self.view, self.alters, self.expires = view, alters, expires
        # Servers make keys of some of its rows: each side has its own of these.
        self.makes = makes
        # Its lives may be changed too.
        self.mortal = expires or alters or any("time_to_live" in option for option in options)
        # Those without conditional writes are truncated: what Paxos has agreed upon may come back
        # after a TRUNCATE, or not.
        self.transacts = transacts and not expires
        self.counter = any(column.counter for column in columns)
        # Columns that an ALTER TABLE added, by number.
        self.added = []

    def of(self, *roles):
        return [column for column in self.columns if column.role in roles]

    @property
    def key(self):
        return self.of("partition", "clustering")

    @property
    def values(self):
        return self.of("static", "regular")

    def create(self):
        """All statements that make it."""
        partition = ", ".join(column.name for column in self.of("partition"))
        key = ", ".join([f"({partition})", *(column.name for column in self.of("clustering"))])
        columns = ", ".join(column.declared() for column in self.columns)
        clustering = self.of("clustering")
        orders = ", ".join(f"{column.name} {column.order}" for column in clustering)
        falls = any(column.order == "DESC" for column in clustering)
        options = [*self.options, *[f"CLUSTERING ORDER BY ({orders})"] * falls]
        options = f" WITH {' AND '.join(options)}" if options else ""
        yield f"CREATE TABLE {KEYSPACE}.{self.name} ({columns}, PRIMARY KEY ({key})){options}"
        for number, column in enumerate(self.indexes):
            yield f"CREATE INDEX {self.name}_{number} ON {KEYSPACE}.{self.name} ({column})"


def types(fields):
    """The user types that the tables use."""
    listing = ", ".join(f"{name} {kind}" for name, kind in fields)
    return f"CREATE TYPE {KEYSPACE}.place ({listing})"


def keyed(
    name, values, partition=1, clustering=1, kinds=(INT, INT, INT, INT), orders=(), **options
):
    """A table with so many key columns: k or k0, k1, ...; c or c0, c1, ... `orders` are those of
    the clustering columns.
    """

    def columns(letter, role, kinds):
        names = [letter] if len(kinds) == 1 else [f"{letter}{i}" for i in range(len(kinds))]
        return [Column(column, kind, role) for column, kind in zip(names, kinds, strict=True)]

    keys = columns("k", "partition", kinds[:partition])
    keys += columns("c", "clustering", kinds[partition : partition + clustering])
    for column, order in zip(keys[partition:], orders, strict=False):
        column.order = order
    return Table(name, keys + values, **options)


def tables(random, release, short):
    """All tables, with the values of their keys chosen; `short` leaves most of the key types to
    chance.
    """
    fields = [("street", TEXT), ("number", INT), ("tags", set_of(TEXT, frozen=True))]
    found = [
        *of_values(fields),
        *of_kinds(),
        *with_options(),
        *of_release(release),
        *of_keys(random, short),
    ]
    for table in found:
        for column in table.key:
            column.domain = [column.kind.make(random) for _ in range(4)]
            if column.kind.name == "int":
                column.domain = [
                    SCALAR["int"].make(random),
                    *((str(n), n.to_bytes(4, "big")) for n in range(3)),
                ]
    return fields, found


def of_values(fields):
    """Tables of every type of value; `fields` are those of a user type."""
    place, whole_place = (
        user_type("place", fields, frozen=False),
        user_type("place", fields, frozen=True),
    )
    return [
        keyed(
            "scalars",
            [Column("v_" + kind.name, kind) for kind in SCALARS],
            clustering=0,
        ),
        keyed(
            "nested",
            [
                Column("l", list_of(INT)),
                Column("s", set_of(TEXT)),
                Column("m", map_of(TEXT, INT)),
                Column("fl", list_of(TEXT, frozen=True)),
                Column("fm", map_of(INT, list_of(INT, frozen=True), frozen=True)),
                Column("ms", map_of(INT, set_of(UUID, frozen=True))),
                Column("u", place),
                Column("fu", whole_place),
                Column("t", tuple_of(INT, TEXT, BIGINT)),
                Column("lu", list_of(whole_place)),
            ],
        ),
    ]


def of_kinds():
    """Tables with clustering, static columns and counters, and without one of these."""
    return [
        keyed(
            "wide",
            [
                Column("v1", INT),
                Column("v2", TEXT),
                Column("st", TEXT, "static"),
                Column("sm", map_of(TEXT, INT), "static"),
            ],
            partition=2,
            clustering=2,
            kinds=(INT, TEXT, INT, TEXT),
            orders=("DESC", "ASC"),
        ),
        keyed(
            "ordered",
            [Column("v", INT), Column("w", TEXT)],
            clustering=3,
            kinds=(INT, INT, TEXT, BIGINT),
            orders=("DESC", "ASC", "DESC"),
            transacts=False,
        ),
        keyed("plain", [Column("v", INT), Column("w", TEXT), Column("b", BLOB)]),
        keyed(
            "lone",
            [Column("v", TEXT), Column("w", BIGINT)],
            clustering=0,
            kinds=(TEXT,),
        ),
        keyed("bare", []),
        keyed(
            "counts",
            [Column("n", COUNTER, counter=True), Column("m", COUNTER, counter=True)],
        ),
        keyed(
            "totals",
            [
                Column("n", COUNTER, counter=True),
                Column("s", COUNTER, "static", counter=True),
            ],
        ),
        keyed("paxos", [Column("v", INT), Column("w", TEXT), Column("s", INT, "static")]),
    ]


def with_options():
    """Tables with options, indexes and views, those that change, and one of odd names."""
    return [
        keyed(
            "mortal",
            [Column("v", INT), Column("w", TEXT)],
            options=("default_time_to_live = 100000",),
        ),
        keyed("brief", [Column("v", INT), Column("w", TEXT)], expires=True),
        keyed(
            "sought",
            [Column("v", INT), Column("w", TEXT), Column("x", set_of(INT))],
            indexes=("v", "x"),
        ),
        keyed("seen", [Column("v", INT), Column("w", TEXT)], view=True),
        keyed("made", [Column("v", INT), Column("w", TEXT)], kinds=(UUID, TIMEUUID), makes=True),
        keyed("changing", [Column("v", INT), Column("w", TEXT)], alters=True, transacts=False),
        Table(
            '"OddName"',
            [
                Column('"Key"', INT, "partition"),
                Column('"select"', INT, "clustering"),
                Column('"a""b"', TEXT),
                Column("ttl", INT),
                Column("json", INT),
            ],
        ),
    ]


def of_release(release):
    """Tables that only this release has."""
    found = []
    if release == "5.0":
        vectors = [
            Column("v", vector_of(SCALAR["float"], 3)),
            Column("w", vector_of(TEXT, 2)),
        ]
        vectors.append(Column("x", list_of(vector_of(INT, 2), frozen=True)))
        found.append(keyed("vectors", vectors))
    if release == "3.11":
        found.append(
            keyed(
                "dense",
                [Column("v", INT), Column("w", TEXT)],
                clustering=0,
                options=("COMPACT STORAGE",),
            )
        )
    return found


def of_keys(random, short):
    """Tables of every type of key."""
    found = []
    keys = [kind for kind in SCALARS if kind.key]
    for kind in random.sample(keys, 3) if short else keys:
        found.append(
            keyed(
                "key_" + kind.name,
                [Column("v", INT), Column("w", TEXT)],
                kinds=(kind, kind),
                orders=(random.choice(("ASC", "DESC")),),
            )
        )
    found.append(keyed("key_list", [Column("v", INT)], kinds=(list_of(INT, frozen=True), INT)))
    found.append(keyed("key_tuple", [Column("v", INT)], kinds=(INT, tuple_of(INT, TEXT))))
    return found


def view(table):
    """A materialized view over one of the tables."""
    return (
        f"CREATE MATERIALIZED VIEW {KEYSPACE}.{table.name}_view AS SELECT * FROM {KEYSPACE}.{table.name} "
        "WHERE k IS NOT NULL AND c IS NOT NULL AND v IS NOT NULL PRIMARY KEY (v, k, c)"
    )
