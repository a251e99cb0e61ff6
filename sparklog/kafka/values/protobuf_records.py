"""Protobuf records of one schema as columns, and rows as records.

In Confluent's framing a list of numbers between the schema's id and the message names the message: its place among the
messages of the file, then among those inside. A zero alone is the first message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from sparklog.errors import MessageTooLargeError, SchemaMismatchError
from sparklog.format.map_keys import require_distinct_keys
from sparklog.format.plain_layout import plain_layout
from sparklog.format.schema import fit_column, null_column
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX
from sparklog.kafka.records.varints import Array
from sparklog.kafka.schemas.protobuf import ProtobufSchema
from sparklog.kafka.values.avro_bytes import Space
from sparklog.kafka.values.avro_records import slices
from sparklog.kafka.values.framing import byte_slices
from sparklog.kafka.values.protobuf_columns import (
    MessageField,
    MessageType,
    decoded,
    encoded,
    filled_column,
    message_type,
    require_one_of_each,
)
from sparklog.kafka.values.protobuf_messages import Index, index_bytes, index_of, main_message, name_of
from sparklog.kafka.values.rows_at_fault import UnwritableRowError, children_of, first_fault, rows_at_fault

INDEX_DEPTH_MAX = 20
PREFIXES_MAX = 100
"""Largest number of different messages in the records of one schema in a batch."""
EXPANDED_BYTES_MAX = 64 * 1024 * 1024
"""Memory for the rows of a slice of records, in the worst case."""
_NULL_BYTES = 17
_NO_VALUE = 'non-nullable StructArray field \\"value\\"'
"""Part of the panic of `ptars` for an entry of a map of messages without its value, as Rust's prost writes it."""

types_of_messages = lru_cache(maxsize=256)(message_type)


def read_protobuf(
    payloads: Any, writer: ProtobufSchema, reader: ProtobufSchema | None, columns: pa.Schema, space: Space
) -> tuple[list[Any], dict[int, str], tuple[str, ...]]:
    """Decode records of one schema. `payloads`: binary array without nulls, which begins with the message's index.
    Returns an array per column, the reasons why records are refused by index, and the paths of fields that the newest
    schema does not have any more. Raises SchemaMismatchError; MessageTooLargeError."""
    refused: dict[int, str] = {}
    dropped: set[str] = set()
    parts: list[tuple[Array, list[Any]]] = []
    for places, index, messages in _messages(payloads, refused):
        try:
            kind = types_of_messages(writer, index)
            own = _newest(writer, reader, index)
            plan = _Plan(None if own is None or own is kind else own.fields)
            sources = plan.sources(kind.fields, list(columns), plan.reader, "")
        except SchemaMismatchError as e:
            refused.update(dict.fromkeys(places[:RECORDS_NAMED_MAX].tolist(), str(e)))
            continue
        dropped.update(plan.dropped)
        arrays: list[list[Any]] = [[] for _ in columns]
        for first, part in slices(messages):
            for first_row, some in _within(part, kind):
                batch, faults = _decode(some, kind)
                for column, (at, source) in enumerate(sources):
                    arrays[column].append(_column(batch, kind, at, source, columns.field(column), space, faults))
                refused.update({int(places[first + first_row + row]): reason for row, reason in faults.items()})
        parts.append((places, [pa.concat_arrays(one) for one in arrays]))
    count = len(payloads)
    if refused or not parts:
        return [null_column(count, f.type) for f in columns], refused, tuple(sorted(dropped))
    if len(parts) == 1:
        return parts[0][1], refused, tuple(sorted(dropped))
    place = np.empty(count, np.int64)
    place[np.concatenate([places for places, _ in parts])] = np.arange(count)
    order = pa.array(place)
    together = [pa.concat_arrays(one).take(order) for one in zip(*(arrays for _, arrays in parts), strict=True)]
    return together, refused, tuple(sorted(dropped))


def _newest(writer: ProtobufSchema, reader: ProtobufSchema | None, index: Index) -> MessageType | None:
    """Return the message of the newest schema, by its name; None if it has no such message with columns."""
    name = name_of(writer, index)
    newest = None if reader is None or name is None else index_of(reader, name)
    try:
        return None if reader is None or newest is None else types_of_messages(reader, newest)
    except SchemaMismatchError:
        return None


def with_newest_names(field: MessageField, newest: MessageField) -> MessageField:
    """Return a field with the names that the newest schema has for the values of its enums: consumers get these. A
    value that it does not have is refused, because no consumer could read it."""
    if field.kind != newest.kind:
        return field
    if field.kind == "enum":
        return replace(field, names=newest.names)
    if not field.fields:
        return field
    of_numbers = {one.number: one for one in newest.fields}
    inner = tuple(
        one if one.number not in of_numbers else with_newest_names(one, of_numbers[one.number]) for one in field.fields
    )
    return replace(field, fields=inner)


def type_of_rows(schema: ProtobufSchema, columns: Collection[str] = ()) -> MessageType:
    """Return the message of a schema that rows are. `columns`: names of the topic's columns. Raises
    SchemaMismatchError, with the path, if a field has no column."""
    return types_of_messages(schema, main_message(schema, columns))


def check_message(schema: ProtobufSchema, columns: pa.Schema) -> None:
    """Raise SchemaMismatchError, with the path, if the messages of a schema cannot be rows of the columns."""
    _Plan(None).sources(type_of_rows(schema, columns.names).fields, list(columns), None, "")


Fields = tuple[MessageField, ...]


def fields_of_versions(
    schema: ProtobufSchema, other: ProtobufSchema, columns: Collection[str], present: Collection[str]
) -> tuple[Fields, Fields] | None:
    """Return the fields of the message that rows are, in a new version of a schema and in another one; None if records
    of the other one are no rows. `columns`, `present`: names of the topic's columns after and before the new version.
    Raises SchemaMismatchError."""
    main, before = main_message(schema, columns), main_message(other, present)
    try:
        former = types_of_messages(other, before).fields
    except SchemaMismatchError:
        return None
    name = name_of(other, before) or ""
    if index_of(schema, name) not in (None, main):
        raise SchemaMismatchError(
            f"rows are the message {name}, and in this version {name_of(schema, main)} has more of the topic's columns: keep "
            "the names of the fields, or give the other message other ones"
        )
    return types_of_messages(schema, main).fields, former


def check_renamed(new: Fields, other: Fields, columns: pa.Schema, source: str) -> None:
    """Raise SchemaMismatchError if a field has another name than in another version, and its column that one: consumers
    would get its default for the rows that are stored. `source`: name of the other version, for the error."""
    names, written = {field.name for field in new}, {field.number: field.name for field in other}
    for field in new:
        name = written.get(field.number, field.name)
        if name not in names and name in columns.names and field.name not in columns.names:
            raise SchemaMismatchError(
                f"field {field.name!r} has the number {field.number} of the column {name!r} ({source}), and a column keeps its "
                "name: keep the name of the field, or use a new number"
            )


# -- the index of the message


def _messages(payloads: Any, refused: dict[int, str]) -> Iterator[tuple[Array, tuple[int, ...], Any]]:
    """Yield the places of the records of each message, its index, and the messages."""
    count = len(payloads)
    offsets = np.frombuffer(payloads.buffers()[1], np.int32, count + 1, 4 * payloads.offset).astype(np.int64)
    body = payloads.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(1, np.uint8)
    begins, ends = offsets[:-1], offsets[1:]
    remaining = np.arange(count)
    messages = 0
    while len(remaining) and messages < PREFIXES_MAX:
        if len(refused) >= RECORDS_NAMED_MAX:
            return
        first = int(remaining[0])
        prefix = _prefix(data[begins[first] : min(int(ends[first]), int(begins[first]) + 64)].tobytes())
        if prefix is None:
            refused[first] = "its index of a message is cut off or not valid"
            remaining = remaining[1:]
            continue
        messages += 1
        index, size = prefix
        expected = data[begins[first] : begins[first] + size]
        is_same = ends[remaining] - begins[remaining] >= size
        for i in range(size):
            is_same[is_same] &= data[begins[remaining[is_same]] + i] == expected[i]
        places = remaining[is_same]
        yield places, index, byte_slices(data, begins[places] + size, ends[places])
        remaining = remaining[~is_same]
    for row in remaining[:RECORDS_NAMED_MAX].tolist():
        refused[row] = f"the batch has more than {PREFIXES_MAX} messages of one schema"


def _prefix(data: bytes) -> tuple[tuple[int, ...], int] | None:
    """Return the index at the beginning of a payload, and its size; None if it is not valid."""
    count, at = _number(data, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= INDEX_DEPTH_MAX:
        return None
    index = []
    for _ in range(count):
        place, at = _number(data, at)
        if place < 0:
            return None
        index.append(place)
    return tuple(index), at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it; -1 if it is cut off or not valid."""
    number = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    return -1, at


# -- decoding


def _width(field: MessageField) -> int:
    """Return the largest size in bytes of the field's part of a row, without the elements of lists."""
    if field.is_list or field.is_map:
        return 5
    return 1 + sum(map(_width, field.fields)) if field.fields else _NULL_BYTES


def _repeated(fields: tuple[MessageField, ...]) -> Iterator[tuple[int, int]]:
    """Yield the tag and the size of an element of each list and map of messages, at any depth."""
    for field in fields:
        if field.fields and (field.is_list or field.is_map):
            yield field.tag, 1 + sum(map(_width, field.fields))
        yield from _repeated(field.fields)


def _within(payloads: Any, kind: MessageType) -> Iterator[tuple[int, Any]]:
    """Yield slices of records whose rows take at most EXPANDED_BYTES_MAX: an empty message of two bytes can be a row of
    thousands of nulls. Raises MessageTooLargeError for a record that can take more."""
    width, repeated = sum(map(_width, kind.fields)), list(_repeated(kind.fields))

    def bound(part: Any) -> int:
        body = part.buffers()[2]
        offsets = np.frombuffer(part.buffers()[1], np.int32, len(part) + 1, 4 * part.offset)
        data = np.frombuffer(body, np.uint8)[offsets[0] : offsets[-1]] if body is not None else np.zeros(0, np.uint8)
        elements = sum(int(((data & 0x7F) == tag).sum()) * size for tag, size in repeated)
        return len(part) * width + elements

    waiting = [(0, payloads)]
    while waiting:
        first, part = waiting.pop()
        if bound(part) <= EXPANDED_BYTES_MAX:
            yield first, part
        elif len(part) == 1:
            raise MessageTooLargeError(
                f"a record of {part.nbytes} bytes can have more than {EXPANDED_BYTES_MAX} bytes of columns: send smaller "
                "records"
            )
        else:
            half = len(part) // 2
            waiting += [(first + half, part.slice(half)), (first, part.slice(0, half))]


def _decode(payloads: Any, kind: MessageType) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return the rows of `ptars`, and reasons by index; refused records have the row of an empty message."""
    faults = _unsound_records(payloads)
    if not faults:
        try:
            return _converted(payloads, kind), {}
        except ValueError:
            pass
    sound = payloads if not faults else _emptied(payloads, faults)
    faults.update(rows_at_fault(sound, lambda part: _converted(part, kind), ValueError, RECORDS_NAMED_MAX))
    if len(faults) >= RECORDS_NAMED_MAX:
        return _converted(_emptied(payloads, range(len(payloads))), kind), faults
    return _converted(_emptied(payloads, faults), kind), faults


def _converted(payloads: Any, kind: MessageType) -> pa.RecordBatch:
    """Return the rows of messages. Raises ValueError."""
    try:
        rows = kind.handler.array_to_record_batch(payloads)
    except BaseException as e:
        if isinstance(e, ValueError) or type(e).__name__ != "PanicException":
            raise
        if _NO_VALUE in str(e):
            raise ValueError(
                "an entry of a map has no value: write the value, also if it is an empty message"
            ) from None
        raise ValueError(f"the message cannot be decoded: {e}") from None
    require_one_of_each(rows.column, kind.fields)
    return rows


def _emptied(payloads: Any, rows: Any) -> Any:
    """Return the records, empty ones in some rows."""
    mask = np.zeros(len(payloads), bool)
    mask[list(rows)] = True
    return pc.if_else(pa.array(mask), pa.scalar(b"", pa.binary()), payloads)


def _unsound_records(payloads: Any) -> dict[int, str]:
    """Return reasons for the records that Python's library refuses without their schema: `ptars` passes over damaged
    groups, and calls itself for each group inside another one. Sound messages one after the other are one message, so
    that one call is enough for sound records."""
    offsets = np.frombuffer(payloads.buffers()[1], np.int32, len(payloads) + 1, 4 * payloads.offset)
    body = payloads.buffers()[2]
    if body is None or _is_sound(memoryview(body)[offsets[0] : offsets[-1]]):
        return {}
    faults: dict[int, str] = {}
    for row in range(len(payloads)):
        if not _is_sound(memoryview(body)[offsets[row] : offsets[row + 1]]):
            faults[row] = "the message is damaged, or its groups are nested too deep"
            if len(faults) >= RECORDS_NAMED_MAX:
                break
    return faults


def _is_sound(data: memoryview) -> bool:
    """Return True if Python's library parses the fields of a message."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError

    try:
        Empty.FromString(data)
    except DecodeError:
        return False
    return True


# -- columns


class _Plan:
    """Finds the writer's field of each column. A field of the newest schema has its number in all versions."""

    def __init__(self, reader: tuple[MessageField, ...] | None) -> None:
        self.reader = reader
        self.dropped: list[str] = []

    def sources(
        self,
        fields: tuple[MessageField, ...],
        targets: list[pa.Field],
        reader: tuple[MessageField, ...] | None,
        path: str,
    ) -> list[tuple[int, _Source | None]]:
        """Return the index and the conversion of the writer's field of each target; -1 for none. Raises
        SchemaMismatchError."""
        by_number = {field.number: i for i, field in enumerate(fields)}
        by_name = {field.name: i for i, field in enumerate(fields)}
        read = {field.name: field for field in reader or ()}
        sources: dict[str, tuple[int, _Source | None]] = {}
        used = set[int]()
        prefix = f"{path}." if path else ""
        for target in sorted(targets, key=lambda one: one.name not in read):  # a number counts more than a former name
            own = read.get(target.name)
            at = by_number.get(own.number, -1) if own is not None else by_name.get(target.name, -1)
            if at < 0 or at in used:
                sources[target.name] = -1, None
                continue
            used.add(at)
            sources[target.name] = at, self._source(fields[at], own, target.type, prefix + target.name)
        numbers = {field.number for field in reader or ()}
        for i, field in enumerate(fields):
            if i not in used and (reader is None or field.number in numbers):
                raise SchemaMismatchError(
                    f"field {prefix + field.name!r} is no column: add a column, or write records without the field"
                )
            if i not in used:
                self.dropped.append(prefix + field.name)
        return [sources[target.name] for target in targets]

    def _source(self, field: MessageField, own: MessageField | None, target: Any, path: str) -> _Source:
        if own is not None:
            field = with_newest_names(field, own)
        inner: list[tuple[int, _Source | None]] = []
        element = target.value_type if field.is_list and pa.types.is_list(target) else target
        if field.kind == "message" and field.column != target and pa.types.is_struct(element):
            read = own.fields if own is not None and own.kind == "message" else None
            inner = self.sources(field.fields, list(element), read, path)
        elif field.column != target:
            try:
                fit_column(pa.nulls(0, field.column), target)
            except (pa.ArrowException, OverflowError) as e:
                reason = str(e).splitlines()[0]
                raise SchemaMismatchError(
                    f"field {path!r} is {field.kind}, the column has {target} ({reason})"
                ) from None
        return _Source(field, target, inner)


class _Source:
    """The conversion of a field into a column."""

    def __init__(self, field: MessageField, target: Any, inner: list[tuple[int, _Source | None]]) -> None:
        self._field = field
        self._target = target
        self._inner = inner

    def convert(self, array: Any) -> Any:
        """Return the column of an array of `ptars`. Raises pa.ArrowInvalid."""
        column = decoded(array, self._field)
        require_distinct_keys(column)
        return self.fitted(column)

    def fitted(self, column: Any) -> Any:
        """Return a column of the field's own type as one of the target's. Raises pa.ArrowInvalid."""
        if column.type == self._target:
            return column
        if not self._inner:
            return fit_column(column, self._target)
        if self._field.is_list:
            values = self._structs(column.values, self._target.value_type)
            return pa.Array.from_buffers(self._target, len(column), column.buffers()[:2], children=[values])
        return self._structs(column, self._target)

    def _structs(self, column: Any, target: Any) -> Any:
        children = [
            null_column(len(column), child.type) if source is None else source.fitted(column.field(at))
            for (at, source), child in zip(self._inner, target, strict=True)
        ]
        return pa.Array.from_buffers(target, len(column), [column.buffers()[0]], children=children)


def _column(
    batch: pa.RecordBatch,
    kind: MessageType,
    at: int,
    source: _Source | None,
    target: pa.Field,
    space: Space,
    faults: dict[int, str],
) -> Any:
    """Return a column; add the reasons of its rows to `faults`."""
    if source is None:
        space.spend(_NULL_BYTES * batch.num_rows)
        return null_column(batch.num_rows, target.type)
    array = batch.column(kind.fields[at].name)
    try:
        column = source.convert(array)
    except pa.ArrowInvalid:
        limit = RECORDS_NAMED_MAX - len(faults)
        reasons = rows_at_fault(array, lambda part: source.convert(plain_layout(part)), pa.ArrowInvalid, limit)
        if limit > 0 and not reasons:
            return source.convert(plain_layout(array))
        for row, reason in reasons.items():
            faults.setdefault(row, f"field {target.name!r}: {reason}")
        return null_column(batch.num_rows, target.type)
    space.spend(column.nbytes)
    return column


# -- writing


def write_protobuf(rows: pa.RecordBatch, schema: ProtobufSchema, *, fills_nulls: bool = True) -> Any:
    """Return the records of rows as a binary array, with the index of the message. A null has no bytes. `fills_nulls`:
    True if a null in a field without presence can become the default; False for keys, of which two would become one.
    Raises UnwritableRowError; SchemaMismatchError if no row can be written."""
    index = main_message(schema, rows.schema.names)
    kind = types_of_messages(schema, index)
    layout, fields = kind.handler.schema(), {field.name: field for field in kind.fields}

    def records(part: pa.RecordBatch) -> Any:
        require_one_of_each(part.column, [field for field in kind.fields if field.name in part.schema.names])
        arrays = [_encoded(part, fields[target.name], target, fills_nulls=fills_nulls) for target in layout]
        return kind.handler.record_batch_to_array(pa.RecordBatch.from_arrays(arrays, schema=layout))

    try:
        messages = records(rows)
    except (pa.ArrowInvalid, OverflowError):
        first = first_fault(rows, records, pa.ArrowInvalid)
        try:
            records(rows.slice(first, 1))
        except pa.ArrowInvalid as e:
            raise UnwritableRowError(first, str(e).splitlines()[0]) from None
        raise
    return pc.binary_join_element_wise(pa.scalar(index_bytes(index)), messages.cast(pa.binary()), pa.scalar(b""))


def _encoded(rows: pa.RecordBatch, field: MessageField, target: pa.Field, *, fills_nulls: bool) -> Any:
    at = rows.schema.get_field_index(field.name)
    column = null_column(rows.num_rows, field.column) if at < 0 else rows.column(at)
    if column.type != field.column:
        try:
            _as_field(null_column(0, column.type), field)
        except (pa.ArrowException, OverflowError) as e:
            raise SchemaMismatchError(
                f"field {field.name!r} is {field.kind}, the column has {column.type}: {e}"
            ) from None
    if not fills_nulls:
        _check_distinct(column, field, target)
    try:
        return filled_column(encoded(_as_field(plain_layout(column), field), field, target.type), target)
    except pa.ArrowInvalid as e:
        raise pa.ArrowInvalid(f"field {field.name!r}: {str(e).splitlines()[0]}") from None


def _check_distinct(column: Any, field: MessageField, target: pa.Field) -> None:
    """Raise pa.ArrowInvalid for a value that has the bytes of another one."""
    if not target.nullable and column.null_count:
        raise pa.ArrowInvalid(f"field {field.name!r} is null, and the message has no null there: declare it optional")
    if field.kind == "enum":
        first = dict(reversed([(number, name) for number, name in field.names]))
        aliases = pa.array([name for number, name in field.names if first[number] != name], pa.string())
        if pc.any(pc.is_in(column, aliases)).as_py():
            raise pa.ArrowInvalid(f"field {field.name!r} has the second name of an enum's value: use the first one")


def _as_field(array: Any, field: MessageField) -> Any:
    """Return a column, in plain layout, in the field's type. Parts of it that a message does not have are left out.
    Raises pa.ArrowInvalid."""
    if array.type == field.column:
        return array
    target = field.column
    if field.is_map and pa.types.is_map(array.type):
        parts = (array.keys, array.items)
        entries = [_one_as_field(one, inner) for one, inner in zip(parts, field.fields, strict=True)]
        values = pa.StructArray.from_arrays(entries, fields=[target.key_field, target.item_field])
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], children=[values])
    if field.is_list and pa.types.is_list(array.type):
        values = _one_as_field(array.values, field)
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], children=[values])
    return fit_column(array, target) if field.is_list or field.is_map else _one_as_field(array, field)


def _one_as_field(array: Any, field: MessageField) -> Any:
    target = field.column.value_type if field.is_list else field.column
    if array.type == target or field.kind != "message" or not pa.types.is_struct(array.type):
        return fit_column(array, target)
    own = dict(zip((f.name for f in array.type), children_of(array), strict=True))
    children = [
        _as_field(own[one.name], one) if one.name in own else null_column(len(array), one.column)
        for one in field.fields
    ]
    return pa.Array.from_buffers(target, len(array), [array.buffers()[0]], children=children)
