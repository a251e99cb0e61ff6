"""Protobuf schemas: texts and descriptors, and Confluent's rules of compatibility.

A schema is the text of a .proto file, or a FileDescriptorProto in base64, which Python's clients register and
`protobuf_text` writes as a text. The library `protobuf` checks descriptors. `protoc` of `grpcio-tools` compiles texts,
in a process of its own with limits, because texts are a client's input.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sparklog.kafka.schemas.comparison import Comparison
from sparklog.kafka.schemas.errors import invalid_schema
from sparklog.kafka.schemas.protobuf_text import UnknownPartError, proto_text
from sparklog.security.optional import require

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

COMPILER_S = 20
"""Limits of the compiler in s of processor time; three times as long in real time."""
COMPILER_BYTES = 1024 * 1024 * 1024
_COMPILER = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({COMPILER_S}, {COMPILER_S}))
resource.setrlimit(resource.RLIMIT_DATA, ({COMPILER_BYTES}, {COMPILER_BYTES}))
from grpc_tools import protoc
sys.exit(protoc.main(sys.argv))
"""
_OWN_NAME = "schema.proto"
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_WELL_KNOWN = (
    "any",
    "source_context",
    "type",
    "api",
    "descriptor",
    "duration",
    "empty",
    "field_mask",
    "struct",
    "timestamp",
    "wrappers",
)
"""Files that every text can import, in the order of their dependencies."""
WELL_KNOWN_PREFIX = "google/protobuf/"
_GROUPS = (
    frozenset({"int32", "uint32", "int64", "uint64", "bool"}),
    frozenset({"sint32", "sint64"}),
    frozenset({"fixed32", "sfixed32"}),
    frozenset({"fixed64", "sfixed64"}),
    frozenset({"string", "bytes"}),
)
"""Scalar types with the same encoding."""


class ProtobufSchema(Struct, eq=False):
    """A parsed schema."""

    text: str
    """The text as registered, or that of a registered descriptor: the descriptor in base64 if it has none."""
    compiled: bytes
    """The FileDescriptorProto without file name, comments and JSON names; equal for texts of the same meaning."""
    references: dict[str, ProtobufSchema]
    """Schemas by the names under which the text imports them."""

    @property
    def serialized(self) -> str:
        """The descriptor in base64."""
        return base64.b64encode(self.compiled).decode()


def parse_protobuf(text: str, references: Mapping[str, ProtobufSchema]) -> ProtobufSchema:
    """Parse a text or a descriptor in base64. Blocks while a compiler runs. Raises RegistryError; InvalidConfigError if
    a library is missing."""
    require("google.protobuf", "a Protobuf schema", "schemas")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    file = _decode(data) if data else _decode(_compile(text, references))
    _check_utf8(file)
    schema = ProtobufSchema(text, _canonical(file), dict(references))
    names = _check_links(schema)
    if data:
        with suppress(UnknownPartError):
            schema.text = proto_text(file, names)
    return schema


def _decode(data: bytes) -> FileDescriptorProto:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(data)
    except DecodeError as e:
        raise invalid_schema(f"it is neither a .proto text nor a FileDescriptorProto in base64: {e}") from None


def _check_utf8(message: Any) -> None:
    """Raise RegistryError for a text in a descriptor that is not UTF-8, which the library returns as bytes."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        if field.message_type is not None:
            for one in values:
                _check_utf8(one)
        elif field.type == field.TYPE_STRING and not all(isinstance(one, str) for one in values):
            raise invalid_schema(f"{field.full_name} is not UTF-8: {values!r:.200}")


def _canonical(file: FileDescriptorProto) -> bytes:
    file.ClearField("source_code_info")
    file.name = _OWN_NAME
    for message in _all_messages(file.message_type):
        for field in (*message.field, *message.extension):
            if field.json_name == _json_name(field.name):
                field.ClearField("json_name")
    for field in file.extension:
        field.ClearField("json_name")
    canonical: bytes = file.SerializeToString(deterministic=True)
    return canonical


def _json_name(name: str) -> str:
    """Return the JSON name that the compiler gives to a field."""
    return re.sub(r"_+([a-zA-Z0-9])?", lambda match: (match[1] or "").upper(), name)


def _all_messages(messages: Any) -> Iterator[DescriptorProto]:
    for message in messages:
        yield message
        yield from _all_messages(message.nested_type)


def _check_links(schema: ProtobufSchema) -> set[str]:
    """Link the descriptor with those that it imports, and return the full names of all definitions. Raises
    RegistryError."""
    from google.protobuf.descriptor_pool import DescriptorPool

    pool, names = DescriptorPool(), set[str]()
    try:
        for file in linked_files(schema):
            pool.AddSerializedFile(file.SerializeToString())
            pool.FindFileByName(file.name)
            names.update(_definitions(file))
    except (TypeError, KeyError, ValueError) as e:
        raise invalid_schema(f"it cannot be linked with its imports: {str(e)[:500]}") from None
    return names


def _definitions(file: FileDescriptorProto) -> Iterator[str]:
    """Yield the full names of a file's definitions."""
    prefix = f"{file.package}." if file.package else ""
    for message, name in _named(file.message_type, prefix):
        yield name
        for part in (*message.field, *message.extension, *message.enum_type, *message.oneof_decl):
            yield f"{name}.{part.name}"
        for enum in message.enum_type:
            yield from (f"{name}.{value.name}" for value in enum.value)
    for enum in file.enum_type:
        yield from (f"{prefix}{value.name}" for value in enum.value)
    for part in (*file.enum_type, *file.service, *file.extension):
        yield f"{prefix}{part.name}"


def linked_files(schema: ProtobufSchema) -> Iterator[FileDescriptorProto]:
    """Yield the files of a schema, each after those that it imports."""
    added = set[str]()
    for name, one in _closure(schema):
        if name not in added:
            added.add(name)
            file = _decode(one.compiled)
            yield from _predefined_files(file.dependency, added)
            file.name = name
            yield file


def _predefined_files(names: Iterable[str], added: set[str]) -> Iterator[FileDescriptorProto]:
    """Yield the files of well-known types, and before each the files that it imports."""
    for name in names:
        short = name.removeprefix(WELL_KNOWN_PREFIX).removesuffix(".proto")
        if short in _WELL_KNOWN and name not in added:
            added.add(name)
            file = _decode(_predefined(short))
            yield from _predefined_files(file.dependency, added)
            yield file


def _closure(
    schema: ProtobufSchema, name: str = _OWN_NAME, reached: set[str] | None = None
) -> Iterator[tuple[str, ProtobufSchema]]:
    """Yield the schemas that a schema imports, and the schema itself after them, by their names. `reached`: names that
    are left out."""
    reached = set() if reached is None else reached
    for inner, one in schema.references.items():
        if inner not in reached:
            reached.add(inner)
            yield from _closure(one, inner, reached)
    yield name, schema


def _compile(text: str, references: Mapping[str, ProtobufSchema]) -> bytes:
    """Return the FileDescriptorProto of a text. Raises RegistryError."""
    require("grpc_tools", "the text of a Protobuf schema", "schemas")
    with tempfile.TemporaryDirectory(prefix="sparklog-schema-") as folder:
        root = Path(folder)
        files = dict(_closure(ProtobufSchema(text, b"", dict(references))))
        compiled = {name: one.compiled for name, one in files.items() if name != _OWN_NAME}
        for name in compiled:
            if not _FILE_NAME.fullmatch(name) or len(name) > 255:
                raise invalid_schema(f"the reference's name {name[:200]!r} is no path of a .proto file")
        root.joinpath(_OWN_NAME).write_text(text)
        root.joinpath("imports.bin").write_bytes(_descriptor_set(compiled))
        flags = ["--descriptor_set_in=imports.bin", f"--proto_path={folder}", "--descriptor_set_out=out.bin"]
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _COMPILER, *flags, _OWN_NAME],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=3 * COMPILER_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise invalid_schema(f"its compilation takes more than {3 * COMPILER_S} s") from None
        if done.returncode:
            raise invalid_schema(_complaints(done.stderr.decode(errors="replace"), folder))
        return _first_file(root.joinpath("out.bin").read_bytes())


def _complaints(output: str, folder: str) -> str:
    """Return the compiler's lines about the text."""
    lines = [
        line.replace(f"{folder}/", "") for line in output.splitlines() if _OWN_NAME in line and "parser.cc" not in line
    ]
    return "; ".join(lines)[:1000] or f"its compilation failed, or took more than {COMPILER_S} s"


def _descriptor_set(compiled: Mapping[str, bytes]) -> bytes:
    """Return the descriptors of the imports, and of the well-known types, as a FileDescriptorSet."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    files = FileDescriptorSet()
    for name in _WELL_KNOWN:
        files.file.append(_decode(_predefined(name)))
    for name, data in compiled.items():
        file = _decode(data)
        file.name = name
        files.file.append(file)
    descriptors: bytes = files.SerializeToString()
    return descriptors


def _first_file(data: bytes) -> bytes:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    file: bytes = FileDescriptorSet.FromString(data).file[0].SerializeToString()
    return file


def _predefined(name: str) -> bytes:
    serialized: bytes = require(f"google.protobuf.{name}_pb2", "a Protobuf schema", "schemas").DESCRIPTOR.serialized_pb
    return serialized


# -- compatibility


class _Messages(Struct):
    """The messages and the enums of a schema by name. Names in the schema's own package lack the package."""

    own: set[str]
    """Names of the messages in the schema's own file."""
    by_name: dict[str, DescriptorProto]
    package: str

    def relative(self, name: str) -> str:
        """Return the name without the own package."""
        return name.removeprefix(".").removeprefix(f"{self.package}." if self.package else "")


def compare_protobuf(reader: ProtobufSchema, writer: ProtobufSchema, comparison: Comparison) -> None:
    """Report the differences for which the reader's messages cannot read those of the writer."""
    new, old = _messages(reader), _messages(writer)
    for name in sorted(old.own - new.own):
        comparison.report("MESSAGE_REMOVED", f"/{name}", "the reader lacks the message")
    for name in sorted(new.by_name.keys() & old.by_name.keys()):
        _compare_message(new.by_name[name], old.by_name[name], f"/{name}", (new, old), comparison)


def _messages(schema: ProtobufSchema) -> _Messages:
    messages = _Messages(set(), {}, _decode(schema.compiled).package)
    for file_name, one in _closure(schema):
        file = _decode(one.compiled)
        for message, name in _named(file.message_type, f"{file.package}." if file.package else ""):
            if message.options.map_entry:
                continue  # compared with the field
            messages.by_name[messages.relative(name)] = message
            if file_name == _OWN_NAME:
                messages.own.add(messages.relative(name))
    return messages


def _named(messages: Any, prefix: str) -> Iterator[tuple[DescriptorProto, str]]:
    for message in messages:
        yield message, prefix + message.name
        yield from _named(message.nested_type, f"{prefix}{message.name}.")


def _compare_message(
    reader: DescriptorProto, writer: DescriptorProto, path: str, schemas: tuple[_Messages, _Messages], to: Comparison
) -> None:
    to.enter(path)
    new, old = ({field.number: field for field in one.field} for one in (reader, writer))
    for number, field in old.items():
        place = f"{path}/{number}"
        if number in new:
            _compare_field((new[number], reader), (field, writer), place, schemas, to)
        elif field.label == field.LABEL_REQUIRED:
            to.report("REQUIRED_FIELD_REMOVED", place, f"the reader lacks the required field {field.name}")
        elif _oneof(field, writer):
            to.report("ONEOF_FIELD_REMOVED", place, f"the reader's oneof {_oneof(field, writer)} lacks {field.name}")
    for number, field in new.items():
        if number not in old and field.label == field.LABEL_REQUIRED:
            to.report("REQUIRED_FIELD_ADDED", f"{path}/{number}", f"the writer lacks the required field {field.name}")
    _compare_oneofs(reader, writer, path, to)


def _compare_oneofs(reader: DescriptorProto, writer: DescriptorProto, path: str, to: Comparison) -> None:
    old = {field.number: _oneof(field, writer) for field in writer.field}
    existing = set(old.values())
    moved: dict[str, list[str]] = {}
    for field in reader.field:
        name = _oneof(field, reader)
        if name and old.get(field.number) == "":
            moved.setdefault(name, []).append(field.name)
    for name, fields in moved.items():
        if name in existing:
            to.report(
                "FIELD_MOVED_TO_EXISTING_ONEOF", f"{path}/{name}", f"{', '.join(fields)} can be set beside others"
            )
        elif len(fields) > 1:
            to.report("MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{path}/{name}", f"{', '.join(fields)} can be set together")


def _compare_field(
    reader: tuple[FieldDescriptorProto, DescriptorProto],
    writer: tuple[FieldDescriptorProto, DescriptorProto],
    path: str,
    schemas: tuple[_Messages, _Messages],
    to: Comparison,
) -> None:
    """Compare two fields of one number, each with its message."""
    to.enter(path)
    (new, new_owner), (old, old_owner) = reader, writer
    entries = _map_entry(new, new_owner), _map_entry(old, old_owner)
    if entries[0] is not None and entries[1] is not None:
        for first, second in zip(entries[0].field, entries[1].field, strict=False):
            _compare_field((first, entries[0]), (second, entries[1]), f"{path}/{first.name}", schemas, to)
        return
    kinds = _kind(new), _kind(old)
    if kinds[0] != kinds[1] and not any(kinds[0] in group and kinds[1] in group for group in _GROUPS):
        is_scalar = all(kind not in ("message", "enum", "group") for kind in kinds)
        name = "FIELD_SCALAR_KIND_CHANGED" if is_scalar else "FIELD_KIND_CHANGED"
        to.report(name, path, f"the reader's {kinds[0]} cannot read {kinds[1]} of the field {new.name}")
        return
    names = schemas[0].relative(new.type_name), schemas[1].relative(old.type_name)
    if names[0] != names[1]:
        to.report("FIELD_NAMED_TYPE_CHANGED", path, f"the reader's {names[0]} is not {names[1]}")
    labels = new.label == new.LABEL_REPEATED, old.label == old.LABEL_REPEATED
    if labels[0] != labels[1] and kinds[0] not in ("string", "bytes", "message", "group"):
        to.report("FIELD_NUMERIC_LABEL_CHANGED", path, f"only one of the fields {new.name} is repeated")
    if new.label == new.LABEL_REQUIRED != old.label:
        to.report("REQUIRED_FIELD_ADDED", path, f"the writer's field {old.name} is not required")


def _kind(field: FieldDescriptorProto) -> str:
    name: str = type(field).Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


def _oneof(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """Return the name of the field's oneof; "" without one, also for `optional` of proto3."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    name: str = message.oneof_decl[field.oneof_index].name
    return name


def _map_entry(field: FieldDescriptorProto, message: DescriptorProto) -> DescriptorProto | None:
    """Return the message of a map's entries; None for another field."""
    name = field.type_name.rpartition(".")[2]
    return next((one for one in message.nested_type if one.name == name and one.options.map_entry), None)
