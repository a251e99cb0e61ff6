"""Decoder of one Avro record in a Python loop: for few records, and for records with very many elements."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from sparklog.kafka.schemas.avro import AvroType
from sparklog.kafka.values.avro_bytes import CUT_OFF, ELEMENTS_MAX, branch_of

Read = Callable[[bytes, int], tuple[Any, int]]
"""Function that reads a value at a position, and returns it with the position after it. Raises AvroValueError."""
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


class AvroValueError(ValueError):
    """The reason why bytes are no record of a schema, with the field's path."""


def scalar_decoder(record: AvroType) -> Callable[[bytes], dict[str, Any]]:
    """Return a function that decodes a record; it raises AvroValueError."""
    read = _reader(record, "")

    def decode(data: bytes) -> dict[str, Any]:
        values, at = read(data, 0)
        if at != len(data):
            raise AvroValueError("bytes follow its last field")
        fields: dict[str, Any] = values
        return fields

    return decode


def _fault(path: str, reason: str) -> AvroValueError:
    return AvroValueError(f"field {path!r}: {reason}" if path else reason)


def _varint(data: bytes, at: int, path: str) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data):
            raise _fault(path, CUT_OFF)
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise _fault(path, "a number has more than 64 bits")
    if number >= 2**64:
        raise _fault(path, "a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def _reader(kind: AvroType, path: str) -> Read:
    match kind.kind:
        case "int" | "long":
            return _number_reader(kind.kind == "int", path)
        case "bytes" | "string" | "fixed":
            return _bytes_reader(kind, path)
        case "float" | "double":
            return _floating_reader(_FLOAT if kind.kind == "float" else _DOUBLE, path)
        case "boolean":
            return _boolean_reader(path)
        case "null":
            return lambda data, at: (None, at)
        case "enum":
            return _enum_reader(list(kind.symbols), kind.name, path)
        case "union":
            return _union_reader(kind, path)
        case "record":
            return _record_reader(kind, path)
        case "array":
            return _list_reader(_reader(kind.inner[0], f"{path}[]"), path)
        case _:
            return _list_reader(_entry_reader(kind.inner[0], f"{path}[]"), path)


def _number_reader(is_int: bool, path: str) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        number, at = _varint(data, at, path)
        if is_int and not -(2**31) <= number < 2**31:
            raise _fault(path, "a number above 32 bits")
        return number, at

    return read


def _bytes_reader(kind: AvroType, path: str) -> Read:
    fixed, is_text = kind.size if kind.kind == "fixed" else None, kind.kind == "string"

    def read(data: bytes, at: int) -> tuple[Any, int]:
        size, at = _varint(data, at, path) if fixed is None else (fixed, at)
        if not 0 <= size <= len(data) - at:
            raise _fault(path, CUT_OFF)
        value = data[at : at + size]
        if not is_text:
            return value, at + size
        try:
            return value.decode(), at + size
        except UnicodeDecodeError:
            raise _fault(path, "a text is not UTF-8") from None

    return read


def _floating_reader(layout: struct.Struct, path: str) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        if at + layout.size > len(data):
            raise _fault(path, CUT_OFF)
        return layout.unpack_from(data, at)[0], at + layout.size

    return read


def _boolean_reader(path: str) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        if at >= len(data):
            raise _fault(path, CUT_OFF)
        if data[at] > 1:
            raise _fault(path, "no boolean")
        return data[at] == 1, at + 1

    return read


def _enum_reader(symbols: list[str], name: str, path: str) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = _varint(data, at, path)
        if not 0 <= index < len(symbols):
            raise _fault(path, f"no symbol of the enum {name}")
        return symbols[index], at

    return read


def _union_reader(kind: AvroType, path: str) -> Read:
    inner = branch_of(kind)
    index, branches, inner_read = kind.inner.index(inner), len(kind.inner), _reader(inner, path)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch, at = _varint(data, at, path)
        if not 0 <= branch < branches:
            raise _fault(path, "no branch of the union")
        return inner_read(data, at) if branch == index else (None, at)

    return read


def _record_reader(kind: AvroType, path: str) -> Read:
    fields = [(f.name, _reader(f.type, f"{path}.{f.name}" if path else f.name)) for f in kind.fields]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = {}
        for name, field_read in fields:
            values[name], at = field_read(data, at)
        return values, at

    return read


def _entry_reader(value: AvroType, path: str) -> Read:
    key_read, value_read = _reader(AvroType("string"), f"{path}.key"), _reader(value, f"{path}.value")

    def read(data: bytes, at: int) -> tuple[Any, int]:
        key, at = key_read(data, at)
        one, at = value_read(data, at)
        return (key, one), at

    return read


def _list_reader(element_read: Read, path: str) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        elements: list[Any] = []
        while True:
            count, at = _varint(data, at, path)
            if count == 0:
                return elements, at
            if count < 0:
                count = -count
                _, at = _varint(data, at, path)
            if count > len(data) - at:
                raise _fault(path, "more elements than the record has bytes")
            if len(elements) + count > ELEMENTS_MAX:
                raise _fault(path, f"more than {ELEMENTS_MAX} elements")
            for _ in range(count):
                element, at = element_read(data, at)
                elements.append(element)

    return read
