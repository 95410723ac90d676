"""Whether two answers are the same. Everything that may differ is here, and counted by name.

Some values are never compared, because each side has its own. These are the keyspace's name and the
session id of a traced request. Ids of prepared statements and of their metadata are others, because
they are hashes over that name.
"""

import re
import struct

from afterglow_e2e import rawcql

ROWS, PREPARED = 2, 4
METADATA_CHANGED, HAS_MORE, NO_METADATA, GLOBAL = 8, 2, 4, 1
TRACING, PAYLOAD, WARNINGS = 2, 4, 8

# Differences that are allowed, and why.
ALLOWED = {
    "server-made write times": "a write without a timestamp gets the coordinator's clock, each side's another",
    "seconds of a TTL": "the two sides are asked at different moments; asked again at once, they agree",
    "prepared again": "a server forgets statements, after ALTER TABLE for one; Afterglow prepares them again unseen",
    "columns told anew": "after a change of a schema, where a server has the client prepare again",
    "warnings of USE": "a server warns of USE with prepared statements when it sees a text first",
    "warnings of refusals": "a server warns of a count over a system table even if it then refuses the level",
    "pages of system tables": "Afterglow answers for the system tables of its own and gives them whole",
    "views that lag": "a materialized view follows its table a moment later, in either copy; asked again, they agree",
    "rows that a projection hides": "Cassandra finds no row where what is asked for has expired, marker and all, and "
    "another column lives on; with that column asked for it does, and Afterglow always",
    "cells in paging states": "a paging state may name a list's cell, or a row whose key the server made, by its id, "
    "which has the coordinator's clock",
}


def string(body, at):
    (length,) = struct.unpack_from(">H", body, at)
    return body[at + 2 : at + 2 + length], at + 2 + length


class Parts:
    """An answer in pieces: what stands before the message, and the message."""

    def __init__(self, answer):
        body, at = answer.body, 0
        if answer.flags & TRACING:
            at += 16
        self.warnings = []
        if answer.flags & WARNINGS:
            (count,), at = struct.unpack_from(">H", body, at), at + 2
            for _ in range(count):
                warning, at = string(body, at)
                self.warnings.append(warning)
        self.message = body[at:]
        self.kind = (
            struct.unpack_from(">i", self.message)[0] if answer.opcode == rawcql.RESULT else None
        )
        # Ranges of the message that are ids, and the page's state.
        self.ids, self.paging_state, self.new_metadata_id = [], None, None
        if self.kind == PREPARED:
            _, end = string(self.message, 4)
            self.ids.append((6, end))
            self.prepared_id = self.message[6:end]
            self.metadata_id = None
            if answer.version & 127 >= 5:
                self.metadata_id, after = string(self.message, end)
                self.ids.append((end + 2, after))
        elif self.kind == ROWS:
            self._rows()
        elif answer.opcode == rawcql.ERROR and answer.error[0] == 0x2500:
            self.ids.append((len(self.message) - 16, len(self.message)))
            # The text has the id too.
            self.ids.append((4, len(self.message)))

    def _rows(self):
        flags, _ = struct.unpack_from(">ii", self.message, 4)
        at = 12
        if flags & HAS_MORE:
            (length,) = struct.unpack_from(">i", self.message, at)
            self.paging_state = self.message[at + 4 : at + 4 + length]
            at += 4 + length
        if flags & METADATA_CHANGED:
            self.new_metadata_id, end = string(self.message, at)
            self.ids.append((at + 2, end))

    def masked(self, keyspace):
        """The message without what is never looked at."""
        message = bytearray(self.message)
        for begin, end in self.ids:
            message[begin:end] = bytes(end - begin)
        return hidden(bytes(message), keyspace)


def hidden(data, keyspace):
    """Without the keyspace's name (errors may cut it short), and as long as before."""
    return data.replace(keyspace[:4], b"????")


def without_metadata(message):
    """Rows without their columns' names and types: number of columns, then the rows."""
    flags, columns = struct.unpack_from(">ii", message, 4)
    at = 12
    if flags & HAS_MORE:
        at += 4 + struct.unpack_from(">i", message, at)[0]
    if flags & METADATA_CHANGED:
        _, at = string(message, at)
    if not flags & NO_METADATA:
        if flags & GLOBAL:
            for _ in range(2):
                _, at = string(message, at)
        for _ in range(columns):
            for _ in range(1 if flags & GLOBAL else 3):
                _, at = string(message, at)
            at = skip_type(message, at)
    return columns, message[at:]


def columns(message):
    """The names of the columns of a RESULT of rows of one table, which has its metadata."""
    flags, count = struct.unpack_from(">ii", message, 4)
    assert flags & (GLOBAL | NO_METADATA) == GLOBAL, "one table, metadata there"
    at, names = 12, []
    if flags & HAS_MORE:
        at += 4 + struct.unpack_from(">i", message, at)[0]
    for _ in range(2):
        _, at = string(message, at)
    for _ in range(count):
        name, at = string(message, at)
        names.append(name.decode())
        at = skip_type(message, at)
    return names


def skip_type(body, at):
    (kind,), at = struct.unpack_from(">H", body, at), at + 2
    if kind == 0:
        _, at = string(body, at)
    elif kind in (0x20, 0x22):
        at = skip_type(body, at)
    elif kind == 0x21:
        at = skip_type(body, skip_type(body, at))
    elif kind == 0x30:
        for _ in range(2):
            _, at = string(body, at)
        (count,), at = struct.unpack_from(">H", body, at), at + 2
        for _ in range(count):
            _, at = string(body, at)
            at = skip_type(body, at)
    elif kind == 0x31:
        (count,), at = struct.unpack_from(">H", body, at), at + 2
        for _ in range(count):
            at = skip_type(body, at)
    return at


def same(direct, through, keyspaces):
    """Whether two answers are equal but for what is never looked at. `keyspaces`: the direct
    side's, the other's.
    """
    if (direct.version, direct.flags, direct.opcode) != (
        through.version,
        through.flags,
        through.opcode,
    ):
        return False
    left, right = Parts(direct), Parts(through)
    if left.kind is None:
        if warnings(left, keyspaces[0]) != warnings(right, keyspaces[1]):
            return False
        return same_words(left.masked(keyspaces[0]), right.masked(keyspaces[1]))
    return left.masked(keyspaces[0]) == right.masked(keyspaces[1]) and warnings(
        left, keyspaces[0]
    ) == warnings(right, keyspaces[1])


def same_words(left, right):
    """Whether two errors differ by the one letter alone in which the keyspaces do: servers quote in
    pieces.
    """
    return len(left) == len(right) and all(
        pair[0] == pair[1] or pair == (97, 98) for pair in zip(left, right, strict=True)
    )


def warnings(parts, keyspace):
    return [HEX_ID.sub(b"id", hidden(warning, keyspace)) for warning in parts.warnings]


def rows(message):
    """The rows of a RESULT, each as a list of the bytes of its cells with their lengths."""
    columns, data = without_metadata(message)
    (count,), at = struct.unpack_from(">i", data), 4
    found = []
    for _ in range(count):
        row = []
        for _ in range(columns):
            (length,) = struct.unpack_from(">i", data, at)
            end = at + 4 + max(length, 0)
            row.append(data[at:end])
            at = end
        found.append(row)
    return found


def projected(answer, projection):
    """The rows of an answer to `SELECT *` as one finds them who asks for these columns; None if
    that cannot be told.
    """
    parts = Parts(answer)
    if parts.kind != ROWS:
        return None
    names = columns(parts.message)
    wanted = names if projection == "*" else projection.split(", ")
    # With another name, or not.
    wanted = [name.split(" AS ")[0].strip('"') for name in wanted]
    if not set(wanted) <= set(names):
        return None
    return [[row[names.index(name)] for name in wanted] for row in rows(parts.message)]


def found_more(direct, through):
    """How many rows the other side has found, if they are those of the direct side, in their order,
    and more between them. Otherwise 0.
    """
    if any(Parts(answer).kind != ROWS for answer in (direct, through)):
        return 0
    few, more = (rows(Parts(answer).message) for answer in (direct, through))
    left = iter(more)
    is_part = all(any(row == other for other in left) for row in few)
    return len(more) if is_part and len(few) < len(more) else 0


# What is left of the longer lives that statements give, in a cell of four bytes.
LIFE = re.compile(rb"\x00\x00\x00\x04\x00(?:\x00[\xb5-\xc3]|\x01[\x78-\x86])[\x00-\xff]")
# The id of a prepared statement as a warning has it.
HEX_ID = re.compile(rb"[0-9a-f]{32}")
# The present in microseconds, in a cell of eight bytes or in digits.
NOW = re.compile(rb"\x00\x00\x00\x08\x00\x06[\x00-\xff]{6}|1[78]\d{14}")


def allowed(statement, direct, through, keyspaces, skip_metadata):
    """The name of the difference if it is one of `ALLOWED` that one look can tell."""
    if direct.opcode != through.opcode or direct.version != through.version:
        return None
    left, right = Parts(direct), Parts(through)
    bodies = [
        parts.masked(keyspace) for parts, keyspace in ((left, keyspaces[0]), (right, keyspaces[1]))
    ]
    if bodies[0] == bodies[1] and any(
        b"USE <keyspace>" in warning for warning in left.warnings + right.warnings
    ):
        return "warnings of USE"
    if statement.kind == "system":
        if direct.opcode == rawcql.ERROR and bodies[0] == bodies[1]:
            return "warnings of refusals"
        if left.kind == right.kind == ROWS and left.paging_state and not right.paging_state:
            return "pages of system tables"
        return None
    if "ttl(" in statement.text.lower():
        lives = [LIFE.sub(b"life", body) for body in bodies]
        if lives[0] == lives[1]:
            return "seconds of a TTL"
    if direct.flags == through.flags and "writetime(" in statement.text.lower():
        times = [NOW.sub(b"now", body) for body in bodies]
        if times[0] == times[1]:
            return "server-made write times"
    if left.kind != ROWS or right.kind != ROWS:
        return None
    states = [parts.paging_state or b"" for parts in (left, right)]
    rest = [body.replace(state, b"") for body, state in zip(bodies, states, strict=True)]
    if all(states) and len(states[0]) == len(states[1]) and rest[0] == rest[1]:
        return "cells in paging states"
    told = right.new_metadata_id and not left.new_metadata_id
    if told and without_metadata(bodies[0]) == without_metadata(bodies[1]):
        return "columns told anew"
    if skip_metadata and direct.version & 127 < 5:
        skipped = struct.unpack_from(">i", bodies[0], 4)[0] & NO_METADATA
        if skipped and without_metadata(bodies[0]) == without_metadata(bodies[1]):
            return "columns told anew"
    return None
