"""The handler of each API that the gateway serves."""

from __future__ import annotations

from sparklog.gateway.handlers import (
    acls,
    cluster,
    commits,
    configs,
    consumer_groups,
    coordinators,
    fetch,
    group_admin,
    groups,
    metadata,
    offsets,
    produce,
    quotas,
    reassignments,
    sasl,
    topic_pages,
    topics,
    transactions,
    users,
    versions,
)
from sparklog.gateway.session import Handler, ServedApi
from sparklog.kafka.wire.apis import Api
from sparklog.kafka.wire.schema import REQUEST, messages

HANDLERS: dict[str, Handler] = {
    "Produce": produce.produce,
    "Fetch": fetch.fetch,
    "ListOffsets": offsets.list_offsets,
    "Metadata": metadata.metadata,
    "OffsetCommit": commits.offset_commit,
    "OffsetFetch": commits.offset_fetch,
    "FindCoordinator": coordinators.find_coordinator,
    "JoinGroup": groups.join_group,
    "Heartbeat": groups.heartbeat,
    "LeaveGroup": groups.leave_group,
    "SyncGroup": groups.sync_group,
    "SaslHandshake": sasl.sasl_handshake,
    "ApiVersions": versions.api_versions,
    "InitProducerId": produce.init_producer_id,
    "OffsetForLeaderEpoch": offsets.offset_for_leader_epoch,
    "SaslAuthenticate": sasl.sasl_authenticate,
    "DescribeGroups": group_admin.describe_groups,
    "ListGroups": group_admin.list_groups,
    "DeleteGroups": group_admin.delete_groups,
    "OffsetDelete": group_admin.offset_delete,
    "CreateTopics": topics.create_topics,
    "DeleteTopics": topics.delete_topics,
    "DeleteRecords": topics.delete_records,
    "CreatePartitions": topics.create_partitions,
    "AddPartitionsToTxn": transactions.add_partitions_to_txn,
    "AddOffsetsToTxn": transactions.add_offsets_to_txn,
    "EndTxn": transactions.end_txn,
    "TxnOffsetCommit": transactions.txn_offset_commit,
    "ListTransactions": transactions.list_transactions,
    "DescribeTransactions": transactions.describe_transactions,
    "DescribeProducers": transactions.describe_producers,
    "DescribeConfigs": configs.describe_configs,
    "AlterConfigs": configs.alter_configs,
    "IncrementalAlterConfigs": configs.incremental_alter_configs,
    "DescribeAcls": acls.describe_acls,
    "CreateAcls": acls.create_acls,
    "DeleteAcls": acls.delete_acls,
    "ElectLeaders": reassignments.elect_leaders,
    "AlterPartitionReassignments": reassignments.alter_partition_reassignments,
    "ListPartitionReassignments": reassignments.list_partition_reassignments,
    "DescribeClientQuotas": quotas.describe_client_quotas,
    "AlterClientQuotas": quotas.alter_client_quotas,
    "DescribeUserScramCredentials": users.describe_user_scram_credentials,
    "AlterUserScramCredentials": users.alter_user_scram_credentials,
    "DescribeLogDirs": cluster.describe_log_dirs,
    "DescribeCluster": cluster.describe_cluster,
    "ConsumerGroupHeartbeat": consumer_groups.consumer_group_heartbeat,
    "ConsumerGroupDescribe": consumer_groups.consumer_group_describe,
    "ListConfigResources": configs.list_config_resources,
    "DescribeTopicPartitions": topic_pages.describe_topic_partitions,
}


def served_apis() -> dict[int, ServedApi]:
    """Return all served APIs by their numbers."""
    apis = {}
    for name, handler in HANDLERS.items():
        message = messages()[REQUEST, name]
        apis[message.api_key] = ServedApi(Api(name, message.api_key, *message.served), handler)
    return apis
