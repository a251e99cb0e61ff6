"""Requests of every API about the resources of a `Names`. An API without an entry fails the denial matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sparklog.protocol import acl_messages as acls
from sparklog.protocol import cluster_messages as cluster
from sparklog.protocol import group_messages as groups
from sparklog.protocol import lake_messages as lakes
from sparklog.protocol import messages as m
from sparklog.protocol import operation_messages as operation
from sparklog.protocol import quota_messages as quotas
from sparklog.protocol import security_messages as sasl
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import encode
from tests.unit.broker.security.access_world import BATCH


class Names(NamedTuple):
    """The names in a request. All have the same length in both, so answers can be compared byte by byte."""

    topic: str
    group: str
    transactional_id: str
    app: str


THERE = Names("secret", "crew", "till", "appl")
NOT_THERE = Names("nosuch", "none", "noid", "noap")


def _produce(n: Names) -> tuple[Message, bytes]:
    return m.ProduceRequest(1, 1_000, [m.ProducePartition(n.topic, 0, len(BATCH))], n.transactional_id), BATCH


ENTRY = acls.AclEntry("topic", "literal", "x", "User:mallory", "*", "All", "Allow")
REQUESTS_ABOUT: dict[Api, Callable[[Names], Message | tuple[Message, bytes]]] = {
    Api.HANDSHAKE: lambda n: m.HandshakeRequest("tests", "1"),
    Api.METADATA: lambda n: topics.MetadataRequest([n.topic], create_missing=True),
    Api.CREATE_TOPIC: lambda n: topics.CreateTopicRequest(n.topic, 1),
    Api.DELETE_TOPIC: lambda n: topics.DeleteTopicRequest(n.topic),
    Api.PRODUCE: _produce,
    Api.FETCH: lambda n: m.FetchRequest(5_000, 1, 1 << 20, 0, [m.FetchPartition(n.topic, 0, 0, 1 << 20)]),
    Api.LIST_OFFSETS: lambda n: m.ListOffsetsRequest([m.ListOffsetsPartition(n.topic, 0, -1)]),
    Api.OFFSETS_FOR_LEADER_EPOCH: lambda n: m.OffsetsForLeaderEpochRequest([m.EpochPartition(n.topic, 0, -1, 0)]),
    Api.LOCATE_SEGMENTS: lambda n: m.LocateSegmentsRequest(n.topic, 0, 0, 10),
    Api.DELETE_RECORDS: lambda n: m.DeleteRecordsRequest(1_000, [m.DeleteRecordsPartition(n.topic, 0, 1)]),
    Api.ALTER_TOPIC: lambda n: topics.AlterTopicRequest(n.topic, {"retention.ms": 5}),
    Api.ALTER_SCHEMA: lambda n: topics.AlterSchemaRequest(n.topic),
    Api.INIT_PRODUCER_ID: lambda n: txn.InitProducerIdRequest(n.transactional_id),
    Api.END_TXN: lambda n: txn.EndTxnRequest(n.transactional_id, 0, 0, True),
    Api.TXN_OFFSET_COMMIT: lambda n: groups.TxnOffsetCommitRequest(
        n.transactional_id, 0, 0, n.group, [groups.CommittedOffset(n.topic, 0, 1)]
    ),
    Api.JOIN_SHARED_TXN: lambda n: txn.JoinSharedTxnRequest(n.app, 1, "run", 0),
    Api.END_SHARED_TXN: lambda n: txn.EndSharedTxnRequest(n.app, 0, "run", 0, True),
    Api.LIST_TRANSACTIONS: lambda n: txn.ListTransactionsRequest(),
    Api.DESCRIBE_TRANSACTIONS: lambda n: txn.DescribeTransactionsRequest([n.transactional_id]),
    Api.ABORT_TRANSACTION: lambda n: txn.AbortTransactionRequest(n.transactional_id),
    Api.DESCRIBE_PRODUCERS: lambda n: txn.DescribeProducersRequest(n.topic, 0),
    Api.GROUP_HEARTBEAT: lambda n: groups.GroupHeartbeatRequest(n.group, "m1", -1, topics=[n.topic]),
    Api.OFFSET_COMMIT: lambda n: groups.OffsetCommitRequest(n.group, [groups.CommittedOffset(n.topic, 0, 1)]),
    Api.OFFSET_FETCH: lambda n: groups.OffsetFetchRequest(n.group, [groups.TopicPartitions(n.topic, [0])]),
    Api.LIST_GROUPS: lambda n: groups.ListGroupsRequest(),
    Api.DESCRIBE_GROUPS: lambda n: groups.DescribeGroupsRequest([n.group]),
    Api.DELETE_GROUP: lambda n: groups.DeleteGroupRequest(n.group),
    Api.FIND_COORDINATOR: lambda n: groups.FindCoordinatorRequest(n.group, 0),
    Api.BEGIN_TXN: lambda n: txn.BeginTxnRequest(n.transactional_id, 0, 0),
    Api.RENEW_SHARED_TXN: lambda n: txn.RenewSharedTxnRequest(n.app, 0, "run"),
    Api.SNAPSHOT_OFFSETS: lambda n: m.SnapshotOffsetsRequest("shot", [n.topic], n.topic, 0),
    Api.CREATE_PARTITIONS: lambda n: topics.CreatePartitionsRequest(n.topic, 5),
    Api.LOCATE_REMOTE: lambda n: m.LocateRemoteRequest(n.topic, 0, 0, 10),
    Api.REPLICA_FETCH: lambda n: cluster.ReplicaFetchRequest(
        1, 1, 100, 1_000, 0, 0, [cluster.ReplicaFetchPartition(n.topic, 0, 0, 0, 0, 0, 0, 1_000)]
    ),
    Api.METADATA_FETCH: lambda n: cluster.MetadataFetchRequest(1, -1, -1, 100),
    Api.ALTER_PARTITION: lambda n: cluster.AlterPartitionRequest(
        1, 1, [cluster.IsrProposal(n.topic, 0, 0, 0, [cluster.IsrMember(1, 1)])]
    ),
    Api.CONTROLLED_SHUTDOWN: lambda n: cluster.ControlledShutdownRequest(1, 1),
    Api.DIRECTORY_FAILED: lambda n: cluster.DirectoryFailedRequest(1, 1, [cluster.OfflinePartition(n.topic, 0)]),
    Api.WRITE_TXN_MARKERS: lambda n: cluster.WriteTxnMarkersRequest(
        0, [cluster.TransactionMarker(n.topic, 0, 0, 0, True)]
    ),
    Api.ADD_PARTITIONS_TO_TXN: lambda n: cluster.AddPartitionsToTxnRequest(
        n.transactional_id, 0, 0, [cluster.TransactionPartitionName(n.topic, 0)]
    ),
    Api.HOLD_TRANSACTIONS: lambda n: cluster.HoldTransactionsRequest("h", 1),
    Api.LIST_COMMITS: lambda n: cluster.ListCommitsRequest(0, [cluster.CommitsFrom(n.topic, 0, 0)]),
    Api.FORWARD: lambda n: cluster.ForwardRequest(
        Api.CREATE_TOPIC, 4, encode(topics.CreateTopicRequest("mine")), "User:admin", "1"
    ),
    Api.FIND_TXN_OWNERS: lambda n: cluster.FindTxnOwnersRequest(n.topic, 0),
    Api.ALTER_PARTITION_REASSIGNMENTS: lambda n: operation.AlterPartitionReassignmentsRequest(
        [operation.ReassignmentTarget(n.topic, 0, [0])]
    ),
    Api.LIST_PARTITION_REASSIGNMENTS: lambda n: operation.ListPartitionReassignmentsRequest([n.topic]),
    Api.ELECT_LEADERS: lambda n: operation.ElectLeadersRequest(0, [operation.PartitionName(n.topic, 0)]),
    Api.CORDON_BROKER: lambda n: operation.CordonBrokerRequest(0, True),
    Api.ALTER_BROKER_CONFIGS: lambda n: operation.AlterBrokerConfigsRequest(0, {"num.partitions": 2}),
    Api.DESCRIBE_BROKER_CONFIGS: lambda n: operation.DescribeBrokerConfigsRequest(0),
    Api.DESCRIBE_CLUSTER: lambda n: operation.DescribeClusterRequest(),
    Api.DESCRIBE_LOG_DIRS: lambda n: operation.DescribeLogDirsRequest(),
    Api.REPORT_LAKE: lambda n: lakes.ReportLakeRequest(n.topic, "id", []),
    Api.DESCRIBE_LAKES: lambda n: lakes.DescribeLakesRequest([n.topic]),
    Api.ALTER_SECURITY_RECORDS: lambda n: cluster.AlterSecurityRecordsRequest(
        [cluster.SecurityRecordChange("users", "mallory", b"1")]
    ),
    Api.SASL_HANDSHAKE: lambda n: sasl.SaslHandshakeRequest("SCRAM-SHA-512"),
    Api.SASL_AUTHENTICATE: lambda n: sasl.SaslAuthenticateRequest(b"n,,n=mallory,r=1"),
    Api.ALTER_USER_SCRAM_CREDENTIALS: lambda n: sasl.AlterUserScramCredentialsRequest(
        [sasl.ScramCredentialDeletion("mallory", "SCRAM-SHA-512")], []
    ),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda n: sasl.DescribeUserScramCredentialsRequest(["mallory"]),
    Api.CREATE_ACLS: lambda n: acls.CreateAclsRequest([ENTRY]),
    Api.DELETE_ACLS: lambda n: acls.DeleteAclsRequest([acls.AclFilterEntry()]),
    Api.DESCRIBE_CLIENT_QUOTAS: lambda n: quotas.DescribeClientQuotasRequest(),
    Api.ALTER_CLIENT_QUOTAS: lambda n: quotas.AlterClientQuotasRequest(
        [quotas.QuotaAlteration("mallory", None, {"producer_byte_rate": 1e9})]
    ),
    Api.DESCRIBE_ACLS: lambda n: acls.DescribeAclsRequest(acls.AclFilterEntry()),
}
MORE_REQUESTS: list[tuple[Api, Callable[[Names], Message | tuple[Message, bytes]]]] = [
    (Api.DESCRIBE_USER_SCRAM_CREDENTIALS, lambda n: sasl.DescribeUserScramCredentialsRequest()),
    (Api.INIT_PRODUCER_ID, lambda n: txn.InitProducerIdRequest()),
    (Api.FIND_COORDINATOR, lambda n: groups.FindCoordinatorRequest(n.transactional_id, 1)),
    (Api.DESCRIBE_TRANSACTIONS, lambda n: txn.DescribeTransactionsRequest([f"__shared:{n.app}"])),
    (Api.PRODUCE, lambda n: (m.ProduceRequest(-1, 1_000, [m.ProducePartition(n.topic, 0, len(BATCH))]), BATCH)),
    (Api.DESCRIBE_PRODUCERS, lambda n: txn.DescribeProducersRequest("__transaction_state", 0)),
    (Api.FETCH, lambda n: m.FetchRequest(0, 0, 1 << 20, 0, [m.FetchPartition("__consumer_offsets", 0, 0, 1 << 20)])),
    (Api.ABORT_TRANSACTION, lambda n: txn.AbortTransactionRequest(None, n.topic, 0, 0)),
]
"""Other forms of requests of which the rules make a difference."""


def parts(made: Message | tuple[Message, bytes]) -> tuple[Message, bytes]:
    """The message and the payload of a request."""
    return made if isinstance(made, tuple) else (made, b"")
