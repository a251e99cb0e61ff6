"""Values of records as text for a page: limited in length, and with invisible characters made visible."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from sparklog.export.printable import printable
from sparklog.format.time_texts import time_texts

CELL_CHARS_MAX = 240
DETAIL_CHARS_MAX = 64 * 1024
MODES = ("auto", "text", "json", "hex")
"""Presentations of bytes. auto: JSON or text if the bytes are valid JSON or UTF-8, else hex."""
ENTRIES_MAX = 20
"""Largest number of shown entries of a list, a map or a struct."""
_HEX_ROW = 16
_UTF8_CHAR_BYTES_MAX = 4

# Control characters, and characters without width or that change the direction of text: they could hide text.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]")


class Cell(NamedTuple):
    """A value as text."""

    text: str
    kind: str
    """"null", "text", "json", "hex" or "number"."""
    size_bytes: int = -1
    """Size of the whole value; -1: unknown."""
    is_cut: bool = False
    """True if `text` is only the beginning of the value."""


NULL = Cell("null", "null")


def visible(text: str) -> str:
    """Replace invisible characters by their code points, as in ``\\u200b``."""
    return _UNSEEN.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def cell_of(scalar: Any, mode: str = "auto", chars_max: int = CELL_CHARS_MAX) -> Cell:
    """Return the cell of an Arrow value. Of long bytes or text only the beginning is read."""
    if not scalar.is_valid:
        return NULL
    t = scalar.type
    if pa.types.is_union(t):
        return cell_of(scalar.value, mode, chars_max)
    if _is_bytes(t) or _is_text(t):
        buffer = scalar.as_buffer()
        if buffer is None:
            return Cell("", "text", 0)
        start = buffer.slice(0, min(len(buffer), chars_max * _UTF8_CHAR_BYTES_MAX)).to_pybytes()
        return bytes_cell(start, len(buffer), mode if _is_bytes(t) else "text", chars_max)
    if pa.types.is_nested(t):
        text = _nested_text(scalar, chars_max)
        return _cut(text, "json", -1, chars_max)
    kind = "number" if pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t) else "text"
    return _cut(_plain(scalar), kind, -1, chars_max)


def bytes_cell(start: bytes, size_bytes: int, mode: str = "auto", chars_max: int = CELL_CHARS_MAX) -> Cell:
    """Return the cell of a value of `size_bytes` bytes, from its first bytes `start`."""
    is_whole = len(start) == size_bytes
    if mode in ("auto", "json") and is_whole:
        formatted = _json(start, pretty=chars_max > CELL_CHARS_MAX)
        if formatted is not None:
            return _cut(formatted, "json", size_bytes, chars_max)
    if mode in ("auto", "json", "text"):
        text = _utf8(start, is_whole=is_whole)
        if text is None and mode == "text":
            text = start.decode(errors="replace")
        if text is not None:
            return _cut(text, "text", size_bytes, chars_max, is_cut=not is_whole)
    return _hex(start, size_bytes, chars_max)


def _is_bytes(t: Any) -> bool:
    return bool(pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t))


def _is_text(t: Any) -> bool:
    return bool(pa.types.is_string(t) or pa.types.is_large_string(t))


def _cut(text: str, kind: str, size_bytes: int, chars_max: int, *, is_cut: bool = False) -> Cell:
    is_cut = is_cut or len(text) > chars_max
    return Cell(visible(text[:chars_max]), kind, size_bytes, is_cut)


def _json(data: bytes, *, pretty: bool) -> str | None:
    """Return formatted JSON text if the bytes are a JSON object or array; else None."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        msgspec.json.decode(data)
        return msgspec.json.format(data, indent=2 if pretty else 0).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _utf8(data: bytes, *, is_whole: bool) -> str | None:
    """Return the bytes as text; None if they are not UTF-8, or if more than a quarter are invisible characters.

    `is_whole` False: the bytes are the beginning of a text, which can end inside a character.
    """
    for missing in range(1 if is_whole else _UTF8_CHAR_BYTES_MAX):
        try:
            text = data[: len(data) - missing].decode()
        except UnicodeDecodeError:
            continue
        controls = len(_UNSEEN.findall(text))
        return text if 4 * controls <= len(text) else None
    return None


def _hex(data: bytes, size_bytes: int, chars_max: int) -> Cell:
    if chars_max <= CELL_CHARS_MAX:
        shown = data[: chars_max // 3]
        return Cell(shown.hex(" "), "hex", size_bytes, len(shown) < size_bytes)
    shown = data[: chars_max // 5]
    lines = []
    for position in range(0, len(shown), _HEX_ROW):
        row = shown[position : position + _HEX_ROW]
        letters = "".join(chr(b) if 32 <= b < 127 else "." for b in row)
        lines.append(f"{position:08x}  {row.hex(' '):<47}  {letters}")
    return Cell("\n".join(lines), "hex", size_bytes, len(shown) < size_bytes)


def _plain(scalar: Any) -> str:
    if pa.types.is_interval(scalar.type):
        return str(printable(pa.array([scalar.as_py()], scalar.type))[0])  # ISO 8601, as in files
    if scalar.type == pa.time64("ns"):
        return str(scalar.cast(pa.string()))  # Python's time has no ns
    try:
        value = scalar.as_py()
    except (OverflowError, ValueError):  # a date or time that Python has no object for
        if pa.types.is_date(scalar.type) or pa.types.is_timestamp(scalar.type):
            return str(time_texts(pa.array([scalar]))[0])
        return f"{scalar.value} ({scalar.type})"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _nested_text(scalar: Any, chars_max: int) -> str:
    """Return a list, map or struct in a notation like JSON, with at most ENTRIES_MAX entries at any depth."""
    if not scalar.is_valid:
        return "null"
    t = scalar.type
    if pa.types.is_union(t):
        return _nested_text(scalar.value, chars_max)
    if pa.types.is_struct(t):
        parts = [f"{quoted(f.name)}: {_nested_text(scalar[i], chars_max)}" for i, f in enumerate(t) if i < ENTRIES_MAX]
        return _join_parts("{", parts, len(t), "}", chars_max)
    if pa.types.is_map(t):
        entries = scalar.values
        pairs = [entries[i] for i in range(min(len(entries), ENTRIES_MAX))]
        parts = [f"{_nested_text(pair[0], chars_max)}: {_nested_text(pair[1], chars_max)}" for pair in pairs]
        return _join_parts("{", parts, len(entries), "}", chars_max)
    if pa.types.is_nested(t):  # the kinds of lists
        values = scalar.values
        parts = [_nested_text(values[i], chars_max) for i in range(min(len(values), ENTRIES_MAX))]
        return _join_parts("[", parts, len(values), "]", chars_max)
    cell = cell_of(scalar, "auto", min(chars_max, CELL_CHARS_MAX))
    text = cell.text + ("…" if cell.is_cut else "")
    return text if cell.kind == "number" else quoted(text)


def _join_parts(opening: str, parts: list[str], total: int, closing: str, chars_max: int) -> str:
    more = f", … {total - len(parts):,} more" if total > len(parts) else ""
    return (opening + ", ".join(parts))[: 2 * chars_max] + more + closing


def quoted(text: str) -> str:
    """Return the text as a JSON string."""
    return msgspec.json.encode(text).decode()
