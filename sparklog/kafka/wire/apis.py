"""The APIs that the gateway serves, and the header of a request.

A request begins with its API and version (i16 each), a correlation id (i32) and the client's id (nullable string). In a
flexible version tagged fields follow. A response begins with the correlation id, and in a flexible version tagged
fields. The response of API_VERSIONS never has tagged fields there, because clients read it before they know the
version.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from sparklog.errors import InvalidRequestError
from sparklog.kafka.wire.codec import Part, _Reader
from sparklog.kafka.wire.schema import REQUEST, Message, messages

_HEAD = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")
_SIZE = struct.Struct(">i")
CLIENT_ID_CHARS_MAX = 255
API_VERSIONS = "ApiVersions"
PRODUCE = "Produce"
PRODUCE_ADVERTISED_FROM = 0
"""First version of PRODUCE that the gateway reports. librdkafka does not compress unless the broker has the first
versions (KAFKA-18659). A request in a version that is reported but not served gets UNSUPPORTED_VERSION."""


class Api(NamedTuple):
    """One API of Kafka with the versions that the gateway serves."""

    name: str
    key: int
    first: int
    last: int

    @property
    def advertised_from(self) -> int:
        """First version that the gateway reports to clients."""
        return PRODUCE_ADVERTISED_FROM if self.name == PRODUCE else self.first


class RequestHead(NamedTuple):
    """The head of a request. `body_from`: position after the head, which is only right if the version is served."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body_from: int


def read_head(data: memoryview) -> RequestHead:
    """Decode the head of a request. Raises InvalidRequestError."""
    if len(data) < _HEAD.size:
        raise InvalidRequestError(f"a request of {len(data)} bytes")
    api_key, version, correlation_id, size = _HEAD.unpack_from(data)
    end = _HEAD.size + max(size, 0)
    if end > len(data):
        raise InvalidRequestError("the client's id is cut off")
    client_id = bytes(data[_HEAD.size : end]).decode("utf-8", "replace")[:CLIENT_ID_CHARS_MAX]
    message = _requests().get(api_key)
    if message is not None and version in message.versions and message.is_flexible(version):
        reader = _Reader(data)
        reader.pos = end
        reader.tags()
        end = reader.pos
    return RequestHead(api_key, version, correlation_id, client_id, end)


def _requests() -> dict[int, Message]:
    global _by_key
    if not _by_key:
        _by_key = {m.api_key: m for (kind, _), m in messages().items() if kind == REQUEST}
    return _by_key


_by_key: dict[int, Message] = {}


def frame(head: RequestHead, name: str, body: list[Part], *, version: int | None = None) -> list[Part]:
    """Return the parts of a response's frame. `body`: the encoded answer. `version`: version of the answer; None: that
    of the request."""
    spoken = head.version if version is None else version
    message = messages()[REQUEST, name]
    start = _CORRELATION.pack(head.correlation_id)
    if name != API_VERSIONS and message.is_flexible(spoken):
        start += b"\0"
    return [_SIZE.pack(len(start) + sum(map(len, body))) + start, *body]
