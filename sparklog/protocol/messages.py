"""The APIs: each has a type for requests and one for responses, as data. Most types are in modules of their own area.

Every type is encoded as a MessagePack array in the order of its fields. Evolution: a new version may only append fields
with defaults, marked with `Since`; a decoder ignores trailing fields that it does not know and fills in defaults for
missing ones. `sparklog.protocol.negotiation` chooses the version. Limits of list lengths are part of the types
(`Annotated[..., Meta(max_length=…)]`), so a decoder enforces them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, structs

from sparklog.errors import InvalidRequestError, UnsupportedApiError, UnsupportedVersionError
from sparklog.format.decoders import msgpack_decoder
from sparklog.protocol import acl_messages as acls
from sparklog.protocol import cluster_messages as cluster
from sparklog.protocol import group_messages as groups
from sparklog.protocol import lake_messages as lakes
from sparklog.protocol import operation_messages as operation
from sparklog.protocol import quota_messages as quotas
from sparklog.protocol import security_messages as security
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.base import (
    PARTITIONS_PER_REQUEST_MAX,
    TOPICS_PER_REQUEST_MAX,
    Int32,
    Int64,
    Message,
    Name,
    Partition,
    Since,
    Text,
    ThrottleMs,
)
from sparklog.protocol.topic_messages import BrokerEndpoint
from sparklog.protocol.versions import forget_newer, in_version

REMOTE_SEGMENTS_MAX = 1_000
ABORTED_RANGES_MAX = 10_000
"""Approximate limit of the aborted ranges in the answer of LOCATE_SEGMENTS or LOCATE_REMOTE. A reader asks again for
the rest."""


class Api(IntEnum):
    """API numbers; never reused."""

    HANDSHAKE = 0
    METADATA = 1
    CREATE_TOPIC = 2
    DELETE_TOPIC = 3
    PRODUCE = 4
    FETCH = 5
    LIST_OFFSETS = 6
    LOCATE_SEGMENTS = 7
    DELETE_RECORDS = 8
    ALTER_TOPIC = 9
    ALTER_SCHEMA = 10
    INIT_PRODUCER_ID = 11
    END_TXN = 12
    TXN_OFFSET_COMMIT = 13
    JOIN_SHARED_TXN = 14
    END_SHARED_TXN = 15
    LIST_TRANSACTIONS = 16
    DESCRIBE_TRANSACTIONS = 17
    ABORT_TRANSACTION = 18
    DESCRIBE_PRODUCERS = 19
    GROUP_HEARTBEAT = 20
    OFFSET_COMMIT = 21
    OFFSET_FETCH = 22
    LIST_GROUPS = 23
    DESCRIBE_GROUPS = 24
    DELETE_GROUP = 25
    FIND_COORDINATOR = 26
    RENEW_SHARED_TXN = 30
    SNAPSHOT_OFFSETS = 31
    CREATE_PARTITIONS = 32
    ALTER_BROKER_CONFIGS = 33
    DESCRIBE_BROKER_CONFIGS = 34
    LOCATE_REMOTE = 40
    REPLICA_FETCH = 50
    METADATA_FETCH = 51
    ALTER_PARTITION = 52
    CONTROLLED_SHUTDOWN = 53
    WRITE_TXN_MARKERS = 54
    ADD_PARTITIONS_TO_TXN = 55
    FIND_TXN_OWNERS = 56
    SASL_HANDSHAKE = 60
    SASL_AUTHENTICATE = 61
    ALTER_USER_SCRAM_CREDENTIALS = 62
    DESCRIBE_USER_SCRAM_CREDENTIALS = 63
    OFFSETS_FOR_LEADER_EPOCH = 85
    HOLD_TRANSACTIONS = 86
    LIST_COMMITS = 87
    FORWARD = 88
    ALTER_PARTITION_REASSIGNMENTS = 70
    LIST_PARTITION_REASSIGNMENTS = 71
    ELECT_LEADERS = 72
    CORDON_BROKER = 73
    DESCRIBE_CLUSTER = 74
    DESCRIBE_LOG_DIRS = 75
    DIRECTORY_FAILED = 80
    ALTER_SECURITY_RECORDS = 65
    CREATE_ACLS = 66
    DELETE_ACLS = 67
    DESCRIBE_ACLS = 68
    DESCRIBE_CLIENT_QUOTAS = 69
    ALTER_CLIENT_QUOTAS = 90
    REPORT_LAKE = 110
    DESCRIBE_LAKES = 111


class ErrorBody(Message):
    """Header of every response with an error code.

    The text has no limit, because a decoder would refuse the whole body for a text that is too long. `version_min` and
    `version_max`: with UNSUPPORTED_VERSION, the versions of the API that the broker has; otherwise -1. Trailing fields
    without information are left out.
    """

    message: str = ""
    version_min: Annotated[int, Since(1, ignorable=True)] = -1
    version_max: Annotated[int, Since(1, ignorable=True)] = -1
    throttle_ms: ThrottleMs = 0


class HandshakeRequest(Message):
    """First request of a connection. It describes the client. `client_address`: the client's end of the connection as
    the client sees it (HOST:PORT; "": not given), so that the broker notices a proxy or an address translation in
    between.

    HANDSHAKE has one version only, because it comes before versions are known. The fields after the first three were
    added later: an older broker skips them, and `encode` leaves out those that are empty at the end. `client_id`: the
    client's `client.id`; "": none is set, and the broker uses `client_name`.
    """

    client_name: Text = ""
    client_version: Text = ""
    client_address: Text = ""
    client_id: Text = ""


UInt16 = Annotated[int, Meta(ge=0, le=65_535)]
APIS_MAX = 1_000


class ApiRange(Message):
    """The oldest and the newest version of one API that the broker speaks."""

    api: UInt16
    version_min: UInt16
    version_max: UInt16


class HandshakeResponse(Message):
    """The broker's identity, its APIs, and its largest frame. `local_socket`: name of the abstract Unix socket on which
    the broker listens beside TCP; "": this client has to use TCP."""

    broker_id: int
    cluster_id: str
    broker_version: Annotated[str, Meta(max_length=200)]
    apis: Annotated[list[ApiRange], Meta(max_length=APIS_MAX)]
    request_bytes_max: Annotated[int, Meta(ge=0)]
    local_socket: Text = ""


class ProducePartition(Message):
    """The batches of one partition: `length_bytes` bytes of the payload, in the order of the list."""

    topic: Name
    partition: Partition
    length_bytes: Annotated[int, Meta(ge=1)]


class ProduceRequest(Message):
    """Write batches, which are the payload. `acks`: 0 no response at all, 1 after the leader's append, -1 after all
    in-sync replicas have the records."""

    acks: Annotated[int, Meta(ge=-1, le=1)]
    timeout_ms: Annotated[int, Meta(ge=0, le=86_400_000)]
    partitions: Annotated[list[ProducePartition], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]
    transactional_id: Text | None = None
    """Transactional id of the producer of all transactional batches in the payload; None: no id."""


class ProduceResult(Message):
    """Outcome for one partition. `base_offset`: offset of the first row of the first batch; the rows of a batch have
    consecutive offsets.

    `newest_schema_id`: a producer that wrote with an older schema should read the topic's metadata again; -1: not
    given. `base_offsets`: one per batch, if the batches are not contiguous because some were stored already.
    `leader_id`, `leader_epoch`: the present leader, if the answering broker knows that another broker leads (KIP-951).
    """

    topic: str
    partition: int
    error_code: int
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    message: str = ""
    newest_schema_id: int = -1
    base_offsets: list[int] = []
    leader_id: Annotated[int, Since(2, ignorable=True)] = -1
    leader_epoch: Annotated[int, Since(2, ignorable=True)] = -1


class ProduceResponse(Message):
    """One result per partition of the request, in its order. `brokers`: addresses of the leaders that results name.
    `throttle_ms`: time in ms for which the broker reads nothing more from the connection, because of a quota."""

    results: list[ProduceResult]
    brokers: Annotated[list[BrokerEndpoint], Since(2, ignorable=True)] = []
    throttle_ms: Annotated[int, Since(2, ignorable=True)] = 0


class FetchPartition(Message):
    """Start and largest size of a read. `leader_epoch`: the partition's leader epoch as the client knows it; the broker
    refuses a different epoch (KIP-320); -1: not known. `leader_only`: True to read from the leader, although the
    request has a `rack`."""

    topic: Name
    partition: Partition
    fetch_offset: Int64
    max_bytes: Annotated[int, Meta(ge=0)]
    leader_epoch: Int32 = -1
    leader_only: Annotated[bool, Since(2, ignorable=True)] = False


class FetchRequest(Message):
    """Long poll: the broker answers when all partitions together have `min_bytes`, when one has an error, or after
    `max_wait_ms`.

    `max_bytes` 0: the broker waits as usual, but sends no batches; the answer has the high watermarks. `rack`: the
    reader's rack; the leader can direct the reader to a replica in this rack (KIP-392).
    """

    max_wait_ms: Annotated[int, Meta(ge=0, le=60_000)]
    min_bytes: Annotated[int, Meta(ge=0)]
    max_bytes: Annotated[int, Meta(ge=0)]
    isolation: Annotated[int, Meta(ge=0, le=1)]
    partitions: Annotated[list[FetchPartition], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]
    rack: Annotated[Text, Since(2, ignorable=True)] = ""


class AbortedRange(Message):
    """An aborted transaction: the transactional batches of `producer_id` with a base offset in [first_offset,
    last_offset]."""

    producer_id: int
    first_offset: int
    last_offset: int


class FetchResult(Message):
    """Result for one partition. Its batches are `length_bytes` bytes of the payload. Batches are whole, so the first
    can begin below the fetch offset; the reader skips those rows.

    With isolation 1, the batches end at the last stable offset. `aborted` has the aborted ranges that overlap with
    them, and the reader leaves the batches of these ranges out. `leader_id`, `leader_epoch`: with some errors, the
    present leader and its epoch (KIP-951). `preferred_replica`: id of the follower to read from instead, in a result
    without batches; -1: read on from this broker (KIP-392).
    """

    topic: str
    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    length_bytes: int = 0
    message: str = ""
    aborted: list[AbortedRange] = []
    leader_id: Annotated[int, Since(2, ignorable=True)] = -1
    leader_epoch: Annotated[int, Since(2, ignorable=True)] = -1
    preferred_replica: Annotated[int, Since(2, ignorable=True)] = -1


class FetchResponse(Message):
    """One result per partition of the request, in its order. The payload is their batches, one partition after another.
    `brokers`: addresses of the brokers that results name. `throttle_ms`: as in ProduceResponse."""

    results: list[FetchResult]
    brokers: Annotated[list[BrokerEndpoint], Since(2, ignorable=True)] = []
    throttle_ms: Annotated[int, Since(2, ignorable=True)] = 0


class EpochPartition(Message):
    """A question for the end of leader epoch `epoch` in a partition. `leader_epoch`: as in FetchPartition."""

    topic: Name
    partition: Partition
    leader_epoch: Int32
    epoch: Int32


class OffsetsForLeaderEpochRequest(Message):
    """Ask the leader for the ends of leader epochs. A reader learns from them if the leader still has the records that
    it has read (KIP-320)."""

    partitions: Annotated[list[EpochPartition], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]


class EpochEndOffset(Message):
    """The largest leader epoch up to the requested one of which the leader has records, and the offset after those
    records. Both are -1 if the leader has only later epochs, or if the requested epoch is later than all that it
    knows."""

    topic: str
    partition: int
    error_code: int
    epoch: int = -1
    end_offset: int = -1
    message: str = ""


class OffsetsForLeaderEpochResponse(Message):
    """One result per partition of the request, in its order."""

    results: list[EpochEndOffset]
    throttle_ms: ThrottleMs = 0


class ListOffsetsPartition(Message):
    """A look-up in one partition. `leader_epoch`: as in FetchPartition. `timestamp_ms` >= 0: the first record with at
    least this timestamp. Negative values have the meanings of Kafka: -1 latest, -2 earliest, -3 largest timestamp, -4
    earliest on the local disk, -5 latest in the object store."""

    topic: Name
    partition: Partition
    timestamp_ms: Annotated[int, Meta(ge=-5, le=2**62)]
    leader_epoch: Annotated[Int32, Since(2, ignorable=True)] = -1


class ListOffsetsRequest(Message):
    """Look up offsets. With isolation 1, the latest offset is the last stable offset, and no record behind it is found.

    `all_at_once`: look up the earliest and latest offsets of partitions, also those that other brokers lead, at one
    moment. With isolation 1 no transaction then lies partly below the latest offsets, so these can be lower than the
    last stable offsets.
    """

    partitions: Annotated[list[ListOffsetsPartition], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]
    isolation: Annotated[int, Meta(ge=0, le=1)] = 0
    all_at_once: Annotated[bool, Since(2, ignorable=True)] = False


class ListOffsetsResult(Message):
    """The result of a look-up. `offset` -1 and `timestamp_ms` -1: no record matches. `leader_epoch`: epoch of the
    record before the offset; -1: not known. `has_commits_behind`: True if a transaction may have been committed by a
    marker at or behind the latest offset."""

    topic: str
    partition: int
    error_code: int
    offset: int = -1
    timestamp_ms: int = -1
    message: str = ""
    leader_epoch: Annotated[int, Since(2, ignorable=True)] = -1
    has_commits_behind: Annotated[bool, Since(4, ignorable=True)] = False


class ListOffsetsResponse(Message):
    """One result per partition of the request, in its order."""

    results: list[ListOffsetsResult]
    throttle_ms: ThrottleMs = 0


class SnapshotOffsetsRequest(Message):
    """Ask for the beginning and end of one partition in the snapshot `name`. The principal's first request under this
    name observes all partitions of `topics` at one moment; its later requests get the same offsets. With isolation 1,
    no transaction lies partly below the ends."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    topics: Annotated[list[Name], Meta(min_length=1, max_length=TOPICS_PER_REQUEST_MAX)]
    topic: Name
    partition: Partition
    isolation: Annotated[int, Meta(ge=0, le=1)] = 0


class SnapshotOffsetsResponse(Message):
    """The partition's offsets [start, end) in the snapshot."""

    start: int
    end: int
    throttle_ms: ThrottleMs = 0


class LocateSegmentsRequest(Message):
    """Request the file ranges of [start_offset, end_offset), for a client on the broker's host that maps the files."""

    topic: Name
    partition: Partition
    start_offset: Int64
    end_offset: Int64
    isolation: Annotated[int, Meta(ge=0, le=1)] = 0


class SegmentRange(Message):
    """Whole batches in a segment file. `base_offset`: base offset of the segment. `first_offset`: base offset of the
    batch at `start_position`, which can be below the requested start. If the client finds a different batch there, the
    file has been replaced."""

    path: str
    schema_id: int
    base_offset: int
    start_position: int
    end_position: int
    first_offset: int = -1


class LocateSegmentsResponse(Message):
    """Ranges in offset order. They end at the high watermark, or with isolation 1 at the last stable offset; then
    `aborted` has the aborted ranges that overlap with them. They can end before the requested end: the reader asks
    again. `data_dir_id` is the field of that name in the file `<data_dir>/meta.json`: a client that reads the same id
    there sees the same files."""

    data_dir: str
    data_dir_id: str
    high_watermark: int
    log_start_offset: int
    ranges: list[SegmentRange]
    last_stable_offset: int = -1
    aborted: list[AbortedRange] = []
    throttle_ms: ThrottleMs = 0


class LocateRemoteRequest(Message):
    """Ask for the segments with offsets in [start_offset, end_offset) that are only in the object store. The client
    reads them there."""

    topic: Name
    partition: Partition
    start_offset: Int64
    end_offset: Int64
    isolation: Annotated[int, Meta(ge=0, le=1)] = 0


class LocateRemoteResponse(Message):
    """Copies of segments below `url`, in offset order. Each is the MessagePack form of the copy's metadata
    (`sparklog.log.tiering.state`). An answer has at most REMOTE_SEGMENTS_MAX copies.

    With isolation 1, the client may read only the records below `last_stable_offset`, and `aborted` has the aborted
    ranges that overlap with them. If the ranges are many, the answered `last_stable_offset` is lower than the
    partition's, and the reader asks again for the rest.
    """

    url: str
    log_start_offset: int
    segments: list[bytes]
    last_stable_offset: int = -1
    aborted: list[AbortedRange] = []
    throttle_ms: ThrottleMs = 0


class DeleteRecordsPartition(Message):
    """Delete the records below `before_offset`; -1: below the high watermark."""

    topic: Name
    partition: Partition
    before_offset: Annotated[int, Meta(ge=-1, le=2**63 - 1)]


class DeleteRecordsRequest(Message):
    """Delete the oldest records of partitions. `timeout_ms`: longest wait until all replicas have raised their log
    starts."""

    timeout_ms: Annotated[int, Meta(ge=0, le=86_400_000)]
    partitions: Annotated[list[DeleteRecordsPartition], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]


class DeleteRecordsResult(Message):
    """Result for one partition. `low_watermark`: the smallest log start of the partition's replicas, so no replica can
    serve records below it."""

    topic: str
    partition: int
    error_code: int
    low_watermark: int = -1
    message: str = ""


class DeleteRecordsResponse(Message):
    """One result per partition of the request, in its order."""

    results: list[DeleteRecordsResult]
    throttle_ms: ThrottleMs = 0


class ApiSpec(NamedTuple):
    """Types and versions of one API. `version_min`: the number of the newest version at the release that introduced the
    API. `version_max`: the number at which the messages last got a field."""

    request: type[Message]
    response: type[Message]
    version_min: int
    version_max: int


APIS: dict[Api, ApiSpec] = {
    Api.HANDSHAKE: ApiSpec(HandshakeRequest, HandshakeResponse, 0, 0),
    Api.METADATA: ApiSpec(topics.MetadataRequest, topics.MetadataResponse, 0, 4),
    Api.CREATE_TOPIC: ApiSpec(topics.CreateTopicRequest, topics.CreateTopicResponse, 0, 4),
    Api.DELETE_TOPIC: ApiSpec(topics.DeleteTopicRequest, topics.DeleteTopicResponse, 0, 4),
    Api.PRODUCE: ApiSpec(ProduceRequest, ProduceResponse, 0, 2),
    Api.FETCH: ApiSpec(FetchRequest, FetchResponse, 0, 2),
    Api.LIST_OFFSETS: ApiSpec(ListOffsetsRequest, ListOffsetsResponse, 0, 4),
    Api.OFFSETS_FOR_LEADER_EPOCH: ApiSpec(OffsetsForLeaderEpochRequest, OffsetsForLeaderEpochResponse, 2, 3),
    Api.SNAPSHOT_OFFSETS: ApiSpec(SnapshotOffsetsRequest, SnapshotOffsetsResponse, 1, 3),
    Api.LOCATE_SEGMENTS: ApiSpec(LocateSegmentsRequest, LocateSegmentsResponse, 0, 3),
    Api.ALTER_SCHEMA: ApiSpec(topics.AlterSchemaRequest, topics.AlterSchemaResponse, 0, 4),
    Api.DELETE_RECORDS: ApiSpec(DeleteRecordsRequest, DeleteRecordsResponse, 0, 3),
    Api.LOCATE_REMOTE: ApiSpec(LocateRemoteRequest, LocateRemoteResponse, 0, 3),
    Api.ALTER_TOPIC: ApiSpec(topics.AlterTopicRequest, topics.AlterTopicResponse, 0, 4),
    Api.CREATE_PARTITIONS: ApiSpec(topics.CreatePartitionsRequest, topics.CreatePartitionsResponse, 1, 4),
    Api.INIT_PRODUCER_ID: ApiSpec(txn.InitProducerIdRequest, txn.InitProducerIdResponse, 0, 3),
    Api.END_TXN: ApiSpec(txn.EndTxnRequest, txn.EndTxnResponse, 0, 5),
    Api.TXN_OFFSET_COMMIT: ApiSpec(groups.TxnOffsetCommitRequest, groups.TxnOffsetCommitResponse, 0, 3),
    Api.JOIN_SHARED_TXN: ApiSpec(txn.JoinSharedTxnRequest, txn.JoinSharedTxnResponse, 0, 3),
    Api.END_SHARED_TXN: ApiSpec(txn.EndSharedTxnRequest, txn.EndSharedTxnResponse, 0, 3),
    Api.RENEW_SHARED_TXN: ApiSpec(txn.RenewSharedTxnRequest, txn.RenewSharedTxnResponse, 1, 3),
    Api.LIST_TRANSACTIONS: ApiSpec(txn.ListTransactionsRequest, txn.ListTransactionsResponse, 0, 3),
    Api.DESCRIBE_TRANSACTIONS: ApiSpec(txn.DescribeTransactionsRequest, txn.DescribeTransactionsResponse, 0, 3),
    Api.ABORT_TRANSACTION: ApiSpec(txn.AbortTransactionRequest, txn.AbortTransactionResponse, 0, 3),
    Api.DESCRIBE_PRODUCERS: ApiSpec(txn.DescribeProducersRequest, txn.DescribeProducersResponse, 0, 3),
    Api.GROUP_HEARTBEAT: ApiSpec(groups.GroupHeartbeatRequest, groups.GroupHeartbeatResponse, 0, 3),
    Api.OFFSET_COMMIT: ApiSpec(groups.OffsetCommitRequest, groups.OffsetCommitResponse, 0, 3),
    Api.OFFSET_FETCH: ApiSpec(groups.OffsetFetchRequest, groups.OffsetFetchResponse, 0, 3),
    Api.LIST_GROUPS: ApiSpec(groups.ListGroupsRequest, groups.ListGroupsResponse, 0, 3),
    Api.DESCRIBE_GROUPS: ApiSpec(groups.DescribeGroupsRequest, groups.DescribeGroupsResponse, 0, 3),
    Api.DELETE_GROUP: ApiSpec(groups.DeleteGroupRequest, groups.DeleteGroupResponse, 0, 3),
    Api.FIND_COORDINATOR: ApiSpec(groups.FindCoordinatorRequest, groups.FindCoordinatorResponse, 2, 3),
    Api.REPLICA_FETCH: ApiSpec(cluster.ReplicaFetchRequest, cluster.ReplicaFetchResponse, 2, 4),
    Api.METADATA_FETCH: ApiSpec(cluster.MetadataFetchRequest, cluster.MetadataFetchResponse, 2, 2),
    Api.ALTER_PARTITION: ApiSpec(cluster.AlterPartitionRequest, cluster.AlterPartitionResponse, 2, 2),
    Api.CONTROLLED_SHUTDOWN: ApiSpec(cluster.ControlledShutdownRequest, cluster.ControlledShutdownResponse, 2, 2),
    Api.DIRECTORY_FAILED: ApiSpec(cluster.DirectoryFailedRequest, cluster.DirectoryFailedResponse, 2, 4),
    Api.WRITE_TXN_MARKERS: ApiSpec(cluster.WriteTxnMarkersRequest, cluster.WriteTxnMarkersResponse, 2, 5),
    Api.ADD_PARTITIONS_TO_TXN: ApiSpec(cluster.AddPartitionsToTxnRequest, cluster.AddPartitionsToTxnResponse, 2, 5),
    Api.FIND_TXN_OWNERS: ApiSpec(cluster.FindTxnOwnersRequest, cluster.FindTxnOwnersResponse, 2, 2),
    Api.HOLD_TRANSACTIONS: ApiSpec(cluster.HoldTransactionsRequest, cluster.HoldTransactionsResponse, 2, 2),
    Api.LIST_COMMITS: ApiSpec(cluster.ListCommitsRequest, cluster.ListCommitsResponse, 4, 4),
    Api.FORWARD: ApiSpec(cluster.ForwardRequest, cluster.ForwardResponse, 4, 4),
    Api.SASL_HANDSHAKE: ApiSpec(security.SaslHandshakeRequest, security.SaslHandshakeResponse, 2, 2),
    Api.SASL_AUTHENTICATE: ApiSpec(security.SaslAuthenticateRequest, security.SaslAuthenticateResponse, 2, 5),
    Api.ALTER_USER_SCRAM_CREDENTIALS: ApiSpec(
        security.AlterUserScramCredentialsRequest, security.AlterUserScramCredentialsResponse, 2, 4
    ),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiSpec(
        security.DescribeUserScramCredentialsRequest, security.DescribeUserScramCredentialsResponse, 2, 4
    ),
    Api.ALTER_PARTITION_REASSIGNMENTS: ApiSpec(
        operation.AlterPartitionReassignmentsRequest, operation.AlterPartitionReassignmentsResponse, 2, 3
    ),
    Api.LIST_PARTITION_REASSIGNMENTS: ApiSpec(
        operation.ListPartitionReassignmentsRequest, operation.ListPartitionReassignmentsResponse, 2, 3
    ),
    Api.ELECT_LEADERS: ApiSpec(operation.ElectLeadersRequest, operation.ElectLeadersResponse, 2, 3),
    Api.CORDON_BROKER: ApiSpec(operation.CordonBrokerRequest, operation.CordonBrokerResponse, 2, 3),
    Api.DESCRIBE_CLUSTER: ApiSpec(operation.DescribeClusterRequest, operation.DescribeClusterResponse, 2, 3),
    Api.ALTER_BROKER_CONFIGS: ApiSpec(operation.AlterBrokerConfigsRequest, operation.AlterBrokerConfigsResponse, 4, 4),
    Api.DESCRIBE_BROKER_CONFIGS: ApiSpec(
        operation.DescribeBrokerConfigsRequest, operation.DescribeBrokerConfigsResponse, 4, 4
    ),
    Api.DESCRIBE_LOG_DIRS: ApiSpec(operation.DescribeLogDirsRequest, operation.DescribeLogDirsResponse, 2, 5),
    Api.ALTER_SECURITY_RECORDS: ApiSpec(
        cluster.AlterSecurityRecordsRequest, cluster.AlterSecurityRecordsResponse, 2, 2
    ),
    Api.CREATE_ACLS: ApiSpec(acls.CreateAclsRequest, acls.CreateAclsResponse, 2, 4),
    Api.DELETE_ACLS: ApiSpec(acls.DeleteAclsRequest, acls.DeleteAclsResponse, 2, 4),
    Api.DESCRIBE_ACLS: ApiSpec(acls.DescribeAclsRequest, acls.DescribeAclsResponse, 2, 4),
    Api.DESCRIBE_CLIENT_QUOTAS: ApiSpec(quotas.DescribeClientQuotasRequest, quotas.DescribeClientQuotasResponse, 2, 4),
    Api.ALTER_CLIENT_QUOTAS: ApiSpec(quotas.AlterClientQuotasRequest, quotas.AlterClientQuotasResponse, 2, 4),
    Api.REPORT_LAKE: ApiSpec(lakes.ReportLakeRequest, lakes.ReportLakeResponse, 4, 4),
    Api.DESCRIBE_LAKES: ApiSpec(lakes.DescribeLakesRequest, lakes.DescribeLakesResponse, 4, 4),
}

_ENCODER = msgspec.msgpack.Encoder()
_ERROR_DECODER = msgpack_decoder(ErrorBody)


class _Decoders(dict[Api, msgspec.msgpack.Decoder[Any]]):
    """Decoders of messages, created at their first use: creating all of them takes longer than the rest of the
    import."""

    def __init__(self, type_of: Callable[[ApiSpec], type[Message]]) -> None:
        super().__init__()
        self._type_of = type_of

    def __missing__(self, api: Api) -> msgspec.msgpack.Decoder[Any]:
        decoder = self[api] = msgpack_decoder(self._type_of(APIS[api]))
        return decoder


_REQUEST_DECODERS = _Decoders(lambda spec: spec.request)
_RESPONSE_DECODERS = _Decoders(lambda spec: spec.response)

M = TypeVar("M", bound=Message)


def encode(message: Message, version: int | None = None) -> bytes:
    """Encode the message as MessagePack. `version`: encode only the fields of this older version; None: all fields.
    Raises UnsupportedVersionError if a field that must not be ignored would be left out."""
    if isinstance(message, HandshakeRequest):
        return _ENCODER.encode(_without_silent_end(message))
    return _ENCODER.encode(message if version is None else in_version(message, version))


_HANDSHAKE_FIELDS = 3
"""Number of fields that every HANDSHAKE request has."""


def _without_silent_end(hello: HandshakeRequest) -> list[Any]:
    values = list(structs.astuple(hello))
    while len(values) > _HANDSHAKE_FIELDS and not values[-1]:
        values.pop()
    return values


def encode_value(value: object, version: int | None = None) -> bytes:
    """Encode the value of one field. `version` and the error are those of `encode`."""
    return _ENCODER.encode(value if version is None else in_version(value, version))


def older_version(api: int, version: int) -> int | None:
    """Return `version` if the API has a newer one, otherwise None, for `encode`."""
    return version if version < APIS[api].version_max else None  # type: ignore[index]


def decode_request(api: int, version: int, header: bytes | bytearray | memoryview) -> Message:
    """Decode a request. Raises UnsupportedApiError, UnsupportedVersionError or InvalidRequestError, nothing else."""
    spec = APIS.get(api)  # type: ignore[call-overload]
    if spec is None:
        raise UnsupportedApiError(f"API {api} is unknown to this broker: upgrade the broker, or use an older client")
    if not spec.version_min <= version <= spec.version_max:
        raise UnsupportedVersionError(
            f"{Api(api).name} version {version}: this broker speaks {spec.version_min} to {spec.version_max}",
            supported=(spec.version_min, spec.version_max),
        )
    try:
        message: Message = _REQUEST_DECODERS[Api(api)].decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InvalidRequestError(f"{Api(api).name} request cannot be read: {e}") from e
    if version < spec.version_max:
        forget_newer(message, version)
    return message


def decode_response(api: Api, header: bytes | bytearray | memoryview, response_type: type[M]) -> M:
    """Decode a successful response of `api`. Raises InvalidRequestError if it cannot be read, or does not have the
    type."""
    try:
        message = _RESPONSE_DECODERS[api].decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InvalidRequestError(f"{api.name} response cannot be read: {e}") from e
    if not isinstance(message, response_type):
        raise InvalidRequestError(f"{api.name} is answered with {type(message).__name__}, not {response_type.__name__}")
    return message


def decode_error(header: bytes | bytearray | memoryview) -> str:
    """Return the text of an error response. If the response cannot be read, the text says so."""
    return decode_error_body(header).message


def decode_error_body(header: bytes | bytearray | memoryview) -> ErrorBody:
    """Return the body of an error response. If the response cannot be read, the body's text says so."""
    try:
        return _ERROR_DECODER.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorBody("the error's text cannot be read")
