"""Framed replies: a message, and payload parts (bytes or slices of files)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, field

from sparklog.errors import SparklogError, UnsupportedVersionError, one_line
from sparklog.protocol.base import Message
from sparklog.protocol.codec import encode, encode_value
from sparklog.protocol.frames import encode_response, encode_response_prefix
from sparklog.protocol.messages import ErrorBody
from sparklog.protocol.versions import field_names

ERROR_TEXT_CHARS_MAX = 4096
THROTTLE_FIELD = "throttle_ms"
"""A field of all replies to clients, except the replies to HANDSHAKE and SASL requests. Its value is known last, so
this field and the fields after it are encoded last.
"""
REST_BYTES_MAX = 48


class Slice(Protocol):
    """A range of an open file, created by `sparklog.log`. `release` must be called exactly once."""

    @property
    def position(self) -> int: ...
    @property
    def length_bytes(self) -> int: ...
    def fileno(self) -> int: ...
    def release(self) -> None: ...


class Response(Struct):
    """A handler's reply: the header message, and the payload's parts in order.

    - `message`: None if no reply is sent.
    - `close`: True to close the connection afterwards.
    - `header`: the encoded fields of the message before `throttle_ms`, in pieces; `message` can lack these fields.
      None if the whole `message` is encoded when it is framed.
    """

    message: Message | None
    payload: Sequence[bytes | Slice] = field(default_factory=list)
    close: bool = False
    header: list[bytes] | None = None

    @property
    def payload_bytes(self) -> int:
        """Size of the payload."""
        return sum(len(part) if isinstance(part, bytes) else part.length_bytes for part in self.payload)

    def release(self) -> None:
        """Release the slices of a reply that is not sent."""
        for part in self.payload:
            if not isinstance(part, bytes):
                part.release()


def fields_before_rest(message: Message, version: int | None) -> tuple[str, ...]:
    """Return the names of the fields that `Response.header` contains. `version` None: the newest."""
    fields = field_names(type(message), version)
    return fields[: fields.index(THROTTLE_FIELD)] if THROTTLE_FIELD in fields else fields


def rest_of(message: Message, version: int | None = None) -> bytes:
    """Encode the fields that are not in `Response.header`."""
    fields = field_names(type(message), version)[len(fields_before_rest(message, version)) :]
    return b"".join(encode_value(getattr(message, name), version) for name in fields)


def header_parts(response: Response, version: int | None = None) -> list[bytes]:
    """Return the encoded message of a response, in pieces. The response must have a message."""
    assert response.message is not None
    if response.header is None:
        return [encode(response.message, version)]
    return [*response.header, rest_of(response.message, version)]


class Reply(Struct):
    """A framed reply: the parts that the connection sends, in order."""

    parts: list[bytes | memoryview | Slice]
    close: bool = False

    def release(self) -> None:
        """Release the slices of a reply that is not sent."""
        for part in self.parts:
            if not isinstance(part, bytes | memoryview):
                part.release()


def frame_response(api: int, correlation_id: int, response: Response, version: int | None = None) -> Reply | None:
    """Return `response` as a frame, which begins with the length of its parts. `version` None: the newest. Returns None
    if nothing is sent and the connection stays open. Releases the slices on failure.
    """
    if response.message is None:
        return Reply([], close=True) if response.close else None
    length = response.payload_bytes
    if response.header is not None:
        header = header_parts(response, version)
        prefix = encode_response_prefix(api, correlation_id, sum(map(len, header)), length)
        return Reply([prefix, *header, *response.payload], response.close)
    try:
        head = encode_response(api, 0, correlation_id, encode(response.message, version), length)
    except BaseException:
        response.release()
        raise
    return Reply([head, *response.payload], response.close)


def error_reply(
    api: int, correlation_id: int, error: SparklogError, *, close: bool = False, throttle_ms: int = 0
) -> Reply:
    """Return an error frame. `throttle_ms`: time in ms for which the connection is muted afterwards."""
    body = ErrorBody(one_line(str(error)[:ERROR_TEXT_CHARS_MAX])[:ERROR_TEXT_CHARS_MAX], throttle_ms=throttle_ms)
    if isinstance(error, UnsupportedVersionError) and error.supported is not None:
        body.version_min, body.version_max = error.supported
    return Reply([encode_response(api, error.code, correlation_id, encode(body))], close)
