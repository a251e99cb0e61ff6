"""The types of Kafka's responses, as the encoders take them. Generated from `messages.txt` by
`python -m tests.support.kafka_types`; do not edit.

A key is `NotRequired` if the field has a default, or if not every served version has it. Types of nested structures are
named after the message and the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict
from uuid import UUID

from sparklog.kafka.wire.codec import Part


class ProduceResponsePartitionResponseRecordError(TypedDict):
    batch_index: int
    batch_index_error_message: NotRequired[str | None]


class ProduceResponsePartitionResponseCurrentLeader(TypedDict):
    leader_id: NotRequired[int]
    leader_epoch: NotRequired[int]


class ProduceResponsePartitionResponse(TypedDict):
    index: int
    error_code: int
    base_offset: int
    log_append_time_ms: NotRequired[int]
    log_start_offset: NotRequired[int]
    record_errors: NotRequired[list[ProduceResponsePartitionResponseRecordError]]
    error_message: NotRequired[str | None]
    current_leader: NotRequired[ProduceResponsePartitionResponseCurrentLeader]


class ProduceResponse(TypedDict):
    name: NotRequired[str]
    topic_id: NotRequired[UUID | None]
    partition_responses: list[ProduceResponsePartitionResponse]


class ProduceNodeEndpoint(TypedDict):
    node_id: int
    host: str
    port: int
    rack: NotRequired[str | None]


class Produce(TypedDict):
    responses: list[ProduceResponse]
    throttle_time_ms: NotRequired[int]
    node_endpoints: NotRequired[list[ProduceNodeEndpoint]]


class FetchResponsePartitionDivergingEpoch(TypedDict):
    epoch: NotRequired[int]
    end_offset: NotRequired[int]


class FetchResponsePartitionSnapshotId(TypedDict):
    end_offset: NotRequired[int]
    epoch: NotRequired[int]


class FetchResponsePartitionAbortedTransaction(TypedDict):
    producer_id: int
    first_offset: int


class FetchResponsePartition(TypedDict):
    partition_index: int
    error_code: int
    high_watermark: int
    last_stable_offset: NotRequired[int]
    log_start_offset: NotRequired[int]
    diverging_epoch: NotRequired[FetchResponsePartitionDivergingEpoch]
    current_leader: NotRequired[ProduceResponsePartitionResponseCurrentLeader]
    snapshot_id: NotRequired[FetchResponsePartitionSnapshotId]
    aborted_transactions: NotRequired[list[FetchResponsePartitionAbortedTransaction] | None]
    preferred_read_replica: NotRequired[int]
    records: Sequence[Part] | None


class FetchResponse(TypedDict):
    topic: NotRequired[str]
    topic_id: NotRequired[UUID | None]
    partitions: list[FetchResponsePartition]


class Fetch(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: NotRequired[int]
    session_id: NotRequired[int]
    responses: list[FetchResponse]
    node_endpoints: NotRequired[list[ProduceNodeEndpoint]]


class ListOffsetsTopicPartition(TypedDict):
    partition_index: int
    error_code: int
    timestamp: NotRequired[int]
    offset: NotRequired[int]
    leader_epoch: NotRequired[int]


class ListOffsetsTopic(TypedDict):
    name: str
    partitions: list[ListOffsetsTopicPartition]


class ListOffsets(TypedDict):
    throttle_time_ms: NotRequired[int]
    topics: list[ListOffsetsTopic]


class MetadataTopicPartition(TypedDict):
    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: NotRequired[int]
    replica_nodes: list[int]
    isr_nodes: list[int]
    offline_replicas: NotRequired[list[int]]


class MetadataTopic(TypedDict):
    error_code: int
    name: str | None
    topic_id: NotRequired[UUID | None]
    is_internal: NotRequired[bool]
    partitions: list[MetadataTopicPartition]
    topic_authorized_operations: NotRequired[int]


class Metadata(TypedDict):
    throttle_time_ms: NotRequired[int]
    brokers: list[ProduceNodeEndpoint]
    cluster_id: NotRequired[str | None]
    controller_id: NotRequired[int]
    topics: list[MetadataTopic]
    cluster_authorized_operations: NotRequired[int]
    error_code: NotRequired[int]


class OffsetCommitTopicPartition(TypedDict):
    partition_index: int
    error_code: int


class OffsetCommitTopic(TypedDict):
    name: NotRequired[str]
    topic_id: NotRequired[UUID | None]
    partitions: list[OffsetCommitTopicPartition]


class OffsetCommit(TypedDict):
    throttle_time_ms: NotRequired[int]
    topics: list[OffsetCommitTopic]


class OffsetFetchTopicPartition(TypedDict):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: NotRequired[int]
    metadata: str | None
    error_code: int


class OffsetFetchTopic(TypedDict):
    name: str
    partitions: list[OffsetFetchTopicPartition]


class OffsetFetchGroupTopic(TypedDict):
    name: NotRequired[str]
    topic_id: NotRequired[UUID | None]
    partitions: list[OffsetFetchTopicPartition]


class OffsetFetchGroup(TypedDict):
    group_id: str
    topics: list[OffsetFetchGroupTopic]
    error_code: NotRequired[int]


class OffsetFetch(TypedDict):
    throttle_time_ms: NotRequired[int]
    topics: NotRequired[list[OffsetFetchTopic]]
    error_code: NotRequired[int]
    groups: NotRequired[list[OffsetFetchGroup]]


class FindCoordinatorCoordinator(TypedDict):
    key: str
    node_id: int
    host: str
    port: int
    error_code: int
    error_message: NotRequired[str | None]


class FindCoordinator(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: NotRequired[int]
    error_message: NotRequired[str | None]
    node_id: NotRequired[int]
    host: NotRequired[str]
    port: NotRequired[int]
    coordinators: NotRequired[list[FindCoordinatorCoordinator]]


class JoinGroupMember(TypedDict):
    member_id: str
    group_instance_id: NotRequired[str | None]
    metadata: bytes


class JoinGroup(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    generation_id: NotRequired[int]
    protocol_type: NotRequired[str | None]
    protocol_name: str | None
    leader: str
    skip_assignment: NotRequired[bool]
    member_id: str
    members: list[JoinGroupMember]


class Heartbeat(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int


class LeaveGroupMember(TypedDict):
    member_id: str
    group_instance_id: str | None
    error_code: int


class LeaveGroup(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    members: NotRequired[list[LeaveGroupMember]]


class SyncGroup(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    protocol_type: NotRequired[str | None]
    protocol_name: NotRequired[str | None]
    assignment: bytes


class DescribeGroupsGroupMember(TypedDict):
    member_id: str
    group_instance_id: NotRequired[str | None]
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class DescribeGroupsGroup(TypedDict):
    error_code: int
    error_message: NotRequired[str | None]
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: list[DescribeGroupsGroupMember]
    authorized_operations: NotRequired[int]


class DescribeGroups(TypedDict):
    throttle_time_ms: NotRequired[int]
    groups: list[DescribeGroupsGroup]


class ListGroupsGroup(TypedDict):
    group_id: str
    protocol_type: str
    group_state: NotRequired[str]
    group_type: NotRequired[str]


class ListGroups(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    groups: list[ListGroupsGroup]


class SaslHandshake(TypedDict):
    error_code: int
    mechanisms: list[str]


class ApiVersionsApiKey(TypedDict):
    api_key: int
    min_version: int
    max_version: int


class ApiVersionsSupportedFeature(TypedDict):
    name: str
    min_version: int
    max_version: int


class ApiVersionsFinalizedFeature(TypedDict):
    name: str
    max_version_level: int
    min_version_level: int


class ApiVersions(TypedDict):
    error_code: int
    api_keys: list[ApiVersionsApiKey]
    throttle_time_ms: NotRequired[int]
    supported_features: NotRequired[list[ApiVersionsSupportedFeature]]
    finalized_features_epoch: NotRequired[int]
    finalized_features: NotRequired[list[ApiVersionsFinalizedFeature]]
    zk_migration_ready: NotRequired[bool]


class CreateTopicsTopicConfig(TypedDict):
    name: str
    value: str | None
    read_only: bool
    config_source: NotRequired[int]
    is_sensitive: bool


class CreateTopicsTopic(TypedDict):
    name: str
    topic_id: NotRequired[UUID | None]
    error_code: int
    error_message: NotRequired[str | None]
    topic_config_error_code: NotRequired[int]
    num_partitions: NotRequired[int]
    replication_factor: NotRequired[int]
    configs: NotRequired[list[CreateTopicsTopicConfig] | None]


class CreateTopics(TypedDict):
    throttle_time_ms: NotRequired[int]
    topics: list[CreateTopicsTopic]


class DeleteTopicsResponse(TypedDict):
    name: str | None
    topic_id: NotRequired[UUID | None]
    error_code: int
    error_message: NotRequired[str | None]


class DeleteTopics(TypedDict):
    throttle_time_ms: NotRequired[int]
    responses: list[DeleteTopicsResponse]


class DeleteRecordsTopicPartition(TypedDict):
    partition_index: int
    low_watermark: int
    error_code: int


class DeleteRecordsTopic(TypedDict):
    name: str
    partitions: list[DeleteRecordsTopicPartition]


class DeleteRecords(TypedDict):
    throttle_time_ms: NotRequired[int]
    topics: list[DeleteRecordsTopic]


class InitProducerId(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    producer_id: NotRequired[int]
    producer_epoch: int


class OffsetForLeaderEpochTopicPartition(TypedDict):
    error_code: int
    partition: int
    leader_epoch: NotRequired[int]
    end_offset: NotRequired[int]


class OffsetForLeaderEpochTopic(TypedDict):
    topic: str
    partitions: list[OffsetForLeaderEpochTopicPartition]


class OffsetForLeaderEpoch(TypedDict):
    throttle_time_ms: NotRequired[int]
    topics: list[OffsetForLeaderEpochTopic]


class AddPartitionsToTxnResultsByTopicV3AndBelowResultsByPartition(TypedDict):
    partition_index: int
    partition_error_code: int


class AddPartitionsToTxnResultsByTopicV3AndBelow(TypedDict):
    name: str
    results_by_partition: list[AddPartitionsToTxnResultsByTopicV3AndBelowResultsByPartition]


class AddPartitionsToTxn(TypedDict):
    throttle_time_ms: NotRequired[int]
    results_by_topic_v3_and_below: list[AddPartitionsToTxnResultsByTopicV3AndBelow]


class EndTxn(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    producer_id: NotRequired[int]
    producer_epoch: NotRequired[int]


class TxnOffsetCommitTopic(TypedDict):
    name: str
    partitions: list[OffsetCommitTopicPartition]


class TxnOffsetCommit(TypedDict):
    throttle_time_ms: NotRequired[int]
    topics: list[TxnOffsetCommitTopic]


class DescribeAclsResourceAcl(TypedDict):
    principal: str
    host: str
    operation: int
    permission_type: int


class DescribeAclsResource(TypedDict):
    resource_type: int
    resource_name: str
    pattern_type: NotRequired[int]
    acls: list[DescribeAclsResourceAcl]


class DescribeAcls(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    error_message: str | None
    resources: list[DescribeAclsResource]


class CreateAclsResult(TypedDict):
    error_code: int
    error_message: str | None


class CreateAcls(TypedDict):
    throttle_time_ms: NotRequired[int]
    results: list[CreateAclsResult]


class DeleteAclsFilterResultMatchingAcl(TypedDict):
    error_code: int
    error_message: NotRequired[str | None]
    resource_type: int
    resource_name: str
    pattern_type: NotRequired[int]
    principal: str
    host: str
    operation: int
    permission_type: int


class DeleteAclsFilterResult(TypedDict):
    error_code: int
    error_message: str | None
    matching_acls: list[DeleteAclsFilterResultMatchingAcl]


class DeleteAcls(TypedDict):
    throttle_time_ms: NotRequired[int]
    filter_results: list[DeleteAclsFilterResult]


class DescribeConfigsResultConfigSynonym(TypedDict):
    name: str
    value: str | None
    source: int


class DescribeConfigsResultConfig(TypedDict):
    name: str
    value: str | None
    read_only: bool
    config_source: NotRequired[int]
    is_sensitive: bool
    synonyms: NotRequired[list[DescribeConfigsResultConfigSynonym]]
    config_type: NotRequired[int]
    documentation: NotRequired[str | None]


class DescribeConfigsResult(TypedDict):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: list[DescribeConfigsResultConfig]


class DescribeConfigs(TypedDict):
    throttle_time_ms: NotRequired[int]
    results: list[DescribeConfigsResult]


class ElectLeadersReplicaElectionResultPartitionResult(TypedDict):
    partition_id: int
    error_code: int
    error_message: str | None


class ElectLeadersReplicaElectionResult(TypedDict):
    topic: str
    partition_result: list[ElectLeadersReplicaElectionResultPartitionResult]


class ElectLeaders(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: NotRequired[int]
    replica_election_results: list[ElectLeadersReplicaElectionResult]


class IncrementalAlterConfigsResponse(TypedDict):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


class IncrementalAlterConfigs(TypedDict):
    throttle_time_ms: NotRequired[int]
    responses: list[IncrementalAlterConfigsResponse]


class DescribeLogDirsResultTopicPartition(TypedDict):
    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool


class DescribeLogDirsResultTopic(TypedDict):
    name: str
    partitions: list[DescribeLogDirsResultTopicPartition]


class DescribeLogDirsResult(TypedDict):
    error_code: int
    log_dir: str
    topics: list[DescribeLogDirsResultTopic]
    total_bytes: NotRequired[int]
    usable_bytes: NotRequired[int]


class DescribeLogDirs(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: NotRequired[int]
    results: list[DescribeLogDirsResult]


class SaslAuthenticate(TypedDict):
    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: NotRequired[int]


class CreatePartitionsResult(TypedDict):
    name: str
    error_code: int
    error_message: NotRequired[str | None]


class CreatePartitions(TypedDict):
    throttle_time_ms: NotRequired[int]
    results: list[CreatePartitionsResult]


class DeleteGroupsResult(TypedDict):
    group_id: str
    error_code: int


class DeleteGroups(TypedDict):
    throttle_time_ms: NotRequired[int]
    results: list[DeleteGroupsResult]


class AlterPartitionReassignmentsResponsePartition(TypedDict):
    partition_index: int
    error_code: int
    error_message: str | None


class AlterPartitionReassignmentsResponse(TypedDict):
    name: str
    partitions: list[AlterPartitionReassignmentsResponsePartition]


class AlterPartitionReassignments(TypedDict):
    throttle_time_ms: NotRequired[int]
    allow_replication_factor_change: NotRequired[bool]
    error_code: int
    error_message: str | None
    responses: list[AlterPartitionReassignmentsResponse]


class ListPartitionReassignmentsTopicPartition(TypedDict):
    partition_index: int
    replicas: list[int]
    adding_replicas: list[int]
    removing_replicas: list[int]


class ListPartitionReassignmentsTopic(TypedDict):
    name: str
    partitions: list[ListPartitionReassignmentsTopicPartition]


class ListPartitionReassignments(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    error_message: str | None
    topics: list[ListPartitionReassignmentsTopic]


class OffsetDelete(TypedDict):
    error_code: int
    throttle_time_ms: NotRequired[int]
    topics: list[TxnOffsetCommitTopic]


class DescribeClientQuotasEntrieEntity(TypedDict):
    entity_type: str
    entity_name: str | None


class DescribeClientQuotasEntrieValue(TypedDict):
    key: str
    value: float


class DescribeClientQuotasEntrie(TypedDict):
    entity: list[DescribeClientQuotasEntrieEntity]
    values: list[DescribeClientQuotasEntrieValue]


class DescribeClientQuotas(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    error_message: str | None
    entries: list[DescribeClientQuotasEntrie] | None


class AlterClientQuotasEntrie(TypedDict):
    error_code: int
    error_message: str | None
    entity: list[DescribeClientQuotasEntrieEntity]


class AlterClientQuotas(TypedDict):
    throttle_time_ms: NotRequired[int]
    entries: list[AlterClientQuotasEntrie]


class DescribeUserScramCredentialsResultCredentialInfo(TypedDict):
    mechanism: int
    iterations: int


class DescribeUserScramCredentialsResult(TypedDict):
    user: str
    error_code: int
    error_message: str | None
    credential_infos: list[DescribeUserScramCredentialsResultCredentialInfo]


class DescribeUserScramCredentials(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    error_message: str | None
    results: list[DescribeUserScramCredentialsResult]


class AlterUserScramCredentialsResult(TypedDict):
    user: str
    error_code: int
    error_message: str | None


class AlterUserScramCredentials(TypedDict):
    throttle_time_ms: NotRequired[int]
    results: list[AlterUserScramCredentialsResult]


class DescribeClusterBroker(TypedDict):
    broker_id: int
    host: str
    port: int
    rack: NotRequired[str | None]
    is_fenced: NotRequired[bool]


class DescribeCluster(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    error_message: NotRequired[str | None]
    endpoint_type: NotRequired[int]
    cluster_id: str
    controller_id: NotRequired[int]
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: NotRequired[int]


class DescribeProducersTopicPartitionActiveProducer(TypedDict):
    producer_id: int
    producer_epoch: int
    last_sequence: NotRequired[int]
    last_timestamp: NotRequired[int]
    coordinator_epoch: int
    current_txn_start_offset: NotRequired[int]


class DescribeProducersTopicPartition(TypedDict):
    partition_index: int
    error_code: int
    error_message: NotRequired[str | None]
    active_producers: list[DescribeProducersTopicPartitionActiveProducer]


class DescribeProducersTopic(TypedDict):
    name: str
    partitions: list[DescribeProducersTopicPartition]


class DescribeProducers(TypedDict):
    throttle_time_ms: NotRequired[int]
    topics: list[DescribeProducersTopic]


class ListTransactionsTransactionState(TypedDict):
    transactional_id: str
    producer_id: int
    transaction_state: str


class ListTransactions(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    unknown_state_filters: list[str]
    transaction_states: list[ListTransactionsTransactionState]


class DescribeTransactionsTransactionStateTopic(TypedDict):
    topic: str
    partitions: list[int]


class DescribeTransactionsTransactionState(TypedDict):
    error_code: int
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: int
    transaction_start_time_ms: int
    producer_id: int
    producer_epoch: int
    topics: list[DescribeTransactionsTransactionStateTopic]


class DescribeTransactions(TypedDict):
    throttle_time_ms: NotRequired[int]
    transaction_states: list[DescribeTransactionsTransactionState]


class ConsumerGroupHeartbeatAssignmentTopicPartition(TypedDict):
    topic_id: UUID | None
    partitions: list[int]


class ConsumerGroupHeartbeatAssignment(TypedDict):
    topic_partitions: list[ConsumerGroupHeartbeatAssignmentTopicPartition]


class ConsumerGroupHeartbeat(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    error_message: NotRequired[str | None]
    member_id: NotRequired[str | None]
    member_epoch: NotRequired[int]
    heartbeat_interval_ms: NotRequired[int]
    assignment: NotRequired[ConsumerGroupHeartbeatAssignment | None]


class ConsumerGroupDescribeGroupMemberAssignmentTopicPartition(TypedDict):
    topic_id: UUID | None
    topic_name: str
    partitions: list[int]


class ConsumerGroupDescribeGroupMemberAssignment(TypedDict):
    topic_partitions: list[ConsumerGroupDescribeGroupMemberAssignmentTopicPartition]


class ConsumerGroupDescribeGroupMember(TypedDict):
    member_id: str
    instance_id: NotRequired[str | None]
    rack_id: NotRequired[str | None]
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: NotRequired[str | None]
    assignment: ConsumerGroupDescribeGroupMemberAssignment
    target_assignment: ConsumerGroupDescribeGroupMemberAssignment
    member_type: NotRequired[int]


class ConsumerGroupDescribeGroup(TypedDict):
    error_code: int
    error_message: NotRequired[str | None]
    group_id: str
    group_state: NotRequired[str]
    group_epoch: NotRequired[int]
    assignment_epoch: NotRequired[int]
    assignor_name: NotRequired[str]
    members: NotRequired[list[ConsumerGroupDescribeGroupMember]]
    authorized_operations: NotRequired[int]


class ConsumerGroupDescribe(TypedDict):
    throttle_time_ms: NotRequired[int]
    groups: list[ConsumerGroupDescribeGroup]


class ListConfigResourcesConfigResource(TypedDict):
    resource_name: str
    resource_type: NotRequired[int]


class ListConfigResources(TypedDict):
    throttle_time_ms: NotRequired[int]
    error_code: int
    config_resources: list[ListConfigResourcesConfigResource]


class DescribeTopicPartitionsTopicPartition(TypedDict):
    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: NotRequired[int]
    replica_nodes: list[int]
    isr_nodes: list[int]
    eligible_leader_replicas: NotRequired[list[int] | None]
    last_known_elr: NotRequired[list[int] | None]
    offline_replicas: list[int]


class DescribeTopicPartitionsTopic(TypedDict):
    error_code: int
    name: str | None
    topic_id: UUID | None
    is_internal: NotRequired[bool]
    partitions: list[DescribeTopicPartitionsTopicPartition]
    topic_authorized_operations: NotRequired[int]


class DescribeTopicPartitionsNextCursor(TypedDict):
    topic_name: str
    partition_index: int


class DescribeTopicPartitions(TypedDict):
    throttle_time_ms: NotRequired[int]
    topics: list[DescribeTopicPartitionsTopic]
    next_cursor: NotRequired[DescribeTopicPartitionsNextCursor | None]


FetchResponsePartitionCurrentLeader = ProduceResponsePartitionResponseCurrentLeader
FetchNodeEndpoint = ProduceNodeEndpoint
MetadataBroker = ProduceNodeEndpoint
OffsetFetchGroupTopicPartition = OffsetFetchTopicPartition
AddOffsetsToTxn = Heartbeat
TxnOffsetCommitTopicPartition = OffsetCommitTopicPartition
AlterConfigsResponse = IncrementalAlterConfigsResponse
AlterConfigs = IncrementalAlterConfigs
OffsetDeleteTopicPartition = OffsetCommitTopicPartition
OffsetDeleteTopic = TxnOffsetCommitTopic
AlterClientQuotasEntrieEntity = DescribeClientQuotasEntrieEntity
ConsumerGroupDescribeGroupMemberTargetAssignmentTopicPartition = (
    ConsumerGroupDescribeGroupMemberAssignmentTopicPartition
)
ConsumerGroupDescribeGroupMemberTargetAssignment = ConsumerGroupDescribeGroupMemberAssignment
