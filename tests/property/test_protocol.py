"""Properties of frames and messages: round trip, and garbage gives the documented errors only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import (
    FrameTooLargeError,
    InvalidRequestError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from sparklog.protocol import frames as f
from sparklog.protocol import messages as m
from tests.golden.make_golden import REQUESTS, RESPONSES

NAME = st.text(max_size=249)
TEXT = st.text(max_size=300)
PARTITION = st.integers(0, m.PARTITIONS_PER_TOPIC_MAX - 1)
I16 = st.integers(-(2**15), 2**15 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
SIZE = st.integers(0, 2**62)
CONFIG = st.text(max_size=20) | I64 | st.booleans() | st.floats(allow_nan=False)
CONFIGS = st.dictionaries(st.text(max_size=20), CONFIG, max_size=4)


def some(strategy: st.SearchStrategy[Any], minimum: int = 0) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, min_size=minimum, max_size=4)


STATE = st.builds(
    m.TopicState,
    I16,
    NAME,
    TEXT,
    TEXT,
    some(st.builds(m.PartitionState, PARTITION, I32, I32, some(I32), some(I32), I16, I64, I64, I64)),
    some(st.builds(m.SchemaVersion, I32, st.binary(max_size=40))),
    some(TEXT),
    st.none() | TEXT,
    CONFIGS,
    I64,
    CONFIGS,
)
REQUEST: dict[m.Api, st.SearchStrategy[m.Message]] = {
    m.Api.HANDSHAKE: st.builds(m.HandshakeRequest, TEXT, TEXT),
    m.Api.METADATA: st.builds(m.MetadataRequest, st.none() | some(NAME)),
    m.Api.CREATE_TOPIC: st.builds(
        m.CreateTopicRequest,
        NAME,
        st.integers(-1, m.PARTITIONS_PER_TOPIC_MAX),
        st.none() | st.binary(max_size=50),
        some(TEXT),
        st.none() | TEXT,
        CONFIGS,
    ),
    m.Api.DELETE_TOPIC: st.builds(m.DeleteTopicRequest, NAME),
    m.Api.PRODUCE: st.builds(
        m.ProduceRequest,
        st.integers(-1, 1),
        st.integers(0, 86_400_000),
        some(st.builds(m.ProducePartition, NAME, PARTITION, st.integers(1, 2**40)), 1),
    ),
    m.Api.FETCH: st.builds(
        m.FetchRequest,
        st.integers(0, 60_000),
        SIZE,
        SIZE,
        st.integers(0, 1),
        some(st.builds(m.FetchPartition, NAME, PARTITION, I64, SIZE, I32), 1),
    ),
    m.Api.LIST_OFFSETS: st.builds(
        m.ListOffsetsRequest, some(st.builds(m.ListOffsetsPartition, NAME, PARTITION, st.integers(-5, 2**62)), 1)
    ),
    m.Api.LOCATE_SEGMENTS: st.builds(m.LocateSegmentsRequest, NAME, PARTITION, I64, I64),
    m.Api.LOCATE_REMOTE: st.builds(m.LocateRemoteRequest, NAME, PARTITION, I64, I64),
    m.Api.DELETE_RECORDS: st.builds(
        m.DeleteRecordsRequest,
        st.integers(0, 86_400_000),
        some(st.builds(m.DeleteRecordsPartition, NAME, PARTITION, st.integers(-1, 2**63 - 1)), 1),
    ),
    m.Api.ALTER_TOPIC: st.builds(m.AlterTopicRequest, NAME, CONFIGS),
    m.Api.DELETE_RECORDS: st.builds(
        m.DeleteRecordsRequest,
        st.integers(0, 86_400_000),
        some(st.builds(m.DeleteRecordsPartition, NAME, PARTITION, st.integers(-1, 2**63 - 1)), 1),
    ),
    m.Api.ALTER_TOPIC: st.builds(m.AlterTopicRequest, NAME, CONFIGS),
    m.Api.ALTER_SCHEMA: st.builds(m.AlterSchemaRequest, NAME, *[st.none() | st.binary(max_size=50) for _ in range(3)]),
}
RESPONSE: dict[m.Api, st.SearchStrategy[m.Message]] = {
    m.Api.HANDSHAKE: st.builds(m.HandshakeResponse, I32, TEXT, TEXT, some(st.builds(m.ApiRange, I32, I32, I32)), SIZE),
    m.Api.METADATA: st.builds(
        m.MetadataResponse, TEXT, I32, some(st.builds(m.BrokerEndpoint, I32, TEXT, I32)), some(STATE)
    ),
    m.Api.CREATE_TOPIC: st.builds(m.CreateTopicResponse, STATE),
    m.Api.DELETE_TOPIC: st.builds(m.DeleteTopicResponse, TEXT),
    m.Api.PRODUCE: st.builds(
        m.ProduceResponse, some(st.builds(m.ProduceResult, NAME, PARTITION, I16, I64, I64, I64, TEXT, I32))
    ),
    m.Api.FETCH: st.builds(
        m.FetchResponse, some(st.builds(m.FetchResult, NAME, PARTITION, I16, I64, I64, I64, SIZE, TEXT))
    ),
    m.Api.LIST_OFFSETS: st.builds(
        m.ListOffsetsResponse, some(st.builds(m.ListOffsetsResult, NAME, PARTITION, I16, I64, I64, TEXT))
    ),
    m.Api.LOCATE_SEGMENTS: st.builds(
        m.LocateSegmentsResponse, TEXT, TEXT, I64, I64, some(st.builds(m.SegmentRange, TEXT, I32, I64, SIZE, SIZE))
    ),
    m.Api.DELETE_RECORDS: st.builds(
        m.DeleteRecordsResponse, some(st.builds(m.DeleteRecordsResult, NAME, PARTITION, I16, I64, TEXT))
    ),
    m.Api.ALTER_TOPIC: st.builds(m.AlterTopicResponse, STATE),
    m.Api.DELETE_RECORDS: st.builds(
        m.DeleteRecordsResponse, some(st.builds(m.DeleteRecordsResult, NAME, PARTITION, I16, I64, TEXT))
    ),
    m.Api.ALTER_TOPIC: st.builds(m.AlterTopicResponse, STATE),
    m.Api.ALTER_SCHEMA: st.builds(m.AlterSchemaResponse, STATE),
    m.Api.LOCATE_REMOTE: st.builds(m.LocateRemoteResponse, TEXT, I64, some(st.binary(max_size=50))),
}


@pytest.mark.parametrize("api", m.Api)
def test_request_round_trip(api: m.Api) -> None:
    @given(REQUEST[api], st.integers(0, 2**32 - 1), st.integers(0, 2**20))
    def check(message: m.Message, correlation_id: int, payload_bytes: int) -> None:
        header = m.encode(message)
        data = f.encode_request(api, 0, correlation_id, header, payload_bytes)
        prefix = f.decode_request_prefix(data, 1 << 30)
        assert prefix == (api, 0, correlation_id, len(header), len(header) + payload_bytes)
        assert m.decode_request(prefix.api, prefix.version, memoryview(data)[f.PREFIX_BYTES :]) == message

    check()


@pytest.mark.parametrize("api", m.Api)
def test_response_round_trip(api: m.Api) -> None:
    @given(RESPONSE[api], I16, st.integers(0, 2**32 - 1))
    def check(message: m.Message, code: int, correlation_id: int) -> None:
        header = m.encode(message)
        data = f.encode_response(api, code, correlation_id, header, 7)
        prefix = f.decode_response_prefix(data, 1 << 30)
        assert prefix == (api, code, correlation_id, len(header), len(header) + 7)
        assert m.decode_response(api, data[f.PREFIX_BYTES :], type(message)) == message

    check()


@given(st.binary(max_size=40), st.integers(0, 2**32))
def test_a_prefix_of_random_bytes(data: bytes, limit: int) -> None:
    for decode in (f.decode_request_prefix, f.decode_response_prefix):
        try:
            prefix = decode(data, limit)
        except (FrameTooLargeError, InvalidRequestError):
            continue
        assert 0 <= prefix.header_bytes <= prefix.body_bytes <= limit - 12
        assert prefix.header_bytes <= f.HEADER_BYTES_MAX


@given(st.integers(-2, 10), st.integers(-1, 2), st.binary(max_size=200))
def test_a_request_of_random_bytes(api: int, version: int, data: bytes) -> None:
    try:
        message = m.decode_request(api, version, data)
    except (InvalidRequestError, UnsupportedApiError, UnsupportedVersionError) as e:
        assert str(e)
    else:
        assert type(message) is m.APIS[m.Api(api)].request


@given(st.sampled_from(list(m.Api)), st.data())
def test_a_damaged_message(api: m.Api, data: st.DataObject) -> None:
    for message in (REQUESTS[api], RESPONSES[api]):
        header = bytearray(m.encode(message))
        at = data.draw(st.integers(0, len(header) - 1))
        new = data.draw(st.binary(min_size=1, max_size=6))
        header[at : at + len(new)] = new
        cut = bytes(header[: data.draw(st.integers(0, len(header)))])
        for damaged in (bytes(header), cut):
            try:
                if message is REQUESTS[api]:
                    found = m.decode_request(api, 0, damaged)
                else:
                    found = m.decode_response(api, damaged, type(message))
            except InvalidRequestError as e:
                assert api.name in str(e)
            else:
                assert type(found) is type(message)


@given(st.binary(max_size=100))
def test_an_error_text_of_random_bytes(data: bytes) -> None:
    assert isinstance(m.decode_error(data), str)
