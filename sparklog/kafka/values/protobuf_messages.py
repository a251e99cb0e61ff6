"""The messages of a Protobuf file: their indexes, and the message that the rows of a topic are.

A schema of Protobuf is a file with any number of messages, and does not tell which of them the records are. The rows of
a topic are the message that has the most of the topic's columns. Without columns it is the first message that no other
one contains: files have the parts of a message before it, or behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sparklog.kafka.schemas.protobuf import ProtobufSchema, linked_files

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto

Index = tuple[int, ...]
"""The place of a message among those of its file, then among those inside."""


class _Message(NamedTuple):
    """A message of a file."""

    place: Index
    fields: frozenset[str]
    """Names of its fields."""
    is_part: bool
    """True if a field of another message has its type."""


@lru_cache(maxsize=256)
def _messages(schema: ProtobufSchema) -> dict[str, _Message]:
    """Return the messages by their names without the package, each before those inside."""
    *_, file = linked_files(schema)
    package = f".{file.package}" if file.package else ""
    walked = list(_walk(file.message_type, "", ()))
    parts = {
        field.type_name
        for name, _, message in walked
        for field in message.field
        if field.type_name != f"{package}.{name}"
    }
    return {
        name: _Message(index, frozenset(field.name for field in message.field), f"{package}.{name}" in parts)
        for name, index, message in walked
        if not message.options.map_entry
    }


def _walk(messages: Any, prefix: str, outer: Index) -> Iterator[tuple[str, Index, DescriptorProto]]:
    for place, message in enumerate(messages):
        name, index = f"{prefix}{message.name}", (*outer, place)
        yield name, index, message
        yield from _walk(message.nested_type, f"{name}.", index)


def index_of(schema: ProtobufSchema, name: str) -> Index | None:
    """Return the index of a message by its name without the package; None if the file has none."""
    message = _messages(schema).get(name)
    return None if message is None else message.place


def name_of(schema: ProtobufSchema, index: Index) -> str | None:
    """Return the name of a message without the package; None if the file has none of this index."""
    return next((name for name, message in _messages(schema).items() if message.place == index), None)


def main_message(schema: ProtobufSchema, columns: Collection[str] = ()) -> Index:
    """Return the index of the message that rows are. `columns`: names of the topic's columns."""
    return _main_message(schema, frozenset(columns))


@lru_cache(maxsize=256)
def _main_message(schema: ProtobufSchema, names: frozenset[str]) -> Index:
    def rank(message: _Message) -> tuple[int, int, bool, bool, int, Index]:
        own = message.fields & names
        others = len(message.fields - names) if own else 0
        return -len(own), others, not message.fields, message.is_part, len(message.place), message.place

    return min(_messages(schema).values(), key=rank).place if _messages(schema) else (0,)


def index_bytes(index: Index) -> bytes:
    """Return the bytes of an index before a message: a zero alone is the first message."""
    return b"\0" if index == (0,) else b"".join(map(_zigzag, (len(index), *index)))


def _zigzag(number: int) -> bytes:
    """Return a whole number that is not negative in Protobuf's variable size."""
    rest, data = number << 1, bytearray()
    while rest >= 0x80:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*data, rest])
