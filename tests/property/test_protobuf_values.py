"""Random Protobuf schemas: columns have the values of Python's messages, and rows become equal messages."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.kafka.schemas.protobuf import parse_protobuf
from sparklog.kafka.values.avro_bytes import Space
from sparklog.kafka.values.protobuf_records import read_protobuf, types_of_messages, write_protobuf

ROOM = 1 << 28
F = FieldDescriptorProto
TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    F.TYPE_DOUBLE: st.floats(allow_nan=False),
    F.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
    F.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    F.TYPE_SFIXED32: st.integers(-(2**31), 2**31 - 1),
    F.TYPE_SINT64: st.integers(-(2**63), 2**63 - 1),
    F.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    F.TYPE_UINT32: st.integers(0, 2**32 - 1),
    F.TYPE_UINT64: st.integers(0, 2**64 - 1),
    F.TYPE_FIXED64: st.integers(0, 2**64 - 1),
    F.TYPE_BOOL: st.booleans(),
    F.TYPE_STRING: TEXT,
    F.TYPE_BYTES: st.binary(max_size=10),
}
KEYS = (F.TYPE_STRING, F.TYPE_INT64, F.TYPE_UINT32, F.TYPE_BOOL)


@st.composite
def files(draw: Any) -> FileDescriptorProto:
    file = FileDescriptorProto(name="random.proto", package="random", syntax="proto3")
    enum = file.enum_type.add(name="Colour")
    for number, name in enumerate(("RED", "GREEN", "BLUE")):
        enum.value.add(name=name, number=number)
    fill(draw, file.message_type.add(name="Root"), ".random.Root", 2)
    return file


def fill(draw: Any, message: DescriptorProto, name: str, depth: int) -> None:
    for i in range(draw(st.integers(1, 4))):
        field = message.field.add(name=f"f{i}", number=draw(st.sampled_from([i + 1, i + 30, i + 3000])))
        form = draw(st.sampled_from(["one", "optional", "list", "map", "oneof"]))
        field.label = F.LABEL_REPEATED if form in ("list", "map") else F.LABEL_OPTIONAL
        kind = draw(st.sampled_from(["scalar", "scalar", "enum", "message"] if depth else ["scalar", "enum"]))
        target = field
        if form == "map":
            entry = message.nested_type.add(name=f"F{i}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=draw(st.sampled_from(KEYS)))
            target = entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL)
            field.type, field.type_name = F.TYPE_MESSAGE, f"{name}.F{i}Entry"
        if kind == "message":
            fill(draw, message.nested_type.add(name=f"M{i}"), f"{name}.M{i}", depth - 1)
            target.type, target.type_name = F.TYPE_MESSAGE, f"{name}.M{i}"
        elif kind == "enum":
            target.type, target.type_name = F.TYPE_ENUM, ".random.Colour"
        else:
            target.type = draw(st.sampled_from(sorted(SCALARS)))
        if form == "oneof":
            if not message.oneof_decl:
                message.oneof_decl.add(name="choice")
            field.oneof_index = 0
    for field in message.field:
        is_plain = field.label == F.LABEL_OPTIONAL and not field.HasField("oneof_index")
        if is_plain and field.type != F.TYPE_MESSAGE and draw(st.booleans()):
            message.oneof_decl.add(name=f"_{field.name}")
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl) - 1


def value(draw: Any, field: Any) -> Any:
    if field.type == F.TYPE_ENUM:
        return draw(st.integers(0, 2))
    return draw(SCALARS[field.type])


def set_fields(draw: Any, message: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        if draw(st.booleans()):
            continue
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            key, inner = field.message_type.fields
            for _ in range(draw(st.integers(0, 3))):
                entries = getattr(message, field.name)
                if inner.message_type is not None:
                    set_fields(draw, entries[value(draw, key)])
                else:
                    entries[value(draw, key)] = value(draw, inner)
        elif field.is_repeated:
            for _ in range(draw(st.integers(0, 3))):
                if field.message_type is not None:
                    set_fields(draw, getattr(message, field.name).add())
                else:
                    getattr(message, field.name).append(value(draw, field))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            set_fields(draw, getattr(message, field.name))
        else:
            setattr(message, field.name, value(draw, field))


def plain(message: Any) -> dict[str, Any]:
    """Return the row of a message: null for a field without a value."""
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        own = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields[1]
            row[field.name] = sorted((key, shown(one, inner)) for key, one in own.items())
        elif field.is_repeated:
            row[field.name] = [shown(one, field) for one in own]
        elif field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = shown(own, field)
    return row


def shown(own: Any, field: Any) -> Any:
    if field.message_type is not None:
        return plain(own)
    return field.enum_type.values_by_number[own].name if field.enum_type is not None else own


def with_sorted_maps(own: Any) -> Any:
    if isinstance(own, dict):
        return {key: with_sorted_maps(one) for key, one in own.items()}
    if isinstance(own, list) and own and isinstance(own[0], tuple):
        return sorted((key, with_sorted_maps(one)) for key, one in own)
    return [with_sorted_maps(one) for one in own] if isinstance(own, list) else own


def class_of(file: FileDescriptorProto) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("random.Root"))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_columns_are_the_values_of_messages_and_rows_become_them(data: st.DataObject) -> None:
    file = data.draw(files().filter(lambda one: len({f.number for f in one.message_type[0].field}) > 0))
    root = class_of(file)
    messages = [root() for _ in range(data.draw(st.integers(1, 5)))]
    for message in messages:
        set_fields(data.draw, message)
    schema = parse_protobuf(base64.b64encode(file.SerializeToString()).decode(), {})
    kind = types_of_messages(schema, (0,))
    payloads = pa.array([b"\0" + message.SerializeToString() for message in messages], pa.binary())
    columns, refused, dropped = read_protobuf(payloads, schema, schema, kind.columns, Space(ROOM))
    assert (refused, dropped) == ({}, ())
    batch = pa.RecordBatch.from_arrays(columns, schema=kind.columns)
    batch.validate(full=True)
    assert [with_sorted_maps(row) for row in batch.to_pylist()] == [plain(message) for message in messages]
    back = [root.FromString(one[1:]) for one in write_protobuf(batch, schema).to_pylist()]
    assert repr([plain(one) for one in back]) == repr([plain(message) for message in messages])  # -0.0 is not 0.0
    damaged = bytearray(payloads[0].as_py()[1:])
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    mixed = pa.array([*payloads.to_pylist(), b"\0" + bytes(damaged)], pa.binary())
    _, refused, _ = read_protobuf(mixed, schema, schema, kind.columns, Space(ROOM))
    assert set(refused) <= {len(messages)}
    if not refused:
        assert is_message(root, bytes(damaged))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_merged_and_damaged_messages_are_those_of_pythons_library_or_refused(data: st.DataObject) -> None:
    """Messages one after the other are one message: the last value of a field counts, and inner messages merge."""
    file = data.draw(files().filter(lambda one: not has_map(one.message_type[0])))
    root = class_of(file)
    parts = [root() for _ in range(data.draw(st.integers(1, 3)))]
    for message in parts:
        set_fields(data.draw, message)
    record = bytearray(b"".join(message.SerializeToString() for message in parts))
    if record and data.draw(st.booleans()):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    schema = parse_protobuf(base64.b64encode(file.SerializeToString()).decode(), {})
    kind = types_of_messages(schema, (0,))
    payloads = pa.array([b"\0" + bytes(record)], pa.binary())
    columns, refused, _ = read_protobuf(payloads, schema, schema, kind.columns, Space(ROOM))
    assert refused or is_message(root, bytes(record))
    if not refused:
        row = pa.RecordBatch.from_arrays(columns, schema=kind.columns).to_pylist()[0]
        expected = plain(root.FromString(bytes(record)))
        assert with_sorted_maps(row) == expected or repr(with_sorted_maps(row)) == repr(expected)


def has_map(message: DescriptorProto) -> bool:
    """Return True for a map, of which Python's library leaves out entries with unknown fields."""
    return any(inner.options.map_entry or has_map(inner) for inner in message.nested_type)


def is_message(root: Any, data: bytes) -> bool:
    try:
        root.FromString(data)
    except DecodeError:
        return False
    return True
