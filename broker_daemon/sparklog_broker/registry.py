"""Which handler answers which API."""

from __future__ import annotations

from sparklog.protocol.messages import Api
from sparklog_broker.dispatcher import Handler
from sparklog_broker.handlers.fetch import fetch
from sparklog_broker.handlers.groups import (
    delete_group,
    describe_groups,
    group_heartbeat,
    list_groups,
    offset_commit,
    offset_fetch,
    txn_offset_commit,
)
from sparklog_broker.handlers.locate import locate_segments
from sparklog_broker.handlers.metadata import handshake, metadata
from sparklog_broker.handlers.offsets import list_offsets
from sparklog_broker.handlers.produce import produce
from sparklog_broker.handlers.producer_ids import init_producer_id
from sparklog_broker.handlers.records import delete_records
from sparklog_broker.handlers.remote import locate_remote
from sparklog_broker.handlers.schemas import alter_schema
from sparklog_broker.handlers.topics import alter_topic, create_topic, delete_topic
from sparklog_broker.handlers.transactions import (
    abort_transaction,
    describe_producers,
    describe_transactions,
    end_shared_txn,
    end_txn,
    join_shared_txn,
    list_transactions,
)

HANDLERS: dict[Api, Handler] = {
    Api.HANDSHAKE: handshake,
    Api.METADATA: metadata,
    Api.CREATE_TOPIC: create_topic,
    Api.DELETE_TOPIC: delete_topic,
    Api.PRODUCE: produce,
    Api.FETCH: fetch,
    Api.LIST_OFFSETS: list_offsets,
    Api.LOCATE_SEGMENTS: locate_segments,
    Api.LOCATE_REMOTE: locate_remote,
    Api.DELETE_RECORDS: delete_records,
    Api.ALTER_TOPIC: alter_topic,
    Api.ALTER_SCHEMA: alter_schema,
    Api.GROUP_HEARTBEAT: group_heartbeat,
    Api.OFFSET_COMMIT: offset_commit,
    Api.OFFSET_FETCH: offset_fetch,
    Api.LIST_GROUPS: list_groups,
    Api.DESCRIBE_GROUPS: describe_groups,
    Api.DELETE_GROUP: delete_group,
    Api.INIT_PRODUCER_ID: init_producer_id,
    Api.END_TXN: end_txn,
    Api.JOIN_SHARED_TXN: join_shared_txn,
    Api.END_SHARED_TXN: end_shared_txn,
    Api.LIST_TRANSACTIONS: list_transactions,
    Api.DESCRIBE_TRANSACTIONS: describe_transactions,
    Api.ABORT_TRANSACTION: abort_transaction,
    Api.DESCRIBE_PRODUCERS: describe_producers,
    Api.TXN_OFFSET_COMMIT: txn_offset_commit,
}
