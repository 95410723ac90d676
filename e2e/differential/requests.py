"""What requests have besides their text, and the connections that they go by."""

import struct
import time
from collections import OrderedDict

from afterglow_e2e import rawcql
from afterglow_e2e.rawcql import RawClient

from .schema import KEYSPACE

CONSISTENCIES = (1, 6, 10, 4, 5, 7, 2, 3, 8, 9, 0, 11)
WEIGHTS = (30, 30, 20, 10, 2, 1, 1, 1, 3, 1, 1, 0.3)
# ANY, TWO, THREE and NODE_LOCAL. One replica agrees upon a transaction at these. Then nobody waits
# for it to be written, or it is answered UNAVAILABLE. Reads show it sooner or later, or never. They
# do so sooner if a serial read completes it, as Afterglow does to know the outcome.
UNCOMMITTED = (0, 2, 3, 11)


class Side:
    """One path: connections in each version, and the keyspace that only this path writes to."""

    def __init__(self, contact, keyspace, versions):
        host, port = contact.rsplit(":", 1)
        self.keyspace = keyspace.encode()
        self.clients = {
            version: RawClient(host, int(port), version, timeout=60) for version in versions
        }
        self.prepared = OrderedDict()

    def text(self, text):
        return text.replace(KEYSPACE, self.keyspace.decode())


class Options:
    """What comes with a request besides text and values."""

    def __init__(self, random, version, statement, moment):
        self.version = version
        self.consistency = random.choices(CONSISTENCIES, WEIGHTS)[0]
        if statement.text.startswith("USE"):
            self.consistency = 1  # Afterglow asks for the keyspace by itself, at a level of its own
        if statement.conditional and self.consistency in UNCOMMITTED:
            self.consistency = 1
        self.skip_metadata = random.random() < 0.4
        self.page_size = random.choices(
            (5000, None, 1, 2, 3, 10, 100, 0, -1), (55, 15, 5, 8, 5, 5, 5, 0.1, 0.1)
        )[0]
        self.paging_state = None
        self.serial = random.choice((None, None, None, 8, 9, 1)) if statement.conditional else None
        self.timestamp = None if statement.read and random.random() < 0.3 else moment
        if random.random() < 0.02 and not statement.read:
            self.timestamp = None
        self.keyspace = version >= 5 and random.random() < 0.1
        self.now = int(time.time()) if version >= 5 and random.random() < 0.03 else None
        # Refused before the statement is looked at, and with a trace.
        self.tracing = random.random() < (0.3 if self.page_size == 0 else 0.002)
        self.payload = version >= 4 and random.random() < 0.01
        # Of a name that is there twice, drivers send one value; servers take the first of several.
        self.names, self.values, self.once = None, [], random.random() < 0.7

    def encode(self, side, values, names=None):
        """The query parameters of QUERY and EXECUTE."""
        flags, parts = 0, b""
        if values:
            flags |= 1
            order = list(range(len(values)))
            if names:
                flags |= 0x40
                order = self.names
                if self.once:
                    order = list({names[i]: i for i in order}.values())
            body = b"".join(
                (rawcql.string(names[i]) if names else b"") + rawcql.value(values[i]) for i in order
            )
            parts += struct.pack(">H", len(order)) + body
        if self.skip_metadata:
            flags |= 2
        if self.page_size is not None:
            flags |= 4
            parts += struct.pack(">i", self.page_size)
        if self.paging_state is not None:
            flags |= 8
            parts += rawcql.value(self.paging_state[side])
        more, tail = self.tail(side)
        return struct.pack(">H", self.consistency) + self.flags(flags | more) + parts + tail

    def tail(self, side):
        """What QUERY, EXECUTE and BATCH have in common."""
        flags, parts = 0, b""
        if self.serial is not None:
            flags |= 0x10
            parts += struct.pack(">H", self.serial)
        if self.timestamp is not None:
            flags |= 0x20
            parts += struct.pack(">q", self.timestamp)
        if self.keyspace:
            flags |= 0x80
            parts += struct.pack(">H", len(side.keyspace)) + side.keyspace
        if self.now is not None:
            flags |= 0x100
            parts += struct.pack(">i", self.now)
        return flags, parts

    def flags(self, flags):
        return struct.pack(">I", flags) if self.version >= 5 else bytes([flags])

    def frame(self, body):
        """Flags of the header, and the body with what stands before it."""
        flags = 2 if self.tracing else 0
        if self.payload:
            return flags | 4, struct.pack(">H", 1) + rawcql.string("key") + rawcql.value(
                b"payload"
            ) + body
        return flags, body
