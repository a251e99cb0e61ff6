"""Client and broker of neighbouring releases work together: each against the other, as real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sparklog.errors import UnsupportedVersionError, error_from_code
from sparklog.protocol import messages as m
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import decode_error, decode_error_body, encode
from sparklog.protocol.frames import PREFIX_BYTES, decode_response_prefix, encode_request
from sparklog.protocol.group_messages import (
    CommittedOffset,
    DeleteGroupRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupDetails,
    GroupHeartbeatRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from sparklog.protocol.operation_messages import DescribeClusterRequest, DescribeLogDirsRequest
from sparklog.protocol.quota_messages import AlterClientQuotasRequest, DescribeClientQuotasRequest, QuotaAlteration
from sparklog.protocol.topic_messages import (
    AlterSchemaRequest,
    AlterTopicRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    MetadataRequest,
    TopicState,
)
from sparklog.protocol.transaction_messages import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndSharedTxnRequest,
    InitProducerIdRequest,
    JoinSharedTxnRequest,
    ListTransactionsRequest,
    RenewSharedTxnRequest,
    TransactionSummary,
)
from sparklog.protocol.versions import field_names
from tests.support.raw_client import RawClient
from tests.system.broker_process import BrokerProcess, create_topic, handshake
from tests.system.releases import PREVIOUS, ROOT, environment_of, files_of

TIMEOUT_S = 240
EXPECTED = {
    "plain": 403,
    "typed": [500, 124_750, ["id", "name", "more"]],
    "transactional": [f"{number}/{i}" for parity in (0, 1) for number in (0, 2) for i in range(parity, 10, 2)],
    "shared": ["winner"],
    "group": {"plain-0": 3, "plain-1": 250},
    "topics": ["plain", "shared", "transactional", "typed"],
}


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The previous release's files, from git."""
    return files_of(PREVIOUS, tmp_path_factory.mktemp("previous"))


@pytest.fixture
def previous_broker(previous: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path / "data", work_dir=tmp_path, env=environment_of(previous))
    yield running
    assert running.stop() == 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path / "data", work_dir=tmp_path, env=environment_of(ROOT))
    yield running
    assert running.stop() == 0


def client(release: Path, broker: BrokerProcess, stage: str) -> Mapping[str, Any]:
    """Return the report of a client process of that release; the test fails with its error."""
    script = Path(__file__).with_name("version_client.py")
    done = subprocess.run(
        [sys.executable, script, broker.address, stage],
        env=environment_of(release),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr}\nthe broker said:\n{broker.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert Path(found.pop("release")).is_relative_to(release.resolve()), "another release was imported"
    return found


def test_the_previous_client_uses_the_new_broker(previous: Path, broker: BrokerProcess) -> None:
    assert client(previous, broker, "work") == EXPECTED
    assert client(ROOT, broker, "read") == EXPECTED
    assert "Traceback" not in broker.stderr


def test_the_new_client_uses_the_previous_broker(previous: Path, previous_broker: BrokerProcess) -> None:
    assert client(ROOT, previous_broker, "work") == EXPECTED
    assert client(previous, previous_broker, "read") == EXPECTED
    found = client(ROOT, previous_broker, "newer")
    assert found["topics"] == EXPECTED["topics"]
    assert found["told"] == (
        f"UNSUPPORTED_API: the broker at {previous_broker.address} (sparklog 0.1.0) does not have the API CREATE_PARTITIONS, this client has "
        "versions 1 to 4 of it: upgrade the broker"
    )
    assert "Traceback" not in previous_broker.stderr


def test_a_new_broker_goes_on_with_the_previous_ones_data(previous: Path, tmp_path: Path) -> None:
    """An upgrade in place: one client of each release before and after."""
    before = BrokerProcess(tmp_path / "data", work_dir=tmp_path, env=environment_of(previous))
    assert client(ROOT, before, "work") == EXPECTED
    assert before.stop() == 0
    after = BrokerProcess(tmp_path / "data", work_dir=tmp_path, env=environment_of(ROOT))
    for release in (previous, ROOT):
        assert client(release, after, "read") == EXPECTED
    assert after.stop() == 0


SCHEMA = pa.schema([pa.field("id", pa.int64())]).serialize().to_pybytes()
COLUMN_TO_ADD = pa.schema([pa.field("more", pa.int64())]).serialize().to_pybytes()
PARTS: dict[Api, tuple[str, type[Message]]] = {
    Api.METADATA: ("topics", TopicState),
    Api.FETCH: ("results", m.FetchResult),
    Api.LIST_OFFSETS: ("results", m.ListOffsetsResult),
    Api.DESCRIBE_GROUPS: ("groups", GroupDetails),
    Api.LIST_TRANSACTIONS: ("transactions", TransactionSummary),
}
"""Lists that are built piece by piece, and their items."""


def questions(number: int, fencing_token: int) -> dict[Api, Message]:
    """A request of each API that has several versions, but for the one that creates a topic, which is asked before, and
    those that need more (NEEDS_MORE)."""
    epoch_end = m.EpochPartition(f"plain-{number}", 0, -1, 0)
    return {
        Api.METADATA: MetadataRequest(),
        Api.FETCH: m.FetchRequest(0, 0, 0, 0, [m.FetchPartition(f"plain-{number}", 0, 0, 0)]),
        Api.LIST_OFFSETS: m.ListOffsetsRequest([m.ListOffsetsPartition(f"plain-{number}", 0, -1)]),
        Api.CREATE_PARTITIONS: CreatePartitionsRequest(f"plain-{number}", 2),
        Api.ALTER_TOPIC: AlterTopicRequest(f"plain-{number}", {"retention.ms": 1_000_000}),
        Api.ALTER_SCHEMA: AlterSchemaRequest(f"typed-{number}", COLUMN_TO_ADD),
        Api.INIT_PRODUCER_ID: InitProducerIdRequest(fencing_token=True),
        Api.JOIN_SHARED_TXN: JoinSharedTxnRequest("query", number, "run", fencing_token),
        Api.END_SHARED_TXN: EndSharedTxnRequest("query", number, "run", fencing_token, False),
        Api.LIST_TRANSACTIONS: ListTransactionsRequest(),
        Api.DESCRIBE_TRANSACTIONS: DescribeTransactionsRequest(["orders"]),
        Api.DESCRIBE_PRODUCERS: DescribeProducersRequest(f"plain-{number}", 0),
        Api.OFFSET_FETCH: OffsetFetchRequest("readers"),
        Api.LIST_GROUPS: ListGroupsRequest(),
        Api.DESCRIBE_GROUPS: DescribeGroupsRequest(["readers"]),
        Api.OFFSETS_FOR_LEADER_EPOCH: m.OffsetsForLeaderEpochRequest([epoch_end]),
        Api.SNAPSHOT_OFFSETS: m.SnapshotOffsetsRequest("s", [f"plain-{number}"], f"plain-{number}", 0),
        Api.LOCATE_SEGMENTS: m.LocateSegmentsRequest(f"plain-{number}", 0, 0, 0),
        Api.DELETE_RECORDS: m.DeleteRecordsRequest(0, [m.DeleteRecordsPartition(f"plain-{number}", 0, 0)]),
        Api.RENEW_SHARED_TXN: RenewSharedTxnRequest("query", number, "run"),
        Api.OFFSET_COMMIT: OffsetCommitRequest(f"crew-{number}", [CommittedOffset(f"plain-{number}", 0, 0)]),
        Api.GROUP_HEARTBEAT: GroupHeartbeatRequest(f"members-{number}", topics=[f"plain-{number}"]),
        Api.DELETE_GROUP: DeleteGroupRequest(f"crew-{number}"),
        Api.FIND_COORDINATOR: FindCoordinatorRequest("readers"),
        Api.DESCRIBE_CLUSTER: DescribeClusterRequest(),
        Api.DESCRIBE_LOG_DIRS: DescribeLogDirsRequest(),
        Api.DESCRIBE_CLIENT_QUOTAS: DescribeClientQuotasRequest(),
        Api.ALTER_CLIENT_QUOTAS: AlterClientQuotasRequest([QuotaAlteration("a", None, {"producer_byte_rate": 1.0})]),
        Api.DELETE_TOPIC: DeleteTopicRequest(f"plain-{number}"),
    }


NEEDS_MORE = {
    Api.PRODUCE,  # batches
    # something in a transaction
    *(Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.ABORT_TRANSACTION, Api.ADD_PARTITIONS_TO_TXN),
    Api.LOCATE_REMOTE,  # an object store
    *(Api.CREATE_ACLS, Api.DELETE_ACLS, Api.DESCRIBE_ACLS),  # an authorizer
    # a listener with SASL
    *(Api.ALTER_USER_SCRAM_CREDENTIALS, Api.DESCRIBE_USER_SCRAM_CREDENTIALS, Api.SASL_AUTHENTICATE),
    *(Api.ALTER_PARTITION_REASSIGNMENTS, Api.LIST_PARTITION_REASSIGNMENTS),  # a cluster
    *(Api.ELECT_LEADERS, Api.CORDON_BROKER, Api.REPLICA_FETCH, Api.DIRECTORY_FAILED, Api.WRITE_TXN_MARKERS),
}


def test_an_answer_has_the_fields_of_the_requests_version(broker: BrokerProcess) -> None:
    changed = {api for api, spec in APIS.items() if spec.version_min < spec.version_max}
    assert set(questions(0, 0)) == changed - {Api.CREATE_TOPIC} - NEEDS_MORE
    with broker.connect() as raw:
        for version in range(5):
            for name, schema in ((f"plain-{version}", None), (f"typed-{version}", SCHEMA)):
                header = answer(raw, Api.CREATE_TOPIC, version, CreateTopicRequest(name, 1, schema))
                assert len(header[0]) == len(field_names(TopicState, version))
            answer(raw, Api.INIT_PRODUCER_ID, 0, InitProducerIdRequest("orders", 60_000), retry=True)
            (fencing_token, _) = answer(raw, Api.INIT_PRODUCER_ID, 0, InitProducerIdRequest(), retry=True)
            for api, request in questions(version, fencing_token).items():
                if not APIS[api].version_min <= version <= APIS[api].version_max:
                    continue
                header = answer(raw, api, version, request, retry=True)
                assert len(header) == len(field_names(APIS[api].response, version)), (api, version)
                field, part = PARTS.get(api, ("", Message))
                for item in header[APIS[api].response.__struct_fields__.index(field)] if field else ():
                    assert len(item) == len(field_names(part, version)), (api, version)


def test_fields_that_a_version_does_not_have_are_not_read(broker: BrokerProcess) -> None:
    """Other bytes in their places are ignored: pages are only for clients that know them."""
    with broker.connect() as raw:
        create_topic(raw, "flights")
        request = MetadataRequest(["flights"], paged=True, with_schemas=False, with_partitions=False)
        for version, sent in ((0, 1), (1, 0)):
            (state,) = answer(raw, Api.METADATA, version, request, as_newest=True)[3]
            fields = TopicState.__struct_fields__
            assert len(state[fields.index("schemas")]) == len(state[fields.index("partitions")]) == sent


def test_a_handshake_in_a_newer_version_is_answered_with_the_versions(broker: BrokerProcess) -> None:
    with broker.connect() as raw:
        raw.sock.sendall(encode_request(Api.HANDSHAKE, 7, 1, b"\x90"))
        prefix = decode_response_prefix(raw._read(PREFIX_BYTES), 1 << 20)
        body = decode_error_body(bytes(raw._read(prefix.body_bytes)))
        assert prefix.error_code == UnsupportedVersionError.code
        assert (body.version_min, body.version_max) == (0, 0)
        assert handshake(raw).apis, "it may be tried again in another version"


def test_another_request_in_an_unknown_version(broker: BrokerProcess) -> None:
    with broker.connect() as raw:
        newest = APIS[Api.METADATA].version_max
        raw.sock.sendall(encode_request(Api.METADATA, newest + 1, 1, b"\x90"))
        prefix = decode_response_prefix(raw._read(PREFIX_BYTES), 1 << 20)
        body = decode_error_body(bytes(raw._read(prefix.body_bytes)))
        assert prefix.error_code == UnsupportedVersionError.code
        assert (body.message, body.version_min, body.version_max) == (
            f"METADATA version {newest + 1}: this broker speaks 0 to {newest}", 0, newest,
        )  # fmt: skip
        with pytest.raises(EOFError):
            raw._read(1)


def answer(
    raw: RawClient, api: Api, version: int, request: Message, *, retry: bool = False, as_newest: bool = False
) -> Any:
    """The answer's header as plain lists. `retry`: as long as coordinators load; `as_newest`: all fields are sent."""
    header = encode(request, None if as_newest else version)
    while True:
        raw.sock.sendall(encode_request(api, version, 1, header))
        prefix = decode_response_prefix(raw._read(PREFIX_BYTES), 1 << 20)
        body = bytes(raw._read(prefix.body_bytes))
        if prefix.error_code == 0:
            return msgspec.msgpack.decode(body)
        error = error_from_code(prefix.error_code, decode_error(body))
        if not (retry and error.retriable):
            raise error
