"""Numbers as statements bind them, and as answers have them."""

import struct

from afterglow_e2e import rawcql

MORE, GLOBAL, ABSENT = 2, 1, 4  # flags of an answer's metadata


def number(value):
    return value.to_bytes(4, "big")


def bound_list(numbers):
    """A list of int as drivers bind it."""
    return struct.pack(">i", len(numbers)) + b"".join(rawcql.value(number(n)) for n in numbers)


def numbers(answer):
    """Rows of an answer that is all there; see `page`."""
    rows, state = page(answer)
    assert state is None, "no further page"
    return rows


def page(answer):
    """(rows, state of the next page or None) of an answer whose cells are all numbers (or truth
    values), metadata skipped over.
    """
    message, at = answer.message, 12
    kind, flags, columns = struct.unpack_from(">iii", message)
    assert answer.opcode == rawcql.RESULT and kind == 2, answer
    assert flags & (GLOBAL | ABSENT) == GLOBAL, "one table, metadata there"
    state = None
    if flags & MORE:
        state, at = cell(message, at)
    for _ in range(2):
        at += 2 + struct.unpack_from(">H", message, at)[0]
    for _ in range(columns):
        at += 2 + struct.unpack_from(">H", message, at)[0] + 2
    (count,), at = struct.unpack_from(">i", message, at), at + 4
    rows = []
    for _ in range(count):
        row = []
        for _ in range(columns):
            found, at = cell(message, at)
            row.append(None if found is None else int.from_bytes(found, "big"))
        rows.append(row)
    return rows, state


def cell(message, at):
    """(bytes or None, where what follows begins)."""
    (length,), at = struct.unpack_from(">i", message, at), at + 4
    end = at + max(length, 0)
    return (None if length < 0 else message[at:end]), end
