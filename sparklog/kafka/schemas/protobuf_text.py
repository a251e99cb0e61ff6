"""The text of a .proto file that means the same as a descriptor.

Python's clients register descriptors. Other clients parse texts, so the registry stores a text for each descriptor. A
descriptor with a part that the writer does not know, such as an option of the client's own, has no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        EnumDescriptorProto,
        FieldDescriptorProto,
        FileDescriptorProto,
        ServiceDescriptorProto,
    )

NUMBER_MAX = 536_870_911
"""Largest number of a field."""
_INDENT = "  "
_LABELS = {1: "optional ", 2: "required ", 3: "repeated "}
_STRING, _GROUP, _MESSAGE, _BYTES, _ENUM = 9, 10, 11, 12, 14


class UnknownPartError(Exception):
    """A part of a descriptor that has no text."""


def proto_text(file: FileDescriptorProto, names: Iterable[str]) -> str:
    """Return the text of a file.

    Args:
        file: A linked descriptor.
        names: Full names of all definitions that the file can use, its own included.

    Raises:
        UnknownPartError: A part has no text.
    """
    return "\n".join(_Writer(file, frozenset(names)).lines()) + "\n"


class _Writer:
    """Yields the lines of a file."""

    def __init__(self, file: FileDescriptorProto, names: frozenset[str]) -> None:
        self._file = file
        self._is_proto3 = file.syntax == "proto3"
        self._names = names | {name[:i] for name in names for i in range(len(name)) if name[i] == "."}
        """Full names of definitions and packages."""

    def lines(self) -> Iterator[str]:
        file = self._file
        _check_expressible(file, "edition")
        yield f'syntax = "{file.syntax or "proto2"}";'
        if file.package:
            yield f"package {file.package};"
        kinds = dict.fromkeys(file.public_dependency, "public ") | dict.fromkeys(file.weak_dependency, "weak ")
        for i, name in enumerate(file.dependency):
            yield f"import {kinds.get(i, '')}{_quoted(name)};"
        for option in _options(file.options):
            yield f"option {option};"
        beside = _Nested(self, file.message_type, file.package)
        yield from self._extensions(file.extension, beside)
        yield from beside.rest()
        for enum in file.enum_type:
            yield from _enum(enum)
        for service in file.service:
            yield from self._service(service)

    def message(self, message: DescriptorProto, scope: str, head: str = "") -> Iterator[str]:
        """Yield the lines of a message. `head`: the beginning of a group."""
        _check_expressible(message)
        yield f"{head or f'message {message.name}'} {{"
        yield from _indented(self._content(message, _joined(scope, message.name)))
        yield "}"

    def _content(self, message: DescriptorProto, full: str) -> Iterator[str]:
        for option in _options(message.options):
            yield f"option {option};"
        beside = _Nested(self, message.nested_type, full)
        oneofs: dict[int, list[FieldDescriptorProto]] = {}
        for field in message.field:
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield from self._field(field, beside)
                continue
            if field.oneof_index not in oneofs:
                fields = [one for one in message.field if one.HasField("oneof_index")]
                oneofs[field.oneof_index] = [one for one in fields if one.oneof_index == field.oneof_index]
                yield from self._oneof(message, field.oneof_index, oneofs[field.oneof_index], beside)
        yield from self._extensions(message.extension, beside)
        yield from beside.rest()
        for enum in message.enum_type:
            yield from _enum(enum)
        for ranges in message.extension_range:
            if ranges.HasField("options"):
                raise UnknownPartError("options of a range of extensions")
            yield f"extensions {_range(ranges.start, ranges.end - 1, NUMBER_MAX)};"
        yield from _reserved(message, 1, NUMBER_MAX)

    def _oneof(
        self, message: DescriptorProto, index: int, fields: Iterable[FieldDescriptorProto], beside: _Nested
    ) -> Iterator[str]:
        oneof = message.oneof_decl[index]
        _check_expressible(oneof)
        lines = [f"option {option};" for option in _options(oneof.options)]
        for field in fields:
            lines += self._field(field, beside, in_oneof=True)
        yield from beside.pending()
        yield f"oneof {oneof.name} {{"
        yield from _indented(lines)
        yield "}"

    def _extensions(self, extensions: Iterable[FieldDescriptorProto], beside: _Nested) -> Iterator[str]:
        for field in extensions:
            lines = list(self._field(field, beside, in_block=True))
            yield from beside.pending()
            yield f"extend {self._reference(field.extendee, beside.scope)} {{"
            yield from _indented(lines)
            yield "}"

    def _field(
        self, field: FieldDescriptorProto, beside: _Nested, *, in_oneof: bool = False, in_block: bool = False
    ) -> Iterator[str]:
        """Yield a field's lines. `in_block`, `in_oneof`: the lines of earlier messages are the caller's to yield."""
        _check_expressible(field)
        label = "" if in_oneof else _LABELS[field.label]
        if self._is_proto3 and field.label == 1 and not field.proto3_optional:
            label = ""
        own = beside.take(field)
        if not in_oneof and not in_block:
            yield from beside.pending()
        options = list(_field_options(field))
        tail = f" = {field.number}" + (f" [{', '.join(options)}]" if options else "")
        if own is None:
            yield f"{label}{self._type(field, beside.scope)} {field.name}{tail};"
        elif field.type == _GROUP:
            yield from self.message(own, beside.scope, f"{label}group {own.name}{tail}")
        else:
            key, value = (self._type(one, _joined(beside.scope, own.name)) for one in own.field)
            yield f"map<{key}, {value}> {field.name}{tail};"

    def _type(self, field: FieldDescriptorProto, scope: str) -> str:
        if field.type in (_MESSAGE, _ENUM):
            return self._reference(field.type_name, scope)
        name: str = type(field).Type.Name(field.type)
        return name.removeprefix("TYPE_").lower()

    def _reference(self, type_name: str, scope: str) -> str:
        """Return the name of a type as a scope has to write it. A compiler looks for the name's first part from the
        innermost scope outwards."""
        full = type_name.removeprefix(".")
        first = full.partition(".")[0]
        while scope:
            if f"{scope}.{first}" in self._names:
                return type_name
            scope = scope.rpartition(".")[0]
        return full

    def _service(self, service: ServiceDescriptorProto) -> Iterator[str]:
        _check_expressible(service)
        yield f"service {service.name} {{"
        yield from _indented(f"option {option};" for option in _options(service.options))
        scope = _joined(self._file.package, service.name)
        for method in service.method:
            _check_expressible(method)
            sides = (method.client_streaming, method.input_type), (method.server_streaming, method.output_type)
            types = [("stream " if is_stream else "") + self._reference(name, scope) for is_stream, name in sides]
            options = list(_options(method.options))
            yield f"{_INDENT}rpc {method.name}({types[0]}) returns ({types[1]})" + (" {" if options else ";")
            yield from _indented(_indented(f"option {option};" for option in options))
            if options:
                yield f"{_INDENT}}}"
        yield "}"


class _Nested:
    """The messages of a scope. Groups and the entries of maps are written with their fields, the others between them,
    so that a compiler finds all in the order of the descriptor: records name a message by its index."""

    def __init__(self, writer: _Writer, messages: Sequence[DescriptorProto], scope: str) -> None:
        self.scope = scope
        """Full name of the message or package around."""
        self._writer = writer
        self._messages = messages
        self._written = 0
        """Number of the messages that are written."""
        self._pending: list[str] = []
        """Lines of messages before the one that `take` has returned."""

    def take(self, field: FieldDescriptorProto) -> DescriptorProto | None:
        """Return the group or the entry of a map that belongs to a field; None for another field. Raises
        UnknownPartError."""
        name = field.type_name.removeprefix(f".{self.scope}." if self.scope else ".")
        index = next((i for i, one in enumerate(self._messages) if one.name == name), None)
        own = None if index is None or field.type not in (_GROUP, _MESSAGE) else self._messages[index]
        if field.type == _GROUP and (own is None or own.name.lower() != field.name):
            raise UnknownPartError(f"the group {field.name}")
        if own is None or (field.type == _MESSAGE and not own.options.map_entry):
            return None
        if index is None or index < self._written:
            raise UnknownPartError(f"the order of the messages of {self.scope}")
        for one in self._messages[self._written : index]:
            self._pending += self._writer.message(one, self.scope)
        self._written = index + 1
        return own

    def pending(self) -> list[str]:
        """Return the lines of messages that come before the next field."""
        lines, self._pending = self._pending, []
        return lines

    def rest(self) -> Iterator[str]:
        """Yield the lines of the remaining messages."""
        for one in self._messages[self._written :]:
            yield from self._writer.message(one, self.scope)
        self._written = len(self._messages)


def _enum(enum: EnumDescriptorProto) -> Iterator[str]:
    _check_expressible(enum)
    yield f"enum {enum.name} {{"
    yield from _indented(f"option {option};" for option in _options(enum.options))
    for value in enum.value:
        _check_expressible(value)
        options = ", ".join(_options(value.options))
        yield f"{_INDENT}{value.name} = {value.number}{f' [{options}]' if options else ''};"
    yield from _indented(_reserved(enum, 0, 2**31 - 1))
    yield "}"


def _reserved(owner: DescriptorProto | EnumDescriptorProto, behind: int, last: int) -> Iterator[str]:
    """`behind`: distance from a range's last number to its end, which an enum's range includes."""
    for one in owner.reserved_range:
        yield f"reserved {_range(one.start, one.end - behind, last)};"
    for name in owner.reserved_name:
        yield f"reserved {_quoted(name)};"


def _range(start: int, end: int, last: int) -> str:
    return str(start) if start == end else f"{start} to {'max' if end == last else end}"


def _field_options(field: FieldDescriptorProto) -> Iterator[str]:
    if field.HasField("default_value"):
        value = field.default_value
        if field.type == _STRING:
            value = _quoted(value)
        elif field.type == _BYTES:
            value = f'"{value}"'  # has C's escapes already
        yield f"default = {value}"
    if field.json_name:
        yield f"json_name = {_quoted(field.json_name)}"
    yield from _options(field.options)


def _options(options: Any) -> Iterator[str]:
    _check_expressible(options, "features", "uninterpreted_option")
    for part, value in options.ListFields():
        if part.name == "map_entry":
            continue
        if part.is_repeated or part.message_type is not None:
            raise UnknownPartError(f"the option {part.full_name}")
        if part.enum_type is not None:
            yield f"{part.name} = {part.enum_type.values_by_number[value].name}"
        elif isinstance(value, bool):
            yield f"{part.name} = {str(value).lower()}"
        else:
            yield f"{part.name} = {_quoted(value) if isinstance(value, str) else value}"


def _check_expressible(part: Any, *names: str) -> None:
    """Raise UnknownPartError for fields that the library does not know, and for set fields of the names."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(part)):
        raise UnknownPartError(f"fields of {part.DESCRIPTOR.name} that the library does not know")
    for field, _ in part.ListFields():
        if field.name in (*names, "visibility"):
            raise UnknownPartError(f"{field.name} of {part.DESCRIPTOR.name}")


def _joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (_INDENT + line for line in lines)


def _quoted(text: str) -> str:
    """Return a text as a literal. Bytes beyond ASCII are escaped, so that no parser has to decode them."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'
