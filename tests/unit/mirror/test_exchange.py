"""The client's side of Kafka's protocol: versions, and responses that lie."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from sparklog.errors import InvalidRequestError, UnsupportedVersionError
from sparklog.kafka.wire.codec import encoder
from sparklog.kafka.wire.exchange import KafkaExchange
from sparklog.kafka.wire.schema import RESPONSE
from tests.support.cases import for_each


def answer(number: int, name: str, version: int, body: dict[str, Any], head: bytes = b"") -> memoryview:
    return memoryview(struct.pack(">i", number) + head + b"".join(encoder(RESPONSE, name, version)(body)))


def negotiated(*ranges: tuple[int, int, int], elements_max: int = 20_000) -> KafkaExchange:
    exchange = KafkaExchange("the source", "mirror", elements_max)
    exchange.encode("ApiVersions", {})
    keys = [{"api_key": key, "min_version": first, "max_version": last} for key, first, last in ranges]
    exchange.decode(answer(1, "ApiVersions", 0, {"error_code": 0, "api_keys": keys}))
    return exchange


def test_the_newest_common_version_is_used() -> None:
    exchange = negotiated((1, 4, 17), (16, 0, 2), (9, 20, 30))
    assert exchange.has("Fetch", 12) and not exchange.has("Fetch", 13)
    assert exchange.has("ListGroups", 2) and not exchange.has("ListGroups", 3)
    for name in ("OffsetFetch", "Metadata"):
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 2\.8 or newer"):
            exchange.encode(name, {})


def test_a_response_is_decoded_in_the_version_of_its_request() -> None:
    exchange = negotiated((16, 0, 5))
    frame = exchange.encode("ListGroups", {"states_filter": [], "types_filter": []})
    assert struct.unpack_from(">ihh", frame) == (len(frame) - 4, 16, 5)
    body = exchange.decode(answer(2, "ListGroups", 5, {"error_code": 0, "groups": []}, b"\0"))
    assert body["groups"] == []


@for_each("size", [-1, 0, 3, 101])
def test_sizes_are_bounded_before_memory_is_taken(size: int) -> None:
    exchange = negotiated((16, 0, 2))
    exchange.encode("ListGroups", {})
    with pytest.raises(InvalidRequestError, match="at most 100"):
        exchange.response_bytes(struct.pack(">i", size), 100)


@for_each(
    "data",
    [
        answer(9, "ListGroups", 2, {"error_code": 0, "groups": []}),
        memoryview(struct.pack(">i", 2) + b"\0\0"),
        memoryview(struct.pack(">iihi", 2, 0, 0, 2**31 - 1)),
        answer(2, "ListGroups", 2, {"error_code": 0, "groups": [{"group_id": "g", "protocol_type": ""}] * 11}),
    ],
    ids=["another request's", "cut off", "an endless list", "too many elements"],
)
def test_a_response_that_lies_is_an_error(data: memoryview) -> None:
    exchange = negotiated((16, 0, 2), elements_max=10)
    exchange.encode("ListGroups", {})
    with pytest.raises(InvalidRequestError):
        exchange.decode(data)


def test_a_response_without_a_request_is_an_error() -> None:
    with pytest.raises(InvalidRequestError, match="without a request"):
        KafkaExchange("the source", "mirror").decode(memoryview(b"\0\0\0\0"))
