"""Conversion of metadata.db from format 1, which had tables of topics, to nodes.

The conversion is part of the SQLite transaction that begins the first session (`LocalCoordination`): a process that is
killed leaves either all old tables or all nodes. Every partition gets this broker as its only replica.

| table of format 1 | nodes |
|---|---|
| `store` | `/cluster`, `/ids/producer`, `/ids/schema` |
| `topics`, `topic_owners`, `topic_requests`, `schemas` | `/topics/…` |
| `security_records` | `/security/…` |
| `unfinished_topics` in state "making" | partitions in leader epoch 0, whose directories may be missing |
| `unfinished_topics` in state "deleting" | `/deleted_topics/…` |
"""

from __future__ import annotations

import json
import sqlite3

from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import Create, Node, SetData
from sparklog.metadata.znode_tree import Znodes
from sparklog.replication.cluster_image import (
    NO_LEADER,
    ClusterDelta,
    ClusterImage,
    DeletedTopic,
    PartitionImage,
    TopicImage,
)
from sparklog.security.records import RecordId

_MAKING, _DELETING = "making", "deleting"
_TOPICS = (
    "SELECT name, topic_id, kind, partitions, key_columns, timestamp_column, configs, created_ms, coalesce(owner, ''), "
    "coalesce(request_id, '') FROM topics LEFT JOIN topic_owners USING (topic_id) "
    "LEFT JOIN topic_requests USING (topic_id) ORDER BY name"
)
_TABLES = "schemas", "topic_owners", "topic_requests", "topics", "security_records", "unfinished_topics"
"""The tables in the order in which they are dropped: a table goes before the tables that it refers to."""
_ADDED = (
    "CREATE TABLE IF NOT EXISTS topic_owners (topic_id TEXT PRIMARY KEY, owner TEXT NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS topic_requests (topic_id TEXT PRIMARY KEY, request_id TEXT NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS security_records (kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS unfinished_topics (topic_id TEXT PRIMARY KEY, state TEXT NOT NULL) STRICT",
)
"""Tables that stores of the first releases do not have."""


def convert(db: sqlite3.Connection, broker_id: int) -> None:
    """Replace the tables of format 1 with nodes. Raises sqlite3.Error, ValueError."""
    for statement in _ADDED:
        db.execute(statement)
    values = dict(db.execute("SELECT name, value FROM store").fetchall())
    unfinished = dict(db.execute("SELECT topic_id, state FROM unfinished_topics").fetchall())
    topics = _topics(db, broker_id, unfinished)
    security = {
        RecordId(kind, key): value for kind, key, value in db.execute("SELECT kind, key, value FROM security_records")
    }
    deleted = [topic_id for topic_id, state in sorted(unfinished.items()) if state == _DELETING]
    for node in nodes_of(
        ClusterImage(
            topics=topics,
            security=security,
            deleted={topic_id: DeletedTopic("", number) for number, topic_id in enumerate(deleted)},
        ),
        values["cluster_id"],
        next_producer_id=int(values.get("next_producer_id", 0)),
        next_schema_id=max(
            [int(values.get("next_schema_id", 0)), *(i + 1 for t in topics.values() for i in t.schemas)]
        ),
    ):
        db.execute("INSERT INTO nodes VALUES (?, ?, ?, ?, ?)", node[:5])
    for table in _TABLES:
        db.execute(f"DROP TABLE {table}")
    db.execute("DELETE FROM store")


def _topics(db: sqlite3.Connection, broker_id: int, unfinished: dict[str, str]) -> dict[str, TopicImage]:
    schemas: dict[str, dict[int, bytes]] = {}
    for topic_id, schema_id, message in db.execute("SELECT topic_id, schema_id, arrow_schema FROM schemas"):
        schemas.setdefault(topic_id, {})[schema_id] = message
    topics = {}
    for name, topic_id, kind, count, keys, timestamp_column, configs, created_ms, owner, request_id in db.execute(
        _TOPICS
    ):
        epoch = 0 if unfinished.get(topic_id) == _MAKING else 1
        topics[name] = TopicImage(
            name,
            topic_id,
            (sole_replica(broker_id, epoch),) * count,
            kind,
            tuple(json.loads(keys)),
            timestamp_column,
            created_ms,
            json.loads(configs),
            schemas[topic_id],
            owner,
            request_id,
        )
    return topics


def sole_replica(broker_id: int, leader_epoch: int) -> PartitionImage:
    """Return the state of a partition whose only replica is on this broker. The partition has no leader until the
    broker registers and is elected."""
    return PartitionImage((broker_id,), NO_LEADER, leader_epoch, 0, (broker_id,), last_leader=broker_id)


def nodes_of(image: ClusterImage, cluster_id: str, *, next_producer_id: int, next_schema_id: int) -> list[Node]:
    """Return the nodes of a store that contains `image`, each after its parent."""
    delta = ClusterDelta(topics=dict(image.topics), security=dict(image.security), deleted=dict(image.deleted))
    tree = Znodes()
    ops = [
        *znodes.base_ops(),
        Create(znodes.CLUSTER, znodes.encode(znodes.ClusterNode(cluster_id))),
        SetData(znodes.PRODUCER_IDS, b"%d" % next_producer_id),
        SetData(znodes.SCHEMA_IDS, b"%d" % next_schema_id),
        *znodes.write_ops(delta, ClusterImage(), image),
    ]
    tree.commit(ops, 0, in_transaction=True)
    return [node for op in ops if isinstance(op, Create) and (node := tree.find(op.path)) is not None]
