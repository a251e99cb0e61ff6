"""Which handler answers which API."""

from __future__ import annotations

from sparklog.protocol.messages import Api
from sparklog_broker.dispatcher import Handler
from sparklog_broker.handlers import (
    cluster,
    fetch,
    groups,
    locate,
    metadata,
    offsets,
    produce,
    producer_ids,
    records,
    remote,
    schemas,
    snapshots,
    topics,
    transactions,
)

HANDLERS: dict[Api, Handler] = {
    Api.HANDSHAKE: metadata.handshake,
    Api.METADATA: metadata.metadata,
    Api.CREATE_TOPIC: topics.create_topic,
    Api.DELETE_TOPIC: topics.delete_topic,
    Api.PRODUCE: produce.produce,
    Api.FETCH: fetch.fetch,
    Api.LIST_OFFSETS: offsets.list_offsets,
    Api.SNAPSHOT_OFFSETS: snapshots.snapshot_offsets,
    Api.LOCATE_SEGMENTS: locate.locate_segments,
    Api.LOCATE_REMOTE: remote.locate_remote,
    Api.DELETE_RECORDS: records.delete_records,
    Api.ALTER_TOPIC: topics.alter_topic,
    Api.ALTER_SCHEMA: schemas.alter_schema,
    Api.CREATE_PARTITIONS: topics.create_partitions,
    Api.GROUP_HEARTBEAT: groups.group_heartbeat,
    Api.OFFSET_COMMIT: groups.offset_commit,
    Api.OFFSET_FETCH: groups.offset_fetch,
    Api.LIST_GROUPS: groups.list_groups,
    Api.DESCRIBE_GROUPS: groups.describe_groups,
    Api.DELETE_GROUP: groups.delete_group,
    Api.INIT_PRODUCER_ID: producer_ids.init_producer_id,
    Api.END_TXN: transactions.end_txn,
    Api.JOIN_SHARED_TXN: transactions.join_shared_txn,
    Api.END_SHARED_TXN: transactions.end_shared_txn,
    Api.RENEW_SHARED_TXN: transactions.renew_shared_txn,
    Api.LIST_TRANSACTIONS: transactions.list_transactions,
    Api.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    Api.ABORT_TRANSACTION: transactions.abort_transaction,
    Api.DESCRIBE_PRODUCERS: transactions.describe_producers,
    Api.REPLICA_FETCH: cluster.replica_fetch,
    Api.METADATA_FETCH: cluster.metadata_fetch,
    Api.ALTER_PARTITION: cluster.alter_partition,
    Api.CONTROLLED_SHUTDOWN: cluster.controlled_shutdown,
    Api.TXN_OFFSET_COMMIT: groups.txn_offset_commit,
}
