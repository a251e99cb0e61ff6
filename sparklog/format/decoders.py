"""Decoders of typed MessagePack and JSON, and conversions to structs. Each decoder is created once, under a lock.

msgspec learns a struct's fields when it creates the first decoder with that struct, and marks the struct as known
before it has finished. A second thread that uses the struct in between reads missing fields, and the process dies
(msgspec 0.22, SIGSEGV in mpack_decode). So structs are passed to msgspec only in this module, under one lock. Decoding
and converting need no lock afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_making = threading.Lock()
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_json: dict[Any, msgspec.json.Decoder[Any]] = {}


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Return the MessagePack decoder for `kind`, a struct or a type that contains structs. Callable on any thread."""
    return _msgpack.get(kind) or _make_once(_msgpack, kind, msgspec.msgpack.Decoder)


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the JSON decoder for `kind`, like `msgpack_decoder`."""
    return _json.get(kind) or _make_once(_json, kind, msgspec.json.Decoder)


def passing_json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return a JSON decoder for a struct that was created at run time. Unlike `json_decoder`, it creates a decoder at
    each call and does not keep it."""
    with _making:
        return msgspec.json.Decoder(kind)


def convert(value: object, kind: type[T]) -> T:
    """Convert `value` to `kind` with `msgspec.convert`. Callable on any thread. Raises msgspec.ValidationError."""
    msgpack_decoder(kind)
    return msgspec.convert(value, kind)


def _make_once(cache: dict[Any, Any], kind: Any, make: Callable[[Any], Any]) -> Any:
    with _making:
        value = cache[kind] = make(kind)
    return value
