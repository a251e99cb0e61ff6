"""Values and keys as Python objects: what `Producer` and `Consumer` take as serializers and deserializers.

Either is a callable of one argument, or an object with `serialize(topic, value)` or `deserialize(topic, data)`. None
is never handed to them: a record without a key or value (a tombstone) stays one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from sparklog.errors import InvalidConfigError


@runtime_checkable
class Serializer(Protocol):
    """Makes bytes of objects. May raise anything: the producer makes a SerializationError of it."""

    def serialize(self, topic: str, value: Any) -> bytes | None: ...


@runtime_checkable
class Deserializer(Protocol):
    """Makes objects of bytes. May raise anything: the consumer makes a DeserializationError of it."""

    def deserialize(self, topic: str, data: bytes) -> Any: ...


AnySerializer = Serializer | Callable[[Any], bytes | None]
AnyDeserializer = Deserializer | Callable[[bytes], Any]


class StringSerializer:
    """str to bytes; `encoding` as Python names it."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def serialize(self, topic: str, value: str) -> bytes:
        """Raises TypeError, UnicodeEncodeError."""
        if not isinstance(value, str):
            raise TypeError(f"a str is needed, not {type(value).__name__}")
        return value.encode(self._encoding)


class StringDeserializer:
    """bytes to str; `encoding` as Python names it."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def deserialize(self, topic: str, data: bytes) -> str:
        """Raises UnicodeDecodeError."""
        return data.decode(self._encoding)


class JsonSerializer:
    """Whatever `json.dumps` takes, as UTF-8 without blanks; further arguments are those of `json.dumps`."""

    def __init__(self, **arguments: Any) -> None:
        compact: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
        self._encoder = json.JSONEncoder(**compact | arguments)

    def serialize(self, topic: str, value: Any) -> bytes:
        """Raises TypeError, ValueError."""
        return self._encoder.encode(value).encode()


class JsonDeserializer:
    """UTF-8 JSON to objects."""

    def deserialize(self, topic: str, data: bytes) -> Any:
        """Raises ValueError."""
        return json.loads(data)


def serializing(given: AnySerializer | None, setting: str) -> Callable[[str, Any], bytes | None] | None:
    """`given` as a function of topic and value. Raises InvalidConfigError."""
    if given is None:
        return None
    if isinstance(given, Serializer):
        return given.serialize
    if callable(given):
        plain = given
        return lambda topic, value: plain(value)
    raise InvalidConfigError(f"{setting} = {given!r}: a callable, or an object with serialize(topic, value)")


def deserializing(given: AnyDeserializer | None, setting: str) -> Callable[[str, bytes], Any] | None:
    """`given` as a function of topic and data. Raises InvalidConfigError."""
    if given is None:
        return None
    if isinstance(given, Deserializer):
        return given.deserialize
    if callable(given):
        plain = given
        return lambda topic, data: plain(data)
    raise InvalidConfigError(f"{setting} = {given!r}: a callable, or an object with deserialize(topic, data)")
