"""The client's side of a connection to a Kafka broker, without sockets: versions, requests as bytes, responses.

The first request is API_VERSIONS, whose response gives the versions of the other APIs. A request uses the newest
version that both sides have and that names topics. One request is in flight at a time.
"""

from __future__ import annotations

import struct
from typing import Any

from sparklog.errors import InvalidRequestError, UnsupportedVersionError
from sparklog.kafka.wire.apis import API_VERSIONS
from sparklog.kafka.wire.codec import ELEMENTS_MAX, Body, decoder, encoder
from sparklog.kafka.wire.schema import REQUEST, RESPONSE, messages

_HEAD = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")
_SIZE = struct.Struct(">i")
SIZE_BYTES = _SIZE.size
_ID_MASK = 0x7FFF_FFFF
_LAST_BY_NAME = {"Produce": 12, "Fetch": 12, "OffsetCommit": 9, "OffsetFetch": 9}
"""Last versions whose requests name topics by their names, not by ids."""


class KafkaExchange:
    """The protocol's state of one connection to a Kafka broker, from its first byte on."""

    def __init__(self, place: str, client_id: str, elements_max: int = ELEMENTS_MAX) -> None:
        """`place`: the broker in errors. `elements_max`: largest number of elements in the lists of a response."""
        self.place = place
        self._client_id = client_id.encode()
        self._elements_max = elements_max
        self._versions = {API_VERSIONS: 0}
        self._last_id = 0
        self._pending: tuple[str, int] | None = None
        """Name and version of the request that waits for its response."""

    def has(self, name: str, version: int = 0) -> bool:
        """Return True if both sides have the API in this version or a newer one."""
        return self._versions.get(name, -1) >= version

    def encode(self, name: str, body: Body) -> bytes:
        """Return a request's frame. Raises UnsupportedVersionError if the broker has no version of the API that this
        side has."""
        version = self._versions.get(name)
        if version is None:
            raise UnsupportedVersionError(
                f"{self.place} has no version of {name} that sparklog has; a mirror needs Kafka 2.8 or newer. The port "
                "of sparklog's own protocol needs an address with sparklog://"
            )
        message = messages()[REQUEST, name]
        self._last_id = (self._last_id + 1) & _ID_MASK
        self._pending = name, version
        head = _HEAD.pack(message.api_key, version, self._last_id, len(self._client_id)) + self._client_id
        if message.is_flexible(version):
            head += b"\0"
        data = b"".join([head, *encoder(REQUEST, name, version)(body)])
        return _SIZE.pack(len(data)) + data

    def response_bytes(self, prefix: bytes | bytearray, limit: int) -> int:
        """Return the size of the response whose first SIZE_BYTES are `prefix`. Raises InvalidRequestError for a size
        that no response has, or above `limit`."""
        (size,) = _SIZE.unpack(prefix)
        if not _CORRELATION.size <= size <= limit:
            name = self._pending[0] if self._pending else "nothing"
            raise InvalidRequestError(
                f"{self.place} answers {name} with {size} bytes; at most {limit} are accepted. It may be no Kafka "
                "broker, or its listener needs TLS (security.protocol)"
            )
        return int(size)

    def decode(self, data: memoryview) -> dict[str, Any]:
        """Return the response to the pending request. Raises InvalidRequestError for bytes that are no such
        response."""
        if self._pending is None:
            raise InvalidRequestError(f"{self.place} sent a response without a request")
        (name, version), self._pending = self._pending, None
        (correlation_id,) = _CORRELATION.unpack_from(data)
        if correlation_id != self._last_id:
            raise InvalidRequestError(f"{self.place} answered request {correlation_id} instead of {self._last_id}")
        start = _CORRELATION.size
        if name != API_VERSIONS and messages()[REQUEST, name].is_flexible(version):
            if bytes(data[start : start + 1]) != b"\0":
                raise InvalidRequestError(f"{self.place} answers {name} with unknown fields in the head")
            start += 1
        body = decoder(RESPONSE, name, version, self._elements_max)(data[start:])
        if name == API_VERSIONS:
            self._negotiate(body)
        return body

    def _negotiate(self, body: Body) -> None:
        """Enter the newest common version of each API in which topics have their names."""
        ranges = {api["api_key"]: (api["min_version"], api["max_version"]) for api in body["api_keys"]}
        for (kind, name), message in messages().items():
            if kind != REQUEST or name == API_VERSIONS or message.api_key not in ranges:
                continue
            first, last = ranges[message.api_key]
            version = min(last, message.served.last, _LAST_BY_NAME.get(name, last))
            if version >= max(first, message.served.first):
                self._versions[name] = version
