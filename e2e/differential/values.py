"""Values of every CQL type, each as a literal and as the bytes that a driver would bind."""

import struct
import uuid
from decimal import Decimal

WORDS = (
    "",
    "a",
    "b",
    "word",
    "it's",
    "ÄÖ ü€",
    "0",
    "x" * 40,
    "line\nbreak",
    '"quoted"',
    "null",
    "日本",
)


class Type:
    """A CQL type: its name, and `make(random)` for a pair of literal and bytes."""

    def __init__(self, name, make, key=True, multicell=False, parts=()):
        self.name, self.make, self.key, self.multicell, self.parts = (
            name,
            make,
            key,
            multicell,
            parts,
        )

    def __repr__(self):
        return self.name


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def integer(size, name):
    top = 1 << (8 * size - 1)

    def make(random):
        number = random.choice((0, 1, -1, 7, top - 1, -top, random.randrange(-top, top)))
        return str(number), number.to_bytes(size, "big", signed=True)

    return Type(name, make)


def varint_bytes(number):
    size = max(1, (number.bit_length() + 8) // 8)
    data = number.to_bytes(size, "big", signed=True)
    # The shortest form: -128 needs one byte, not two.
    while len(data) > 1 and (data[0], data[1] >> 7) in ((0, 0), (255, 1)):
        data = data[1:]
    return data


def make_varint(random):
    number = random.choice(
        (0, 1, -1, 127, -128, 128, 10**20, -(10**30), random.randrange(-(10**9), 10**9))
    )
    return str(number), varint_bytes(number)


def make_decimal(random):
    text = random.choice(
        (
            "0",
            "1",
            "1.0",
            "-1.50",
            "0.001",
            "12345678901234567890.5",
            f"{random.randrange(1000)}.25",
        )
    )
    sign, digits, exponent = Decimal(text).as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    return text, struct.pack(">i", -exponent) + varint_bytes(unscaled)


def floating(layout, name):
    def make(random):
        text, number = random.choice(
            (
                ("0.0", 0.0),
                ("1.5", 1.5),
                ("-2.25", -2.25),
                ("1e10", 1e10),
                ("NaN", float("nan")),
                ("Infinity", float("inf")),
                ("3", 3.0),
            )
        )
        return text, struct.pack(layout, number)

    return Type(name, make)


def text(name, words):
    def make(random):
        word = random.choice(words)
        return quoted(word), word.encode()

    return Type(name, make)


def make_blob(random):
    data = random.choice((b"", b"\0", b"\xff\xfe", random.randbytes(random.randrange(1, 20))))
    return "0x" + data.hex(), data


def make_boolean(random):
    value = random.random() < 0.5
    return str(value).lower(), bytes([value])


def make_uuid(random):
    value = uuid.UUID(bytes=random.randbytes(16), version=4)
    return str(value), value.bytes


def make_timeuuid(random):
    # The two highest bits of a clock sequence and of a node are fixed, the time is anything.
    value = uuid.UUID(
        fields=(
            random.getrandbits(32),
            random.getrandbits(16),
            0x11E0 | random.getrandbits(4),
            128,
            7,
            9,
        )
    )
    return str(value), value.bytes


def make_inet(random):
    if random.random() < 0.7:
        data = random.randbytes(4)
        return quoted(".".join(map(str, data))), data
    return "'2001:db8::1'", bytes.fromhex("20010db8000000000000000000000001")


def make_timestamp(random):
    millis = random.choice((0, 1, -1, 1_600_000_000_000 + random.randrange(10**9)))
    literal = str(millis)
    if millis == 0:
        literal = random.choice(("'1970-01-01T00:00:00.000+0000'", "'1970-01-01 00:00+0000'"))
    return literal, struct.pack(">q", millis)


def make_date(random):
    days = random.choice((0, 1, 365, 18_000))
    literal = {
        0: "'1970-01-01'",
        1: "'1970-01-02'",
        365: "'1971-01-01'",
        18_000: "'2019-04-14'",
    }[days]
    return literal, struct.pack(">I", days + (1 << 31))


def make_time(random):
    nanos = random.choice((0, 1, 86_399_999_999_999))
    literal = {
        0: "'00:00:00'",
        1: "'00:00:00.000000001'",
        86_399_999_999_999: "'23:59:59.999999999'",
    }[nanos]
    return literal, struct.pack(">q", nanos)


def unsigned_vint(number):
    for extra in range(8):
        if number < 1 << (7 * (extra + 1)):
            lead = 0xFF & ~(0xFF >> extra)
            data = bytearray(number.to_bytes(extra + 1, "big"))
            data[0] |= lead
            return bytes(data)
    return b"\xff" + number.to_bytes(8, "big")


def make_duration(random):
    literal, parts = random.choice(
        (
            ("1mo2d3ns", (1, 2, 3)),
            ("-1d", (0, -1, 0)),
            ("89h", (0, 0, 89 * 3600 * 10**9)),
            ("1y", (12, 0, 0)),
        )
    )
    return literal, b"".join(unsigned_vint((n << 1) ^ (n >> 63)) for n in parts)


SCALARS = [
    text("ascii", tuple(word for word in WORDS if word.isascii())),
    integer(8, "bigint"),
    Type("blob", make_blob),
    Type("boolean", make_boolean),
    Type("date", make_date),
    Type("decimal", make_decimal),
    floating(">d", "double"),
    Type("duration", make_duration, key=False),
    floating(">f", "float"),
    Type("inet", make_inet),
    integer(4, "int"),
    integer(2, "smallint"),
    text("text", WORDS),
    Type("time", make_time),
    Type("timestamp", make_timestamp),
    Type("timeuuid", make_timeuuid),
    integer(1, "tinyint"),
    Type("uuid", make_uuid),
    text("varchar", WORDS),
    Type("varint", make_varint),
]
SCALAR = {kind.name: kind for kind in SCALARS}


def sized(data):
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def collection(name, make, frozen, parts):
    """Frozen it is one cell, and may be part of a key."""
    return Type(
        f"frozen<{name}>" if frozen else name, make, key=frozen, multicell=not frozen, parts=parts
    )


def listed(kind, brackets, element, size=3, frozen=False):
    def make(random):
        pairs = [element.make(random) for _ in range(random.randrange(size + 1))]
        if kind == "set":  # as the server keeps them: each once, in order
            pairs = sorted(
                {data: (literal, data) for literal, data in pairs}.values(),
                key=lambda pair: pair[1],
            )
        literal = brackets[0] + ", ".join(literal for literal, _ in pairs) + brackets[1]
        return literal, struct.pack(">i", len(pairs)) + b"".join(sized(data) for _, data in pairs)

    return collection(f"{kind}<{element}>", make, frozen, (element,))


def list_of(element, **options):
    return listed("list", "[]", element, **options)


def set_of(element, **options):
    return listed("set", "{}", element, **options)


def map_of(key, value, frozen=False):
    def make(random):
        pairs = {}
        for _ in range(random.randrange(4)):
            one = key.make(random)
            pairs[one[1]] = (one, value.make(random))
        literal = ", ".join(f"{k[0]}: {v[0]}" for k, v in pairs.values())
        data = b"".join(sized(k[1]) + sized(v[1]) for k, v in pairs.values())
        return "{" + literal + "}", struct.pack(">i", len(pairs)) + data

    return collection(f"map<{key}, {value}>", make, frozen, (key, value))


def tuple_of(*elements):
    def make(random):
        pairs = [
            ("null", None) if random.random() < 0.2 else kind.make(random) for kind in elements
        ]
        return "(" + ", ".join(p[0] for p in pairs) + ")", b"".join(sized(p[1]) for p in pairs)

    return Type(f"frozen<tuple<{', '.join(map(str, elements))}>>", make, parts=elements)


def user_type(name, fields, frozen):
    """Fields are pairs of name and type."""

    def make(random):
        pairs = [
            (field, *(("null", None) if random.random() < 0.2 else kind.make(random)))
            for field, kind in fields
        ]
        literal = ", ".join(f"{field}: {literal}" for field, literal, _ in pairs)
        return "{" + literal + "}", b"".join(sized(data) for _, _, data in pairs)

    return Type(
        f"frozen<{name}>" if frozen else name,
        make,
        key=frozen,
        multicell=not frozen,
        parts=fields,
    )


def vector_of(element, size):
    def make(random):
        pairs = [element.make(random) for _ in range(size)]
        fixed = element.name in ("float", "int", "double", "bigint")
        data = b"".join(data if fixed else unsigned_vint(len(data)) + data for _, data in pairs)
        return "[" + ", ".join(literal for literal, _ in pairs) + "]", data

    return Type(f"vector<{element}, {size}>", make, key=False, parts=(element,))
