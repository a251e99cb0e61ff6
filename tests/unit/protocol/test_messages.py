"""Messages: evolution, limits, garbage."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sparklog.errors import InvalidRequestError, UnsupportedApiError, UnsupportedVersionError
from sparklog.protocol import base
from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as topics
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import PARTITIONS_PER_REQUEST_MAX, Message
from sparklog.protocol.codec import decode_error, decode_request, decode_response, encode
from tests.golden.make_golden import REQUESTS, RESPONSES
from tests.support.cases import for_each

pack = msgspec.msgpack.encode


def fields(message: Message) -> list[Any]:
    """All fields of a message; `encode` leaves out the empty ones at the end of a handshake."""
    encoded = list(msgspec.msgpack.decode(encode(message)))
    return encoded + [getattr(message, name) for name in message.__struct_fields__[len(encoded) :]]


def test_every_api_has_messages_and_versions() -> None:
    assert set(APIS) == set(Api)
    for spec in APIS.values():
        assert 0 <= spec.version_min <= spec.version_max
        assert spec.request.__doc__
        assert spec.response.__doc__


FIRST_ON_A_CONNECTION = {Api.HANDSHAKE, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}


@for_each("api", Api)
def test_every_answer_that_clients_get_can_say_that_its_connection_is_muted(api: Api) -> None:
    """Those that only brokers get have no quota."""
    says_it = "throttle_ms" in APIS[api].response.__struct_fields__
    assert says_it == (not APIS[api].is_among_brokers and api not in FIRST_ON_A_CONNECTION)


@for_each("api", Api)
def test_trailing_unknown_fields_are_ignored(api: Api) -> None:
    for more in ([1], ["x", [2, {"a": None}]], [{}] * 50):  # type: ignore[var-annotated]
        assert decode_request(api, APIS[api].version_max, pack(fields(REQUESTS[api]) + more)) == REQUESTS[api]
        response = RESPONSES[api]
        assert decode_response(api, pack(fields(response) + more), type(response)) == response


@for_each("api", Api)
def test_missing_fields_are_defaulted_or_refused(api: Api) -> None:
    for message in (REQUESTS[api], RESPONSES[api]):
        names = message.__struct_fields__
        required = len(names) - len(message.__struct_defaults__)
        for count in range(len(names)):
            header = pack(fields(message)[:count])

            def decode(header: bytes = header, message: Message = message) -> Message:
                if message is REQUESTS[api]:
                    return decode_request(api, APIS[api].version_max, header)
                return decode_response(api, header, type(message))

            if count < required:
                with pytest.raises(InvalidRequestError, match=f"{api.name} .*cannot be read"):
                    decode()
            else:
                found = decode()
                for name in names[:count]:
                    assert getattr(found, name) == getattr(message, name)
                defaults = type(message)(*[getattr(message, n) for n in names[:required]])
                for name in names[count:]:
                    assert getattr(found, name) == getattr(defaults, name)


def test_defaults_are_not_shared() -> None:
    one, two = topics.TopicState(0, "a"), topics.TopicState(0, "b")
    one.partitions.append(topics.PartitionState(0, 0, 0, [], []))
    one.configs["x"] = 1
    assert (two.partitions, two.configs) == ([], {})


@for_each("api", [-1, max(Api) + 1, 99, 65_535])
def test_unknown_api(api: int) -> None:
    with pytest.raises(UnsupportedApiError, match=str(api)):
        decode_request(api, 0, b"")


@for_each("version", [-1, 1, 65_535])
def test_unknown_version(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"FETCH version {version}: this broker speaks 0 to 0"):
        decode_request(Api.FETCH, version, encode(REQUESTS[Api.FETCH]))


P = ["t", 0, 5, -1, ""]
FETCH = ["t", 0, 0, 0, -1]

OUT_OF_LIMITS: list[tuple[Api, list[Any]]] = [
    (Api.METADATA, [["x" * 250]]),
    (Api.METADATA, [["x"] * (base.TOPICS_PER_REQUEST_MAX + 1)]),
    (Api.CREATE_TOPIC, ["x" * 250]),
    (Api.CREATE_TOPIC, ["x", -2]),
    (Api.CREATE_TOPIC, ["x", base.PARTITIONS_PER_TOPIC_MAX + 1]),
    (Api.CREATE_TOPIC, ["x", 1, "text is no schema"]),
    (Api.CREATE_TOPIC, ["x", 1, None, ["k"] * 101]),
    (Api.CREATE_TOPIC, ["x", 1, None, [], None, {str(i): 1 for i in range(base.CONFIGS_MAX + 1)}]),
    (Api.CREATE_TOPIC, ["x", 1, None, [], None, {1: 1}]),
    (Api.DELETE_TOPIC, [None]),
    (Api.HANDSHAKE, ["x" * 65_537]),
    (Api.PRODUCE, [2, 0, [P]]),
    (Api.PRODUCE, [-2, 0, [P]]),
    (Api.PRODUCE, [1, -1, [P]]),
    (Api.PRODUCE, [1, 86_400_001, [P]]),
    (Api.PRODUCE, [1, 0, []]),
    (Api.PRODUCE, [1, 0, [P] * (PARTITIONS_PER_REQUEST_MAX + 1)]),
    (Api.PRODUCE, [1, 0, [["t", -1, 5]]]),
    (Api.PRODUCE, [1, 0, [["t", base.PARTITIONS_PER_TOPIC_MAX, 5]]]),
    (Api.PRODUCE, [1, 0, [["t", 0, 0]]]),
    (Api.PRODUCE, [1, 0, [["t", 0, 1.5]]]),
    (Api.PRODUCE, [True, 0, [P]]),
    (Api.FETCH, [60_001, 0, 0, 0, [FETCH]]),
    (Api.FETCH, [0, -1, 0, 0, [FETCH]]),
    (Api.FETCH, [0, 0, -1, 0, [FETCH]]),
    (Api.FETCH, [0, 0, 0, 2, [FETCH]]),
    (Api.FETCH, [0, 0, 0, 0, []]),
    (Api.FETCH, [0, 0, 0, 0, [["t", 0, 2**63, 0]]]),
    (Api.FETCH, [0, 0, 0, 0, [["t", 0, 0, -1]]]),
    (Api.FETCH, [0, 0, 0, 0, [["t", 0, 0, 0, 2**31]]]),
    (Api.LIST_OFFSETS, [[]]),
    (Api.LIST_OFFSETS, [[["t", 0, -6]]]),
    (Api.LIST_OFFSETS, [[["t", 0, 2**62 + 1]]]),
    (Api.LOCATE_SEGMENTS, ["t", 0, "0", 1]),
    (Api.LOCATE_SEGMENTS, ["t", 0, 0, 2**63]),
]


@pytest.mark.parametrize(("api", "values"), OUT_OF_LIMITS, ids=lambda v: str(v)[:50])
def test_limits(api: Api, values: list[Any]) -> None:
    with pytest.raises(InvalidRequestError, match=f"{api.name} request cannot be read"):
        decode_request(api, APIS[api].version_max, pack(values))


def test_values_at_the_limits_are_taken() -> None:
    for api, values in (
        (Api.METADATA, [["x" * 249] * base.TOPICS_PER_REQUEST_MAX]),
        (Api.METADATA, [None]),
        (Api.METADATA, []),
        (Api.CREATE_TOPIC, ["x", base.PARTITIONS_PER_TOPIC_MAX]),
        (Api.PRODUCE, [-1, 86_400_000, [P] * 1000]),
        (
            Api.FETCH,
            [
                60_000,
                2**62,
                2**62,
                1,
                [["t", base.PARTITIONS_PER_TOPIC_MAX - 1, 2**63 - 1, 2**62, 2**31 - 1, True, "", ["c"] * 10_000]],
            ],
        ),
        (Api.LIST_OFFSETS, [[["t", 0, -3, -1], ["t", 0, 2**62, 2**31 - 1]]]),
    ):
        assert fields(decode_request(api, APIS[api].version_max, pack(values)))[: len(values)] == values or values == []


GARBAGE = [
    b"",
    b"\xc1",
    b"\x91",
    b"\xdd\xff\xff\xff\xff",  # an array that claims four billion elements
    b"\xdf\xff\xff\xff\xff",
    b"\x91\xdd\xff\xff\xff\xff",
    b"\x91\xdb\xff\xff\xff\xff",
    b"\x91\xa1\xff",  # a string that is not UTF-8
    b"\x91" * 200_000,
    b"\xc0\xc0",
    b"\x90\x90",  # more than one value
    bytes(100),
    b"\xff" * 100,
]


@for_each("api", Api)
@for_each("garbage", GARBAGE, ids=lambda g: g[:12].hex())
def test_garbage(api: Api, garbage: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        decode_request(api, APIS[api].version_max, garbage)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        decode_response(api, garbage, APIS[api].response)
    assert decode_error(garbage) == "the error's text cannot be read"


@for_each(
    "configs",
    [
        b"\x81\xa1k" + b"\x91" * 200_000,
        b"\x81\xa1k\x81\x80\x01",  # a map as a map's key
        b"\x81\xa1k\xdd\xff\xff\xff\xff",
        b"\x81\xa1\xff\x01",  # a name that is not UTF-8
        b"\x81\xa1k\xc7\x0c\xff" + b"\xff" * 12,  # a date that cannot be
    ],
    ids=lambda g: g[:12].hex(),
)
def test_garbage_among_the_configs(configs: bytes) -> None:
    front = b"\x96\xa1x\x01\xc0\x90\xc0"
    assert decode_request(Api.CREATE_TOPIC, 0, front + b"\x80") == topics.CreateTopicRequest("x", 1)
    with pytest.raises(InvalidRequestError, match="CREATE_TOPIC request cannot be read"):
        decode_request(Api.CREATE_TOPIC, 0, front + configs)


def test_a_response_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="DELETE_TOPIC is answered with DeleteTopicResponse, not Fetch"):
        decode_response(Api.DELETE_TOPIC, encode(topics.DeleteTopicResponse("id")), m.FetchResponse)


def test_error_text() -> None:
    for text in ("why", "", "ä" * 100_000):
        assert decode_error(encode(m.ErrorBody(text))) == text
    assert decode_error(memoryview(b"\x90")) == ""
