"""Requests of every API about the resources of a `Names`: the golden sample of the API with other names, or an entry
here where the sample needs other values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from sparklog.protocol import acl_messages as acls
from sparklog.protocol import cluster_messages as cluster
from sparklog.protocol import group_messages as groups
from sparklog.protocol import lake_messages as lakes
from sparklog.protocol import messages as m
from sparklog.protocol import mirror_messages as mirrors
from sparklog.protocol import operation_messages as operation
from sparklog.protocol import quota_messages as quotas
from sparklog.protocol import schema_messages as schemas
from sparklog.protocol import security_messages as sasl
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import encode
from tests.golden.make_golden import REQUESTS
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
    Api.METADATA: lambda n: topics.MetadataRequest([n.topic], create_missing=True),
    Api.CREATE_TOPIC: lambda n: topics.CreateTopicRequest(n.topic, 1),
    Api.DELETE_TOPIC: lambda n: topics.DeleteTopicRequest(n.topic),
    Api.PRODUCE: _produce,
    Api.FETCH: lambda n: m.FetchRequest(5_000, 1, 1 << 20, 0, [m.FetchPartition(n.topic, 0, 0, 1 << 20)]),
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
    Api.ABORT_TRANSACTION: lambda n: txn.AbortTransactionRequest(n.transactional_id),
    Api.GROUP_HEARTBEAT: lambda n: groups.GroupHeartbeatRequest(n.group, "m1", -1, topics=[n.topic]),
    Api.OFFSET_COMMIT: lambda n: groups.OffsetCommitRequest(n.group, [groups.CommittedOffset(n.topic, 0, 1)]),
    Api.OFFSET_FETCH: lambda n: groups.OffsetFetchRequest(n.group, [groups.TopicPartitions(n.topic, [0])]),
    Api.LIST_GROUPS: lambda n: groups.ListGroupsRequest(),
    Api.ALLOWED_OPERATIONS: lambda n: acls.AllowedOperationsRequest(
        [
            acls.ResourceEntry("topic", n.topic),
            acls.ResourceEntry("group", n.group),
            acls.ResourceEntry("transactional-id", n.transactional_id),
        ]
    ),
    Api.DELETE_GROUP: lambda n: groups.DeleteGroupRequest(n.group),
    Api.BEGIN_TXN: lambda n: txn.BeginTxnRequest(n.transactional_id, 0, 0),
    Api.CREATE_PARTITIONS: lambda n: topics.CreatePartitionsRequest(n.topic, 5),
    Api.METADATA_FETCH: lambda n: cluster.MetadataFetchRequest(2, 6, 170, 0),  # without a wait
    Api.DIRECTORY_FAILED: lambda n: cluster.DirectoryFailedRequest(1, 1, [cluster.OfflinePartition(n.topic, 0)]),
    Api.SUSPECT_BROKER: lambda n: cluster.SuspectBrokerRequest(1, 1, 2, 1),
    Api.WRITE_TXN_MARKERS: lambda n: cluster.WriteTxnMarkersRequest(
        0, [cluster.TransactionMarker(n.topic, 0, 0, 0, True)]
    ),
    Api.ADD_PARTITIONS_TO_TXN: lambda n: cluster.AddPartitionsToTxnRequest(
        n.transactional_id, 0, 0, [cluster.TransactionPartitionName(n.topic, 0)]
    ),
    Api.FORWARD: lambda n: cluster.ForwardRequest(
        Api.CREATE_TOPIC, 0, encode(topics.CreateTopicRequest("mine")), "User:admin", "1"
    ),
    Api.ALTER_PARTITION_REASSIGNMENTS: lambda n: operation.AlterPartitionReassignmentsRequest(
        [operation.ReassignmentTarget(n.topic, 0, [0])]
    ),
    Api.ELECT_LEADERS: lambda n: operation.ElectLeadersRequest(0, [operation.PartitionName(n.topic, 0)]),
    Api.CORDON_BROKER: lambda n: operation.CordonBrokerRequest(0, True),
    Api.ALTER_BROKER_CONFIGS: lambda n: operation.AlterBrokerConfigsRequest(0, {"num.partitions": 2}),
    Api.REPORT_MIRRORS: lambda n: mirrors.ReportMirrorsRequest([mirrors.MirrorReport(n.topic, "id", [])]),
    Api.SCHEMA_RECORDS: lambda n: schemas.SchemaRecordsRequest(0, "Write", [n.topic]),
    Api.REPORT_LAKE: lambda n: lakes.ReportLakeRequest(n.topic, "id", []),
    Api.ALTER_SECURITY_RECORDS: lambda n: cluster.AlterSecurityRecordsRequest(
        [cluster.SecurityRecordChange("users", "mallory", b"1")]
    ),
    Api.ALTER_USER_SCRAM_CREDENTIALS: lambda n: sasl.AlterUserScramCredentialsRequest(
        [sasl.ScramCredentialDeletion("mallory", "SCRAM-SHA-512")], []
    ),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda n: sasl.DescribeUserScramCredentialsRequest(["mallory"]),
    Api.CREATE_ACLS: lambda n: acls.CreateAclsRequest([ENTRY]),
    Api.DELETE_ACLS: lambda n: acls.DeleteAclsRequest([acls.AclFilterEntry()]),
    Api.ALTER_CLIENT_QUOTAS: lambda n: quotas.AlterClientQuotasRequest(
        [quotas.QuotaAlteration("mallory", None, {"producer_byte_rate": 1e9})]
    ),
}
MORE_REQUESTS: list[tuple[Api, Callable[[Names], Message | tuple[Message, bytes]]]] = [
    (Api.ALTER_TOPIC, lambda n: topics.AlterTopicRequest(n.topic, {"kafka.key.schema": '{"id":1}'})),
    (Api.DESCRIBE_USER_SCRAM_CREDENTIALS, lambda n: sasl.DescribeUserScramCredentialsRequest()),
    (Api.INIT_PRODUCER_ID, lambda n: txn.InitProducerIdRequest()),
    (Api.FIND_COORDINATOR, lambda n: groups.FindCoordinatorRequest(n.transactional_id, 1)),
    (Api.DESCRIBE_TRANSACTIONS, lambda n: txn.DescribeTransactionsRequest([f"__shared:{n.app}"])),
    (Api.PRODUCE, lambda n: (m.ProduceRequest(-1, 1_000, [m.ProducePartition(n.topic, 0, len(BATCH))]), BATCH)),
    (Api.DESCRIBE_PRODUCERS, lambda n: txn.DescribeProducersRequest("__transaction_state", 0)),
    (Api.FETCH, lambda n: m.FetchRequest(0, 0, 1 << 20, 0, [m.FetchPartition("__consumer_offsets", 0, 0, 1 << 20)])),
    (Api.ABORT_TRANSACTION, lambda n: txn.AbortTransactionRequest(None, n.topic, 0, 0)),
    (
        Api.ALTER_BROKER_CONFIGS,
        lambda n: operation.AlterBrokerConfigsRequest(-1, {"consumer.session.timeout.ms": 50_000}, group_id=n.group),
    ),
    (Api.DESCRIBE_BROKER_CONFIGS, lambda n: operation.DescribeBrokerConfigsRequest(-1, group_id=n.group)),
]
"""Other forms of requests of which the rules make a difference."""


def _renamed(value: object, names: Mapping[str, str]) -> object:
    if isinstance(value, list | tuple):
        return [_renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def _sample_about(api: Api) -> Callable[[Names], Message]:
    """Return the golden request of the API with the names of the resources replaced."""

    def about(n: Names) -> Message:
        names = dict.fromkeys(("flights", "trips", "events", "weather"), n.topic)
        names |= {"readers": n.group, "orders": n.transactional_id, "loader-1": n.transactional_id, "query": n.app}
        sample = REQUESTS[api]
        return msgspec.convert(_renamed(msgspec.to_builtins(sample), names), type(sample))

    return about


for _api in Api:
    REQUESTS_ABOUT.setdefault(_api, _sample_about(_api))


def parts(made: Message | tuple[Message, bytes]) -> tuple[Message, bytes]:
    """The message and the payload of a request."""
    return made if isinstance(made, tuple) else (made, b"")
