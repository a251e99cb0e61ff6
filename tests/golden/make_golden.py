"""Writes the golden files: the bytes of every structure that lies on a disk or crosses the wire.

    python tests/golden/make_golden.py            writes them
    python tests/golden/make_golden.py --check    compares them with the output of the code; status 1 if they differ

Compressed batches are not pinned: their bytes depend on the version of the compression library. If a change here is
wanted, it is a new format version or a new API version, never a silent rewrite.
"""

from __future__ import annotations

import argparse
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparklog.format.batch import decode_header, encode_batch, encode_marker, stamp_batch
from sparklog.format.offset_index import OffsetIndex
from sparklog.format.producer_snapshot import (
    AbortedFile,
    ProducedBatch,
    ProducerSnapshot,
    ProducerState,
    encode_snapshot,
)
from sparklog.format.schema import ENVELOPE_SCHEMA, canonical_schema
from sparklog.format.segment import SegmentInfo, decode_seal, encode_head, encode_seal
from sparklog.format.time_index import TimeIndex
from sparklog.format.txn_index import AbortedEntry, encode_txn_index, entries_crc
from sparklog.log.model.log_config import LogOwner
from sparklog.log.tiering.columns import encode_columns
from sparklog.log.tiering.journal import MAGIC, encode_record
from sparklog.log.tiering.layout import PIECE_BYTES, copy_prefix, encode_checksums
from sparklog.log.tiering.state import (
    CopyFinished,
    CopyStarted,
    DeleteFinished,
    DeleteStarted,
    LocalStart,
    ObjectInfo,
    RemoteSegmentMetadata,
)
from sparklog.protocol import acl_messages as acls
from sparklog.protocol import cluster_messages as cluster
from sparklog.protocol import group_messages as groups
from sparklog.protocol import lake_messages as lakes
from sparklog.protocol import messages as m
from sparklog.protocol import mirror_messages as mirrors
from sparklog.protocol import operation_messages as operation
from sparklog.protocol import quota_messages as quotas
from sparklog.protocol import refused_messages as refused
from sparklog.protocol import schema_messages as schemas
from sparklog.protocol import security_messages as security
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import encode, older_version
from sparklog.protocol.frames import encode_request, encode_response
from sparklog.replication.group_records import (
    KIND_CURRENT,
    KIND_MEMBER,
    KIND_TARGET,
    CurrentValue,
    GroupValue,
    MemberValue,
    OffsetValue,
    encode_current,
    encode_target,
    encode_value,
    group_key,
    member_key,
    offset_key,
)
from sparklog.types import TopicPartition

DATA = Path(__file__).parent / "data"
BASE_MS = 1_700_000_000_000

TYPED_SCHEMA = canonical_schema(
    pa.schema(
        [
            ("flag", pa.bool_()),
            ("tiny", pa.int8()),
            ("small", pa.int16()),
            ("whole", pa.int32()),
            ("long", pa.int64()),
            ("single", pa.float32()),
            ("double", pa.float64()),
            ("price", pa.decimal128(10, 2)),
            ("text", pa.string()),
            ("raw", pa.binary()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("lasted", pa.duration("us")),
            ("numbers", pa.list_(pa.int32())),
            ("place", pa.struct([("x", pa.float64()), ("name", pa.string())])),
            ("labels", pa.map_(pa.string(), pa.int64())),
        ]
    )
)
"""One column of every canonical type."""


def envelope_rows(first: int, count: int) -> pa.RecordBatch:
    """Rows `first` to `first + count` of the golden envelope topic."""
    numbers = range(first, first + count)
    columns = [
        [None if i % 3 == 0 else b"k%d" % i for i in numbers],
        [b"value %d" % i for i in numbers],
        [[{"key": "h", "value": b"%d" % i}] if i % 2 else None for i in numbers],
        [(BASE_MS + i) * 1000 for i in numbers],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ENVELOPE_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=ENVELOPE_SCHEMA)


def typed_rows(first: int, count: int) -> pa.RecordBatch:
    """Rows of the golden typed topic; every third one is null in every column."""
    numbers = range(first, first + count)
    values = {
        "flag": lambda i: i % 2 == 0,
        "tiny": lambda i: i % 100,
        "small": lambda i: -i,
        "whole": lambda i: i * 1000,
        "long": lambda i: i << 40,
        "single": lambda i: i / 2,
        "double": lambda i: i / 8,
        "price": lambda i: Decimal(i) / 4,
        "text": lambda i: f"Straße {i}",
        "raw": lambda i: bytes([i % 256, 255]),
        "day": lambda i: i,
        "at": lambda i: (BASE_MS + i) * 1000,
        "local": lambda i: i * 1_000_000,
        "lasted": lambda i: i * 7,
        "numbers": lambda i: [i, None, -i],
        "place": lambda i: {"x": i / 4, "name": None},
        "labels": lambda i: [("a", i), ("b", None)],
    }
    columns = [[None if i % 3 == 2 else values[f.name](i) for i in numbers] for f in TYPED_SCHEMA]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, TYPED_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=TYPED_SCHEMA)


def stamped(batch: pa.RecordBatch, base_offset: int) -> bytes:
    """`batch` encoded and stamped as the leader of epoch 3 would."""
    data = encode_batch(
        batch,
        schema_id=1,
        min_timestamp_ms=BASE_MS + base_offset,
        max_timestamp_ms=BASE_MS + base_offset + batch.num_rows - 1,
        producer_id=77,
        producer_epoch=2,
        base_sequence=base_offset,
    )
    stamp_batch(data, 0, decode_header(data), base_offset=base_offset, leader_epoch=3, append_time_ms=BASE_MS + 5_000)
    return bytes(data)


def marker(base_offset: int) -> bytes:
    """Return the marker that commits the batch of `stamped`."""
    data = encode_marker(
        ENVELOPE_SCHEMA,
        schema_id=1,
        producer_id=77,
        producer_epoch=3,
        coordinator_epoch=1,
        commit=True,
        timestamp_ms=BASE_MS + 5_000,
    )
    stamp_batch(data, 0, decode_header(data), base_offset=base_offset, leader_epoch=3, append_time_ms=BASE_MS + 5_000)
    return bytes(data)


ABORTED = [AbortedEntry(77, 100, 112, 104), AbortedEntry(78, 104, 113, 114)]
PRODUCERS = ProducerSnapshot(
    120,
    [
        ProducerState(77, BASE_MS, 112, -1, 1, 3, ()),
        ProducerState(
            79, BASE_MS + 1, -1, 117, -1, 0, (ProducedBatch(117, 119, BASE_MS + 1, 2**31 - 2, 0, 0xDEADBEEF),)
        ),
    ],
    [(114, 116)],
    [AbortedFile(100, 113, 2, entries_crc(ABORTED))],
)


def segment(schema: pa.Schema, topic: str, batches: list[bytes]) -> bytes:
    """A sealed segment of `batches` (stamped)."""
    base_offset = decode_header(batches[0]).base_offset if batches else 0
    info = SegmentInfo(topic, "0123456789abcdef0123456789abcdef", 2, base_offset, 1)
    head = encode_head(schema, info)
    sizes = np.array([len(b) for b in batches], np.int64)
    positions = len(head) + np.cumsum(sizes) - sizes
    metadata = np.array([decode_header(b).metadata_length_bytes for b in batches], np.int32)
    end = len(head) + int(sizes.sum())
    return head + b"".join(batches) + encode_seal(schema, info, positions, metadata, end)


TOPIC_STATE = topics.TopicState(
    0,
    "flights",
    "0123456789abcdef0123456789abcdef",
    "typed",
    [topics.PartitionState(0, 1, 3, [1, 2], [1], 0, 7, 50, 4096), topics.PartitionState(1, 2, 4, [2, 1], [1, 2], 15)],
    [topics.SchemaVersion(1, b"arrow schema")],
    ["carrier"],
    "time_hour",
    {"segment.bytes": 4096},
    BASE_MS,
    {"retention.ms": -1},
)

SUMMARY = txn.TransactionSummary("orders", "plain", "Ongoing", 7, 3, -1, "", BASE_MS, 60_000)

REQUESTS: dict[Api, Message] = {
    Api.HANDSHAKE: m.HandshakeRequest("sparklog-python", "0.1.0", "127.0.0.1:50000", "nightly-load"),
    Api.METADATA: topics.MetadataRequest(
        ["flights", "weather"], paged=True, with_partitions=False, with_registries=True
    ),
    Api.CREATE_TOPIC: topics.CreateTopicRequest(
        "flights", 4, b"arrow schema", ["carrier"], "time_hour", {"segment.bytes": 4096}, owner="alice"
    ),
    Api.DELETE_TOPIC: topics.DeleteTopicRequest("flights"),
    Api.PRODUCE: m.ProduceRequest(-1, 30_000, [m.ProducePartition("flights", 1, 5), m.ProducePartition("w", 0, 2)]),
    Api.FETCH: m.FetchRequest(500, 1, 50 << 20, 0, [m.FetchPartition("flights", 1, 42, 8 << 20, 3, True)], "rack-a"),
    Api.SNAPSHOT_OFFSETS: m.SnapshotOffsetsRequest("frame/1", ["flights", "trips"], "flights", 1, 1),
    Api.LIST_OFFSETS: m.ListOffsetsRequest([m.ListOffsetsPartition("flights", 1, -2, 3)], 1, True),
    Api.OFFSETS_FOR_LEADER_EPOCH: m.OffsetsForLeaderEpochRequest([m.EpochPartition("flights", 1, 3, 2)]),
    Api.LOCATE_SEGMENTS: m.LocateSegmentsRequest("flights", 1, 10, 2**40),
    Api.DELETE_RECORDS: m.DeleteRecordsRequest(
        30_000, [m.DeleteRecordsPartition("flights", 1, 42), m.DeleteRecordsPartition("w", 0, -1)]
    ),
    Api.ALTER_TOPIC: topics.AlterTopicRequest("flights", {"segment.bytes": 8192, "retention.ms": None}),
    Api.CREATE_PARTITIONS: topics.CreatePartitionsRequest("flights", 8),
    Api.ALTER_SCHEMA: topics.AlterSchemaRequest("flights", b"columns to add", b"columns to widen"),
    Api.INIT_PRODUCER_ID: txn.InitProducerIdRequest("orders", 60_000, 7, 3, True),
    Api.END_TXN: txn.EndTxnRequest("orders", 7, 3, True),
    Api.TXN_OFFSET_COMMIT: groups.TxnOffsetCommitRequest(
        "orders", 7, 3, "readers", [groups.CommittedOffset("flights", 1, 42, 2, "note")], "member", 5
    ),
    Api.JOIN_SHARED_TXN: txn.JoinSharedTxnRequest("query", 12, "run", 99, 3_600_000),
    Api.END_SHARED_TXN: txn.EndSharedTxnRequest("query", 12, "run", 99, True, [100, 101], "rows=3"),
    Api.BEGIN_TXN: txn.BeginTxnRequest("loader-1", 4_000, 2),
    Api.RENEW_SHARED_TXN: txn.RenewSharedTxnRequest("query", 12, "run"),
    Api.FIND_COORDINATOR: groups.FindCoordinatorRequest("readers", 0),
    Api.REPLICA_FETCH: cluster.ReplicaFetchRequest(
        2,
        17,
        500,
        1 << 20,
        5,
        3,
        [cluster.ReplicaFetchPartition("events", 1, 4, 120, 3, 100, 110, 65_536, copied_to=110)],
        [cluster.ForgottenPartition("old", 0)],
    ),
    Api.METADATA_FETCH: cluster.MetadataFetchRequest(2, 6, 170, 30_000),
    Api.ALTER_PARTITION: cluster.AlterPartitionRequest(
        1, 16, [cluster.IsrProposal("events", 1, 4, 9, [cluster.IsrMember(1, 16), cluster.IsrMember(2, -1)])]
    ),
    Api.CONTROLLED_SHUTDOWN: cluster.ControlledShutdownRequest(1, 16),
    Api.DIRECTORY_FAILED: cluster.DirectoryFailedRequest(1, 16, [cluster.OfflinePartition("trips", 2)]),
    Api.SUSPECT_BROKER: cluster.SuspectBrokerRequest(1, 16, 2, 18),
    Api.WRITE_TXN_MARKERS: cluster.WriteTxnMarkersRequest(
        3, [cluster.TransactionMarker("trips", 1, 4_000, 2, commit=True)]
    ),
    Api.ADD_PARTITIONS_TO_TXN: cluster.AddPartitionsToTxnRequest(
        "loader-1", 4_000, 2, [cluster.TransactionPartitionName("trips", 1)]
    ),
    Api.FIND_TXN_OWNERS: cluster.FindTxnOwnersRequest("trips", 1),
    Api.HOLD_TRANSACTIONS: cluster.HoldTransactionsRequest("2/7", 3_000, True),
    Api.LIST_COMMITS: cluster.ListCommitsRequest(BASE_MS, [cluster.CommitsFrom("trips", 1, 40)]),
    Api.DESCRIBE_CLIENT_QUOTAS: quotas.DescribeClientQuotasRequest("0af3"),
    Api.ALTER_CLIENT_QUOTAS: quotas.AlterClientQuotasRequest(
        [
            quotas.QuotaAlteration("alice", "", {"producer_byte_rate": 1024.0, "consumer_byte_rate": None}),
            quotas.QuotaAlteration(None, None, {"connection_creation_rate": 5.0}, "10.0.0.1"),
        ]
    ),
    Api.SASL_HANDSHAKE: security.SaslHandshakeRequest("SCRAM-SHA-512"),
    Api.SASL_AUTHENTICATE: security.SaslAuthenticateRequest(b"n,,n=alice,r=nonce"),
    Api.ALTER_USER_SCRAM_CREDENTIALS: security.AlterUserScramCredentialsRequest(
        [security.ScramCredentialDeletion("bob", "SCRAM-SHA-256")],
        [
            security.ScramCredentialUpsertion(
                "alice", "SCRAM-SHA-512", 4096, bytes(range(32)), bytes(range(64)), bytes(range(64, 128))
            )
        ],
        only_new=True,
    ),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: security.DescribeUserScramCredentialsRequest(["alice"]),
    Api.CREATE_ACLS: acls.CreateAclsRequest(
        [acls.AclEntry("topic", "prefixed", "flights", "User:alice", "*", "Read", "Allow")]
    ),
    Api.DELETE_ACLS: acls.DeleteAclsRequest([acls.AclFilterEntry("topic", "match", "flights", operation="Read")]),
    Api.ALLOWED_OPERATIONS: acls.AllowedOperationsRequest([acls.ResourceEntry("topic", "flights")]),
    Api.DESCRIBE_ACLS: acls.DescribeAclsRequest(acls.AclFilterEntry(principal="User:alice"), "0af3"),
    Api.ALTER_PARTITION_REASSIGNMENTS: operation.AlterPartitionReassignmentsRequest(
        [operation.ReassignmentTarget("trips", 1, [3, 1]), operation.ReassignmentTarget("trips", 2)], 50 << 20
    ),
    Api.LIST_PARTITION_REASSIGNMENTS: operation.ListPartitionReassignmentsRequest(["trips"]),
    Api.ELECT_LEADERS: operation.ElectLeadersRequest(1, [operation.PartitionName("trips", 1)]),
    Api.CORDON_BROKER: operation.CordonBrokerRequest(3, True),
    Api.ALTER_BROKER_CONFIGS: operation.AlterBrokerConfigsRequest(
        3, {"max.connections": 500, "topic.retention.ms": None}, True, (7, 4711)
    ),
    Api.DESCRIBE_BROKER_CONFIGS: operation.DescribeBrokerConfigsRequest(3, (7, 4711)),
    Api.DESCRIBE_CLUSTER: operation.DescribeClusterRequest(),
    Api.DESCRIBE_LOG_DIRS: operation.DescribeLogDirsRequest(["flights"]),
    Api.REPORT_LAKE: lakes.ReportLakeRequest(
        "trips", "0af3", [lakes.LakeOffset(0, 1_000), lakes.LakeOffset(2, -1)], BASE_MS, 7, 12, BASE_MS, "paused"
    ),
    Api.DESCRIBE_LAKES: lakes.DescribeLakesRequest(["trips"]),
    Api.REPORT_MIRRORS: mirrors.ReportMirrorsRequest(
        [
            mirrors.MirrorReport(
                "trips", "0af3", [mirrors.SourceEnd(0, 1_000, 7), mirrors.SourceEnd(2, -1)], BASE_MS, "away", 3, BASE_MS
            )
        ]
    ),
    Api.DESCRIBE_MIRRORS: mirrors.DescribeMirrorsRequest(["trips"]),
    Api.SCHEMA_RECORDS: schemas.SchemaRecordsRequest(
        7, "Write", ["trips"], False, 7, [schemas.SchemaRecord(b"\x91\xa4next", b"\x02")]
    ),
    Api.STORE_REFUSED: refused.StoreRefusedRequest("trips", 3, b"SLB1", True),
    Api.ALTER_SECURITY_RECORDS: cluster.AlterSecurityRecordsRequest(
        [
            cluster.SecurityRecordChange("users", "alice", b"\x01\x02"),
            cluster.SecurityRecordChange("acls", "0af3", None),
        ]
    ),
    Api.FORWARD: cluster.ForwardRequest(Api.CREATE_TOPIC, 4, b"\x9b", "User:alice", "0123", True),
    Api.LIST_TRANSACTIONS: txn.ListTransactionsRequest(["Ongoing"], 1000),
    Api.DESCRIBE_TRANSACTIONS: txn.DescribeTransactionsRequest(["orders"]),
    Api.ABORT_TRANSACTION: txn.AbortTransactionRequest(None, "flights", 1, 7),
    Api.DESCRIBE_PRODUCERS: txn.DescribeProducersRequest("flights", 1),
    Api.GROUP_HEARTBEAT: groups.GroupHeartbeatRequest(
        "readers",
        "member",
        5,
        "host-1",
        ["flights"],
        "uniform",
        [groups.TopicPartitions("flights", [0, 1])],
        topic_regex="f.*",
    ),
    Api.OFFSET_COMMIT: groups.OffsetCommitRequest("readers", [groups.CommittedOffset("flights", 1, 42)], "member", 5),
    Api.OFFSET_FETCH: groups.OffsetFetchRequest("readers", [groups.TopicPartitions("flights", [0, 1])], True),
    Api.LIST_GROUPS: groups.ListGroupsRequest(["Stable"]),
    Api.DESCRIBE_GROUPS: groups.DescribeGroupsRequest(["readers"]),
    Api.DELETE_GROUP: groups.DeleteGroupRequest("readers"),
    Api.LOCATE_REMOTE: m.LocateRemoteRequest("flights", 1, 10, 2**40),
}
RESPONSES: dict[Api, Message] = {
    Api.HANDSHAKE: m.HandshakeResponse(
        1, "cluster", "0.1.0", [m.ApiRange(0, 0, 0), m.ApiRange(4, 0, 1)], 100 << 20, "sparklog-0a1b"
    ),
    Api.METADATA: topics.MetadataResponse(
        "cluster",
        1,
        [topics.BrokerEndpoint(1, "127.0.0.1", 9292, "rack-a")],
        [TOPIC_STATE],
        registries=["https://127.0.0.1:8081"],
    ),
    Api.CREATE_TOPIC: topics.CreateTopicResponse(TOPIC_STATE),
    Api.DELETE_TOPIC: topics.DeleteTopicResponse("0123456789abcdef0123456789abcdef"),
    Api.PRODUCE: m.ProduceResponse(
        [
            m.ProduceResult("flights", 1, 0, 42, BASE_MS, 7, "", 2),
            m.ProduceResult("w", 0, 6, leader_id=2, leader_epoch=4),
        ],
        [topics.BrokerEndpoint(2, "broker-2.example", 9292, "rack-b")],
    ),
    Api.FETCH: m.FetchResponse(
        [m.FetchResult("flights", 1, 0, 50, 50, 7, 5, "", leader_id=2, leader_epoch=4, preferred_replica=3)],
        [topics.BrokerEndpoint(2, "broker-2.example", 9292), topics.BrokerEndpoint(3, "broker-3.example", 9292)],
    ),
    Api.SNAPSHOT_OFFSETS: m.SnapshotOffsetsResponse(3, 42),
    Api.LIST_OFFSETS: m.ListOffsetsResponse([m.ListOffsetsResult("flights", 1, 0, 42, BASE_MS, "", 3, True)]),
    Api.OFFSETS_FOR_LEADER_EPOCH: m.OffsetsForLeaderEpochResponse([m.EpochEndOffset("flights", 1, 0, 2, 40)]),
    Api.LOCATE_SEGMENTS: m.LocateSegmentsResponse(
        "/data", "id", 50, 7, [m.SegmentRange("flights-1/00000000000000000000.arrow", 1, 0, 400, 4096)]
    ),
    Api.DELETE_RECORDS: m.DeleteRecordsResponse(
        [m.DeleteRecordsResult("flights", 1, 0, 42), m.DeleteRecordsResult("w", 0, 1, -1, "out of range")]
    ),
    Api.ALTER_TOPIC: topics.AlterTopicResponse(TOPIC_STATE),
    Api.CREATE_PARTITIONS: topics.CreatePartitionsResponse(TOPIC_STATE),
    Api.ALTER_SCHEMA: topics.AlterSchemaResponse(TOPIC_STATE),
    Api.INIT_PRODUCER_ID: txn.InitProducerIdResponse(7, 4),
    Api.END_TXN: txn.EndTxnResponse(7, 4),
    Api.TXN_OFFSET_COMMIT: groups.TxnOffsetCommitResponse([groups.OffsetResult("flights", 1, 0)]),
    Api.JOIN_SHARED_TXN: txn.JoinSharedTxnResponse(False, 100, 0),
    Api.END_SHARED_TXN: txn.EndSharedTxnResponse(True, 12, "rows=3"),
    Api.BEGIN_TXN: txn.BeginTxnResponse(),
    Api.RENEW_SHARED_TXN: txn.RenewSharedTxnResponse(True, True),
    Api.FIND_COORDINATOR: groups.FindCoordinatorResponse(2, "broker-2.example", 9292),
    Api.REPLICA_FETCH: cluster.ReplicaFetchResponse(
        5,
        [
            cluster.ReplicaFetchResult(
                "events",
                1,
                0,
                4,
                118,
                100,
                130,
                length_bytes=64,
                next_offset=125,
                epochs=[cluster.EpochBegin(4, 122)],
                segments=[122],
                copied_to=118,
            ),
            cluster.ReplicaFetchResult("events", 2, 0, 4, 118, 100, 130, 3, 115),
            cluster.ReplicaFetchResult("events", 3, 74, message="epoch 3 is over"),
        ],
    ),
    Api.METADATA_FETCH: cluster.MetadataFetchResponse(None, [cluster.ImageChange(6, 171, b"delta")], 17),
    Api.ALTER_PARTITION: cluster.AlterPartitionResponse(
        [cluster.IsrDecision(0, "", b"state"), cluster.IsrDecision(84, "broker 2 is not in sync")]
    ),
    Api.CONTROLLED_SHUTDOWN: cluster.ControlledShutdownResponse(3),
    Api.DIRECTORY_FAILED: cluster.DirectoryFailedResponse(1),
    Api.SUSPECT_BROKER: cluster.SuspectBrokerResponse(True),
    Api.WRITE_TXN_MARKERS: cluster.WriteTxnMarkersResponse([0]),
    Api.ADD_PARTITIONS_TO_TXN: cluster.AddPartitionsToTxnResponse(1),
    Api.HOLD_TRANSACTIONS: cluster.HoldTransactionsResponse([0, 3], [5, 2]),
    Api.LIST_COMMITS: cluster.ListCommitsResponse([cluster.CommittedPart(0, 4_000, 2, 41, 44, BASE_MS)]),
    Api.FIND_TXN_OWNERS: cluster.FindTxnOwnersResponse([cluster.TransactionOwner(4_000, "loader-1")]),
    Api.SASL_HANDSHAKE: security.SaslHandshakeResponse(0, ["SCRAM-SHA-512", "SCRAM-SHA-256"]),
    Api.SASL_AUTHENTICATE: security.SaslAuthenticateResponse(0, b"v=proof", 3_600_000, principal="User:alice"),
    Api.ALTER_USER_SCRAM_CREDENTIALS: security.AlterUserScramCredentialsResponse(),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: security.DescribeUserScramCredentialsResponse(
        [security.UserCredentials("alice", [security.ScramCredentialInfo("SCRAM-SHA-512", 4096)])]
    ),
    Api.ALTER_PARTITION_REASSIGNMENTS: operation.AlterPartitionReassignmentsResponse(
        [operation.PartitionOutcome("trips", 1), operation.PartitionOutcome("trips", 2, 85, "not being reassigned")]
    ),
    Api.LIST_PARTITION_REASSIGNMENTS: operation.ListPartitionReassignmentsResponse(
        [operation.PartitionReassignment("trips", 1, 1, [3, 1, 2], [1, 2], [3], [2])], 50 << 20
    ),
    Api.ELECT_LEADERS: operation.ElectLeadersResponse([operation.PartitionOutcome("trips", 1)], 1),
    Api.CORDON_BROKER: operation.CordonBrokerResponse([3]),
    Api.ALTER_BROKER_CONFIGS: operation.AlterBrokerConfigsResponse(metadata_version=(7, 4711)),
    Api.DESCRIBE_BROKER_CONFIGS: operation.DescribeBrokerConfigsResponse(
        [
            operation.BrokerConfigEntry("max.connections", "500", 2, True),
            operation.BrokerConfigEntry("ssl.key.password", None, 4),
        ]
    ),
    Api.DESCRIBE_CLUSTER: operation.DescribeClusterResponse(
        "b1c2", 1, 7, [operation.BrokerState(1, "10.0.0.1", 9292, "r1", 16), operation.BrokerState(2)], 0
    ),
    Api.DESCRIBE_LOG_DIRS: operation.DescribeLogDirsResponse(
        [operation.LogDir("/data/a", 0, "", 10_000, 4_000, 3, 500, 2), operation.LogDir("/data/b", 15, "no disk")]
    ),
    Api.ALTER_SECURITY_RECORDS: cluster.AlterSecurityRecordsResponse(3, 9_000),
    Api.FORWARD: cluster.ForwardResponse(3, 9_000, b"\x93", 36, "exists"),
    Api.REPORT_LAKE: lakes.ReportLakeResponse(),
    Api.REPORT_MIRRORS: mirrors.ReportMirrorsResponse(),
    Api.DESCRIBE_MIRRORS: mirrors.DescribeMirrorsResponse(
        [mirrors.MirrorState("trips", [mirrors.SourceEnd(0, 1_000, 7)], BASE_MS, "", BASE_MS, BASE_MS)]
    ),
    Api.SCHEMA_RECORDS: schemas.SchemaRecordsResponse(
        8,
        8,
        [schemas.SchemaRecord(b"\x91\xa4next", b"\x02"), schemas.SchemaRecord(b"\x90", None)],
        True,
        [schemas.SubjectTopic(103)],
    ),
    Api.STORE_REFUSED: refused.StoreRefusedResponse(7, True),
    Api.DESCRIBE_LAKES: lakes.DescribeLakesResponse(
        [lakes.LakeState("trips", [lakes.LakeOffset(0, 1_000)], BASE_MS, 7, 12, BASE_MS, "", BASE_MS)]
    ),
    Api.DESCRIBE_CLIENT_QUOTAS: quotas.DescribeClientQuotasResponse(
        [quotas.QuotaEntry("alice", None, {"max_topics": 20.0}, used={"max_topics": 3})],
        True,
        [quotas.ThrottledGroup("producer_byte_rate", "alice", None, 17)],
    ),
    Api.ALTER_CLIENT_QUOTAS: quotas.AlterClientQuotasResponse(
        [quotas.QuotaEntry(None, None, {"connection_creation_rate": 5.0}, "10.0.0.1")]
    ),
    Api.CREATE_ACLS: acls.CreateAclsResponse(2),
    Api.DELETE_ACLS: acls.DeleteAclsResponse(
        [acls.AclEntry("topic", "prefixed", "flights", "User:alice", "*", "Read", "Allow")], True
    ),
    Api.ALLOWED_OPERATIONS: acls.AllowedOperationsResponse([264]),
    Api.DESCRIBE_ACLS: acls.DescribeAclsResponse(
        [acls.AclEntry("topic", "prefixed", "flights", "User:alice", "*", "Read", "Allow")], True
    ),
    Api.LIST_TRANSACTIONS: txn.ListTransactionsResponse([SUMMARY]),
    Api.DESCRIBE_TRANSACTIONS: txn.DescribeTransactionsResponse(
        [txn.TransactionDetails(0, "orders", SUMMARY, [txn.TransactionPartition(7, "flights", 1)])]
    ),
    Api.ABORT_TRANSACTION: txn.AbortTransactionResponse(1),
    Api.DESCRIBE_PRODUCERS: txn.DescribeProducersResponse([txn.ProducerState(7, 3, 41, BASE_MS, 40, "orders", 12)], 40),
    Api.GROUP_HEARTBEAT: groups.GroupHeartbeatResponse(
        "member", 6, 5_000, [groups.TopicPartitions("flights", [0, 1])], topic_ids=["0af3"]
    ),
    Api.OFFSET_COMMIT: groups.OffsetCommitResponse([groups.OffsetResult("flights", 1, 41, "fenced")]),
    Api.OFFSET_FETCH: groups.OffsetFetchResponse([groups.FetchedOffset("flights", 1, 0, 42, 2, "note", BASE_MS)]),
    Api.LIST_GROUPS: groups.ListGroupsResponse([groups.GroupSummary("readers", "Stable", "consumer", 2)]),
    Api.DESCRIBE_GROUPS: groups.DescribeGroupsResponse(
        [
            groups.GroupDetails(
                0,
                "readers",
                "Stable",
                6,
                "uniform",
                [groups.GroupMember("member", None, "client", "127.0.0.1", 6, ["flights"], [], [])],
            )
        ]
    ),
    Api.DELETE_GROUP: groups.DeleteGroupResponse(3),
    Api.LOCATE_REMOTE: m.LocateRemoteResponse("s3://bucket/tier", 7, [b"metadata"]),
}
PAYLOADS: dict[Api, tuple[bytes, bytes]] = {Api.PRODUCE: (b"batchAB", b""), Api.FETCH: (b"", b"batch")}
"""Of the request and of the response."""


def frame_name(api: Api, version: int) -> str:
    return f"{api.name.lower().replace('_', '-')}-v{version}"


def frames() -> dict[str, bytes]:
    """One frame of every request and response in every version, and errors."""
    out: dict[str, bytes] = {}
    versions = [(api, v) for api, spec in APIS.items() for v in range(spec.version_min, spec.version_max + 1)]
    for api, version in versions:
        name, older = frame_name(api, version), older_version(api, version)
        payload = PAYLOADS.get(api, (b"", b""))[0]
        header = encode(REQUESTS[api], older)
        out[f"{name}-request.bin"] = encode_request(api, version, 1000 + api, header, len(payload)) + payload
        payload = PAYLOADS.get(api, (b"", b""))[1]
        header = encode(RESPONSES[api], older)
        out[f"{name}-response.bin"] = encode_response(api, 0, 1000 + api, header, len(payload)) + payload
    body = encode(m.ErrorBody("no topic 'x'"))
    out["error-response.bin"] = encode_response(Api.METADATA, 3, 7, body)
    body = encode(m.ErrorBody("FETCH version 9: this broker speaks 0 to 2", 0, 2))
    out["error-version-response.bin"] = encode_response(Api.FETCH, 8, 7, body)
    body = encode(m.ErrorBody("no topic 'x'", throttle_ms=1_000))
    out["error-throttled-response.bin"] = encode_response(Api.METADATA, 3, 7, body)
    return out


def remote_files(batches: list[bytes]) -> dict[str, bytes]:
    """A journal with every kind of event, and the lists beside a copied segment."""
    owner, copy = LogOwner("events", "0123456789abcdef0123456789abcdef", 0), "f" * 32
    prefix = copy_prefix(owner, 100, copy)
    metadata = RemoteSegmentMetadata(
        copy, prefix, 100, 112, 1, 4096, 400, 3600, BASE_MS, 104, BASE_MS, BASE_MS, PIECE_BYTES,
        {"00000000000000000100.arrow": ObjectInfo(4096, 0x89ABCDEF)}, [(3, 100)], False, [(7, 100, 104, 105)],
    )  # fmt: skip
    events = [
        CopyStarted("e" * 32, "p", 0, 100), DeleteStarted("e" * 32), DeleteFinished("e" * 32),
        CopyStarted(copy, prefix, 100, 112), CopyFinished(metadata), LocalStart(112, b"producers"),
    ]  # fmt: skip
    data = segment(ENVELOPE_SCHEMA, "events", batches)
    seal = decode_seal(lambda position, size: data[position : position + size], len(data))
    assert seal is not None
    columns = encode_columns(
        lambda position, size: data[position : position + size], seal.positions, seal.metadata_lengths, seal.data_end,
        share_max=1,
    )  # fmt: skip
    assert columns is not None
    return {
        "remote-log.journal": MAGIC + b"".join(encode_record(event) for event in events),  # type: ignore[arg-type]
        "remote-checksums.bin": encode_checksums([1, 2, 0xFFFFFFFF]),
        "remote-columns.bin": columns,
    }


def group_records() -> dict[str, bytes]:
    """Each kind of record of __consumer_offsets: the key's length (4 bytes, big endian), the key, the value."""
    owned = frozenset({TopicPartition("flights", 1), TopicPartition("flights", 0), TopicPartition("events", 2)})
    wish = MemberValue(
        "host-1", "client", "127.0.0.1", ("events", "flights"), "uniform", 300_000, 45_000, "f.*", ("flights",)
    )
    found = {
        "offset": (offset_key("readers", TopicPartition("flights", 1)), encode_value(OffsetValue(42, 2, "note", BASE_MS, "id"))),
        "group": (group_key("readers"), encode_value(GroupValue(7, "uniform", -1, {"flights": ("id", 2)}))),
        "member": (member_key(KIND_MEMBER, "readers", "m"), encode_value(wish)),
        "target": (member_key(KIND_TARGET, "readers", "m"), encode_target(owned)),
        "current": (member_key(KIND_CURRENT, "readers", "m"), encode_current(CurrentValue(7, 6, owned, frozenset()))),
    }  # fmt: skip
    return {f"group-record-{n}.bin": len(k).to_bytes(4, "big") + k + v for n, (k, v) in found.items()}


INDEXED_FROM = 100
"""Base offset of the segment of the golden indexes."""


def offset_index() -> OffsetIndex:
    """Of three batches, at positions 1000, 5000 and 9000."""
    index = OffsetIndex()
    index.append(4, 5000)
    index.append(8, 9000)
    return index


def time_index() -> TimeIndex:
    """Of the same batches."""
    index = TimeIndex()
    index.append_if_later(BASE_MS, 0)
    index.append_if_later(BASE_MS + 8, 8)
    return index


def golden_files() -> dict[str, bytes]:
    """All golden files by name."""
    envelope = [stamped(envelope_rows(i, 4), i) for i in (100, 104, 108)]
    typed = [stamped(typed_rows(i, 5), i) for i in (0, 5)]
    return {
        "batch-envelope.bin": envelope[0],
        "batch-typed.bin": typed[0],
        "segment-envelope.arrow": segment(ENVELOPE_SCHEMA, "events", envelope),
        "segment-typed.arrow": segment(TYPED_SCHEMA, "flights", typed),
        "segment-empty.arrow": segment(ENVELOPE_SCHEMA, "events", []),
        "batch-marker.bin": marker(112),
        "segment-marker.arrow": segment(ENVELOPE_SCHEMA, "events", [*envelope, marker(112)]),
        "producers.snapshot": encode_snapshot(PRODUCERS),
        "aborted.txnindex": encode_txn_index(ABORTED),
        "segment.index": offset_index().encode(INDEXED_FROM),
        "segment.timeindex": time_index().encode(INDEXED_FROM),
        **remote_files(envelope),
        **group_records(),
        **frames(),
    }


def differences() -> list[str]:
    """Return the faults of the committed files: missing, different or left over."""
    files = golden_files()
    committed = {p.name: p.read_bytes() for p in DATA.iterdir()}
    return [
        *(f"{n}: missing" for n in files.keys() - committed.keys()),
        *(f"{n}: nothing makes it" for n in committed.keys() - files.keys()),
        *(f"{n}: differs" for n in sorted(files.keys() & committed.keys()) if files[n] != committed[n]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if parser.parse_args().check:
        wrong = differences()
        print("\n".join(wrong) or "the golden files are what the code produces")
        return 1 if wrong else 0
    DATA.mkdir(exist_ok=True)
    for name, content in golden_files().items():
        (DATA / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
