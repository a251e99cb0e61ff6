"""Peers that request very much, or do not read their answers, against a broker process with little memory and few
descriptors: it lives, stays within its budget, and answers others."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import InvalidRequestError, ResponseTooLargeError, SparklogError, TooManyConnectionsError
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import encode
from sparklog.protocol.frames import encode_request
from sparklog.protocol.group_messages import (
    CommittedOffset,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TopicPartitions,
)
from sparklog.protocol.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProducePartition,
    ProduceRequest,
)
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse
from sparklog.protocol.transaction_messages import DescribeTransactionsRequest, DescribeTransactionsResponse
from tests.support.raw_client import RawClient
from tests.support.waiting import until
from tests.system.broker_process import BrokerProcess, create_topic, handshake

MIB = 1024 * 1024
PARTITIONS = 200
WIDE_TOPICS, WIDE_COLUMNS = 27, 10_000
WIDE_SENT = 8
"""So many schemas are more than the kernel's buffers take of an answer."""
UNREAD = 500
BUDGET_BYTES = 16 * MIB
MEMORY_BYTES = 1024 * MIB
"""Of the broker, with the stacks of its threads; addresses that an allocator keeps for itself do not count."""


def wide_schema() -> pa.Schema:
    return pa.schema([(f"column_with_a_rather_long_name_{i:05d}", pa.int64()) for i in range(WIDE_COLUMNS)])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("limited")
    process = BrokerProcess(
        directory / "data",
        settings=f"queued.max.request.bytes = {BUDGET_BYTES}\n",
        work_dir=directory,
        limits={resource.RLIMIT_DATA: MEMORY_BYTES},
    )
    with contextlib.closing(process.connect()) as client:
        create_topic(client, "large", PARTITIONS)
        for number in range(WIDE_SENT):
            create_topic(client, f"wide-{number}", arrow_schema=wide_schema().serialize().to_pybytes())
    yield process
    assert process.stop() == 0
    assert "Traceback" not in process.stderr


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with contextlib.closing(broker.connect()) as connected:
        yield connected


def unread_request(broker: BrokerProcess, request: bytes) -> socket.socket:
    """A connection that sends a request and takes nothing of the answer, not even into the kernel's buffer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.connect((broker.host, broker.port))
    sock.sendall(request)
    return sock


UNKNOWN_GROUPS = DescribeGroupsRequest([f"{'g' * 240}{i}" for i in range(9_000)])
"""Twice as much is said of each; none of it is shared with other answers."""


@pytest.mark.parametrize(
    ("api", "message", "peers"), [(Api.METADATA, MetadataRequest(), UNREAD), (Api.DESCRIBE_GROUPS, UNKNOWN_GROUPS, 40)]
)
def test_unread_answers_are_bounded(
    broker: BrokerProcess, client: RawClient, api: Api, message: Message, peers: int
) -> None:
    before, cut_before = broker.rss_bytes(), broker.stderr.count("unread answers hold")
    request = encode_request(api, APIS[api].version_max, 1, encode(message))
    with contextlib.ExitStack() as stack:
        for _ in range(peers):
            # those that read slowest are cut while others still come
            with contextlib.suppress(ConnectionError):
                stack.enter_context(contextlib.closing(unread_request(broker, request)))
        assert handshake(client).broker_id == 0, "others are answered"
        until(lambda: broker.stderr.count("unread answers hold") > cut_before, "the slowest reader is cut")
        assert broker.rss_bytes() - before < BUDGET_BYTES + 64 * MIB
        (topic,) = client.request(Api.METADATA, MetadataRequest(["large"]), MetadataResponse).topics
        assert len(topic.partitions) == PARTITIONS
    until(lambda: broker.open_files() < UNREAD, "the connections are gone")


WIDE_CHARACTER = "\N{GRINNING FACE}"
"""A text with one takes four bytes of memory for each of its characters."""
UNKNOWN_IDS = DescribeTransactionsRequest([f"{i:0999}{WIDE_CHARACTER}" for i in range(4_000)])


@pytest.mark.nightly
def test_requests_with_long_names_are_not_decoded_all_at_once(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", work_dir=tmp_path)
    before, peers = process.rss_bytes(), 60
    api = Api.DESCRIBE_TRANSACTIONS
    request = encode_request(api, APIS[api].version_max, 1, encode(UNKNOWN_IDS, APIS[api].version_max))
    most = before
    with contextlib.ExitStack() as stack:
        socks = [
            stack.enter_context(contextlib.closing(socket.create_connection((process.host, process.port))))
            for _ in range(peers)
        ]
        threads = [threading.Thread(target=sock.sendall, args=(request,)) for sock in socks]
        for thread in threads:
            thread.start()
        for sock in socks:  # the answers come one after the other
            assert sock.recv(1)
            most = max(most, process.rss_bytes())
        for thread in threads:
            thread.join()
    frames_bytes = peers * len(request)
    assert most - before < frames_bytes + 200 * MIB, "all of them decoded are 960 MiB more"
    assert process.stop() == 0


def test_half_requests_do_not_keep_the_memory_that_others_wait_for(tmp_path: Path) -> None:
    settings = (
        f"queued.max.request.bytes = {32 * MIB}\n"
        "request.read.stall.ms = 1000\nrequest.read.timeout.ms = 3600000\nnum.partitions = 1\n"
    )
    process = BrokerProcess(tmp_path / "data", settings=settings, work_dir=tmp_path)
    with contextlib.closing(process.connect()) as client:
        create_topic(client, "t")
    api, payload_bytes = Api.PRODUCE, 16 * MIB
    header = encode(ProduceRequest(1, 1_000, [ProducePartition("t", 0, payload_bytes)]))
    head = encode_request(api, APIS[api].version_max, 1, header, payload_bytes)
    with contextlib.ExitStack() as stack:
        threads = []
        for _ in range(6):
            sock = stack.enter_context(contextlib.closing(socket.create_connection((process.host, process.port))))
            threads.append(threading.Thread(target=send_half, args=(sock, head + bytes(payload_bytes // 2 + MIB))))
            threads[-1].start()
        with sparklog.Producer(f"{process.host}:{process.port}") as producer:
            sent = [producer.send("t", bytes(500_000)) for _ in range(20)]
            producer.flush()
            assert sorted(s.result().offset for s in sent) == list(range(20))
    for thread in threads:
        thread.join()
    assert "for an incomplete request" in process.stderr
    assert process.stop() == 0


def send_half(sock: socket.socket, data: bytes) -> None:
    """All that is sent of it; it may be cut meanwhile."""
    with contextlib.suppress(OSError):
        sock.sendall(data)


def test_repeated_names_are_answered_once(client: RawClient) -> None:
    times = 10_000
    metadata = client.request(Api.METADATA, MetadataRequest(["large"] * times), MetadataResponse)
    assert [len(t.partitions) for t in metadata.topics] == [PARTITIONS]
    groups = client.request(Api.DESCRIBE_GROUPS, DescribeGroupsRequest(["g"] * times), DescribeGroupsResponse)
    assert [g.group_id for g in groups.groups] == ["g"]
    wanted = DescribeTransactionsRequest(["x"] * times)
    found = client.request(Api.DESCRIBE_TRANSACTIONS, wanted, DescribeTransactionsResponse)
    assert [t.transactional_id for t in found.transactions] == ["x"]
    fetch = OffsetFetchRequest("g", [TopicPartitions("large", [1] * times), TopicPartitions("large", [1])])
    offsets = client.request(Api.OFFSET_FETCH, fetch, OffsetFetchResponse)
    assert [(o.topic, o.partition) for o in offsets.offsets] == [("large", 1)]


@pytest.mark.parametrize(
    ("api", "request_", "response"),
    [
        (Api.LIST_OFFSETS, ListOffsetsRequest([ListOffsetsPartition("large", 0, -1)] * 2), ListOffsetsResponse),
        (Api.FETCH, FetchRequest(0, 1, 1, 0, [FetchPartition("large", 0, 0, 1)] * 2), FetchResponse),
        (
            Api.DELETE_RECORDS,
            DeleteRecordsRequest(0, [DeleteRecordsPartition("large", 0, 0)] * 2),
            DeleteRecordsResponse,
        ),
        (Api.OFFSET_COMMIT, OffsetCommitRequest("g", [CommittedOffset("large", 0, 0)] * 2), OffsetCommitResponse),
    ],
)
def test_repeated_names_are_refused(client: RawClient, api: Api, request_: Message, response: type[Message]) -> None:
    with pytest.raises(InvalidRequestError, match="large-0 twice"):
        client.request(api, request_, response)


def test_too_many_offsets_in_one_request_are_refused(client: RawClient) -> None:
    wanted = [TopicPartitions(f"t{i}", list(range(10_000))) for i in range(11)]
    with pytest.raises(InvalidRequestError, match="110000 partitions, at most 100000"):
        client.request(Api.OFFSET_FETCH, OffsetFetchRequest("g", wanted), OffsetFetchResponse)


@pytest.mark.nightly
def test_topics_with_very_wide_schemas(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "data") as local:
        admin = sparklog.Admin(local.bootstrap_servers)
        names = [f"wide-{i:02d}" for i in range(WIDE_TOPICS)]
        for name in names:
            admin.create_topic(name, schema=wide_schema())
        assert admin.list_topics() == names
        whole = sparklog.client.net.cluster.cluster(local.bootstrap_servers).metadata()
        assert [t.name for t in whole.topics] == names, "all pages are one answer"
        assert sum(len(s.arrow_schema) for t in whole.topics for s in t.schemas) > 16 * MIB
        host, _, port = local.bootstrap_servers.rpartition(":")
        with (
            contextlib.closing(RawClient(host, int(port))) as old,
            pytest.raises(ResponseTooLargeError, match="fewer topics"),
        ):
            old.request(Api.METADATA, MetadataRequest(), MetadataResponse)


def test_connections_fit_the_descriptors(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", work_dir=tmp_path, limits={resource.RLIMIT_NOFILE: 256})
    opened: list[RawClient] = []
    try:
        with contextlib.closing(broker.connect()) as client:
            create_topic(client, "t", 20)
            refused: list[SparklogError] = []
            for _ in range(300):
                try:
                    opened.append(broker.connect())
                    handshake(opened[-1])
                except TooManyConnectionsError as e:
                    refused.append(e)
                except (OSError, EOFError):  # too many are told
                    break
            assert refused, "who is too many is told so"
            assert "max.connections" in str(refused[0])
            create_topic(client, "u", 20)
        assert "leaves room for" in broker.stderr
        assert "cannot accept a connection" not in broker.stderr
    finally:
        for connection in opened:
            connection.close()
        assert broker.stop() == 0
