"""The text of source offsets: JSON with topics and positions, and the rest of the source's state hidden in white space.

Spark keeps nothing of a Python source except the text of its offsets. Other tools read that text, too: they sum over
the numbers of a query's progress to find its lag. Therefore all state that is no position stands in the white space
before the last brace, which JSON readers skip: a space or a tab for each bit. Spark passes the text on unchanged, in
the checkpoint and in the progress.

Errors of a query show the offsets, so the hidden state has a short form: the topic ids in binary in the order of the
topics, the initial offsets if there are any, and a checksum. State that does not fit this form is compressed JSON.

The Python process of a streaming source converts offsets to text and back with the module that it imported as `json`.
`install` replaces that module in the process by one that reads and writes the white space. Where `install` finds no
such process, offsets hold the same state as entries beside the topics.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""Name of the module that Spark runs as the main program of a streaming source's Python process."""

IDS = "$ids"
INITIAL = "$initial"
BESIDE_BYTES_MAX = 64 << 20
ID_BYTES = 16
_PLAIN, _WITH_INITIAL = b"\1", b"\2"
"""First byte of the short form without and with initial offsets. Compressed JSON begins with `x`."""
_CHECKSUM_BYTES = 2
_BITS = str.maketrans("01", " \t")
_BLANKS = str.maketrans(" \t", "01")


class OffsetDict(dict[str, Any]):
    """Positions `{"topic": {"0": 12}}`. `beside`: the hidden state (JSON values). `text`: both as one text."""

    def __init__(self, positions: Mapping[str, Any], beside: Mapping[str, Any], text: str = "") -> None:
        super().__init__(positions)
        self.beside = dict(beside)
        self.text = text or _with_blanks(positions, self.beside)


class OffsetJson(ModuleType):
    """Replacement for the module `json` in the runner: converts an OffsetDict with its hidden state."""

    def __init__(self, *, beside_bytes_max: int = BESIDE_BYTES_MAX) -> None:
        super().__init__("json")
        self._beside_bytes_max = beside_bytes_max

    def dumps(self, value: Any, **more: Any) -> str:
        return value.text if isinstance(value, OffsetDict) else json.dumps(value, **more)

    def loads(self, text: str | bytes, **more: Any) -> Any:
        value = json.loads(text, **more)
        beside = None
        if isinstance(text, str) and isinstance(value, dict):
            beside = _beside(text, value, self._beside_bytes_max)
        return value if beside is None else OffsetDict(value, beside, str(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(json, name)


def install() -> None:
    """Make this process write and read offsets with white space, if it is the process of Spark's streaming source."""
    for module in (sys.modules.get("__main__"), sys.modules.get(RUNNER)):
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.name == RUNNER and getattr(module, "json", None) is json:
            module.json = OffsetJson()  # type: ignore[union-attr]


def is_installed() -> bool:
    """True if this process passes the hidden state of an OffsetDict on to Spark."""
    modules = (sys.modules.get("__main__"), sys.modules.get(RUNNER))
    return any(isinstance(getattr(module, "json", None), OffsetJson) for module in modules)


def _with_blanks(positions: Mapping[str, Any], beside: Mapping[str, Any]) -> str:
    text = json.dumps(dict(positions))
    packed = _short(positions, beside)
    if packed is None:
        packed = zlib.compress(json.dumps(beside, separators=(",", ":")).encode(), 9)
    # the bit in front keeps leading zeros
    bits = format(int.from_bytes(b"\1" + packed), "b")[1:]
    return text[:-1] + bits.translate(_BITS) + text[-1]


def _beside(text: str, positions: Mapping[str, Any], bytes_max: int) -> dict[str, Any] | None:
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
