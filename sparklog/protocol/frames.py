"""Frames: the unit that both sides send.

Request and response have the same shape (little-endian)::

    offset  size  field
    0       4     frame_length u32: bytes after this field
    4       2     api u16 (sparklog.protocol.messages.Api)
    6       2     request: api version u16; response: error code i16 (sparklog.errors), 0 = success
    8       4     correlation_id u32, echoed in the response
    12      4     header_length u32
    16      h     header: MessagePack, an array typed by a msgspec.Struct
    16+h    p     payload: raw bytes (batches), p = frame_length - 12 - h

A response with an error code has an `ErrorBody` header and no payload. After these errors the broker closes the
connection: InvalidRequest, FrameTooLarge, Unsupported…, TooManyConnections, and those of SASL. After a HANDSHAKE in an
unsupported version the connection stays open, so that the client can try another version. Every other error leaves the
connection open, unless the broker has no memory for the request. Responses come in the order of the requests of their
connection. A frame has no checksum, because batches have their own.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from sparklog.errors import FrameTooLargeError, InvalidRequestError

PREFIX = struct.Struct("<IHHII")
RESPONSE_PREFIX = struct.Struct("<IHhII")
PREFIX_BYTES = 16
assert PREFIX.size == RESPONSE_PREFIX.size == PREFIX_BYTES

HEADER_BYTES_MAX = 16 * 1024 * 1024
"""Largest size of a header in bytes. The metadata of 10,000 topics with schemas fit; every other header is much
smaller."""
FRAME_LENGTH_MIN = PREFIX_BYTES - 4


_HTTP_ANSWER = b"HTTP/"
_HTTP = tuple(
    f"{method} ".encode()
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "PRI")
)
_TLS_HANDSHAKE = (b"\x16\x03\x01", b"\x16\x03\x02", b"\x16\x03\x03")
_KAFKA_PREFIX = struct.Struct(">ihhih")
_KAFKA_BYTES_MAX = 1024 * 1024
_KAFKA_APIS = 256
_KAFKA_VERSIONS = 64
_KAFKA_API_VERSIONS = 18
"""Number of Kafka's API ApiVersions, the first request of its clients."""
_KAFKA_FLEXIBLE_VERSION = 3
"""First version of ApiVersions with tagged fields."""


class RequestPrefix(NamedTuple):
    """A decoded request prefix. `body_bytes` = header and payload, still to be read."""

    api: int
    version: int
    correlation_id: int
    header_bytes: int
    body_bytes: int


class ResponsePrefix(NamedTuple):
    """A decoded response prefix. `body_bytes` = header and payload, still to be read."""

    api: int
    error_code: int
    correlation_id: int
    header_bytes: int
    body_bytes: int


def encode_request(api: int, version: int, correlation_id: int, header: bytes, payload_bytes: int = 0) -> bytes:
    """Return the prefix and header of a request; `payload_bytes` bytes of payload follow it on the wire."""
    length = FRAME_LENGTH_MIN + len(header) + payload_bytes
    return PREFIX.pack(length, api, version, correlation_id, len(header)) + header


def encode_response(api: int, error_code: int, correlation_id: int, header: bytes, payload_bytes: int = 0) -> bytes:
    """Return the prefix and header of a response; `payload_bytes` bytes of payload follow it on the wire."""
    length = FRAME_LENGTH_MIN + len(header) + payload_bytes
    return RESPONSE_PREFIX.pack(length, api, error_code, correlation_id, len(header)) + header


def encode_response_prefix(api: int, correlation_id: int, header_bytes: int, payload_bytes: int) -> bytes:
    """Return the prefix of a successful response; its header and payload follow on the wire."""
    length = FRAME_LENGTH_MIN + header_bytes + payload_bytes
    return RESPONSE_PREFIX.pack(length, api, 0, correlation_id, header_bytes)


def foreign_protocol(data: bytes | bytearray | memoryview) -> str:
    """Return a text that names the foreign protocol of a connection's first 16 bytes (TLS, HTTP, Kafka) and the remedy.
    Returns "" if the bytes can be a frame. No first request of a sparklog client looks like one of these protocols."""
    start = bytes(data[:PREFIX_BYTES])
    if start.startswith(_TLS_HANDSHAKE):
        return (
            "the peer speaks TLS, but this listener does not encrypt: set the client's security.protocol to PLAINTEXT "
            "or SASL_PLAINTEXT, or let it connect to a listener with SSL or SASL_SSL"
        )
    if start.startswith(_HTTP):
        return (
            "the peer speaks HTTP, and this is not an HTTP port: metrics are at the address of metrics.listen, the "
            "console at that of `sparklog console`"
        )
    length, api, version, _, client_id_bytes = _KAFKA_PREFIX.unpack_from(start)
    is_kafka = (
        PREFIX_BYTES - 8 <= length <= _KAFKA_BYTES_MAX
        and 0 <= api < _KAFKA_APIS
        and 0 <= version < _KAFKA_VERSIONS
        and -1 <= client_id_bytes <= length
    )
    if is_kafka:
        return (
            "the peer speaks Kafka's protocol, and this is the port of sparklog's own: start the gateway (`kafka.listeners` "
            "of the broker, or `sparklog gateway kafka`) and give its address to Kafka's clients, or use sparklog's client, "
            "Spark data source or command line"
        )
    return ""


def foreign_answer(data: bytes | bytearray | memoryview, text: str) -> bytes:
    """Return an answer in the peer's own protocol, for a peer whose first 16 bytes are foreign; b"" if no answer fits.

    An HTTP client gets `text`. A Kafka client that sends ApiVersions first learns that the broker supports nothing
    else. So it reports an unsupported broker at once, and does not retry until its own timeout.
    """
    start = bytes(data[:PREFIX_BYTES])
    if start.startswith(_HTTP):
        body = f"{text}\n".encode()
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"Connection: close\r\n\r\n" + body
    _, api, version, correlation_id, _ = _KAFKA_PREFIX.unpack_from(start)
    if start.startswith(_TLS_HANDSHAKE) or api != _KAFKA_API_VERSIONS:
        return b""
    supported = struct.pack(">hhh", _KAFKA_API_VERSIONS, 0, version)
    throttle_ms = struct.pack(">i", 0)
    answer = struct.pack(">ih", correlation_id, 0)
    if version >= _KAFKA_FLEXIBLE_VERSION:  # lengths are varints plus one; each struct ends with its tagged fields
        answer += b"\x02" + supported + b"\0" + throttle_ms + b"\0"
    else:
        answer += struct.pack(">i", 1) + supported + (throttle_ms if version > 0 else b"")
    return struct.pack(">i", len(answer)) + answer


def decode_request_prefix(data: bytes | bytearray | memoryview, frame_bytes_max: int) -> RequestPrefix:
    """Decode the first 16 bytes of a request. Raises FrameTooLargeError or InvalidRequestError, nothing else."""
    if len(data) < PREFIX_BYTES:
        raise InvalidRequestError("a frame begins with 16 bytes")
    length, api, version, correlation_id, header_bytes = PREFIX.unpack_from(data, 0)
    body = _body_bytes(length, header_bytes, frame_bytes_max)
    return RequestPrefix(api, version, correlation_id, header_bytes, body)


def decode_response_prefix(data: bytes | bytearray | memoryview, frame_bytes_max: int) -> ResponsePrefix:
    """Decode the first 16 bytes of a response. Raises FrameTooLargeError or InvalidRequestError, nothing else."""
    if len(data) < PREFIX_BYTES:
        raise InvalidRequestError("a frame begins with 16 bytes")
    length, api, error_code, correlation_id, header_bytes = RESPONSE_PREFIX.unpack_from(data, 0)
    if length > frame_bytes_max and bytes(data[: len(_HTTP_ANSWER)]) == _HTTP_ANSWER:
        raise InvalidRequestError(
            "the server speaks HTTP and is not a sparklog broker: use the address of a broker's listener, not the "
            "address of its metrics, of the console or of a proxy"
        )
    body = _body_bytes(length, header_bytes, frame_bytes_max)
    return ResponsePrefix(api, error_code, correlation_id, header_bytes, body)


def _body_bytes(length: int, header_bytes: int, frame_bytes_max: int) -> int:
    if length > frame_bytes_max:
        raise FrameTooLargeError(f"a frame of {length} bytes; at most {frame_bytes_max} are allowed")
    if length < FRAME_LENGTH_MIN or header_bytes > min(length - FRAME_LENGTH_MIN, HEADER_BYTES_MAX):
        raise InvalidRequestError(f"impossible frame: length {length}, header {header_bytes} bytes")
    return length - FRAME_LENGTH_MIN
