"""Decoders of typed MessagePack and JSON, each created once, one after the other; conversions to structs.

msgspec learns a struct's fields when it creates the first decoder with that struct, and marks the struct as known
before it has finished. A second thread that uses the struct in between reads missing fields, and the process dies
(msgspec 0.22, SIGSEGV in mpack_decode). So msgspec gets structs in this module only, under one lock; decoding and
converting need no lock afterwards.
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
    """Return the decoder for `kind` (a struct, or a type that contains some). Any thread."""
    return _msgpack.get(kind) or _make_once(_msgpack, kind, msgspec.msgpack.Decoder)


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder, like `msgpack_decoder`."""
    return _json.get(kind) or _make_once(_json, kind, msgspec.json.Decoder)


def passing_json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return a decoder like `json_decoder`, for a struct that is made at run time: it is not kept here."""
    with _making:
        return msgspec.json.Decoder(kind)


def convert(value: object, kind: type[T]) -> T:
    """Return `msgspec.convert` to `kind`, as `msgpack_decoder`. Raises msgspec.ValidationError."""
    msgpack_decoder(kind)
    return msgspec.convert(value, kind)


def _make_once(known: dict[Any, Any], kind: Any, make: Callable[[Any], Any]) -> Any:
    with _making:
        found = known[kind] = make(kind)
    return found
