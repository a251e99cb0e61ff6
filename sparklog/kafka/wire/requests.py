"""The types of Kafka's requests, as the decoders return them. Generated from `messages.txt` by
`python -m tests.support.kafka_types`; do not edit.

The keys that not every served version has are `NotRequired`. Types of nested structures are named after the message and
the field.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict
from uuid import UUID


class ProduceTopicDataPartitionData(TypedDict):
    index: int
    records: memoryview | None


class ProduceTopicData(TypedDict):
    name: NotRequired[str]
    topic_id: NotRequired[UUID]
    partition_data: list[ProduceTopicDataPartitionData]


class Produce(TypedDict):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: list[ProduceTopicData]


class FetchReplicaState(TypedDict):
    replica_id: int
    replica_epoch: int


class FetchTopicPartition(TypedDict):
    partition: int
    current_leader_epoch: NotRequired[int]
    fetch_offset: int
    last_fetched_epoch: NotRequired[int]
    log_start_offset: NotRequired[int]
    partition_max_bytes: int
    replica_directory_id: NotRequired[UUID]
    high_watermark: NotRequired[int]


class FetchTopic(TypedDict):
    topic: NotRequired[str]
    topic_id: NotRequired[UUID]
    partitions: list[FetchTopicPartition]


class FetchForgottenTopicsData(TypedDict):
    topic: NotRequired[str]
    topic_id: NotRequired[UUID]
    partitions: list[int]


class Fetch(TypedDict):
    cluster_id: NotRequired[str | None]
    replica_id: NotRequired[int]
    replica_state: NotRequired[FetchReplicaState]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: NotRequired[int]
    session_epoch: NotRequired[int]
    topics: list[FetchTopic]
    forgotten_topics_data: NotRequired[list[FetchForgottenTopicsData]]
    rack_id: NotRequired[str]


class ListOffsetsTopicPartition(TypedDict):
    partition_index: int
    current_leader_epoch: NotRequired[int]
    timestamp: int


class ListOffsetsTopic(TypedDict):
    name: str
    partitions: list[ListOffsetsTopicPartition]


class ListOffsets(TypedDict):
    replica_id: int
    isolation_level: NotRequired[int]
    topics: list[ListOffsetsTopic]


class MetadataTopic(TypedDict):
    topic_id: NotRequired[UUID]
    name: str | None


class Metadata(TypedDict):
    topics: list[MetadataTopic] | None
    allow_auto_topic_creation: NotRequired[bool]
    include_cluster_authorized_operations: NotRequired[bool]
    include_topic_authorized_operations: NotRequired[bool]


class OffsetCommitTopicPartition(TypedDict):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: NotRequired[int]
    committed_metadata: str | None


class OffsetCommitTopic(TypedDict):
    name: NotRequired[str]
    topic_id: NotRequired[UUID]
    partitions: list[OffsetCommitTopicPartition]


class OffsetCommit(TypedDict):
    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: NotRequired[str | None]
    retention_time_ms: NotRequired[int]
    topics: list[OffsetCommitTopic]


class OffsetFetchTopic(TypedDict):
    name: str
    partition_indexes: list[int]


class OffsetFetchGroupTopic(TypedDict):
    name: NotRequired[str]
    topic_id: NotRequired[UUID]
    partition_indexes: list[int]


class OffsetFetchGroup(TypedDict):
    group_id: str
    member_id: NotRequired[str | None]
    member_epoch: NotRequired[int]
    topics: list[OffsetFetchGroupTopic] | None


class OffsetFetch(TypedDict):
    group_id: NotRequired[str]
    topics: NotRequired[list[OffsetFetchTopic] | None]
    groups: NotRequired[list[OffsetFetchGroup]]
    require_stable: NotRequired[bool]


class FindCoordinator(TypedDict):
    key: NotRequired[str]
    key_type: NotRequired[int]
    coordinator_keys: NotRequired[list[str]]


class JoinGroupProtocol(TypedDict):
    name: str
    metadata: bytes


class JoinGroup(TypedDict):
    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    group_instance_id: NotRequired[str | None]
    protocol_type: str
    protocols: list[JoinGroupProtocol]
    reason: NotRequired[str | None]


class Heartbeat(TypedDict):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: NotRequired[str | None]


class LeaveGroupMember(TypedDict):
    member_id: str
    group_instance_id: str | None
    reason: NotRequired[str | None]


class LeaveGroup(TypedDict):
    group_id: str
    member_id: NotRequired[str]
    members: NotRequired[list[LeaveGroupMember]]


class SyncGroupAssignment(TypedDict):
    member_id: str
    assignment: bytes


class SyncGroup(TypedDict):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: NotRequired[str | None]
    protocol_type: NotRequired[str | None]
    protocol_name: NotRequired[str | None]
    assignments: list[SyncGroupAssignment]


class DescribeGroups(TypedDict):
    groups: list[str]
    include_authorized_operations: NotRequired[bool]


class ListGroups(TypedDict):
    states_filter: NotRequired[list[str]]
    types_filter: NotRequired[list[str]]


class SaslHandshake(TypedDict):
    mechanism: str


class ApiVersions(TypedDict):
    client_software_name: NotRequired[str]
    client_software_version: NotRequired[str]


class CreateTopicsTopicAssignment(TypedDict):
    partition_index: int
    broker_ids: list[int]


class CreateTopicsTopicConfig(TypedDict):
    name: str
    value: str | None


class CreateTopicsTopic(TypedDict):
    name: str
    num_partitions: int
    replication_factor: int
    assignments: list[CreateTopicsTopicAssignment]
    configs: list[CreateTopicsTopicConfig]


class CreateTopics(TypedDict):
    topics: list[CreateTopicsTopic]
    timeout_ms: int
    validate_only: bool


class DeleteTopicsTopic(TypedDict):
    name: str | None
    topic_id: UUID


class DeleteTopics(TypedDict):
    topics: NotRequired[list[DeleteTopicsTopic]]
    topic_names: NotRequired[list[str]]
    timeout_ms: int


class DeleteRecordsTopicPartition(TypedDict):
    partition_index: int
    offset: int


class DeleteRecordsTopic(TypedDict):
    name: str
    partitions: list[DeleteRecordsTopicPartition]


class DeleteRecords(TypedDict):
    topics: list[DeleteRecordsTopic]
    timeout_ms: int


class InitProducerId(TypedDict):
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: NotRequired[int]
    producer_epoch: NotRequired[int]


class OffsetForLeaderEpochTopicPartition(TypedDict):
    partition: int
    current_leader_epoch: int
    leader_epoch: int


class OffsetForLeaderEpochTopic(TypedDict):
    topic: str
    partitions: list[OffsetForLeaderEpochTopicPartition]


class OffsetForLeaderEpoch(TypedDict):
    replica_id: NotRequired[int]
    topics: list[OffsetForLeaderEpochTopic]


class AddPartitionsToTxnV3AndBelowTopic(TypedDict):
    name: str
    partitions: list[int]


class AddPartitionsToTxn(TypedDict):
    v3_and_below_transactional_id: str
    v3_and_below_producer_id: int
    v3_and_below_producer_epoch: int
    v3_and_below_topics: list[AddPartitionsToTxnV3AndBelowTopic]


class AddOffsetsToTxn(TypedDict):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


class EndTxn(TypedDict):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


class TxnOffsetCommitTopic(TypedDict):
    name: str
    partitions: list[OffsetCommitTopicPartition]


class TxnOffsetCommit(TypedDict):
    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation_id: NotRequired[int]
    member_id: NotRequired[str]
    group_instance_id: NotRequired[str | None]
    topics: list[TxnOffsetCommitTopic]


class DescribeAcls(TypedDict):
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


class CreateAclsCreation(TypedDict):
    resource_type: int
    resource_name: str
    resource_pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class CreateAcls(TypedDict):
    creations: list[CreateAclsCreation]


class DeleteAcls(TypedDict):
    filters: list[DescribeAcls]


class DescribeConfigsResource(TypedDict):
    resource_type: int
    resource_name: str
    configuration_keys: list[str] | None


class DescribeConfigs(TypedDict):
    resources: list[DescribeConfigsResource]
    include_synonyms: bool
    include_documentation: NotRequired[bool]


class ElectLeadersTopicPartition(TypedDict):
    topic: str
    partitions: list[int]


class ElectLeaders(TypedDict):
    election_type: NotRequired[int]
    topic_partitions: list[ElectLeadersTopicPartition] | None
    timeout_ms: int


class IncrementalAlterConfigsResourceConfig(TypedDict):
    name: str
    config_operation: int
    value: str | None


class IncrementalAlterConfigsResource(TypedDict):
    resource_type: int
    resource_name: str
    configs: list[IncrementalAlterConfigsResourceConfig]


class IncrementalAlterConfigs(TypedDict):
    resources: list[IncrementalAlterConfigsResource]
    validate_only: bool


class AlterConfigsResource(TypedDict):
    resource_type: int
    resource_name: str
    configs: list[CreateTopicsTopicConfig]


class AlterConfigs(TypedDict):
    resources: list[AlterConfigsResource]
    validate_only: bool


class DescribeLogDirs(TypedDict):
    topics: list[ElectLeadersTopicPartition] | None


class SaslAuthenticate(TypedDict):
    auth_bytes: bytes


class CreatePartitionsTopicAssignment(TypedDict):
    broker_ids: list[int]


class CreatePartitionsTopic(TypedDict):
    name: str
    count: int
    assignments: list[CreatePartitionsTopicAssignment] | None


class CreatePartitions(TypedDict):
    topics: list[CreatePartitionsTopic]
    timeout_ms: int
    validate_only: bool


class DeleteGroups(TypedDict):
    groups_names: list[str]


class AlterPartitionReassignmentsTopicPartition(TypedDict):
    partition_index: int
    replicas: list[int] | None


class AlterPartitionReassignmentsTopic(TypedDict):
    name: str
    partitions: list[AlterPartitionReassignmentsTopicPartition]


class AlterPartitionReassignments(TypedDict):
    timeout_ms: int
    allow_replication_factor_change: NotRequired[bool]
    topics: list[AlterPartitionReassignmentsTopic]


class ListPartitionReassignments(TypedDict):
    timeout_ms: int
    topics: list[OffsetFetchTopic] | None


class OffsetDeleteTopicPartition(TypedDict):
    partition_index: int


class OffsetDeleteTopic(TypedDict):
    name: str
    partitions: list[OffsetDeleteTopicPartition]


class OffsetDelete(TypedDict):
    group_id: str
    topics: list[OffsetDeleteTopic]


class DescribeClientQuotasComponent(TypedDict):
    entity_type: str
    match_type: int
    match: str | None


class DescribeClientQuotas(TypedDict):
    components: list[DescribeClientQuotasComponent]
    strict: bool


class AlterClientQuotasEntrieEntity(TypedDict):
    entity_type: str
    entity_name: str | None


class AlterClientQuotasEntrieOp(TypedDict):
    key: str
    value: float
    remove: bool


class AlterClientQuotasEntrie(TypedDict):
    entity: list[AlterClientQuotasEntrieEntity]
    ops: list[AlterClientQuotasEntrieOp]


class AlterClientQuotas(TypedDict):
    entries: list[AlterClientQuotasEntrie]
    validate_only: bool


class DescribeUserScramCredentialsUser(TypedDict):
    name: str


class DescribeUserScramCredentials(TypedDict):
    users: list[DescribeUserScramCredentialsUser] | None


class AlterUserScramCredentialsDeletion(TypedDict):
    name: str
    mechanism: int


class AlterUserScramCredentialsUpsertion(TypedDict):
    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


class AlterUserScramCredentials(TypedDict):
    deletions: list[AlterUserScramCredentialsDeletion]
    upsertions: list[AlterUserScramCredentialsUpsertion]


class DescribeCluster(TypedDict):
    include_cluster_authorized_operations: bool
    endpoint_type: NotRequired[int]
    include_fenced_brokers: NotRequired[bool]


class DescribeProducers(TypedDict):
    topics: list[OffsetFetchTopic]


class ListTransactions(TypedDict):
    state_filters: list[str]
    producer_id_filters: list[int]
    duration_filter: NotRequired[int]


class DescribeTransactions(TypedDict):
    transactional_ids: list[str]


class ConsumerGroupHeartbeatTopicPartition(TypedDict):
    topic_id: UUID
    partitions: list[int]


class ConsumerGroupHeartbeat(TypedDict):
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    subscribed_topic_names: list[str] | None
    subscribed_topic_regex: NotRequired[str | None]
    server_assignor: str | None
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartition] | None


class ConsumerGroupDescribe(TypedDict):
    group_ids: list[str]
    include_authorized_operations: bool


class ListConfigResources(TypedDict):
    resource_types: NotRequired[list[int]]


class DescribeTopicPartitionsCursor(TypedDict):
    topic_name: str
    partition_index: int


class DescribeTopicPartitions(TypedDict):
    topics: list[DescribeUserScramCredentialsUser]
    response_partition_limit: int
    cursor: DescribeTopicPartitionsCursor | None


TxnOffsetCommitTopicPartition = OffsetCommitTopicPartition
DeleteAclsFilter = DescribeAcls
AlterConfigsResourceConfig = CreateTopicsTopicConfig
DescribeLogDirsTopic = ElectLeadersTopicPartition
ListPartitionReassignmentsTopic = OffsetFetchTopic
DescribeProducersTopic = OffsetFetchTopic
DescribeTopicPartitionsTopic = DescribeUserScramCredentialsUser
