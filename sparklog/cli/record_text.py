"""`consume --output-format`: records as text in a format of the user, with the placeholders of kcat."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from sparklog.export.printable import printable
from sparklog.format.json_values import row_objects

if TYPE_CHECKING:
    from sparklog.client.consumer.consumer import ConsumedBatch

SIGNS = {
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp in ms",
    "k": "key",
    "K": "size of the key",
    "s": "value, or the row as JSON",
    "S": "size of the value",
    "h": "headers",
    "%": "a percent sign",
}
_ENCODER = msgspec.json.Encoder(decimal_format="number")
NO_VALUE_SIZE = "-1"
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_PART = re.compile(r"%(?P<sign>.?)|\\(?P<escape>.?)", re.DOTALL)


class _Record(NamedTuple):
    topic: str
    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Any]


Part = bytes | Callable[[_Record], bytes]

_READERS: dict[str, Callable[[_Record], bytes]] = {
    "t": lambda r: r.topic.encode(),
    "p": lambda r: b"%d" % r.partition,
    "o": lambda r: b"%d" % r.offset,
    "T": lambda r: b"%d" % r.time_ms,
    "k": lambda r: r.key or b"",
    "K": lambda r: _size(r.key),
    "s": lambda r: r.value or b"",
    "S": lambda r: _size(r.value),
    "h": lambda r: b",".join(b"%s=%s" % (h["key"].encode(), h["value"] or b"") for h in r.headers),
    "%": lambda r: b"%",
}


def parse_form(text: str) -> list[Part]:
    """Parse the value of `--output-format`.

    Args:
        text: Text with `%` and a key of SIGNS, and the escapes `\\n`, `\\r`, `\\t`, `\\0`, `\\\\`.

    Returns:
        The parts in order: literal bytes, and functions of a record that return bytes.

    Raises:
        ValueError: A placeholder or an escape is unknown.
    """
    parts: list[Part] = []
    at = 0
    for match in _PART.finditer(text):
        parts.append(text[at : match.start()].encode())
        at = match.end()
        sign, escape = match["sign"], match["escape"]
        if sign in _READERS:
            parts.append(_READERS[sign])
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape].encode())
        else:
            signs = ", ".join(f"%{s} ({meaning})" for s, meaning in SIGNS.items())
            raise ValueError(f"{match[0]!r} is unknown: use {signs}, \\n, \\r, \\t, \\0, \\\\")
    parts.append(text[at:].encode())
    return [part for part in parts if part != b""]


class TextWriter:
    """Writes each record in a parsed format.

    For a typed topic, the value is the row as JSON, and the key is the text of the key columns.
    """

    def __init__(
        self,
        out: BinaryIO,
        form: Sequence[Part],
        *,
        envelope: bool,
        key_columns: Sequence[str],
        columns: Sequence[str] | None = None,
    ) -> None:
        """Create a writer. `columns` are the columns in the JSON of a typed row; None: all."""
        self._out = out
        self._form = form
        self._envelope = envelope
        self._keys = key_columns
        self._columns = columns

    def write(self, batch: ConsumedBatch, rows: int) -> None:
        for record in self._records(batch, rows):
            self._out.write(b"".join(part if isinstance(part, bytes) else part(record) for part in self._form))
        self._out.flush()

    def close(self) -> None:
        self._out.flush()

    def _records(self, batch: ConsumedBatch, rows: int) -> list[_Record]:
        data = batch.data.slice(0, rows)
        if self._envelope:
            keys, values = data.column("key").to_pylist(), data.column("value").to_pylist()
            headers = [h or () for h in data.column("headers").to_pylist()]
        else:
            names = data.schema.names if self._columns is None else self._columns
            every = [printable(data.column(n)) for n in names]
            values = list(map(_ENCODER.encode, row_objects(names, every))) or [b"{}"] * rows
            keys = [key_text(row) for row in zip(*(printable(data.column(n)) for n in self._keys), strict=True)]
            keys = keys or [None] * rows
            headers = [()] * rows
        offsets, times = batch.offsets()[:rows].tolist(), batch.timestamps_ms()[:rows].tolist()
        return [
            _Record(batch.topic, batch.partition, *row)
            for row in zip(offsets, times, keys, values, headers, strict=True)
        ]


def key_text(values: Sequence[Any]) -> bytes | None:
    """Return the key of a typed row as text; None if all key columns are null. `values`: the key columns' values in
    printable form. Several values become a JSON list."""
    if all(v is None for v in values):
        return None
    if len(values) > 1:
        return _ENCODER.encode(values)
    return values[0].encode() if isinstance(values[0], str) else _ENCODER.encode(values[0]).strip(b'"')


def _size(value: bytes | None) -> bytes:
    return NO_VALUE_SIZE.encode() if value is None else b"%d" % len(value)
