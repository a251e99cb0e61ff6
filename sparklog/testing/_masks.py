"""Masks of recorded cases: pseudonyms in columns, in fields of structs and lists, and in fields of JSON objects.

The same value gets the same pseudonym in all columns, cases and runs with the same key, and no value can be found from
a pseudonym without the key:

| type | pseudonym |
|---|---|
| text | `m-` and 16 hexadecimal digits |
| bytes | 8 bytes |
| whole number, decimal number, floating-point number | a whole number of the same type, not negative |
| boolean | true or false |
| timestamp, date | moved into the past by a time that all moments of all cases share: order and distances stay |
| struct, list, map; JSON object, JSON list | pseudonyms of all their fields and elements; of a map also of its keys |
| null | null |

A number in JSON has the pseudonym of a number in a column of the type BIGINT or DOUBLE.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from decimal import Decimal
from itertools import permutations
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import InvalidRequestError
from sparklog.format.decoders import json_decoder

PARTITION = "_partition"
"""The column with the partition of a record, which is not masked."""
DAY_US = 86_400_000_000
SHIFT_DAYS_MAX = 3_650
BIGINT_BITS, FLOAT_BITS = 63, 24
"""Bits of the pseudonyms of BIGINT and of floating-point numbers. Each number of 24 bits is a FLOAT, too."""
LISTS = (pa.ListType, pa.LargeListType)


def masked(table: pa.Table, names: Sequence[str], key: bytes, *, is_typed: bool) -> pa.Table:
    """Return the table with pseudonyms in the named columns, or fields of JSON.

    Args:
        table: The rows.
        names: Columns; `who.email` is a field of the struct `who`, or of the structs of the list `who`. In an envelope
            topic a name that is no column is a field of the JSON objects in `value`, there too with a path.
        key: The secret of the pseudonyms.
        is_typed: False for an envelope topic.

    Returns:
        The table, with the same schema.

    Raises:
        InvalidRequestError: A column or field does not exist, is named twice, or has no pseudonyms.
    """
    for outer, inner in permutations(dict.fromkeys(names), 2):
        if inner.startswith(f"{outer}."):
            raise InvalidRequestError(f"mask {inner!r}: it is a part of {outer!r}: name one of them")
    columns = [name for name in table.column_names if name != PARTITION]
    fields = []
    for name in dict.fromkeys(names):
        head, dot, path = (name, "", "") if name in columns else name.partition(".")
        if head in columns:
            place = table.column_names.index(head)
            column = _combined(table[head])
            masked_column = _masked_field(name, column, path, key) if dot else _pseudonyms(name, column, key)
            table = table.set_column(place, table.schema.field(place), masked_column)
        elif is_typed:
            raise InvalidRequestError(f"mask {name!r}: the columns are {', '.join(columns)}")
        else:
            fields.append(name)
    if fields:
        values = masked_json(table["value"].to_pylist(), fields, key)
        table = table.set_column(table.column_names.index("value"), "value", pa.array(values, pa.binary()))
    return table


# -- columns


def _combined(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _masked_field(name: str, column: pa.Array, path: str, key: bytes) -> pa.Array:
    """Return a column with pseudonyms in a field of its structs, or of the structs in its lists. Raises
    InvalidRequestError."""
    kind = column.type
    if isinstance(kind, LISTS):
        return _with_elements(column, _masked_field(name, column.flatten(), path, key))
    field, dot, rest = path.partition(".")
    place = kind.get_field_index(field) if pa.types.is_struct(kind) else -1
    if place < 0:
        raise InvalidRequestError(f"mask {name!r}: {kind} has no field {field!r}")
    children = [column.field(number) for number in range(kind.num_fields)]
    child = children[place]
    children[place] = _masked_field(name, child, rest, key) if dot else _pseudonyms(name, child, key)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())


def _pseudonyms(name: str, column: pa.Array, key: bytes) -> pa.Array:
    """Return the pseudonyms of a column. Raises InvalidRequestError."""
    kind = column.type
    if pa.types.is_struct(kind):
        children = [_pseudonyms(name, column.field(number), key) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())
    if isinstance(kind, LISTS) or pa.types.is_map(kind):
        return _with_elements(column, _pseudonyms(name, _elements(column), key))
    if pa.types.is_timestamp(kind):
        return pc.subtract(column, pa.scalar(_shift_days(key) * DAY_US, pa.duration("us"))).cast(kind)
    if pa.types.is_date32(kind):
        return pc.subtract(column.cast(pa.int32()), pa.scalar(_shift_days(key), pa.int32())).cast(kind)
    if _has_pseudonyms(kind):
        encoded = column.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        return pa.array([_pseudonym(value, kind, key) for value in values], kind).take(encoded.indices)
    raise InvalidRequestError(
        f"mask {name!r}: a column of {kind} has no pseudonyms; texts, bytes, numbers, booleans and times have, and "
        "structs, lists and maps of them"
    )


def _elements(column: pa.Array) -> pa.Array:
    """Return the elements of lists or maps that are not null; those of maps are structs of a key and a value."""
    if not pa.types.is_map(column.type):
        return column.flatten()
    present = pa.concat_arrays([column.drop_null()])  # begins at offset 0
    return pa.StructArray.from_arrays([present.keys, present.items], ["key", "value"])


def _with_elements(column: pa.Array, elements: pa.Array) -> pa.Array:
    """Return the lists or maps with other elements, which are as many as before."""
    kind = column.type
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    lengths = np.where(is_null, 0, np.diff(column.offsets.to_numpy()))
    type_of_offsets = pa.int64() if isinstance(kind, pa.LargeListType) else pa.int32()
    offsets = pa.array(np.append(0, np.cumsum(lengths)), type_of_offsets, mask=np.append(is_null, False))
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(offsets, elements.field(0), elements.field(1)).cast(kind)
    return type(column).from_arrays(offsets, elements).cast(kind)


def _has_pseudonyms(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_binary,
            pa.types.is_integer,
            pa.types.is_floating,
            pa.types.is_decimal,
            pa.types.is_boolean,
        )
    )


def _pseudonym(value: Any, kind: pa.DataType, key: bytes) -> Any:
    """Return the pseudonym of a value of a column."""
    if pa.types.is_string(kind):
        return _text(value, key)
    if pa.types.is_binary(kind):
        return _digest(value, key)
    if pa.types.is_decimal(kind):
        return Decimal(_number(value, key) % 10**kind.precision).scaleb(-kind.scale)
    if pa.types.is_floating(kind):
        return float(_number(value, key) % 2**FLOAT_BITS)
    if pa.types.is_boolean(kind):
        return bool(_number(value, key) % 2)
    return _number(value, key) % 2 ** (kind.bit_width - 1)


# -- JSON


def masked_json(values: Sequence[bytes | None], fields: Sequence[str], key: bytes) -> list[bytes | None]:
    """Return JSON objects with pseudonyms in the named fields; the other fields keep their text. Raises
    InvalidRequestError, also for a field that no value has: its name may be wrong, and its content would not be
    masked."""
    absent = set(fields) if any(value is not None for value in values) else set()
    masked_values = []
    for value in values:
        if value is not None:
            try:
                content: dict[str, Any] = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
                absent -= {name for name in fields if _mask_json(content, name, key)}
                value = msgspec.json.encode(content)
            except (msgspec.MsgspecError, ValueError, RecursionError) as e:
                raise InvalidRequestError(
                    f"mask {', '.join(fields)}: a value of the topic is no JSON object: mask `value` itself"
                ) from e
        masked_values.append(value)
    if absent:
        raise InvalidRequestError(f"mask {', '.join(sorted(absent))}: no value has the field; outer.inner is a path")
    return masked_values


def _mask_json(content: dict[str, Any], path: str, key: bytes) -> bool:
    """Replace a field by its pseudonym. Returns False if the object has no such field. Raises ValueError if an outer
    field is no object, and no list of objects."""
    if path in content:
        content[path] = msgspec.Raw(msgspec.json.encode(_json_pseudonym(json.loads(bytes(content[path])), key)))
        return True
    outer, _, inner = path.partition(".")
    text = bytes(content[outer]) if inner and outer in content else b"null"
    if text == b"null":
        return False
    if not text.startswith(b"["):
        return _mask_inner(content, outer, text, inner, key)
    elements: dict[str, Any] = {str(n): raw for n, raw in enumerate(json_decoder(list[msgspec.Raw]).decode(text))}
    present = [_mask_inner(elements, place, bytes(raw), inner, key) for place, raw in list(elements.items())]
    content[outer] = msgspec.Raw(msgspec.json.encode(list(elements.values())))
    return any(present)


def _mask_inner(content: dict[str, Any], name: str, text: bytes, path: str, key: bytes) -> bool:
    """Mask a field of an inner object. Returns False if the object has no such field."""
    if text == b"null":
        return False
    fields: dict[str, Any] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    is_present = _mask_json(fields, path, key)
    content[name] = msgspec.Raw(msgspec.json.encode(fields))
    return is_present


def _json_pseudonym(value: Any, key: bytes) -> Any:
    """Return the pseudonym of a value of JSON, with the same type."""
    match value:
        case None:
            return None
        case dict():
            return {name: _json_pseudonym(item, key) for name, item in value.items()}
        case list():
            return [_json_pseudonym(item, key) for item in value]
        case bool():
            return bool(_number(value, key) % 2)
        case int():
            return _number(value, key) % 2**BIGINT_BITS
        case float():
            return float(_number(value, key) % 2**FLOAT_BITS)
    return _text(str(value), key)


# -- the key


def _text(value: str, key: bytes) -> str:
    return f"m-{_digest(value.encode(), key).hex()}"


def _number(value: Any, key: bytes) -> int:
    return int.from_bytes(_digest(str(value).encode(), key))


def _digest(value: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(value, key=key[:64], digest_size=8).digest()


def _shift_days(key: bytes) -> int:
    return 1 + int.from_bytes(_digest(b"time", key)) % SHIFT_DAYS_MAX
