"""A small CQL client (v3, v4, v5) that hands back the bytes of each answer, to compare two servers
byte for byte.
"""

import socket
import struct
import zlib

ERROR, STARTUP, READY, OPTIONS, SUPPORTED, QUERY, RESULT, PREPARE, EXECUTE, REGISTER = (
    0,
    1,
    2,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
)
EVENT, BATCH = 12, 13
ONE, LOCAL_QUORUM = 1, 6
UNSET = object()
MAX_SEGMENT = 131071


def crc24(data):
    """Checksum of a segment's header, section 2.2 of the v5 specification."""
    crc = 0x875060
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1974F0B
    return crc


def crc32(payload):
    """Checksum of a segment's payload: CRC32 begun with four bytes of the specification."""
    return zlib.crc32(payload, zlib.crc32(b"\xfa\x2d\x55\xca"))


def segments(envelope):
    """An envelope in as many segments as it takes, uncompressed."""
    contained = len(envelope) <= MAX_SEGMENT
    out = bytearray()
    for at in range(0, len(envelope), MAX_SEGMENT):
        payload = envelope[at : at + MAX_SEGMENT]
        header = struct.pack("<I", len(payload) | contained << 17)[:3]
        out += (
            header
            + struct.pack("<I", crc24(header))[:3]
            + payload
            + struct.pack("<I", crc32(payload))
        )
    return bytes(out)


def string(text):
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def long_string(text):
    data = text.encode()
    return struct.pack(">I", len(data)) + data


def short_bytes(data):
    return struct.pack(">H", len(data)) + data


def value(data):
    if data is UNSET:
        return struct.pack(">i", -2)
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def parameters(values=(), consistency=ONE, skip_metadata=False, page_size=None, version=4):
    flags = (1 if values else 0) | (2 if skip_metadata else 0) | (4 if page_size is not None else 0)
    body = struct.pack(">HI" if version >= 5 else ">HB", consistency, flags)
    if values:
        body += struct.pack(">H", len(values)) + b"".join(map(value, values))
    if page_size is not None:
        body += struct.pack(">i", page_size)
    return body


class Answer:
    """Header fields and body of one response."""

    def __init__(self, version, flags, stream, opcode, body):
        self.version, self.flags, self.stream, self.opcode, self.body = (
            version,
            flags,
            stream,
            opcode,
            body,
        )

    @property
    def message(self):
        """The body without what may stand before the message: session id, warnings."""
        skip = 16 if self.flags & 2 else 0
        if self.flags & 8:
            (count,), skip = struct.unpack_from(">H", self.body, skip), skip + 2
            for _ in range(count):
                skip += 2 + struct.unpack_from(">H", self.body, skip)[0]
        return self.body[skip:]

    @property
    def error(self):
        """(code, message) of an ERROR, else None."""
        if self.opcode != ERROR:
            return None
        code, length = struct.unpack_from(">iH", self.message)
        return code, self.message[6 : 6 + length].decode(errors="replace")

    @property
    def prepared_id(self):
        kind, length = struct.unpack_from(">iH", self.message)
        assert self.opcode == RESULT and kind == 4, self
        return self.message[6 : 6 + length]

    def __eq__(self, other):
        return self.key() == other.key()

    def key(self):
        return self.version, self.flags, self.opcode, self.body

    def __repr__(self):
        return f"<v{self.version & 127} flags={self.flags:#x} opcode={self.opcode} {self.error or self.body!r}>"


class RawClient:
    """One connection, one request at a time."""

    def __init__(self, address, port, version=4, startup=True, timeout=10):
        self.version, self.stream, self.segmented = version, 0, False
        # Bytes that came and are not read yet, and those of them that are out of their segments.
        self.input, self.unwrapped = bytearray(), bytearray()
        self.socket = socket.create_connection((address, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if startup:
            answer = self.request(
                STARTUP, struct.pack(">H", 1) + string("CQL_VERSION") + string("3.0.0")
            )
            if answer.opcode != READY:
                self.close()
                raise ConnectionRefusedError(f"STARTUP was answered {answer}")
            self.segmented = version & 127 >= 5

    def request(self, opcode, body=b"", flags=0):
        self.send(opcode, body, flags)
        return self.receive()

    def send(self, opcode, body=b"", flags=0):
        """Send a request and leave its answer to `receive`."""
        self.stream = (self.stream + 1) % 1000
        envelope = struct.pack(">BBhBI", self.version, flags, self.stream, opcode, len(body)) + body
        self.socket.sendall(segments(envelope) if self.segmented else envelope)

    def receive(self):
        version = self._exactly(1)[0]
        # Versions 1 and 2 had a stream id of one byte.
        layout = ">BbBI" if version & 127 < 3 else ">BhBI"
        flags, stream, opcode, length = struct.unpack(
            layout, self._exactly(struct.calcsize(layout))
        )
        return Answer(version, flags, stream, opcode, self._exactly(length))

    def query(self, text, *values, **options):
        return self.request(
            QUERY, long_string(text) + parameters(values, version=self.version, **options)
        )

    def prepare(self, text):
        return self.request(PREPARE, long_string(text))

    def execute(self, prepared_id, *values, **options):
        return self.request(EXECUTE, short_bytes(prepared_id) + parameters(values, **options))

    def batch(self, *statements, kind=0, consistency=ONE):
        """Statements of one BATCH, each a text and its values; `kind`: 0 logged, 1 not."""
        body = struct.pack(">BH", kind, len(statements))
        for text, *values in statements:
            body += b"\0" + long_string(text)
            body += struct.pack(">H", len(values)) + b"".join(map(value, values))
        flags = ">HI" if self.version >= 5 else ">HB"
        return self.request(BATCH, body + struct.pack(flags, consistency, 0))

    def _exactly(self, length):
        if not self.segmented:
            return self._raw(length)
        while len(self.unwrapped) < length:
            head = self._raw(6)
            (size,) = struct.unpack("<I", head[:3] + b"\0")
            assert struct.unpack("<I", head[3:] + b"\0") == (crc24(head[:3]),), (
                "a segment's header is damaged"
            )
            payload = self._raw(size & MAX_SEGMENT)
            assert struct.unpack("<I", self._raw(4)) == (crc32(payload),), (
                "a segment's payload is damaged"
            )
            self.unwrapped += payload
        data = bytes(self.unwrapped[:length])
        del self.unwrapped[:length]
        return data

    def _raw(self, length):
        while len(self.input) < length:
            piece = self.socket.recv(65536)
            if not piece:
                raise ConnectionError(f"closed after {len(self.input)} of {length} bytes")
            self.input += piece
        data = bytes(self.input[:length])
        del self.input[:length]
        return data

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
