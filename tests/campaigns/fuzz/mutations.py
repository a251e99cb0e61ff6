"""One lie in an honest batch: each mutation changes one number, or one buffer, and says which.

A mutation gets a `Message` to change, the roles of its buffers and a source of randomness. It returns its name with the
place and the value, or None where the batch has nothing of the kind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random

import pyarrow as pa

from sparklog.format.batch import HEADER_MARK, PREFIX_BYTES
from tests.campaigns.fuzz.message import ENTRY_BYTES, BufferRole, Message

Mutation = Callable[[Message, Sequence[BufferRole], Random], str | None]
MUTATIONS: list[Mutation] = []

MIB = 1 << 20
BOMB_BYTES = 1 << 30
ROWS_MAX = 1_000
"""Bound of rows with validity bits; a mutation before can have changed the header's number."""


def _mutation(function: Mutation) -> Mutation:
    MUTATIONS.append(function)
    return function


def boundary(rng: Random, near: int, *more: int) -> int:
    """A number where arithmetic breaks: around `near`, around 0, and where 32 and 64 bits end."""
    return rng.choice(
        [
            near - 8, near - 1, near + 1, near + 4, near + 8, near + 64, 2 * near, near * 1000, -near,
            -8, -1, 0, 1, 3, 8, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32 + 8, 2**47, 2**62, 2**63 - 8, 2**63 - 1, -(2**31), -(2**63),
            *more,
        ]
    )  # fmt: skip


def _i64(value: int) -> int:
    return max(-(2**63), min(2**63 - 1, value))


def _buffer(m: Message, rng: Random, roles: Sequence[BufferRole], *whats: str) -> int | None:
    """A buffer of one of these kinds that is not empty."""
    found = [i for i, r in enumerate(roles) if (not whats or r.what in whats) and i < m.buffers and m.place(i)[1]]
    return rng.choice(found) if found else None


def _name(roles: Sequence[BufferRole], number: int) -> str:
    return f"{roles[number].path}.{roles[number].what}" if number < len(roles) else f"buffer {number}"


# --- the numbers of the metadata ---


@_mutation
def node(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    number = rng.randrange(m.nodes)
    which = rng.randrange(2)
    at = m.nodes_at + ENTRY_BYTES * number + 8 * which
    value = _i64(boundary(rng, m.get_i64(at), m.header.record_count, m.header.record_count - 1))
    m.put_i64(at, value)
    path = next((r.path for r in roles if r.node == number), str(number))
    return f"node {path} {('length', 'null_count')[which]}={value}"


@_mutation
def buffer_entry(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    number = rng.randrange(m.buffers)
    which = rng.randrange(2)
    at = m.entry_at(number) + 8 * which
    body = m.header.body_length_bytes
    offset, length = m.place(number)
    value = _i64(
        boundary(rng, m.get_i64(at), body, body - 8, body + 8, body - length, body - offset, body - offset + 8)
    )
    m.put_i64(at, value)
    return f"{_name(roles, number)} buffer {('offset', 'length')[which]}={value}"


@_mutation
def buffers_exchanged(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    a, b = rng.randrange(m.buffers), rng.randrange(m.buffers)
    first, second = m.entry_at(a), m.entry_at(b)
    kept = bytes(m.data[first : first + 16])
    m.data[first : first + 16] = m.data[second : second + 16]
    m.data[second : second + 16] = kept
    return f"buffers of {_name(roles, a)} and {_name(roles, b)} exchanged"


@_mutation
def body_length(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    value = _i64(boundary(rng, m.get_i64(m.body_length_at)))
    m.put_i64(m.body_length_at, value)
    also = rng.random() < 0.5 and value >= 0 and value % 8 == 0
    if also:
        m.header = m.header._replace(body_length_bytes=value)
    return f"body length={value}{' in the header, too' if also else ''}"


@_mutation
def shorter_body(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """The body ends earlier, and all lengths of the whole say so."""
    body = m.header.body_length_bytes
    if body < 8:
        return None
    size = rng.choice([0, 8, body - 8, body // 16 * 8])
    del m.data[m.body_at + size :]
    m.put_i64(m.body_length_at, size)
    m.header = m.header._replace(body_length_bytes=size)
    return f"body cut to {size} of {body} bytes"


@_mutation
def rows_everywhere(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """Header, message and top-level nodes agree on a wrong number of rows."""
    if not m.rows_at:
        return None
    true = m.header.record_count
    value = rng.choice([1, true + 1, true + 7, true + 8, true + 64, 1000, 70_000, 2**20, 2**31 - 2])
    nested = {r.node for r in roles if "." in r.path}
    for number in range(m.nodes):
        if number not in nested:
            m.put_i64(m.nodes_at + ENTRY_BYTES * number, value)
    m.put_i64(m.rows_at, value)
    m.header = m.header._replace(record_count=value, last_offset_delta=value - 1)
    return f"{value} rows instead of {true}"


@_mutation
def header_field(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    bits = {"attributes": 16, "producer_epoch": 16} | dict.fromkeys(
        ("schema_id", "record_count", "last_offset_delta", "base_sequence"), 32
    )
    name = rng.choice([*bits, "min_timestamp_ms", "max_timestamp_ms", "producer_id", "body_length_bytes"])
    size = bits.get(name, 64)
    if name == "attributes":
        value = rng.choice([1, 2, 4, 6, 8, 12, 16, 32, 38, 64, 0xFFFF, rng.randrange(1 << 16)])
    else:
        low, high = -(1 << (size - 1)), (1 << (size - 1)) - 1
        value = max(low, min(high, boundary(rng, getattr(m.header, name), low, high)))
    m.header = m.header._replace(**{name: value})
    return f"header {name}={value}"


@_mutation
def kind(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """Another type of message (1 schema, 2 dictionary, 4 tensor, 5 sparse tensor), or another version."""
    value = rng.choice([0, 1, 2, 4, 5, 6, 255])
    m.data[m.kind_at] = value
    return f"message type={value}"


@_mutation
def codec(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    if not m.compressed:
        return None
    vtable = m.compression_table - struct.unpack_from("<i", m.data, m.compression_table)[0]
    size = struct.unpack_from("<H", m.data, vtable)[0]
    fields = [f for f in (0, 1) if 4 + 2 * f < size and struct.unpack_from("<H", m.data, vtable + 4 + 2 * f)[0]]
    if not fields:
        return None
    field = rng.choice(fields)
    at = m.compression_table + struct.unpack_from("<H", m.data, vtable + 4 + 2 * field)[0]
    value = rng.choice([0, 1, 2, 127, 255])
    m.data[at] = value
    return f"compression {('codec', 'method')[field]}={value}"


# --- the flatbuffer's own structure ---


@_mutation
def vtable(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """An entry of a table's vtable, its sizes included: a field that is absent, elsewhere or outside."""
    tables = {"Message": m.message_table, "RecordBatch": m.batch_table, "BodyCompression": m.compression_table}
    name, table = rng.choice([(n, t) for n, t in tables.items() if t])
    start = table - struct.unpack_from("<i", m.data, table)[0]
    entries = max(2, struct.unpack_from("<H", m.data, start)[0] // 2)
    entry = rng.randrange(entries)
    value = rng.choice([0, 1, 2, 4, 6, 8, 12, 16, 24, 65_535, 65_528, rng.randrange(256)])
    struct.pack_into("<H", m.data, start + 2 * entry, value)
    return f"vtable of {name} entry {entry}={value}"


@_mutation
def pointer(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """An offset of the flatbuffer (root, table to vtable, vectors and their counts)."""
    places = {
        "root": PREFIX_BYTES,
        "Message to its vtable": m.message_table,
        "RecordBatch to its vtable": m.batch_table,
    }
    places["number of nodes"] = m.nodes_at - 4
    places["number of buffers"] = m.buffers_at - 4
    name = rng.choice(list(places))
    (old,) = struct.unpack_from("<I", m.data, places[name])
    value = rng.choice([0, 1, 4, old - 4, old - 1, old + 1, old + 4, 2 * old, 2**31, 2**32 - 4, 2**32 - 1]) & 0xFFFFFFFF
    struct.pack_into("<I", m.data, places[name], value)
    return f"flatbuffer {name}={value}"


@_mutation
def byte_of_metadata(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    for _ in range(20):
        at = rng.randrange(PREFIX_BYTES, m.body_at)
        if not m.is_text_of_header(at):
            value = rng.choice([0, 1, 127, 128, 255, m.data[at] ^ 1 << rng.randrange(8)])
            m.data[at] = value
            return f"metadata byte {at}={value}"
    return None


@_mutation
def second_mark(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """The mark of a header once more, in the body."""
    number = _buffer(m, rng, roles, "data", "text")
    if number is None or m.compressed or m.place(number)[1] < len(HEADER_MARK):
        return None
    at = m.body_at + m.place(number)[0]
    m.data[at : at + len(HEADER_MARK)] = HEADER_MARK
    return f"{_name(roles, number)}: the header's mark"


# --- the buffers ---


@_mutation
def offset_value(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """One offset of a variable-width or nested column."""
    number = _buffer(m, rng, roles, "offsets")
    if number is None:
        return None
    content = bytearray(m.content(number))
    count = len(content) // 4
    if not count:
        return None
    index = rng.choice([0, 0, 1, count // 2, count - 2, count - 1, count - 1, rng.randrange(count)]) % count
    (old,) = struct.unpack_from("<i", content, 4 * index)
    (last,) = struct.unpack_from("<i", content, 4 * (count - 1))
    value = boundary(rng, old, last, last + 1, last + 8, last + 100, last + 4096, last + 2**24)
    value = max(-(2**31), min(2**31 - 1, value))
    struct.pack_into("<i", content, 4 * index, value)
    m.replace_buffer(number, m.stored(bytes(content)))
    return f"{_name(roles, number)}[{index} of {count}]={value}"


@_mutation
def offsets_shifted(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """Move all offsets: each value is its neighbour's, or lies beyond the data."""
    number = _buffer(m, rng, roles, "offsets")
    if number is None:
        return None
    content = m.content(number)
    by = rng.choice([-4, -1, 1, 8, 64, 4096, 2**20])
    moved = [
        max(-(2**31), min(2**31 - 1, o + by)) for (o,) in struct.iter_unpack("<i", content[: len(content) // 4 * 4])
    ]
    m.replace_buffer(number, m.stored(struct.pack(f"<{len(moved)}i", *moved)))
    return f"{_name(roles, number)} moved by {by}"


@_mutation
def buffer_size(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """A buffer of another size, its entry and all others right."""
    number = _buffer(m, rng, roles)
    if number is None:
        return None
    content = m.content(number)
    size = max(0, rng.choice([0, 1, len(content) - 8, len(content) - 4, len(content) - 1, len(content) // 2]))
    m.replace_buffer(number, m.stored(content[:size]))
    return f"{_name(roles, number)} of {size} bytes instead of {len(content)}"


@_mutation
def validity(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """Other validity bits than the node's null_count says, or bits where there were none."""
    numbers = [i for i, r in enumerate(roles) if r.what == "validity" and i < m.buffers]
    number = rng.choice(numbers)
    value = rng.choice([b"\0", b"\x55", b"\xff"])
    bits = value * ((min(m.header.record_count, ROWS_MAX) + 7) // 8)
    m.replace_buffer(number, m.stored(bits))
    return f"{_name(roles, number)} bits all {value.hex()}"


@_mutation
def text(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """Text that is not UTF-8: a lone surrogate, a cut sequence, an overlong form, a byte that never occurs."""
    number = _buffer(m, rng, roles, "text")
    if number is None:
        return None
    content = bytearray(m.content(number))
    bad = rng.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"])[: len(content)]
    at = rng.choice([0, len(content) - len(bad), rng.randrange(len(content) - len(bad) + 1)])
    content[at : at + len(bad)] = bad
    m.replace_buffer(number, m.stored(bytes(content)))
    return f"{_name(roles, number)} not UTF-8 at {at}: {bad.hex()}"


@_mutation
def data_bytes(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """Other values: no lie, they are to be read as they are."""
    number = _buffer(m, rng, roles, "data", "bits")
    if number is None:
        return None
    content = bytes(rng.randrange(256) for _ in m.content(number))
    m.replace_buffer(number, m.stored(content))
    return f"{_name(roles, number)} random"


# --- compression ---


@_mutation
def inflated_length(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """The length before a compressed buffer."""
    number = _buffer(m, rng, roles) if m.compressed else None
    if number is None or m.place(number)[1] < 8:
        return None
    at = m.body_at + m.place(number)[0]
    value = _i64(boundary(rng, m.get_i64(at), -2, 2**20, 2**30, 2**40))
    m.put_i64(at, value)
    return f"{_name(roles, number)} inflated length={value}"


@_mutation
def frame(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """Damage in a compressed buffer's frame."""
    number = _buffer(m, rng, roles) if m.compressed else None
    if number is None:
        return None
    stored = bytearray(m.buffer(number))
    how = rng.choice(["cut", "byte", "twice", "garbage", "empty", "prefix alone"])
    if how == "cut":
        stored = stored[: rng.randrange(len(stored))]
    elif how == "byte":
        stored[rng.randrange(len(stored))] ^= 1 << rng.randrange(8)
    elif how == "twice":
        stored += stored[8:]
    elif how == "garbage":
        stored[8:] = bytes(rng.randrange(256) for _ in range(24))
    elif how == "empty":
        stored = bytearray(struct.pack("<q", rng.choice([0, -1])))
    else:
        stored = stored[: rng.randrange(8)]
    m.replace_buffer(number, bytes(stored))
    return f"{_name(roles, number)} frame {how}"


@_mutation
def bomb(m: Message, roles: Sequence[BufferRole], rng: Random) -> str | None:
    """Insert a few kilobytes that inflate to a gigabyte, regardless of the length before them."""
    if not m.compressed or rng.random() < 0.6:  # they take longer than others
        return None
    number = _buffer(m, rng, roles)
    if number is None:
        return None
    said = rng.choice([BOMB_BYTES, BOMB_BYTES, len(m.content(number)), BOMB_BYTES - 8, 2 * BOMB_BYTES])
    m.replace_buffer(number, struct.pack("<q", said) + frame_of_zeros(m.codec))
    return f"{_name(roles, number)} bomb of {BOMB_BYTES >> 20} MiB that says {said}"


_bombs: dict[str, bytes] = {}


def frame_of_zeros(name: str) -> bytes:
    """One compressed frame of BOMB_BYTES zeros, made piece by piece."""
    if name not in _bombs:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, name) as stream:
            piece = bytes(16 * MIB)
            for _ in range(BOMB_BYTES // len(piece)):
                stream.write(piece)
        _bombs[name] = sink.getvalue().to_pybytes()
    return _bombs[name]
