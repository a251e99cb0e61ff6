"""Protobuf messages as columns, and rows as messages, through `ptars`.

`ptars` gets the descriptors with other names of packages, so that it takes well-known types as ordinary messages: its
own conversion of times keeps nanoseconds in 64 bits, and cuts times outside the years 1678 to 2261. It gets values of
float and double as their bits, because it takes -0.0 for a default, and leaves it out.

| Protobuf | column |
|---|---|
| double, float, bool, string, bytes | the same |
| int32, sint32, sfixed32; uint32, fixed32 | int; long |
| int64, sint64, sfixed64; uint64, fixed64 | long; decimal of 20 digits |
| enum | text, the value's name |
| google.protobuf.Timestamp, Duration | timestamp, duration; finer than microseconds is refused |
| google.protobuf.Int32Value and the other wrappers | the wrapped type |
| another message, repeated, map | struct, list, map |
| oneof | a column per field; at most one is not null |
| a recursive message, a message without fields, a group | refused with its path |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from sparklog.errors import InvalidTopicError, SchemaMismatchError
from sparklog.format.schema import canonical_schema
from sparklog.kafka.schemas.protobuf import ProtobufSchema, linked_files
from sparklog.kafka.values.rows_at_fault import children_of
from sparklog.security.optional import require

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto

PREFIX = "s"
"""Package around the packages of a schema."""
TYPES_MAX = 10_000
_WELL_KNOWN = f".{PREFIX}.google.protobuf."
_TIMESTAMP, _DURATION = f"{_WELL_KNOWN}Timestamp", f"{_WELL_KNOWN}Duration"
_WRAPPERS = frozenset(
    f"{_WELL_KNOWN}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_MICROS = 1_000_000
_SCALARS = {
    "double": pa.float64(),
    "float": pa.float32(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "int32": pa.int32(),
    "sint32": pa.int32(),
    "sfixed32": pa.int32(),
    "uint32": pa.int64(),
    "fixed32": pa.int64(),
    "int64": pa.int64(),
    "sint64": pa.int64(),
    "sfixed64": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "fixed64": pa.decimal128(20, 0),
}
Convert = Callable[[Any], Any]
"""Function that converts an array without an offset. Raises pa.ArrowInvalid."""


class MessageField(Struct, frozen=True):
    """A field of a message type."""

    name: str
    number: int
    kind: str
    """A scalar, enum, timestamp, duration, wrapper or message."""
    column: Any
    """The column's type."""
    tag: int
    """First byte of the field's tag on the wire, without its highest bit."""
    is_list: bool = False
    is_map: bool = False
    message: str = ""
    """Name of the message."""
    fields: tuple[MessageField, ...] = ()
    """The fields of a message, key and value of a map, and the value of a wrapper."""
    names: tuple[tuple[int, str], ...] = ()
    """Numbers and names of an enum."""
    oneof: int = -1
    """Number of the oneof in its message that the field belongs to; -1: none."""


class MessageType(Struct, frozen=True):
    """One message of a schema, with its converter."""

    fields: tuple[MessageField, ...]
    columns: pa.Schema
    handler: Any
    """Converter of `ptars`; its rows have the fields in the order of their numbers."""


def message_type(schema: ProtobufSchema, index: tuple[int, ...]) -> MessageType:
    """Return the message that an index names: the place among the file's messages, then among those inside. Raises
    SchemaMismatchError, with the path, if there is none or if a field has no column."""
    require("ptars", "Protobuf records", "protobuf")
    from ptars import PtarsConfig
    from ptars._lib import ProtoRegistry

    files = list(linked_files(schema))
    own = files[-1]
    names = [PREFIX + (f".{own.package}" if own.package else "")]
    messages: Any = own.message_type
    for place in index:
        if place >= len(messages):
            raise SchemaMismatchError(f"the schema has no message with the index {list(index)}")
        names.append(messages[place].name)
        messages = messages[place].nested_type
    walk = _Walk(_renamed(file) for file in files)
    name = ".".join(names)
    fields = walk.fields(f".{name}", "", ())
    try:
        columns = canonical_schema(pa.schema([pa.field(f.name, f.column) for f in fields]))
    except InvalidTopicError as e:
        raise SchemaMismatchError(str(e)) from None
    for file in walk.files:
        for message in file.message_type:
            _replace_floats(message)
    config = PtarsConfig(list_value_name="element")
    try:
        registry = ProtoRegistry([file.SerializeToString() for file in walk.files])
        return MessageType(fields, columns, registry.create_for_message(name, config))
    except (ValueError, TypeError, KeyError) as e:
        raise SchemaMismatchError(f"the schema cannot be decoded: {str(e)[:300]}") from None
    except BaseException as e:
        if type(e).__name__ != "PanicException":  # a fault of Rust, which is no Exception
            raise
        raise SchemaMismatchError(f"the schema cannot be decoded: {str(e)[-300:]}") from None


def _renamed(file: Any) -> Any:
    """Return a file with its package in PREFIX, and without options, extensions and fields that the library does not
    know: `ptars` panics at a known field of another wire type."""
    file.DiscardUnknownFields()
    file.package = f"{PREFIX}.{file.package}" if file.package else PREFIX
    del file.extension[:]
    file.ClearField("options")
    file.ClearField("service")
    for message in file.message_type:
        _rename(message)
    for enum in file.enum_type:
        _clear(enum)
    return file


def _rename(message: DescriptorProto) -> None:
    is_entry = message.options.map_entry
    message.ClearField("options")
    if is_entry:
        message.options.map_entry = True
    del message.extension[:]
    for field in message.field:
        if field.type_name:
            field.type_name = f".{PREFIX}{field.type_name}"
        field.ClearField("options")
        field.ClearField("default_value")
    for oneof in message.oneof_decl:
        oneof.ClearField("options")
    for enum in message.enum_type:
        _clear(enum)
    for inner in message.nested_type:
        _rename(inner)


def _replace_floats(message: DescriptorProto) -> None:
    """Replace float and double by the types of whole numbers that have the same bytes."""
    for field in message.field:
        field.type = {field.TYPE_DOUBLE: field.TYPE_FIXED64, field.TYPE_FLOAT: field.TYPE_FIXED32}.get(
            field.type, field.type
        )
    for inner in message.nested_type:
        _replace_floats(inner)


def _clear(enum: EnumDescriptorProto) -> None:
    has_aliases = enum.options.allow_alias
    enum.ClearField("options")
    if has_aliases:
        enum.options.allow_alias = True
    for value in enum.value:
        value.ClearField("options")


class _Walk:
    """Finds the fields of messages, up to TYPES_MAX of them."""

    def __init__(self, files: Iterator[Any]) -> None:
        self.files = list(files)
        self._messages: dict[str, Any] = {}
        self._enums: dict[str, Any] = {}
        self._count = 0
        for file in self.files:
            self._add(file.message_type, file.enum_type, f".{file.package}")

    def _add(self, messages: Any, enums: Any, prefix: str) -> None:
        self._enums |= {f"{prefix}.{enum.name}": enum for enum in enums}
        for message in messages:
            name = f"{prefix}.{message.name}"
            self._messages[name] = message
            self._add(message.nested_type, message.enum_type, name)

    def fields(self, name: str, path: str, outer: tuple[str, ...]) -> tuple[MessageField, ...]:
        """Return the fields of a message. `outer`: names of the messages around it."""
        shown = name.removeprefix(f".{PREFIX}.")
        if name in outer:
            raise SchemaMismatchError(f"field {path!r}: the message {shown} contains itself, and no column can")
        message = self._messages[name]
        if not message.field:
            raise SchemaMismatchError(f"field {path!r}: the message {shown} has no fields")
        prefix = f"{path}." if path else ""
        return tuple(self._field(field, prefix + field.name, (*outer, name)) for field in message.field)

    def _field(self, field: FieldDescriptorProto, path: str, outer: tuple[str, ...]) -> MessageField:
        self._count += 1
        if self._count > TYPES_MAX:
            raise SchemaMismatchError(f"field {path[:200]!r}: the schema has more than {TYPES_MAX} fields")
        kind = type(field).Type.Name(field.type).removeprefix("TYPE_").lower()
        wire = 2 if kind in ("message", "string", "bytes") else 0
        tag = (field.number << 3 | wire) & 0x7F
        is_list = field.label == field.LABEL_REPEATED
        oneof = field.oneof_index if field.HasField("oneof_index") and not field.proto3_optional else -1
        common = {"name": field.name, "number": field.number, "tag": tag, "oneof": oneof}
        if kind == "group":
            raise SchemaMismatchError(f"field {path!r}: a group has no column; use a message")
        if kind == "enum":
            names = tuple((value.number, value.name) for value in self._enums[field.type_name].value)
            return MessageField(**common, kind=kind, column=_listed(pa.string(), is_list), is_list=is_list, names=names)
        if kind != "message":
            return MessageField(**common, kind=kind, column=_listed(_SCALARS[kind], is_list), is_list=is_list)
        if field.type_name in (_TIMESTAMP, _DURATION):
            kind = "timestamp" if field.type_name == _TIMESTAMP else "duration"
            column = pa.timestamp("us", tz="UTC") if kind == "timestamp" else pa.duration("us")
            return MessageField(**common, kind=kind, column=_listed(column, is_list), is_list=is_list)
        inner = self.fields(field.type_name, path, outer)
        more = {"fields": inner, "message": field.type_name}
        if self._messages[field.type_name].options.map_entry:
            column = pa.map_(inner[0].column, inner[1].column)
            return MessageField(**common, **more, kind="map", column=column, is_map=True)
        if field.type_name in _WRAPPERS:
            return MessageField(
                **common, **more, kind="wrapper", column=_listed(inner[0].column, is_list), is_list=is_list
            )
        column = pa.struct([pa.field(one.name, one.column) for one in inner])
        return MessageField(**common, **more, kind="message", column=_listed(column, is_list), is_list=is_list)


def _listed(column: Any, is_list: bool) -> Any:
    return pa.list_(pa.field("element", column)) if is_list else column


# -- messages into columns


def decoded(array: Any, field: MessageField) -> Any:
    """Return an array of `ptars` as the field's column. Raises pa.ArrowInvalid for a value that the column cannot
    have."""
    if field.is_map:
        key, value = field.fields
        target = pa.map_(key.column, value.column)
        keys, items = _one(array.keys, key), _one(array.items, value)
        entries = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], children=[entries])
    if field.is_list:
        return pa.Array.from_buffers(
            field.column, len(array), array.buffers()[:2], children=[_one(array.values, field)]
        )
    return _one(array, field)


def _one(array: Any, field: MessageField) -> Any:
    """Convert values of a field that is no list."""
    match field.kind:
        case "enum":
            return _enum_names(array, field)
        case "timestamp":
            return _microseconds(array, pa.timestamp("us", tz="UTC"))
        case "duration":
            return _microseconds(array, pa.duration("us"))
        case "wrapper":
            value = _one(array.field(0), field.fields[0])
            return pc.if_else(array.is_valid(), value, pa.scalar(None, value.type)) if array.null_count else value
        case "message":
            inner = dict(zip((f.name for f in array.type), children_of(array), strict=True))
            require_one_of_each(inner.__getitem__, field.fields)
            children = [decoded(inner[one.name], one) for one in field.fields]
            target = pa.struct([pa.field(one.name, one.column) for one in field.fields])
            return pa.Array.from_buffers(target, len(array), [array.buffers()[0]], children=children)
        case "double" | "float" as kind:
            return array.view(_SCALARS[kind])
        case kind:
            return array.cast(_SCALARS[kind])


def require_one_of_each(column: Callable[[str], Any], fields: Iterable[MessageField]) -> None:
    """Raise pa.ArrowInvalid for a message with two fields of one oneof: parsers of Protobuf take the last one, which
    `ptars` does not tell. `column`: returns the array of a field."""
    members = [field for field in fields if field.oneof >= 0]
    for oneof in {field.oneof for field in members}:
        own = [field for field in members if field.oneof == oneof]
        counts = sum(np.asarray(column(f.name).is_valid()).astype(np.int8) for f in own)
        if np.max(counts, initial=0) > 1:
            row = int(np.argmax(counts))
            first, second, *_ = [f.name for f in own if column(f.name)[row].is_valid]
            raise pa.ArrowInvalid(f"{first!r} and {second!r} are both set, and a oneof has one field: send one of them")


def _enum_names(array: Any, field: MessageField) -> Any:
    numbers, names = zip(*dict(reversed(field.names)).items(), strict=True)
    index = pc.index_in(array, pa.array(numbers, pa.int32()))
    unknown = pc.and_(index.is_null(), array.is_valid())
    if pc.any(unknown).as_py():
        raise pa.ArrowInvalid(f"{array.filter(unknown)[0].as_py()} is no value of the enum")
    return pa.array(names, pa.string()).take(index)


def _microseconds(array: Any, target: Any) -> Any:
    seconds, nanos = array.field("seconds"), array.field("nanos").cast(pa.int64())
    is_set = array.is_valid()
    nanos = pc.if_else(is_set, nanos, 0)
    seconds = pc.if_else(is_set, seconds, 0)
    if pc.any(pc.not_equal(pc.multiply(pc.divide(nanos, 1000), 1000), nanos)).as_py():
        raise pa.ArrowInvalid("a time is finer than microseconds")
    if pc.any(pc.greater_equal(pc.abs_checked(nanos), 1_000_000_000)).as_py():
        raise pa.ArrowInvalid("the nanoseconds are more than a second")
    micros = pc.add_checked(pc.multiply_checked(seconds, _MICROS), pc.divide(nanos, 1000))
    return pc.if_else(is_set, micros, pa.scalar(None, pa.int64())).view(target)


# -- rows into messages


def encoded(array: Any, field: MessageField, target: Any) -> Any:
    """Return a column, in plain layout and of the field's type, as an array for `ptars`. `target`: its type there.
    Raises pa.ArrowInvalid."""
    if field.is_map:
        if array.items.null_count:
            raise pa.ArrowInvalid("a map has a null, and a map of Protobuf has none")
        key, value = field.fields
        entries = [
            _one_encoded(array.keys, key, target.key_type),
            _one_encoded(array.items, value, target.item_type),
        ]
        return _without_nulls(
            array, pa.StructArray.from_arrays(entries, fields=[target.key_field, target.item_field]), target
        )
    if field.is_list:
        if array.values.null_count:
            raise pa.ArrowInvalid("a list has a null, and a repeated field has none")
        return _without_nulls(array, _one_encoded(array.values, field, target.value_type), target)
    return _one_encoded(array, field, target)


def _without_nulls(array: Any, values: Any, target: Any) -> Any:
    """Return lists or maps, empty ones for null."""
    return pa.Array.from_buffers(target, len(array), [None, array.buffers()[1]], children=[values])


def _one_encoded(array: Any, field: MessageField, target: Any) -> Any:
    match field.kind:
        case "enum":
            names = pa.array([name for _, name in field.names], pa.string())
            index = pc.index_in(array, names)
            unknown = pc.and_(index.is_null(), array.is_valid())
            if pc.any(unknown).as_py():
                raise pa.ArrowInvalid(f"{array.filter(unknown)[0].as_py()!r:.60} is no value of the enum")
            return pa.array([number for number, _ in field.names], pa.int32()).take(index)
        case "timestamp" | "duration":
            return _split_seconds(array, target, is_floored=field.kind == "timestamp")
        case "wrapper":
            value = _one_encoded(array, field.fields[0], target.field(0).type)
            return pa.Array.from_buffers(target, len(array), [_validity(array)], children=[_filled(value)])
        case "message":
            inner = {one.name: one for one in field.fields}
            require_one_of_each(array.field, field.fields)
            children = [
                filled_column(encoded(array.field(child.name), inner[child.name], child.type), child)
                for child in target
            ]
            return pa.Array.from_buffers(target, len(array), [array.buffers()[0]], children=children)
        case "double" | "float":
            return array.view(target)
        case _:
            return array.cast(target)


def _filled(array: Any) -> Any:
    """Return the array with the default instead of null, which has no bytes in a message."""
    if not array.null_count:
        return array
    t = array.type
    if pa.types.is_string(t) or pa.types.is_binary(t):
        return array.fill_null(pa.scalar("" if pa.types.is_string(t) else b"", t))
    return array.fill_null(pa.scalar(False if pa.types.is_boolean(t) else 0, t))


def filled_column(array: Any, target: pa.Field) -> Any:
    """Return a column for `ptars`, with defaults for null in a field without presence."""
    return array if target.nullable else _filled(array)


def _validity(array: Any) -> Any:
    return array.is_valid().buffers()[1] if array.null_count else None


def _split_seconds(array: Any, target: Any, *, is_floored: bool) -> Any:
    """Return microseconds as seconds and nanoseconds. A timestamp's nanoseconds are never negative; those of a duration
    have the sign of the seconds."""
    micros = np.asarray(array.view(pa.int64()).fill_null(0))
    seconds = np.floor_divide(micros, _MICROS) if is_floored else np.sign(micros) * (np.abs(micros) // _MICROS)
    nanos = ((micros - seconds * _MICROS) * 1000).astype(np.int32)
    children = [pa.array(seconds), pa.array(nanos)]
    return pa.Array.from_buffers(target, len(array), [_validity(array)], children=children)
