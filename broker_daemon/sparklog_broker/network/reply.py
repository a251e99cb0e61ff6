"""What is sent back: a message and payload parts (bytes or slices of files), framed."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct, field

from sparklog.errors import SparklogError, UnsupportedVersionError, one_line
from sparklog.protocol.base import Message
from sparklog.protocol.frames import encode_response, encode_response_prefix
from sparklog.protocol.messages import ErrorBody, encode, encode_value
from sparklog.protocol.versions import field_names

ERROR_TEXT_CHARS_MAX = 4096
THROTTLE_FIELD = "throttle_ms"
"""Of all answers that clients get, but those of their first requests. What follows it is encoded with it."""
REST_BYTES_MAX = 48


class Slice(Protocol):
    """A range of an open file (`sparklog.log` gives them). `release` has to be called exactly once."""

    @property
    def position(self) -> int: ...
    @property
    def length_bytes(self) -> int: ...
    def fileno(self) -> int: ...
    def release(self) -> None: ...


class Response(Struct):
    """A handler's answer: the header message, and the payload's parts in order.

    `message` None: no answer is sent. `close`: the connection is closed afterwards. `header`: the message as it is
    sent, in pieces, if it is encoded already, up to `throttle_ms`, which is known last; what is in them need not be in
    the message.
    """

    message: Message | None
    payload: list[Slice] = field(default_factory=list)
    close: bool = False
    header: list[bytes] | None = None

    def release(self) -> None:
        """Gives back the slices of an answer that is not sent."""
        for part in self.payload:
            part.release()


def fields_before_rest(message: Message, version: int | None) -> tuple[str, ...]:
    """Those that `Response.header` has, in a version (None: the newest)."""
    fields = field_names(type(message), version)
    return fields[: fields.index(THROTTLE_FIELD)] if THROTTLE_FIELD in fields else fields


def rest_of(message: Message, version: int | None = None) -> bytes:
    """What follows `Response.header`, encoded."""
    fields = field_names(type(message), version)[len(fields_before_rest(message, version)) :]
    return b"".join(encode_value(getattr(message, name), version) for name in fields)


def header_parts(response: Response, version: int | None = None) -> list[bytes]:
    """The encoded message of a response that has one, in pieces."""
    assert response.message is not None
    if response.header is None:
        return [encode(response.message, version)]
    return [*response.header, rest_of(response.message, version)]


class Reply(Struct):
    """A framed answer: what the connection writes, in order."""

    parts: list[bytes | memoryview | Slice]
    close: bool = False

    def release(self) -> None:
        """Gives back the slices of an answer that is not sent."""
        for part in self.parts:
            if not isinstance(part, bytes | memoryview):
                part.release()


def frame_response(api: int, correlation_id: int, response: Response, version: int | None = None) -> Reply | None:
    """`response` as a frame whose announced length is that of its parts, in an older `version` if it is given. None:
    nothing to send, go on. Releases the slices if it fails."""
    if response.message is None:
        return Reply([], close=True) if response.close else None
    length = sum(part.length_bytes for part in response.payload)
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
    """An error frame. `throttle_ms`: for how long the connection is muted then."""
    body = ErrorBody(one_line(str(error)[:ERROR_TEXT_CHARS_MAX])[:ERROR_TEXT_CHARS_MAX], throttle_ms=throttle_ms)
    needed = 0
    if isinstance(error, UnsupportedVersionError) and error.supported is not None:
        body.version_min, body.version_max = error.supported
        needed = 1
    header = encode(body, None if throttle_ms else needed)
    return Reply([encode_response(api, error.code, correlation_id, header)], close)
