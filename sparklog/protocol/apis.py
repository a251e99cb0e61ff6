"""The table of the APIs: all facts about each API, stated once.

A row has the API's messages and versions, the permissions that its requests need, and the properties by which a broker
treats them. The broker's pipeline, the audit log and the documents derive from it; its `registry` has the handlers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from sparklog.protocol import acl_messages as acls
from sparklog.protocol import cluster_messages as cluster
from sparklog.protocol import group_messages as groups
from sparklog.protocol import lake_messages as lakes
from sparklog.protocol import messages as data
from sparklog.protocol import mirror_messages as mirrors
from sparklog.protocol import operation_messages as operation
from sparklog.protocol import quota_messages as quotas
from sparklog.protocol import refused_messages as refused
from sparklog.protocol import schema_messages as schemas
from sparklog.protocol import security_messages as security
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.audit_details import (
    AuditDetail,
    acl_text,
    broker_settings_text,
    quota_text,
    setting_text,
    user_text,
)
from sparklog.protocol.base import Message
from sparklog.protocol.item_results import ItemResults
from sparklog.protocol.permission_rules import (
    ANY_TOPIC,
    BROKERS_ONLY,
    CLUSTER_TYPE,
    COORDINATOR_RULES,
    GROUP,
    METADATA_RULES,
    MIRRORS,
    OPERATORS,
    SCHEMA_RULES,
    SETTINGS_RULES,
    TOPIC,
    TRANSACTIONAL,
    TXN_ID,
    USER,
    Denial,
    Rule,
    altered_users,
    application_resource,
    cluster_at_offsets,
    cluster_name,
    cluster_without_transactional_id,
    listed,
    settings_rules,
    single,
    snapshot_topics,
    topics_of,
)
from sparklog.protocol.visibility import Filter, see_group, see_member, see_producer, see_transaction
from sparklog.security.acls import CLUSTER, Operation


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
    BEGIN_TXN = 29
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
    SUSPECT_BROKER = 57
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
    REPORT_MIRRORS = 112
    DESCRIBE_MIRRORS = 113
    SCHEMA_RECORDS = 114
    ALLOWED_OPERATIONS = 115
    STORE_REFUSED = 116


class ApiSpec(NamedTuple):
    """The facts about one API."""

    request: type[Message]
    response: type[Message]
    version_min: int = 0
    """Number of the newest version of all APIs at the release that introduced the API."""
    version_max: int = 0
    """Number of the version in which the messages last got a field."""
    permissions: tuple[Rule, ...] = ()
    """The permissions that a request needs. A rule for items is the last one."""
    is_at_controller: bool = False
    """True if only the controller answers. It has no payload, and no results that depend on rights for single items."""
    is_from_image: bool = False
    """True if the answer comes from the cluster's image. A client can ask any broker for one as new as its change."""
    is_before_join: bool = False
    """True if a broker answers before it has joined its cluster. Until then clients ask other brokers, or try again."""
    is_audited: bool = False
    """True for an administrative API: the audit log has all executed requests. Of other APIs it has only denials."""
    audit_detail: AuditDetail | None = None
    """The details of a request for the audit log; None: its resource names describe the request completely."""
    item_results: ItemResults | None = None
    """The request's list of items, if the response has one result for each of them, in their order."""
    has_long_header: bool = False
    """True if a header of the API can be long without having `item_results`."""
    filter: Filter | None = None
    """Filter of the names that are only in the answer; None: the answer has none."""

    @property
    def is_sasl(self) -> bool:
        """True for the messages of an authentication."""
        return self.request in (security.SaslHandshakeRequest, security.SaslAuthenticateRequest)

    @property
    def is_among_brokers(self) -> bool:
        """True if only brokers send requests of the API."""
        return bool(self.permissions) and all(r.operation is Operation.CLUSTER_ACTION for r in self.permissions)


APIS: dict[Api, ApiSpec] = {
    Api.HANDSHAKE: ApiSpec(data.HandshakeRequest, data.HandshakeResponse, is_before_join=True),
    Api.METADATA: ApiSpec(
        topics.MetadataRequest,
        topics.MetadataResponse,
        permissions=METADATA_RULES,
        is_from_image=True,
        filter=Filter(
            lambda name, sees: name if sees(TOPIC, name) else None,
            "names of topics, if all are asked for",
            "topics that were not named and cannot be described",
        ),
    ),
    Api.CREATE_TOPIC: ApiSpec(
        topics.CreateTopicRequest,
        topics.CreateTopicResponse,
        permissions=(Rule(TOPIC, Operation.CREATE, single("name"), or_else=(Operation.CREATE, "cluster")), MIRRORS),
        is_at_controller=True,
        is_audited=True,
    ),
    Api.DELETE_TOPIC: ApiSpec(
        topics.DeleteTopicRequest,
        topics.DeleteTopicResponse,
        permissions=(Rule(TOPIC, Operation.DELETE, single("name")),),
        is_at_controller=True,
        is_audited=True,
    ),
    Api.PRODUCE: ApiSpec(
        data.ProduceRequest,
        data.ProduceResponse,
        permissions=(
            TRANSACTIONAL._replace(when="with a transactional id"),
            Rule(CLUSTER_TYPE, Operation.ALTER, cluster_at_offsets, when="at given offsets"),
            Rule(TOPIC, Operation.WRITE, topics_of("partitions"), Denial.ITEM),
        ),
        item_results=ItemResults("partitions", data.ProduceResult),
    ),
    Api.FETCH: ApiSpec(
        data.FetchRequest,
        data.FetchResponse,
        permissions=(Rule(TOPIC, Operation.READ, topics_of("partitions"), Denial.ITEM),),
        item_results=ItemResults("partitions", data.FetchResult),
    ),
    Api.LIST_OFFSETS: ApiSpec(
        data.ListOffsetsRequest,
        data.ListOffsetsResponse,
        permissions=(Rule(TOPIC, Operation.DESCRIBE, topics_of("partitions"), Denial.ITEM),),
        item_results=ItemResults("partitions", data.ListOffsetsResult),
    ),
    Api.LOCATE_SEGMENTS: ApiSpec(
        data.LocateSegmentsRequest,
        data.LocateSegmentsResponse,
        permissions=(Rule(TOPIC, Operation.READ, single("topic")),),
    ),
    Api.DELETE_RECORDS: ApiSpec(
        data.DeleteRecordsRequest,
        data.DeleteRecordsResponse,
        permissions=(Rule(TOPIC, Operation.DELETE, topics_of("partitions"), Denial.ITEM),),
        is_audited=True,
        item_results=ItemResults("partitions", data.DeleteRecordsResult),
    ),
    Api.ALTER_TOPIC: ApiSpec(
        topics.AlterTopicRequest,
        topics.AlterTopicResponse,
        permissions=SETTINGS_RULES,
        is_at_controller=True,
        is_audited=True,
        audit_detail=lambda request: (request.configs.items(), setting_text),
    ),
    Api.ALTER_SCHEMA: ApiSpec(
        topics.AlterSchemaRequest,
        topics.AlterSchemaResponse,
        permissions=(Rule(TOPIC, Operation.ALTER, single("name")),),
        is_at_controller=True,
        is_audited=True,
    ),
    Api.INIT_PRODUCER_ID: ApiSpec(
        txn.InitProducerIdRequest,
        txn.InitProducerIdResponse,
        permissions=(
            TRANSACTIONAL._replace(when="with a transactional id"),
            Rule(
                CLUSTER_TYPE,
                Operation.IDEMPOTENT_WRITE,
                cluster_without_transactional_id,
                or_else=(Operation.WRITE, ANY_TOPIC),
                when="without a transactional id",
            ),
        ),
    ),
    Api.BEGIN_TXN: ApiSpec(txn.BeginTxnRequest, txn.BeginTxnResponse, permissions=(TRANSACTIONAL,)),
    Api.END_TXN: ApiSpec(txn.EndTxnRequest, txn.EndTxnResponse, permissions=(TRANSACTIONAL,)),
    Api.TXN_OFFSET_COMMIT: ApiSpec(
        groups.TxnOffsetCommitRequest,
        groups.TxnOffsetCommitResponse,
        permissions=(
            TRANSACTIONAL,
            Rule(GROUP, Operation.READ, single("group_id")),
            Rule(TOPIC, Operation.READ, topics_of("offsets"), Denial.ITEM),
        ),
        item_results=ItemResults("offsets", groups.OffsetResult),
    ),
    Api.JOIN_SHARED_TXN: ApiSpec(
        txn.JoinSharedTxnRequest,
        txn.JoinSharedTxnResponse,
        permissions=(Rule(TXN_ID, Operation.WRITE, single("app_id")),),
    ),
    Api.END_SHARED_TXN: ApiSpec(
        txn.EndSharedTxnRequest,
        txn.EndSharedTxnResponse,
        permissions=(Rule(TXN_ID, Operation.WRITE, single("app_id")),),
    ),
    Api.LIST_TRANSACTIONS: ApiSpec(
        txn.ListTransactionsRequest,
        txn.ListTransactionsResponse,
        filter=Filter(see_transaction, "TransactionSummary", "transactional ids that cannot be described"),
    ),
    Api.DESCRIBE_TRANSACTIONS: ApiSpec(
        txn.DescribeTransactionsRequest,
        txn.DescribeTransactionsResponse,
        permissions=(
            Rule(
                TXN_ID,
                Operation.DESCRIBE,
                lambda r: [application_resource(i) for i in r.transactional_ids],
                Denial.ITEM,
            ),
        ),
        filter=Filter(
            lambda partition, sees: partition if sees(TOPIC, partition.topic) else None,
            "TransactionPartition",
            "partitions of topics that cannot be described",
        ),
    ),
    Api.ABORT_TRANSACTION: ApiSpec(
        txn.AbortTransactionRequest,
        txn.AbortTransactionResponse,
        permissions=(Rule(CLUSTER_TYPE, Operation.ALTER, cluster_name, or_else=(Operation.CLUSTER_ACTION, "cluster")),),
        is_audited=True,
    ),
    Api.DESCRIBE_PRODUCERS: ApiSpec(
        txn.DescribeProducersRequest,
        txn.DescribeProducersResponse,
        permissions=(Rule(TOPIC, Operation.READ, single("topic")),),
        filter=Filter(see_producer, "ProducerState", "the transactional id of a producer, if it cannot be described"),
    ),
    Api.GROUP_HEARTBEAT: ApiSpec(
        groups.GroupHeartbeatRequest,
        groups.GroupHeartbeatResponse,
        permissions=(
            Rule(GROUP, Operation.READ, single("group_id")),
            Rule(TOPIC, Operation.DESCRIBE, listed("topics"), when="with a subscription"),
        ),
    ),
    Api.OFFSET_COMMIT: ApiSpec(
        groups.OffsetCommitRequest,
        groups.OffsetCommitResponse,
        permissions=(
            Rule(GROUP, Operation.READ, single("group_id")),
            Rule(TOPIC, Operation.READ, topics_of("offsets"), Denial.ITEM),
        ),
        item_results=ItemResults("offsets", groups.OffsetResult),
    ),
    Api.OFFSET_FETCH: ApiSpec(
        groups.OffsetFetchRequest,
        groups.OffsetFetchResponse,
        permissions=(
            Rule(GROUP, Operation.DESCRIBE, single("group_id")),
            Rule(TOPIC, Operation.DESCRIBE, topics_of("partitions"), Denial.ITEM, when="named partitions"),
        ),
        filter=Filter(
            lambda offset, sees: offset if sees(TOPIC, offset.topic) else None,
            "FetchedOffset, if all are asked for",
            "offsets of topics that were not named and cannot be described",
        ),
    ),
    Api.LIST_GROUPS: ApiSpec(
        groups.ListGroupsRequest,
        groups.ListGroupsResponse,
        filter=Filter(see_group, "GroupSummary", "groups that cannot be described, unless the cluster can"),
    ),
    Api.DESCRIBE_GROUPS: ApiSpec(
        groups.DescribeGroupsRequest,
        groups.DescribeGroupsResponse,
        permissions=(Rule(GROUP, Operation.DESCRIBE, listed("group_ids"), Denial.ITEM),),
        filter=Filter(see_member, "GroupMember", "topics of members that cannot be described"),
    ),
    Api.DELETE_GROUP: ApiSpec(
        groups.DeleteGroupRequest,
        groups.DeleteGroupResponse,
        permissions=(Rule(GROUP, Operation.DELETE, single("group_id")),),
        is_audited=True,
    ),
    Api.FIND_COORDINATOR: ApiSpec(
        groups.FindCoordinatorRequest,
        groups.FindCoordinatorResponse,
        permissions=COORDINATOR_RULES,
    ),
    Api.RENEW_SHARED_TXN: ApiSpec(
        txn.RenewSharedTxnRequest,
        txn.RenewSharedTxnResponse,
        permissions=(Rule(TXN_ID, Operation.WRITE, single("app_id")),),
    ),
    Api.SNAPSHOT_OFFSETS: ApiSpec(
        data.SnapshotOffsetsRequest,
        data.SnapshotOffsetsResponse,
        permissions=(Rule(TOPIC, Operation.DESCRIBE, snapshot_topics),),
    ),
    Api.CREATE_PARTITIONS: ApiSpec(
        topics.CreatePartitionsRequest,
        topics.CreatePartitionsResponse,
        permissions=(Rule(TOPIC, Operation.ALTER, single("name")),),
        is_at_controller=True,
        is_audited=True,
    ),
    Api.ALTER_BROKER_CONFIGS: ApiSpec(
        operation.AlterBrokerConfigsRequest,
        operation.AlterBrokerConfigsResponse,
        permissions=settings_rules(Operation.ALTER_CONFIGS),
        is_at_controller=True,
        is_audited=True,
        audit_detail=lambda request: ([request], broker_settings_text),
    ),
    Api.DESCRIBE_BROKER_CONFIGS: ApiSpec(
        operation.DescribeBrokerConfigsRequest,
        operation.DescribeBrokerConfigsResponse,
        permissions=settings_rules(Operation.DESCRIBE_CONFIGS),
        is_from_image=True,
    ),
    Api.LOCATE_REMOTE: ApiSpec(
        data.LocateRemoteRequest,
        data.LocateRemoteResponse,
        permissions=(Rule(TOPIC, Operation.READ, single("topic")),),
    ),
    Api.REPLICA_FETCH: ApiSpec(cluster.ReplicaFetchRequest, cluster.ReplicaFetchResponse, permissions=(BROKERS_ONLY,)),
    Api.METADATA_FETCH: ApiSpec(
        cluster.MetadataFetchRequest, cluster.MetadataFetchResponse, permissions=(BROKERS_ONLY,)
    ),
    Api.ALTER_PARTITION: ApiSpec(
        cluster.AlterPartitionRequest, cluster.AlterPartitionResponse, permissions=(BROKERS_ONLY,)
    ),
    Api.CONTROLLED_SHUTDOWN: ApiSpec(
        cluster.ControlledShutdownRequest, cluster.ControlledShutdownResponse, permissions=(BROKERS_ONLY,)
    ),
    Api.SUSPECT_BROKER: ApiSpec(
        cluster.SuspectBrokerRequest, cluster.SuspectBrokerResponse, permissions=(BROKERS_ONLY,)
    ),
    Api.WRITE_TXN_MARKERS: ApiSpec(
        cluster.WriteTxnMarkersRequest, cluster.WriteTxnMarkersResponse, permissions=(BROKERS_ONLY,)
    ),
    Api.ADD_PARTITIONS_TO_TXN: ApiSpec(
        cluster.AddPartitionsToTxnRequest, cluster.AddPartitionsToTxnResponse, permissions=(BROKERS_ONLY,)
    ),
    Api.FIND_TXN_OWNERS: ApiSpec(
        cluster.FindTxnOwnersRequest, cluster.FindTxnOwnersResponse, permissions=(BROKERS_ONLY,)
    ),
    Api.SASL_HANDSHAKE: ApiSpec(security.SaslHandshakeRequest, security.SaslHandshakeResponse, is_before_join=True),
    Api.SASL_AUTHENTICATE: ApiSpec(
        security.SaslAuthenticateRequest, security.SaslAuthenticateResponse, is_before_join=True
    ),
    Api.ALTER_USER_SCRAM_CREDENTIALS: ApiSpec(
        security.AlterUserScramCredentialsRequest,
        security.AlterUserScramCredentialsResponse,
        permissions=(Rule(USER, Operation.ALTER, altered_users, or_else=(Operation.ALTER, "cluster")),),
        is_at_controller=True,
        is_audited=True,
        audit_detail=lambda request: ([*request.deletions, *request.upsertions], user_text),
    ),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiSpec(
        security.DescribeUserScramCredentialsRequest,
        security.DescribeUserScramCredentialsResponse,
        permissions=(
            Rule(
                USER, Operation.DESCRIBE, listed("names"), or_else=(Operation.DESCRIBE, "cluster"), when="named users"
            ),
            Rule(
                CLUSTER_TYPE,
                Operation.DESCRIBE,
                lambda r: (CLUSTER.name,) if r.names is None else (),
                when="all users",
            ),
        ),
        is_from_image=True,
    ),
    Api.OFFSETS_FOR_LEADER_EPOCH: ApiSpec(
        data.OffsetsForLeaderEpochRequest,
        data.OffsetsForLeaderEpochResponse,
        permissions=(Rule(TOPIC, Operation.DESCRIBE, topics_of("partitions"), Denial.ITEM),),
        item_results=ItemResults("partitions", data.EpochEndOffset),
    ),
    Api.HOLD_TRANSACTIONS: ApiSpec(
        cluster.HoldTransactionsRequest, cluster.HoldTransactionsResponse, permissions=(BROKERS_ONLY,)
    ),
    Api.LIST_COMMITS: ApiSpec(cluster.ListCommitsRequest, cluster.ListCommitsResponse, permissions=(BROKERS_ONLY,)),
    Api.FORWARD: ApiSpec(
        cluster.ForwardRequest,
        cluster.ForwardResponse,
        permissions=(BROKERS_ONLY,),
        is_from_image=True,
        has_long_header=True,
    ),
    Api.ALTER_PARTITION_REASSIGNMENTS: ApiSpec(
        operation.AlterPartitionReassignmentsRequest,
        operation.AlterPartitionReassignmentsResponse,
        permissions=(OPERATORS,),
        is_at_controller=True,
        is_audited=True,
    ),
    Api.LIST_PARTITION_REASSIGNMENTS: ApiSpec(
        operation.ListPartitionReassignmentsRequest,
        operation.ListPartitionReassignmentsResponse,
        permissions=(Rule(CLUSTER_TYPE, Operation.DESCRIBE, cluster_name),),
        is_at_controller=True,
    ),
    Api.ELECT_LEADERS: ApiSpec(
        operation.ElectLeadersRequest,
        operation.ElectLeadersResponse,
        permissions=(OPERATORS,),
        is_at_controller=True,
        is_audited=True,
    ),
    Api.CORDON_BROKER: ApiSpec(
        operation.CordonBrokerRequest,
        operation.CordonBrokerResponse,
        permissions=(OPERATORS,),
        is_at_controller=True,
        is_audited=True,
    ),
    Api.DESCRIBE_CLUSTER: ApiSpec(
        operation.DescribeClusterRequest,
        operation.DescribeClusterResponse,
        permissions=(Rule(CLUSTER_TYPE, Operation.DESCRIBE, cluster_name),),
        is_from_image=True,
    ),
    Api.DESCRIBE_LOG_DIRS: ApiSpec(
        operation.DescribeLogDirsRequest,
        operation.DescribeLogDirsResponse,
        permissions=(Rule(CLUSTER_TYPE, Operation.DESCRIBE, cluster_name),),
    ),
    Api.DIRECTORY_FAILED: ApiSpec(
        cluster.DirectoryFailedRequest, cluster.DirectoryFailedResponse, permissions=(BROKERS_ONLY,)
    ),
    Api.ALTER_SECURITY_RECORDS: ApiSpec(
        cluster.AlterSecurityRecordsRequest,
        cluster.AlterSecurityRecordsResponse,
        permissions=(BROKERS_ONLY,),
        is_at_controller=True,
    ),
    Api.CREATE_ACLS: ApiSpec(
        acls.CreateAclsRequest,
        acls.CreateAclsResponse,
        permissions=(Rule(CLUSTER_TYPE, Operation.ALTER, cluster_name),),
        is_at_controller=True,
        is_audited=True,
        audit_detail=lambda request: (request.acls, acl_text),
    ),
    Api.DELETE_ACLS: ApiSpec(
        acls.DeleteAclsRequest,
        acls.DeleteAclsResponse,
        permissions=(Rule(CLUSTER_TYPE, Operation.ALTER, cluster_name),),
        is_at_controller=True,
        is_audited=True,
        audit_detail=lambda request: (request.filters, acl_text),
    ),
    Api.DESCRIBE_ACLS: ApiSpec(
        acls.DescribeAclsRequest,
        acls.DescribeAclsResponse,
        permissions=(Rule(CLUSTER_TYPE, Operation.DESCRIBE, cluster_name),),
        is_from_image=True,
    ),
    Api.DESCRIBE_CLIENT_QUOTAS: ApiSpec(
        quotas.DescribeClientQuotasRequest,
        quotas.DescribeClientQuotasResponse,
        permissions=(Rule(CLUSTER_TYPE, Operation.DESCRIBE_CONFIGS, cluster_name),),
        is_from_image=True,
    ),
    Api.ALTER_CLIENT_QUOTAS: ApiSpec(
        quotas.AlterClientQuotasRequest,
        quotas.AlterClientQuotasResponse,
        permissions=(Rule(CLUSTER_TYPE, Operation.ALTER_CONFIGS, cluster_name),),
        is_at_controller=True,
        is_audited=True,
        audit_detail=lambda request: (request.alterations, quota_text),
    ),
    Api.REPORT_LAKE: ApiSpec(
        lakes.ReportLakeRequest,
        lakes.ReportLakeResponse,
        permissions=(Rule(TOPIC, Operation.ALTER_CONFIGS, single("topic")),),
    ),
    Api.DESCRIBE_LAKES: ApiSpec(
        lakes.DescribeLakesRequest,
        lakes.DescribeLakesResponse,
        permissions=(Rule(TOPIC, Operation.DESCRIBE, listed("topics")),),
    ),
    Api.REPORT_MIRRORS: ApiSpec(
        mirrors.ReportMirrorsRequest,
        mirrors.ReportMirrorsResponse,
        permissions=(Rule(CLUSTER_TYPE, Operation.ALTER, cluster_name),),
    ),
    Api.DESCRIBE_MIRRORS: ApiSpec(
        mirrors.DescribeMirrorsRequest,
        mirrors.DescribeMirrorsResponse,
        permissions=(Rule(TOPIC, Operation.DESCRIBE, listed("topics")),),
    ),
    Api.ALLOWED_OPERATIONS: ApiSpec(
        acls.AllowedOperationsRequest, acls.AllowedOperationsResponse, has_long_header=True
    ),
    Api.STORE_REFUSED: ApiSpec(
        refused.StoreRefusedRequest,
        refused.StoreRefusedResponse,
        permissions=(Rule(TOPIC, Operation.WRITE, single("topic"), or_else=(Operation.CLUSTER_ACTION, "cluster")),),
        has_long_header=True,
    ),
    Api.SCHEMA_RECORDS: ApiSpec(schemas.SchemaRecordsRequest, schemas.SchemaRecordsResponse, permissions=SCHEMA_RULES),
}
