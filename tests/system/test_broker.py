"""The broker as a process: its answers, and its survival of any peer's behaviour."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.errors import (
    ERRORS,
    CorruptBatchError,
    FencedLeaderEpochError,
    FrameTooLargeError,
    InvalidRequestError,
    LocalReadUnavailableError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from sparklog.format.batch import decode_batch, iterate_batches
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.protocol.apis import Api
from sparklog.protocol.codec import decode_error_body, encode
from sparklog.protocol.frames import PREFIX_BYTES, decode_response_prefix, encode_request
from sparklog.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LocateSegmentsRequest,
    LocateSegmentsResponse,
    ProducePartition,
    ProduceRequest,
)
from sparklog.protocol.topic_messages import (
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    MetadataRequest,
    MetadataResponse,
)
from tests.support.raw_client import RawClient, envelope_batch
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess, create_topic, end_offset, fetch, handshake, produce, readable

MIB = 1024 * 1024
READ_TIMEOUT_S = 0.2
MAX_CONNECTIONS = 20
_names = iter(range(1_000_000))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    work = tmp_path_factory.mktemp("broker")
    started = BrokerProcess(
        work / "data",
        settings=f"request.read.timeout.ms = {int(READ_TIMEOUT_S * 1000)}\nmax.connections = {MAX_CONNECTIONS}\n"
        "[topic]\nmax.message.bytes = 200_000",
        work_dir=work,
    )
    assert started.first_line.startswith("listening on 127.0.0.1:"), started.stderr
    yield started
    stderr = started.stderr
    assert started.stop() == 0
    assert "Traceback" not in stderr


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with broker.connect() as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient) -> str:
    name = f"t{next(_names)}"
    create_topic(client, name, 2)
    return name


# -- what it answers


def test_handshake(client: RawClient, broker: BrokerProcess) -> None:
    answer = handshake(client)
    assert sorted(a.api for a in answer.apis) == sorted(int(a) for a in Api)
    assert answer.request_bytes_max == 100 * MIB
    assert answer.cluster_id


def test_produce_and_fetch_give_the_same_rows(client: RawClient, topic: str) -> None:
    batch = envelope_batch(10, 50)
    results = produce(client, [(topic, 0, batch), (topic, 1, batch * 3), (topic, 0, batch)])
    assert [(r.error_code, r.base_offset, r.log_start_offset) for r in results] == [(0, 0, 0), (0, 0, 0), (0, 10, 0)]
    assert all(r.append_time_ms > 0 for r in results)
    result, data = fetch(client, topic, 0, partition=1)
    assert (result.high_watermark, result.last_stable_offset, result.log_start_offset) == (30, 30, 0)
    headers = list(iterate_batches(data))
    assert [h.base_offset for _, h in headers] == [0, 10, 20]
    sent = decode_batch(batch, ENVELOPE_SCHEMA)
    for position, header in headers:
        assert decode_batch(data[position : position + header.size_bytes], ENVELOPE_SCHEMA).equals(sent)


def test_each_partition_of_a_request_has_its_own_outcome(client: RawClient, topic: str) -> None:
    good, wrong = envelope_batch(5, 50), bytearray(envelope_batch(5, 50))
    wrong[-1] ^= 1
    results = produce(
        client,
        [
            (topic, 0, good),
            ("no-such", 0, good),
            (topic, 2, good),
            (topic, 1, bytes(wrong)),
            (topic, 1, envelope_batch(1000, 300)),
            (topic, 1, good),
        ],
    )
    assert [ERRORS[r.error_code] if r.error_code else None for r in results] == [
        None,
        UnknownTopicOrPartitionError,
        UnknownTopicOrPartitionError,
        CorruptBatchError,
        MessageTooLargeError,
        None,
    ]
    assert "partitions 0 to 1" in results[2].message
    assert (end_offset(client, topic, 0), end_offset(client, topic, 1)) == (5, 5)


def test_acks_0_is_not_answered_and_an_error_closes(broker: BrokerProcess, topic: str) -> None:
    batch = envelope_batch(5, 50)
    with broker.connect() as client:
        for _ in range(3):
            client.send(Api.PRODUCE, ProduceRequest(0, 1000, [ProducePartition(topic, 0, len(batch))]), batch)
        assert handshake(client).apis, "the next answer is the next request's"
        until(lambda: end_offset(client, topic) == 15, "three appends")
        client.send(Api.PRODUCE, ProduceRequest(0, 1000, [ProducePartition("no-such", 0, len(batch))]), batch)
        with pytest.raises(EOFError):
            client.receive(Api.HANDSHAKE, CreateTopicResponse)


def test_fetch_limits_give_whole_batches_and_at_least_one(client: RawClient, topic: str) -> None:
    batch = envelope_batch(100, 100)
    for partition in (0, 1):
        produce(client, [(topic, partition, batch * 4)])
    assert len(fetch(client, topic, 0, max_bytes=1)[1]) == len(batch), "nobody may be stuck at a large batch"
    assert len(fetch(client, topic, 150, max_bytes=2 * len(batch) + 1)[1]) == 2 * len(batch)

    def lengths(max_bytes: int, *partition_max_bytes: int) -> list[int]:
        wanted = [FetchPartition(topic, p, 0, m) for p, m in enumerate(partition_max_bytes)]
        client.send(Api.FETCH, FetchRequest(0, 1, max_bytes, 0, wanted))
        response, payload = client.receive(Api.FETCH, FetchResponse)
        assert sum(r.length_bytes for r in response.results) == len(payload)
        return [r.length_bytes // len(batch) for r in response.results]

    assert lengths(MIB, 10, 10) == [1, 0], "only the first non-empty partition may exceed its limit"
    assert lengths(MIB, 3 * len(batch), MIB) == [3, 4]
    assert lengths(5 * len(batch), MIB, MIB) == [4, 1]
    assert lengths(0, MIB, MIB) == [0, 0]


def test_leader_epochs(client: RawClient, topic: str) -> None:
    wanted = [FetchPartition(topic, 0, 0, MIB, epoch) for epoch in (-1, 0, 1, -2)]
    client.send(Api.FETCH, FetchRequest(0, 1, MIB, 0, wanted))
    codes = [r.error_code for r in client.receive(Api.FETCH, FetchResponse)[0].results]
    assert codes == [0, 0, UnknownLeaderEpochError.code, FencedLeaderEpochError.code]


@pytest.mark.parametrize("max_bytes", [0, MIB])
def test_a_fetch_waits_for_data(broker: BrokerProcess, client: RawClient, topic: str, max_bytes: int) -> None:
    with broker.connect() as waiting:
        wanted = [FetchPartition(topic, p, 0, MIB) for p in (0, 1)]
        waiting.send(Api.FETCH, FetchRequest(60_000, 1, max_bytes, 0, wanted))
        assert not readable(waiting.sock, 0.1), "there is nothing yet"
        produce(client, [(topic, 1, envelope_batch(3, 3))])
        response, payload = waiting.receive(Api.FETCH, FetchResponse)
        assert [r.high_watermark for r in response.results] == [0, 3]
        assert bool(len(payload)) == bool(max_bytes)


def test_a_fetch_waits_for_min_bytes_of_all_partitions_together(
    broker: BrokerProcess, client: RawClient, topic: str
) -> None:
    batch = envelope_batch(20, 100)
    with broker.connect() as waiting:
        wanted = [FetchPartition(topic, p, 0, MIB) for p in (0, 1)]
        waiting.send(Api.FETCH, FetchRequest(60_000, 2 * len(batch), MIB, 0, wanted))
        produce(client, [(topic, 0, batch)])
        assert not readable(waiting.sock, 0.1), "one batch is not enough"
        produce(client, [(topic, 1, batch)])
        _, payload = waiting.receive(Api.FETCH, FetchResponse)
        assert len(payload) == 2 * len(batch)


def test_a_fetch_is_answered_after_its_time(client: RawClient, topic: str) -> None:
    produce(client, [(topic, 0, envelope_batch(1, 1))])
    client.send(Api.FETCH, FetchRequest(50, MIB, MIB, 0, [FetchPartition(topic, 0, 0, MIB)]))
    response, payload = client.receive(Api.FETCH, FetchResponse)
    assert response.results[0].error_code == 0
    assert len(payload), "what there is, is given"


def test_deleting_a_topic_ends_its_waiting_fetches(broker: BrokerProcess, client: RawClient, topic: str) -> None:
    produce(client, [(topic, 0, envelope_batch(3, 3))])
    with broker.connect() as waiting:
        waiting.send(Api.FETCH, FetchRequest(60_000, 1, MIB, 0, [FetchPartition(topic, 0, 3, MIB)]))
        assert not readable(waiting.sock, 0.1)
        client.request(Api.DELETE_TOPIC, DeleteTopicRequest(topic), DeleteTopicResponse)
        result = waiting.receive(Api.FETCH, FetchResponse)[0].results[0]
        assert result.error_code == UnknownTopicOrPartitionError.code
    assert ERRORS[produce(client, [(topic, 0, envelope_batch(1, 1))])[0].error_code] is UnknownTopicOrPartitionError
    create_topic(client, topic, 1)
    assert end_offset(client, topic) == 0, "a new topic of that name is empty"
    until(lambda: not list(broker.data_dir.glob("*-delete")), "the files are unlinked")


def test_metadata(client: RawClient, broker: BrokerProcess) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("name", pa.large_string())])
    name = f"t{next(_names)}"
    request = CreateTopicRequest(name, -1, schema.serialize().to_pybytes(), ["id"], "at", {"segment.bytes": 8192})
    created = client.request(Api.CREATE_TOPIC, request, CreateTopicResponse).topic
    answer = client.request(Api.METADATA, MetadataRequest([name, "no-such"]), MetadataResponse)
    assert (answer.brokers[0].host, answer.brokers[0].port) == (broker.host, broker.port)
    found, missing = answer.topics
    assert found == created
    assert (found.kind, len(found.partitions), found.key_columns, found.timestamp_column) == ("typed", 1, ["id"], "at")
    assert found.configs == {"segment.bytes": 8192, "kafka.key.format": "json"}
    stored = pa.ipc.read_schema(pa.py_buffer(found.schemas[-1].arrow_schema))
    assert stored.field("name").type == pa.string()
    assert missing.error_code == UnknownTopicOrPartitionError.code
    everything = client.request(Api.METADATA, MetadataRequest(None), MetadataResponse)
    assert name in [t.name for t in everything.topics]


def test_located_files_hold_the_fetched_records(client: RawClient, topic: str, broker: BrokerProcess) -> None:
    produce(client, [(topic, 0, envelope_batch(4, 3) * 3)])
    answer = client.request(Api.LOCATE_SEGMENTS, LocateSegmentsRequest(topic, 0, 4, 1000), LocateSegmentsResponse)
    assert (answer.data_dir, answer.high_watermark) == (str(broker.data_dir), 12)
    assert answer.data_dir_id in (broker.data_dir / "meta.json").read_text()
    (located,) = answer.ranges
    data = Path(located.path).read_bytes()[located.start_position : located.end_position]
    assert data == fetch(client, topic, 4)[1]
    with pytest.raises(OffsetOutOfRangeError):
        client.request(Api.LOCATE_SEGMENTS, LocateSegmentsRequest(topic, 0, 13, 20), LocateSegmentsResponse)


def test_files_are_not_offered_when_switched_off(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings="local.read.enabled = false", work_dir=tmp_path)
    with broker.connect() as client:
        create_topic(client, "t")
        with pytest.raises(LocalReadUnavailableError):
            client.request(Api.LOCATE_SEGMENTS, LocateSegmentsRequest("t", 0, 0, 0), LocateSegmentsResponse)
    assert broker.stop() == 0


# -- bad peers


def ends_with_error(sock: socket.socket) -> type[Exception] | None:
    """The error the broker answers with (None: none) before it closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := sock.recv(65_536):
            data += chunk
    return ERRORS[decode_response_prefix(data, 1 << 31).error_code] if data else None


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (encode_request(99, 0, 1, b""), UnsupportedApiError),
        (encode_request(Api.FETCH, 9, 1, b""), UnsupportedVersionError),
        (encode_request(Api.FETCH, 0, 1, b"\xc1"), InvalidRequestError),
        (encode_request(Api.FETCH, 0, 1, b"\x90"), InvalidRequestError),
        (encode_request(Api.PRODUCE, 0, 1, encode(ProduceRequest(1, 1, [ProducePartition("t", 0, 5)]))), InvalidRequestError),
        (struct.pack("<IHHII", 101 * MIB, 1, 0, 0, 0), FrameTooLargeError),
        (struct.pack("<IHHII", 12, 0, 0, 0, 1), InvalidRequestError),
    ],
)  # fmt: skip
def test_requests_that_break_the_protocol(
    broker: BrokerProcess, client: RawClient, data: bytes, error: type[Exception]
) -> None:
    with broker.socket() as sock:
        sock.sendall(data)
        assert ends_with_error(sock) is error
    assert handshake(client).apis


def test_a_handshake_in_a_newer_version_is_answered_with_the_versions(broker: BrokerProcess) -> None:
    with broker.connect() as raw:
        raw.sock.sendall(encode_request(Api.HANDSHAKE, 7, 1, b"\x90"))
        prefix = decode_response_prefix(raw._read(PREFIX_BYTES), 1 << 20)
        body = decode_error_body(bytes(raw._read(prefix.body_bytes)))
        assert prefix.error_code == UnsupportedVersionError.code
        assert (body.version_min, body.version_max) == (0, 0)
        assert handshake(raw).apis, "it may be tried again in another version"
