"""The text of a Spark source's offsets: JSON with topics and positions, and more state hidden in white space.

Spark keeps nothing of a Python source except the text of its offsets, in the checkpoint of the query. Other tools read
that text, too: they sum over the numbers of a query's progress to find its lag. Therefore all state that is no position
stands in the white space before the last brace, which JSON readers skip: a space or a tab for each bit, the highest bit
of a byte first. The number of bits is a multiple of eight.

Errors of a query show the offsets, so the hidden state has a short form. State that does not fit the short form is
compressed JSON, which begins with `x`.

    short form:  kind       u8   1: topic ids; 2: topic ids and initial offsets
                 ids        16 bytes for each topic, in the order of the topics
                 offsets    a varint for each partition, in the order of the partitions (kind 2 alone)
                 checksum   the lower 16 bits of the CRC-32 of all bytes before, big-endian
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

IDS = "$ids"
INITIAL = "$initial"
HIDDEN_BYTES_MAX = 64 << 20
MOVED_OFFSETS = "sparklog-moved-offsets"
"""Directory in a checkpoint that was moved to another cluster: the newest offsets as they were before the move, by
micro-batch. A micro-batch that was run before the move is recognised by them."""
ID_BYTES = 16
_PLAIN, _WITH_INITIAL = b"\1", b"\2"
_CHECKSUM_BYTES = 2
_BITS = str.maketrans("01", " \t")
_BLANKS = str.maketrans(" \t", "01")


def offset_text(positions: Mapping[str, Any], beside: Mapping[str, Any]) -> str:
    """Return the text of `positions` with the state `beside`, in a fixed form."""
    text = json.dumps(dict(positions))
    packed = _short(positions, beside)
    if packed is None:
        packed = zlib.compress(json.dumps(beside, separators=(",", ":")).encode(), 9)
    # the bit in front keeps leading zeros
    bits = format(int.from_bytes(b"\1" + packed), "b")[1:]
    return text[:-1] + bits.translate(_BITS) + text[-1]


def hidden_state(text: str, positions: Mapping[str, Any], bytes_max: int = HIDDEN_BYTES_MAX) -> dict[str, Any] | None:
    """Return the state in the white space; None if there is no white space, or it was not written by this module."""
    body = text[:-1]
    blanks = body[len(body.rstrip(" \t")) :]
    if not blanks or len(blanks) % 8 or len(blanks) > 8 * bytes_max:
        return None
    packed = int(blanks.translate(_BLANKS), 2).to_bytes(len(blanks) // 8)
    if packed[:1] in (_PLAIN, _WITH_INITIAL):
        return _from_short(packed, positions)
    unpacking = zlib.decompressobj()
    try:
        value = json.loads(unpacking.decompress(packed, bytes_max))
    except (zlib.error, ValueError):
        return None
    return value if unpacking.eof and isinstance(value, dict) else None


def _short(positions: Mapping[str, Any], beside: Mapping[str, Any]) -> bytes | None:
    """Encode the state `beside` in the short form. Returns None if it does not fit: it must hold the ids, and at most
    the initial offsets, of exactly the topics and partitions of `positions`."""
    ids, initial = beside.get(IDS, {}), beside.get(INITIAL)
    if beside.keys() - {IDS, INITIAL} or ids.keys() != positions.keys() or not positions:
        return None
    if initial is not None and {t: p.keys() for t, p in initial.items()} != {t: p.keys() for t, p in positions.items()}:
        return None
    try:
        body = b"".join(bytes.fromhex(ids[topic]) for topic in positions)
    except ValueError:
        return None
    if len(body) != ID_BYTES * len(positions) or body.hex() != "".join(ids[topic] for topic in positions):
        return None
    offsets = [] if initial is None else [initial[topic][p] for topic in positions for p in positions[topic]]
    if any(offset < 0 for offset in offsets):
        return None
    body = (_PLAIN if initial is None else _WITH_INITIAL) + body + b"".join(map(_varint, offsets))
    return body + _checksum(body)


def _from_short(packed: bytes, positions: Mapping[str, Any]) -> dict[str, Any] | None:
    """Decode state in the short form. Returns None if it is damaged or belongs to other topics."""
    body, checksum = packed[:-_CHECKSUM_BYTES], packed[-_CHECKSUM_BYTES:]
    end = 1 + ID_BYTES * len(positions)
    if len(body) < end or _checksum(body) != checksum:
        return None
    ids = {t: body[1 + ID_BYTES * i : 1 + ID_BYTES * (i + 1)].hex() for i, t in enumerate(positions)}
    offsets = _varints(body[end:])
    if body[:1] == _PLAIN:
        return None if offsets else {IDS: ids}
    partitions = [(topic, p) for topic in positions for p in positions[topic]]
    if len(offsets) != len(partitions):
        return None
    initial: dict[str, dict[str, int]] = {}
    for (topic, p), offset in zip(partitions, offsets, strict=True):
        initial.setdefault(topic, {})[p] = offset
    return {IDS: ids, INITIAL: initial}


def _checksum(body: bytes) -> bytes:
    return (zlib.crc32(body) & 0xFFFF).to_bytes(_CHECKSUM_BYTES)


def _varint(number: int) -> bytes:
    """Encode a number with seven bits a byte, the lowest first; all bytes but the last have the eighth bit."""
    pieces = bytearray()
    while number > 127:
        pieces.append(number & 127 | 128)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)


def _varints(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number)
            number = shift = 0
    return numbers
