"""The largest size of a row as JSON. Each stored row has a form for readers of text: the broker refuses a row that
exceeds the limit, because Kafka's clients could not read its partition any further.

A row's size is counted with the longest notation of each number, date and time, with null as long as another value,
and with the exact length of text. Bytes count with the longer of their two forms, text and base64. The rows of a batch
have an upper bound that follows from the batch's metadata: nearly all batches are below the limit by this bound, so
that their rows are not looked at.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from sparklog.errors import MessageTooLargeError
from sparklog.format.flat import RecordBatchMessage
from sparklog.format.identity_cache import kept_by_identity
from sparklog.settings import MIB

ROW_JSON_BYTES_MAX = 128 * MIB
"""Largest size of a row as JSON, in bytes."""
_BATCH_RATIO_MAX = 64
"""Largest size of a batch's content as JSON, as a multiple of ROW_JSON_BYTES_MAX. It bounds the work of the check:
names of fields inside of arrays can take many times the stored bytes."""
_PER_BYTE = 6
"""Largest number of bytes of JSON for a byte of text: a control character is \\u0000."""
_IN_KEY = 2
"""Largest ratio between the form of a nested key in its object, which is a text with the key's JSON inside, and this
JSON."""
_BRACES, _QUOTES, _SEPARATOR, _BINARY = 4, 4, 2, 20
"""Bytes around an array or object; around a text; between members; around base64, with its padding and the mark of
bytes."""
_WIDTHS = (
    (pa.types.is_boolean, 5),
    (pa.types.is_int8, 4),
    (pa.types.is_int16, 6),
    (pa.types.is_int32, 11),
    (pa.types.is_integer, 20),
    (pa.types.is_floating, 25),
    (pa.types.is_decimal, 50),
    (pa.types.is_date, 18),
    (pa.types.is_temporal, 40),
    (pa.types.is_binary, _BINARY),
    (pa.types.is_string, _QUOTES),
    (pa.types.is_nested, _BRACES),
)
"""Largest number of bytes for a value of a kind of type, without the content of text, bytes, arrays and objects."""
_ESCAPED = np.ones(256, np.uint8)
"""Size of each byte of text in JSON."""
_ESCAPED[:32] = _PER_BYTE
_ESCAPED[list(b'"\\\b\t\n\f\r')] = 2
_SLICE_BYTES = 1 * MIB


def require_json_rows(rows: pa.RecordBatch) -> None:
    """Raise MessageTooLargeError if a row is larger than ROW_JSON_BYTES_MAX as JSON. The message names the row."""
    content_max = ROW_JSON_BYTES_MAX - _fixed_of_row(rows.schema)
    content = _content_of_rows(rows, is_exact=False)
    if content > _BATCH_RATIO_MAX * ROW_JSON_BYTES_MAX:
        raise MessageTooLargeError(
            f"the batch takes up to {content} bytes as JSON, at most {_BATCH_RATIO_MAX * ROW_JSON_BYTES_MAX} are "
            "allowed: send smaller batches"
        )
    _require_content(rows, 0, content_max)


def bound_of(message: RecordBatchMessage, schema: pa.Schema, body_bytes: int) -> int:
    """Return an upper bound for the size of each of a batch's rows as JSON. `message`: the batch's sound metadata;
    `body_bytes`: size of its columns, decompressed."""
    fixed, widths = _bounds_of_schema(schema)
    bound = fixed + _IN_KEY * _PER_BYTE * body_bytes
    return bound if widths is None else bound + int(message.nodes[:, 0] @ widths)


def _require_content(rows: pa.RecordBatch, first: int, content_max: int) -> None:
    """Check some rows of a batch, of which the first has the number `first`. The content of all of them is an upper
    bound for that of each."""
    content = _content_of_rows(rows, is_exact=rows.num_rows == 1)
    if content <= content_max:
        return
    if rows.num_rows == 1:
        raise MessageTooLargeError(
            f"row {first} takes {content + _fixed_of_row(rows.schema)} bytes as JSON, at most {ROW_JSON_BYTES_MAX} are "
            "allowed, because Kafka's clients could not read it: divide it into several rows"
        )
    middle = rows.num_rows // 2
    _require_content(rows.slice(0, middle), first, content_max)
    _require_content(rows.slice(middle), first + middle, content_max)


def _fixed_of_row(schema: pa.Schema) -> int:
    """Return the size of a row as JSON without the content of its columns."""
    return _BRACES + sum(_name_bytes(f.name) + _fixed(f.type) for f in schema)


def _fixed(t: Any) -> int:
    """Return the size of a value as JSON without the content of text, bytes, arrays and maps."""
    width = next(width for is_type, width in _WIDTHS if is_type(t))
    return width + (sum(_name_bytes(f.name) + _fixed(f.type) for f in t) if pa.types.is_struct(t) else 0)


def _fixed_of_entry(t: Any) -> int:
    """Return the size of an entry of the map type `t` as `_fixed` does."""
    return 2 * _SEPARATOR + _QUOTES + _key_factor(t) * _fixed(t.key_type) + _fixed(t.item_type)


def _content_of_rows(rows: pa.RecordBatch, *, is_exact: bool) -> int:
    return sum(_content(column, is_exact) for column in rows.columns)


def _content(array: Any, is_exact: bool) -> int:
    """Return the size of the content of text, bytes, arrays and maps as JSON, together for all values: an upper bound;
    if `is_exact`, text has its exact length. Values under a null count, too."""
    t = array.type
    if pa.types.is_struct(t):
        return sum(_content(array.field(i), is_exact) for i in range(t.num_fields))
    has_offsets = pa.types.is_string(t) or pa.types.is_binary(t) or pa.types.is_list(t) or pa.types.is_map(t)
    if not has_offsets or not len(array):
        return 0
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    if pa.types.is_list(t):
        size = (_SEPARATOR + _fixed(t.value_type)) * count
        return size + _content(array.values.slice(first, count), is_exact)
    if pa.types.is_map(t):
        keys, items = array.keys.slice(first, count), array.items.slice(first, count)
        size = _fixed_of_entry(t) * count + _content(items, is_exact)
        return size + _key_factor(t) * _content(keys, is_exact)
    text = _text_bytes(array.buffers()[2], first, count) if is_exact else _PER_BYTE * count
    return max(text, -(-4 * count // 3)) if pa.types.is_binary(t) else text


def _text_bytes(buffer: Any, first: int, count: int) -> int:
    """Return the size of texts, or of bytes as text, in JSON without quotation marks. `count`: their bytes, which begin
    at the byte `first` of `buffer`."""
    data = np.frombuffer(buffer or b"", np.uint8)[first : first + count]
    slices = (data[start : start + _SLICE_BYTES] for start in range(0, count, _SLICE_BYTES))
    return sum(int(_ESCAPED[part].sum(dtype=np.int64)) for part in slices)


def _key_factor(t: Any) -> int:
    """Return the largest ratio between the form of the keys of the map type `t` in the object and their JSON. A key
    that is text in JSON stays unchanged."""
    return _IN_KEY if pa.types.is_nested(t.key_type) else 1


def _name_bytes(name: str) -> int:
    """Return the size of a member's name in JSON, with its colon and comma."""
    return len(msgspec.json.encode(name)) + _SEPARATOR


@kept_by_identity
def _bounds_of_schema(schema: pa.Schema) -> tuple[int, np.ndarray | None]:
    """Return `_fixed_of_row`, and the largest size in JSON of a value of each node, in the order of `body_layout`: that
    of elements and entries; 0 for other nodes, which are parts of these or of the row. None: no node has a size."""
    widths: list[int] = []
    for field in schema:
        _add_widths(widths, field.type, 0, 1)
    return _fixed_of_row(schema), np.array(widths, np.int64) if any(widths) else None


def _add_widths(widths: list[int], t: Any, width: int, factor: int) -> None:
    """Add the widths of a type, `width`, and of its children. `factor`: ratio by which the keys that contain the type
    enlarge it."""
    widths.append(factor * width)
    if pa.types.is_map(t):
        widths.append(factor * _fixed_of_entry(t))
        _add_widths(widths, t.key_type, 0, _key_factor(t) * factor)
        _add_widths(widths, t.item_type, 0, factor)
    elif pa.types.is_struct(t):
        for field in t:
            _add_widths(widths, field.type, 0, factor)
    elif pa.types.is_list(t):
        _add_widths(widths, t.value_type, _SEPARATOR + _fixed(t.value_type), factor)
