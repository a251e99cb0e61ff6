"""The client's side of a connection: requests and responses as bytes, without a socket."""

from __future__ import annotations

import pytest

from sparklog.errors import (
    FrameTooLargeError,
    InvalidRequestError,
    NotControllerError,
    SparklogError,
    UnknownTopicOrPartitionError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from sparklog.protocol import frames
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.codec import decode_request, encode
from sparklog.protocol.exchange import HEADER_ONLY_BYTES_MAX, Exchange, Response
from sparklog.protocol.messages import (
    ApiRange,
    ErrorBody,
    FetchRequest,
    FetchResponse,
    HandshakeRequest,
    HandshakeResponse,
)
from sparklog.protocol.topic_messages import DeleteTopicRequest, DeleteTopicResponse, MetadataRequest
from tests.support.cases import for_each

PLACE = "the broker at a:1"
ALL_APIS = [ApiRange(int(api), spec.version_min, spec.version_max) for api, spec in APIS.items()]
DELETE = DeleteTopicRequest("t")


def receive(exchange: Exchange[str], data: bytes) -> Response[str]:
    prefix = exchange.read_prefix(data[: frames.PREFIX_BYTES])
    return exchange.read_header(data[frames.PREFIX_BYTES :][: prefix.header_bytes])


def after_handshake(apis: list[ApiRange] = ALL_APIS, request_bytes_max: int = 1000) -> Exchange[str]:
    exchange: Exchange[str] = Exchange(PLACE)
    exchange.send(Api.HANDSHAKE, HandshakeRequest("test", "1"), "hello")
    answer = HandshakeResponse(1, "c", "9.9", apis, request_bytes_max)
    assert receive(exchange, frames.encode_response(Api.HANDSHAKE, 0, 1, encode(answer))).request.note == "hello"
    return exchange


def failure(code: int, body: ErrorBody, *, api: Api = Api.DELETE_TOPIC) -> bytes:
    return frames.encode_response(api, code, 2, encode(body))


def test_only_handshake_is_possible_before_the_versions_are_agreed() -> None:
    exchange: Exchange[None] = Exchange(PLACE)
    with pytest.raises(UnsupportedApiError, match="before its handshake"):
        exchange.send(Api.DELETE_TOPIC, DELETE, None)
    assert not exchange.pending and exchange.broker is None


def test_responses_come_in_the_order_of_the_requests() -> None:
    exchange = after_handshake()
    for number, note in ((2, "first"), (3, "second")):
        head = exchange.send(Api.DELETE_TOPIC, DELETE, note)
        prefix = frames.decode_request_prefix(head, 1 << 20)
        assert (prefix.api, prefix.correlation_id) == (Api.DELETE_TOPIC, number)
        assert decode_request(prefix.api, prefix.version, head[frames.PREFIX_BYTES :]) == DELETE
    answer = encode(DeleteTopicResponse("id"))
    first = receive(exchange, frames.encode_response(Api.DELETE_TOPIC, 0, 2, answer))
    assert first.request.note == "first" and first.result(DeleteTopicResponse) == DeleteTopicResponse("id")
    with pytest.raises(InvalidRequestError, match=r"a:1 answered request 2 of API .* instead of request 3"):
        receive(exchange, frames.encode_response(Api.DELETE_TOPIC, 0, 2, answer))
    assert [request.note for request in exchange.pending] == ["second"]


def test_a_request_without_an_answer_is_not_pending() -> None:
    exchange = after_handshake()
    exchange.send_unanswered(Api.DELETE_TOPIC, DELETE)
    exchange.send(Api.DELETE_TOPIC, DELETE, "answered")
    assert [request.correlation_id for request in exchange.pending] == [3]
    exchange.pending.clear()
    with pytest.raises(InvalidRequestError, match="without a request"):
        exchange.read_prefix(frames.encode_response(Api.DELETE_TOPIC, 0, 3, b""))


def test_a_request_goes_out_in_the_newest_common_version() -> None:
    oldest = APIS[Api.METADATA].version_min
    exchange = after_handshake([ApiRange(Api.METADATA, oldest, oldest)])
    head = exchange.send(Api.METADATA, MetadataRequest(["t"]), "")
    assert frames.decode_request_prefix(head, 1 << 20).version == oldest
    with pytest.raises(UnsupportedApiError, match=r"a:1 \(sparklog 9\.9\) does not have the API DELETE_TOPIC"):
        exchange.send(Api.DELETE_TOPIC, DELETE, "")


def test_a_request_that_the_broker_would_refuse_is_not_sent() -> None:
    exchange = after_handshake()
    with pytest.raises(FrameTooLargeError, match=r"takes 1000 \(socket\.request\.max\.bytes\)"):
        exchange.send(Api.DELETE_TOPIC, DELETE, "", payload_bytes=1000)
    assert not exchange.pending


@for_each(
    "error, ends_connection",
    [(NotControllerError, False), (UnknownTopicOrPartitionError, False), (InvalidRequestError, True)],
)
def test_an_error_response_is_an_event(error: type[SparklogError], ends_connection: bool) -> None:
    exchange = after_handshake()
    exchange.send(Api.DELETE_TOPIC, DELETE, "")
    response = receive(exchange, failure(error.code, ErrorBody("reason", throttle_ms=7)))
    assert (response.ends_connection, response.throttle_ms) == (ends_connection, 7)
    assert not exchange.pending
    with pytest.raises(error, match="reason"):
        response.result(DeleteTopicResponse)


@pytest.mark.parametrize(
    ("versions", "remedy"), [((900, 901), "upgrade the client"), ((0, 0), "a version that it announces")]
)
def test_a_refused_version_names_the_remedy(versions: tuple[int, int], remedy: str) -> None:
    exchange = after_handshake()
    exchange.send(Api.DELETE_TOPIC, DELETE, "")
    body = ErrorBody("refused", version_min=versions[0], version_max=versions[1])
    with pytest.raises(UnsupportedVersionError, match=remedy):
        receive(exchange, failure(UnsupportedVersionError.code, body)).result(DeleteTopicResponse)


def test_a_header_that_cannot_be_read_leaves_its_request_pending() -> None:
    exchange = after_handshake()
    exchange.send(Api.DELETE_TOPIC, DELETE, "lost")
    with pytest.raises(InvalidRequestError):
        receive(exchange, frames.encode_response(Api.DELETE_TOPIC, 0, 2, b"\xc1"))
    assert [request.note for request in exchange.pending] == ["lost"]


def test_only_fetches_have_payloads() -> None:
    """A response of another API is bounded by the largest header."""
    size = HEADER_ONLY_BYTES_MAX
    exchange = after_handshake()
    exchange.send(Api.FETCH, FetchRequest(0, 0, 1, 0, []), "")
    prefix = exchange.read_prefix(frames.encode_response(Api.FETCH, 0, 2, b"", size))
    assert (prefix.header_bytes, prefix.body_bytes) == (0, size)
    other = after_handshake()
    other.send(Api.DELETE_TOPIC, DELETE, "")
    with pytest.raises(FrameTooLargeError):
        other.read_prefix(frames.encode_response(Api.DELETE_TOPIC, 0, 2, b"", size))


def test_the_throttle_of_an_answer_is_part_of_the_event() -> None:
    exchange = after_handshake()
    exchange.send(Api.FETCH, FetchRequest(0, 0, 1, 0, []), "")
    answer = FetchResponse([], throttle_ms=12)
    assert receive(exchange, frames.encode_response(Api.FETCH, 0, 2, encode(answer))).throttle_ms == 12
