"""What is measured: shapes of records, loads, disks and caches; and how much of each."""

from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20

# The data are as much larger than memory as in the published measurements of caches like these: 200
# GB to 64 GB.
DATA = 3 * GIB
# With this share of zeros LZ4 leaves some 6/10 of a record.
ZEROS = 40
MEMORY = 1280 * MIB
HEAP = 640 * MIB
DIRECT = 160 * MIB
# Of the requests 80 % go to this share of the records.
HOT_SET = 0.3


@dataclass(frozen=True)
class Shape:
    """A table: its records, and kilobytes of a chunk before compression, 0 where nothing is
    compressed.
    """

    name: str
    fields: int
    field_bytes: int
    chunk: int
    in_flight: int

    def records(self, scale):
        return int(DATA * scale / (self.fields * self.field_bytes))

    @property
    def table(self):
        return f"t{self.name}"


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("64k", 10, 6_400, 64, 8),
        Shape("1k", 10, 100, 16, 16),
        Shape("plain", 10, 100, 0, 16),
    )
}
MIXES = {"reads": 1.0, "mixed": 0.8}


@dataclass(frozen=True)
class Speed:
    """What a disk is held to, a second."""

    bytes: int
    operations: int


# What a network volume of the usual kind gives unless more is paid for.
NETWORK = Speed(125_000_000, 3_000)


@dataclass(frozen=True)
class Case:
    """One node under one load."""

    part: str
    shape: str
    mix: str
    cache: str  # "none", "chunks", "rows" or "default rows"
    throttled: bool = True
    memory: float = 1.0  # of MEMORY
    flash: float = 1.25  # of the data, not compressed
    rate: float | None = None  # of what stock does at most; None is as fast as it goes

    @property
    def node(self):
        """Cases with the same are loads of one node."""
        return f"{self.shape}-{self.cache}-{self.memory:g}-{self.flash:g}"

    @property
    def scenario(self):
        """Cases of the same scenario are compared."""
        rate = f", {self.rate:.0%} of stock's most" if self.rate else ""
        return f"{self.part}: {self.shape}, {self.mix}{rate}"

    @property
    def label(self):
        name = {"none": "stock", "default rows": "stock, its row cache"}.get(
            self.cache, f"flash {self.cache}"
        )
        notes = [f"memory x {self.memory:g}"] if self.memory != 1 else []
        notes += (
            [f"flash {self.flash:.0%}"] if self.part == "sizes" and self.cache != "none" else []
        )
        return ", ".join([name, *notes])


def _pairs(part, shape, mix, caches, **options):
    return [Case(part, shape, mix, cache, **options) for cache in caches]


def cases():
    """All of them by part; in each the stock node is the first."""
    both = ("none", "chunks", "rows")
    parts = {"network": [], "equal": [], "memory": [], "sizes": [], "rates": [], "plain": []}
    for part, throttled in (("network", True), ("equal", False)):
        for shape in ("1k", "64k"):
            for mix in MIXES:
                parts[part] += _pairs(part, shape, mix, both, throttled=throttled)
    for shape in ("1k", "64k"):
        parts["memory"] += _pairs("memory", shape, "reads", ("none",), memory=2.0)
        parts["memory"] += _pairs("memory", shape, "reads", ("chunks", "rows"))
    parts["sizes"] += _pairs("sizes", "1k", "reads", ("none",))
    for size in (0.1, 0.3, 1.25):
        parts["sizes"] += _pairs("sizes", "1k", "reads", ("chunks",), flash=size)
    for rate in (None, 0.25, 0.5, 0.75, 0.95):
        parts["rates"] += _pairs("rates", "1k", "reads", ("none", "chunks"), rate=rate)
    parts["plain"] += _pairs("plain", "plain", "reads", ("none", "chunks"))
    return parts


def chosen(parts, shapes=None, mixes=None, caches=None):
    """The cases of some parts, of all or some shapes, mixes and caches."""
    picked = [case for part in parts for case in cases()[part]]
    return [
        case
        for case in picked
        if case.shape in (shapes or SHAPES)
        and case.mix in (mixes or MIXES)
        and case.cache in (caches or (case.cache,))
    ]


def by_node(cases):
    """The cases of each node; reads come before what changes its tables."""
    nodes = {}
    for case in cases:
        nodes.setdefault(case.node, []).append(case)
    return [sorted(loads, key=lambda case: case.mix != "reads") for loads in nodes.values()]
