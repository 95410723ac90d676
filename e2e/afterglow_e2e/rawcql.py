"""A CQL v4 client of a hundred lines that hands back the bytes of each answer, to compare two servers byte for byte."""

import socket
import struct

ERROR, STARTUP, READY, OPTIONS, SUPPORTED, QUERY, RESULT, PREPARE, EXECUTE, REGISTER = 0, 1, 2, 5, 6, 7, 8, 9, 10, 11
ONE, LOCAL_QUORUM = 1, 6


def string(text):
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def long_string(text):
    data = text.encode()
    return struct.pack(">I", len(data)) + data


def short_bytes(data):
    return struct.pack(">H", len(data)) + data


def value(data):
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def parameters(values=(), consistency=ONE, skip_metadata=False, page_size=None):
    flags = (1 if values else 0) | (2 if skip_metadata else 0) | (4 if page_size is not None else 0)
    body = struct.pack(">HB", consistency, flags)
    if values:
        body += struct.pack(">H", len(values)) + b"".join(map(value, values))
    if page_size is not None:
        body += struct.pack(">i", page_size)
    return body


class Answer:
    """Header fields and body of one response."""

    def __init__(self, version, flags, stream, opcode, body):
        self.version, self.flags, self.stream, self.opcode, self.body = version, flags, stream, opcode, body

    @property
    def error(self):
        """(code, message) of an ERROR, else None."""
        if self.opcode != ERROR:
            return None
        code, length = struct.unpack_from(">iH", self.body)
        return code, self.body[6 : 6 + length].decode()

    @property
    def prepared_id(self):
        skip = 0
        if self.flags & 8:  # warnings first
            (count,), skip = struct.unpack_from(">H", self.body), 2
            for _ in range(count):
                skip += 2 + struct.unpack_from(">H", self.body, skip)[0]
        kind, length = struct.unpack_from(">iH", self.body, skip)
        assert self.opcode == RESULT and kind == 4, self
        return self.body[skip + 6 : skip + 6 + length]

    def __eq__(self, other):
        return self.key() == other.key()

    def key(self):
        return self.version, self.flags, self.opcode, self.body

    def __repr__(self):
        return f"<v{self.version & 127} flags={self.flags:#x} opcode={self.opcode} {self.error or self.body!r}>"


class RawClient:
    """One connection, one request at a time."""

    def __init__(self, address, port, version=4, startup=True):
        self.version, self.stream = version, 0
        self.socket = socket.create_connection((address, port), 10)
        if startup:
            answer = self.request(STARTUP, struct.pack(">H", 1) + string("CQL_VERSION") + string("3.0.0"))
            assert answer.opcode == READY, answer

    def request(self, opcode, body=b"", flags=0):
        self.stream = (self.stream + 1) % 1000
        self.socket.sendall(struct.pack(">BBhBI", self.version, flags, self.stream, opcode, len(body)) + body)
        return self.receive()

    def receive(self):
        version = self._exactly(1)[0]
        # Versions 1 and 2 had a stream id of one byte.
        layout = ">BbBI" if version & 127 < 3 else ">BhBI"
        flags, stream, opcode, length = struct.unpack(layout, self._exactly(struct.calcsize(layout)))
        return Answer(version, flags, stream, opcode, self._exactly(length))

    def query(self, text, *values, **options):
        return self.request(QUERY, long_string(text) + parameters(values, **options))

    def prepare(self, text):
        return self.request(PREPARE, long_string(text))

    def execute(self, prepared_id, *values, **options):
        return self.request(EXECUTE, short_bytes(prepared_id) + parameters(values, **options))

    def _exactly(self, length):
        data = bytearray()
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            if not piece:
                raise ConnectionError(f"closed after {len(data)} of {length} bytes")
            data += piece
        return bytes(data)

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
