"""Serializers of `Producer` and deserializers of `Consumer`, which convert keys and values to and from Python objects.

A serializer is a callable of one argument, or an object with `serialize(topic, value)`; a deserializer is a callable or
has `deserialize(topic, data)`. They are not called for None: a record without a key, or without a value (a tombstone),
has None on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from sparklog.errors import InvalidConfigError


@runtime_checkable
class Serializer(Protocol):
    """An object that converts keys or values to bytes. The producer turns any exception into a SerializationError."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        """Turn `value` into bytes.

        Args:
            topic: Name of the record's topic.
            value: The key or value, never None.

        Returns:
            The bytes; None for a record without this key or value.
        """


@runtime_checkable
class Deserializer(Protocol):
    """An object that converts the bytes of keys or values to Python objects. The consumer turns any exception into a
    DeserializationError."""

    def deserialize(self, topic: str, data: bytes) -> Any:
        """Turn `data` into an object.

        Args:
            topic: Name of the record's topic.
            data: The bytes of the key or value.

        Returns:
            The object.
        """


AnySerializer = Serializer | Callable[[Any], bytes | None]
AnyDeserializer = Deserializer | Callable[[bytes], Any]


class StringSerializer:
    """A serializer of str."""

    def __init__(self, encoding: str = "utf-8") -> None:
        """Create the serializer.

        Args:
            encoding: Name of the encoding in Python.
        """
        self._encoding = encoding

    def serialize(self, topic: str, value: str) -> bytes:
        """Encode a str.

        Args:
            topic: Name of the record's topic; not used.
            value: The text.

        Returns:
            The encoded text.

        Raises:
            TypeError: `value` is not a str.
            UnicodeEncodeError: The encoding cannot represent the text.
        """
        if not isinstance(value, str):
            raise TypeError(f"use a str, not {type(value).__name__}")
        return value.encode(self._encoding)


class StringDeserializer:
    """A deserializer of str."""

    def __init__(self, encoding: str = "utf-8") -> None:
        """Create the deserializer.

        Args:
            encoding: Name of the encoding in Python.
        """
        self._encoding = encoding

    def deserialize(self, topic: str, data: bytes) -> str:
        """Decode a str.

        Args:
            topic: Name of the record's topic; not used.
            data: The encoded text.

        Returns:
            The text.

        Raises:
            UnicodeDecodeError: The bytes are not text of this encoding.
        """
        return data.decode(self._encoding)


class JsonSerializer:
    """A serializer of all objects that `json.dumps` takes, to UTF-8 JSON without blanks."""

    def __init__(self, **arguments: Any) -> None:
        """Create the serializer.

        Args:
            **arguments: Arguments of `json.dumps`. They take precedence over `ensure_ascii=False` and the compact
                `separators`.
        """
        compact: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
        self._encoder = json.JSONEncoder(**compact | arguments)

    def serialize(self, topic: str, value: Any) -> bytes:
        """Encode an object as JSON.

        Args:
            topic: Name of the record's topic; not used.
            value: The object.

        Returns:
            UTF-8 bytes.

        Raises:
            TypeError: JSON has no form for the object.
            ValueError: The object contains itself, or text that UTF-8 cannot represent.
        """
        return self._encoder.encode(value).encode()


class JsonDeserializer:
    """A deserializer of UTF-8 JSON."""

    def deserialize(self, topic: str, data: bytes) -> Any:
        """Decode an object from JSON.

        Args:
            topic: Name of the record's topic; not used.
            data: UTF-8 bytes.

        Returns:
            The object.

        Raises:
            ValueError: The bytes are not JSON.
        """
        return json.loads(data)


def serializing(serializer: AnySerializer | None, setting: str) -> Callable[[str, Any], bytes | None] | None:
    """Return a serializer as a function of topic and value. `serializer`: a callable of one argument or a `Serializer`.
    None: no serializer. Raises InvalidConfigError."""
    if serializer is None:
        return None
    if isinstance(serializer, Serializer):
        return serializer.serialize
    if callable(serializer):
        plain = serializer
        return lambda topic, value: plain(value)
    raise InvalidConfigError(f"{setting} = {serializer!r}: use a callable, or an object with serialize(topic, value)")


def deserializing(deserializer: AnyDeserializer | None, setting: str) -> Callable[[str, bytes], Any] | None:
    """Return a deserializer as a function of topic and data. `deserializer`: a callable of one argument, a
    `Deserializer`, or None: no deserializer. Raises InvalidConfigError."""
    if deserializer is None:
        return None
    if isinstance(deserializer, Deserializer):
        return deserializer.deserialize
    if callable(deserializer):
        plain = deserializer
        return lambda topic, data: plain(data)
    raise InvalidConfigError(
        f"{setting} = {deserializer!r}: use a callable, or an object with deserialize(topic, data)"
    )
