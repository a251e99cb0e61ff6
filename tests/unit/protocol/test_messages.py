"""Messages: evolution, limits, garbage."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sparklog.errors import InvalidRequestError, UnsupportedApiError, UnsupportedVersionError
from sparklog.protocol import base
from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as topics
from sparklog.protocol.base import PARTITIONS_PER_REQUEST_MAX, Message
from sparklog.protocol.permissions import PERMISSIONS
from sparklog.security.acls import Operation
from tests.golden.make_golden import REQUESTS, RESPONSES
from tests.support.cases import for_each

pack = msgspec.msgpack.encode


def fields(message: Message) -> list[Any]:
    return list(msgspec.msgpack.decode(m.encode(message)))


def test_every_api_has_messages_and_versions() -> None:
    assert set(m.APIS) == set(m.Api)
    assert {a: int(a) for a in m.Api} == {
        m.Api.HANDSHAKE: 0,
        m.Api.METADATA: 1,
        m.Api.CREATE_TOPIC: 2,
        m.Api.DELETE_TOPIC: 3,
        m.Api.PRODUCE: 4,
        m.Api.FETCH: 5,
        m.Api.LIST_OFFSETS: 6,
        m.Api.LOCATE_SEGMENTS: 7,
        m.Api.DELETE_RECORDS: 8,
        m.Api.ALTER_TOPIC: 9,
        m.Api.ALTER_SCHEMA: 10,
        m.Api.INIT_PRODUCER_ID: 11,
        m.Api.END_TXN: 12,
        m.Api.TXN_OFFSET_COMMIT: 13,
        m.Api.JOIN_SHARED_TXN: 14,
        m.Api.END_SHARED_TXN: 15,
        m.Api.LIST_TRANSACTIONS: 16,
        m.Api.DESCRIBE_TRANSACTIONS: 17,
        m.Api.ABORT_TRANSACTION: 18,
        m.Api.DESCRIBE_PRODUCERS: 19,
        m.Api.GROUP_HEARTBEAT: 20,
        m.Api.OFFSET_COMMIT: 21,
        m.Api.OFFSET_FETCH: 22,
        m.Api.LIST_GROUPS: 23,
        m.Api.DESCRIBE_GROUPS: 24,
        m.Api.DELETE_GROUP: 25,
        m.Api.FIND_COORDINATOR: 26,
        m.Api.RENEW_SHARED_TXN: 30,
        m.Api.SNAPSHOT_OFFSETS: 31,
        m.Api.CREATE_PARTITIONS: 32,
        m.Api.LOCATE_REMOTE: 40,
        m.Api.REPLICA_FETCH: 50,
        m.Api.METADATA_FETCH: 51,
        m.Api.ALTER_PARTITION: 52,
        m.Api.CONTROLLED_SHUTDOWN: 53,
        m.Api.WRITE_TXN_MARKERS: 54,
        m.Api.ADD_PARTITIONS_TO_TXN: 55,
        m.Api.FIND_TXN_OWNERS: 56,
        m.Api.SASL_HANDSHAKE: 60,
        m.Api.SASL_AUTHENTICATE: 61,
        m.Api.ALTER_USER_SCRAM_CREDENTIALS: 62,
        m.Api.DESCRIBE_USER_SCRAM_CREDENTIALS: 63,
        m.Api.OFFSETS_FOR_LEADER_EPOCH: 85,
        m.Api.HOLD_TRANSACTIONS: 86,
        m.Api.LIST_COMMITS: 87,
        m.Api.ALTER_PARTITION_REASSIGNMENTS: 70,
        m.Api.LIST_PARTITION_REASSIGNMENTS: 71,
        m.Api.ELECT_LEADERS: 72,
        m.Api.CORDON_BROKER: 73,
        m.Api.ALTER_BROKER_CONFIGS: 33,
        m.Api.DESCRIBE_BROKER_CONFIGS: 34,
        m.Api.DESCRIBE_CLUSTER: 74,
        m.Api.DESCRIBE_LOG_DIRS: 75,
        m.Api.DIRECTORY_FAILED: 80,
        m.Api.ALTER_SECURITY_RECORDS: 65,
        m.Api.FORWARD: 88,
        m.Api.CREATE_ACLS: 66,
        m.Api.DELETE_ACLS: 67,
        m.Api.DESCRIBE_ACLS: 68,
        m.Api.DESCRIBE_CLIENT_QUOTAS: 69,
        m.Api.ALTER_CLIENT_QUOTAS: 90,
        m.Api.REPORT_LAKE: 110,
        m.Api.DESCRIBE_LAKES: 111,
    }
    for spec in m.APIS.values():
        assert 0 <= spec.version_min <= spec.version_max
        assert spec.request.__doc__
        assert spec.response.__doc__


FIRST_ON_A_CONNECTION = {m.Api.HANDSHAKE, m.Api.SASL_HANDSHAKE, m.Api.SASL_AUTHENTICATE}


@for_each("api", m.Api)
def test_every_answer_that_clients_get_can_say_that_its_connection_is_muted(api: m.Api) -> None:
    """Those that only brokers get have no quota."""
    rules = PERMISSIONS[api]
    among_brokers = bool(rules) and all(r.operation is Operation.CLUSTER_ACTION for r in rules)
    says_it = "throttle_ms" in m.APIS[api].response.__struct_fields__
    assert says_it == (not among_brokers and api not in FIRST_ON_A_CONNECTION)


@for_each("api", m.Api)
def test_trailing_unknown_fields_are_ignored(api: m.Api) -> None:
    for more in ([1], ["x", [2, {"a": None}]], [{}] * 50):  # type: ignore[var-annotated]
        assert m.decode_request(api, m.APIS[api].version_max, pack(fields(REQUESTS[api]) + more)) == REQUESTS[api]
        response = RESPONSES[api]
        assert m.decode_response(api, pack(fields(response) + more), type(response)) == response


@for_each("api", m.Api)
def test_missing_fields_are_defaulted_or_refused(api: m.Api) -> None:
    for message in (REQUESTS[api], RESPONSES[api]):
        names = message.__struct_fields__
        required = len(names) - len(message.__struct_defaults__)
        for count in range(len(names)):
            header = pack(fields(message)[:count])

            def decode(header: bytes = header, message: Message = message) -> Message:
                if message is REQUESTS[api]:
                    return m.decode_request(api, m.APIS[api].version_max, header)
                return m.decode_response(api, header, type(message))

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


@for_each("api", [-1, max(m.Api) + 1, 99, 65_535])
def test_unknown_api(api: int) -> None:
    with pytest.raises(UnsupportedApiError, match=str(api)):
        m.decode_request(api, 0, b"")


@for_each("version", [-1, 3, 65_535])
def test_unknown_version(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"FETCH version {version}: this broker speaks 0 to 2"):
        m.decode_request(m.Api.FETCH, version, m.encode(REQUESTS[m.Api.FETCH]))


P = ["t", 0, 5]
FETCH = ["t", 0, 0, 0, -1]

OUT_OF_LIMITS: list[tuple[m.Api, list[Any]]] = [
    (m.Api.METADATA, [["x" * 250]]),
    (m.Api.METADATA, [["x"] * (base.TOPICS_PER_REQUEST_MAX + 1)]),
    (m.Api.CREATE_TOPIC, ["x" * 250]),
    (m.Api.CREATE_TOPIC, ["x", -2]),
    (m.Api.CREATE_TOPIC, ["x", base.PARTITIONS_PER_TOPIC_MAX + 1]),
    (m.Api.CREATE_TOPIC, ["x", 1, "text is no schema"]),
    (m.Api.CREATE_TOPIC, ["x", 1, None, ["k"] * 101]),
    (m.Api.CREATE_TOPIC, ["x", 1, None, [], None, {str(i): 1 for i in range(base.CONFIGS_MAX + 1)}]),
    (m.Api.CREATE_TOPIC, ["x", 1, None, [], None, {1: 1}]),
    (m.Api.DELETE_TOPIC, [None]),
    (m.Api.HANDSHAKE, ["x" * 65_537]),
    (m.Api.PRODUCE, [2, 0, [P]]),
    (m.Api.PRODUCE, [-2, 0, [P]]),
    (m.Api.PRODUCE, [1, -1, [P]]),
    (m.Api.PRODUCE, [1, 86_400_001, [P]]),
    (m.Api.PRODUCE, [1, 0, []]),
    (m.Api.PRODUCE, [1, 0, [P] * (PARTITIONS_PER_REQUEST_MAX + 1)]),
    (m.Api.PRODUCE, [1, 0, [["t", -1, 5]]]),
    (m.Api.PRODUCE, [1, 0, [["t", base.PARTITIONS_PER_TOPIC_MAX, 5]]]),
    (m.Api.PRODUCE, [1, 0, [["t", 0, 0]]]),
    (m.Api.PRODUCE, [1, 0, [["t", 0, 1.5]]]),
    (m.Api.PRODUCE, [True, 0, [P]]),
    (m.Api.FETCH, [60_001, 0, 0, 0, [FETCH]]),
    (m.Api.FETCH, [0, -1, 0, 0, [FETCH]]),
    (m.Api.FETCH, [0, 0, -1, 0, [FETCH]]),
    (m.Api.FETCH, [0, 0, 0, 2, [FETCH]]),
    (m.Api.FETCH, [0, 0, 0, 0, []]),
    (m.Api.FETCH, [0, 0, 0, 0, [["t", 0, 2**63, 0]]]),
    (m.Api.FETCH, [0, 0, 0, 0, [["t", 0, 0, -1]]]),
    (m.Api.FETCH, [0, 0, 0, 0, [["t", 0, 0, 0, 2**31]]]),
    (m.Api.LIST_OFFSETS, [[]]),
    (m.Api.LIST_OFFSETS, [[["t", 0, -6]]]),
    (m.Api.LIST_OFFSETS, [[["t", 0, 2**62 + 1]]]),
    (m.Api.LOCATE_SEGMENTS, ["t", 0, "0", 1]),
    (m.Api.LOCATE_SEGMENTS, ["t", 0, 0, 2**63]),
]


@pytest.mark.parametrize(("api", "values"), OUT_OF_LIMITS, ids=lambda v: str(v)[:50])
def test_limits(api: m.Api, values: list[Any]) -> None:
    with pytest.raises(InvalidRequestError, match=f"{api.name} request cannot be read"):
        m.decode_request(api, m.APIS[api].version_max, pack(values))


def test_values_at_the_limits_are_taken() -> None:
    for api, values in (
        (m.Api.METADATA, [["x" * 249] * base.TOPICS_PER_REQUEST_MAX]),
        (m.Api.METADATA, [None]),
        (m.Api.METADATA, []),
        (m.Api.CREATE_TOPIC, ["x", base.PARTITIONS_PER_TOPIC_MAX]),
        (m.Api.PRODUCE, [-1, 86_400_000, [P] * 1000]),
        (
            m.Api.FETCH,
            [60_000, 2**62, 2**62, 1, [["t", base.PARTITIONS_PER_TOPIC_MAX - 1, 2**63 - 1, 2**62, 2**31 - 1, True]]],
        ),
        (m.Api.LIST_OFFSETS, [[["t", 0, -3, -1], ["t", 0, 2**62, 2**31 - 1]]]),
    ):
        assert (
            fields(m.decode_request(api, m.APIS[api].version_max, pack(values)))[: len(values)] == values
            or values == []
        )


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


@for_each("api", m.Api)
@for_each("garbage", GARBAGE, ids=lambda g: g[:12].hex())
def test_garbage(api: m.Api, garbage: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        m.decode_request(api, m.APIS[api].version_max, garbage)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        m.decode_response(api, garbage, m.APIS[api].response)
    assert m.decode_error(garbage) == "the error's text cannot be read"


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
    assert m.decode_request(m.Api.CREATE_TOPIC, 0, front + b"\x80") == topics.CreateTopicRequest("x", 1)
    with pytest.raises(InvalidRequestError, match="CREATE_TOPIC request cannot be read"):
        m.decode_request(m.Api.CREATE_TOPIC, 0, front + configs)


def test_a_response_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="DELETE_TOPIC is answered with DeleteTopicResponse, not Fetch"):
        m.decode_response(m.Api.DELETE_TOPIC, m.encode(topics.DeleteTopicResponse("id")), m.FetchResponse)


def test_error_text() -> None:
    for text in ("why", "", "ä" * 100_000):
        assert m.decode_error(m.encode(m.ErrorBody(text))) == text
    assert m.decode_error(memoryview(b"\x90")) == ""
