"""The client's side of a connection, without sockets, clocks or threads.

An `Exchange` holds the state of one connection: the versions that both sides have, the ids of the requests, and the
requests that wait for a response. The transport gives it messages and received bytes, and gets bytes and events::

    call                          result
    send, send_unanswered         bytes to write: prefix and header; the transport writes the payload after them
    read_prefix (16 bytes)        ResponsePrefix: the sizes of the header and of the payload to be read
    read_header (header)          Response: the message or the broker's error

Responses come in the order of the requests. The exchange never sees a payload, so that each transport receives it
directly into memory of its own. An error that `read_prefix` or `read_header` raises means that the peer is no broker or
is faulty: the transport closes the connection. The first request of a connection is HANDSHAKE. Its response gives the
exchange the versions of the other APIs and the broker's largest request.

Transports are the client's `Connection` (a blocking socket), the gateway's `BrokerConnection` (an asyncio protocol) and
the broker's `PeerConnection` (an asyncio protocol).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from msgspec import Struct

from sparklog.errors import (
    FrameTooLargeError,
    IllegalSaslStateError,
    InvalidRequestError,
    SaslAuthenticationFailedError,
    SparklogError,
    UnsupportedApiError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
    error_from_code,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import decode_error_body, decode_response, encode
from sparklog.protocol.frames import (
    HEADER_BYTES_MAX,
    PREFIX_BYTES,
    ResponsePrefix,
    decode_response_prefix,
    encode_request,
)
from sparklog.protocol.messages import HandshakeResponse
from sparklog.protocol.negotiation import HANDSHAKE_ONLY, SpokenVersions

RESPONSE_BYTES_MAX = 1100 * 1024 * 1024
"""Largest size in bytes of a response to FETCH or REPLICA_FETCH. Its batches have at most `fetch.max.bytes` (for a
replica `replica.fetch.response.max.bytes`) or, if that is larger, the size of one batch; all are at most 1 GiB."""
HEADER_ONLY_BYTES_MAX = HEADER_BYTES_MAX + PREFIX_BYTES
"""Largest size in bytes of a response of the other APIs, which have no payload."""
_FETCH, _REPLICA_FETCH, _HANDSHAKE = Api.FETCH, Api.REPLICA_FETCH, Api.HANDSHAKE
"""The APIs with rules of their own, as constants: the look-up of an enumeration's member takes long."""
_FATAL = (
    InvalidRequestError,
    FrameTooLargeError,
    UnsupportedApiError,
    UnsupportedVersionError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
    IllegalSaslStateError,
)
_ID_MASK = 0xFFFF_FFFF

M = TypeVar("M", bound=Message)
N = TypeVar("N")
"""Type of the transport's note about a request, such as its deadline, or the future of its response."""


class PendingRequest(Struct, Generic[N]):
    """A request without a complete response."""

    correlation_id: int
    api: Api
    note: N


class Response(Struct, Generic[N]):
    """A response whose header is decoded."""

    request: PendingRequest[N]
    message: Message | None
    """The decoded header; None: the response is an error."""
    error: SparklogError | None
    """The broker's error; None: the request has succeeded."""
    throttle_ms: int
    """Time in ms for which the broker reads nothing more from the connection, because of a quota."""

    def result(self, message_type: type[M]) -> M:
        """Return the message. Raises the broker's error."""
        if self.error is not None:
            raise self.error
        if not isinstance(self.message, message_type):
            name = self.request.api.name
            raise InvalidRequestError(
                f"{name} is answered with {type(self.message).__name__}, not {message_type.__name__}"
            )
        return self.message

    @property
    def ends_connection(self) -> bool:
        """True for an error after which the broker closes the connection."""
        return isinstance(self.error, _FATAL)


class Exchange(Generic[N]):
    """The protocol's state of one connection to a broker, from its first byte on."""

    __slots__ = ("_error_code", "_last_id", "broker", "pending", "place", "versions")

    def __init__(self, place: str) -> None:
        """Begin with a connection on which nothing is sent yet. `place`: the broker in errors, such as "the broker at
        HOST:PORT"."""
        self.place = place
        self.versions = HANDSHAKE_ONLY
        self.broker: HandshakeResponse | None = None
        """The broker's response to HANDSHAKE; None: it has not come."""
        self.pending: deque[PendingRequest[N]] = deque()
        """The requests without a complete response, the oldest first."""
        self._last_id = 0
        self._error_code = 0
        """The error code in the prefix that was read last."""

    def send(self, api: Api, message: Message, note: N, payload_bytes: int = 0) -> bytes:
        """Return the prefix and header of a request in the newest version that both sides have, and expect its
        response.

        Raises UnsupportedApiError if the broker lacks the API, UnsupportedVersionError if it shares no version with
        this side or would ignore a field of the message, FrameTooLargeError if it takes no request of this size. The
        exchange is unchanged then.
        """
        head = self._encode(api, message, payload_bytes)
        self.pending.append(PendingRequest(self._last_id, api, note))
        return head

    def send_unanswered(self, api: Api, message: Message, payload_bytes: int = 0) -> bytes:
        """Return the prefix and header of a request without a response (acks=0). Raises as `send`."""
        return self._encode(api, message, payload_bytes)

    def read_prefix(self, data: bytes | bytearray | memoryview) -> ResponsePrefix:
        """Return the decoded prefix of the response to the oldest request. Raises InvalidRequestError or
        FrameTooLargeError if it cannot be one."""
        if not self.pending:
            raise InvalidRequestError(f"{self.place} sent a response without a request")
        request = self.pending[0]
        api = request.api
        has_payload = api is _FETCH or api is _REPLICA_FETCH
        prefix = decode_response_prefix(data, RESPONSE_BYTES_MAX if has_payload else HEADER_ONLY_BYTES_MAX)
        if prefix.api != api or prefix.correlation_id != request.correlation_id:
            raise InvalidRequestError(
                f"{self.place} answered request {prefix.correlation_id} of API {prefix.api} instead of request "
                f"{request.correlation_id} of {api.name}"
            )
        self._error_code = prefix.error_code
        return prefix

    def read_header(self, header: bytes | bytearray | memoryview) -> Response[N]:
        """Return the response whose prefix was read last. `header`: as many bytes as the prefix says. Raises
        InvalidRequestError if it cannot be read; the request stays in `pending` then."""
        request = self.pending[0]
        if self._error_code:
            response = self._failed(request, self._error_code, header)
        else:
            message = decode_response(request.api, header, Message)
            if request.api is _HANDSHAKE:
                self._on_handshake(message)
            response = Response(request, message, None, getattr(message, "throttle_ms", 0))
        self.pending.popleft()
        return response

    def _encode(self, api: Api, message: Message, payload_bytes: int) -> bytes:
        version = self.versions.version_of(api)
        number = (self._last_id + 1) & _ID_MASK
        head = encode_request(api, version.number, number, encode(message, version.older), payload_bytes)
        if self.broker is not None and api is not _HANDSHAKE:
            size, limit = len(head) + payload_bytes, self.broker.request_bytes_max
            if size > limit > 0:
                raise FrameTooLargeError(
                    f"a request of {size} bytes; this broker takes {limit} (socket.request.max.bytes)"
                )
        self._last_id = number
        return head

    def _failed(self, request: PendingRequest[N], code: int, header: bytes | bytearray | memoryview) -> Response[N]:
        body = decode_error_body(header)
        error = error_from_code(code, body.message)
        if isinstance(error, UnsupportedVersionError) and body.version_max >= 0:
            reason = self.versions.no_common_version(request.api, (body.version_min, body.version_max))
            reason.__cause__ = error
            error = reason
        return Response(request, None, error, body.throttle_ms)

    def _on_handshake(self, broker: Message) -> None:
        assert isinstance(broker, HandshakeResponse)
        self.versions = SpokenVersions(broker.apis, f"{self.place} (sparklog {broker.broker_version})")
        self.broker = broker
