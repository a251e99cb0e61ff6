"""Requests of every API of Kafka about the resources of a `Names`. An API without an entry fails the denial matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from sparklog.gateway.records.small import write_small
from sparklog.kafka.records.batch_v2 import write_batch

TOPIC, BROKER, GROUP = 2, 4, 32
"""Kafka's numbers of the types of resources."""


class Names(NamedTuple):
    """The names in a request. All have the same length in both instances, so answers can be compared byte by byte."""

    topic: str
    topic_id: UUID
    group: str
    member: str
    transactional_id: str


def batch(value: bytes) -> bytes:
    """A batch of one record."""
    return b"".join(
        write_batch(
            [write_small([b"k"], [value], [0])], base_offset=0, leader_epoch=0, attributes=0, last_offset_delta=0,
            base_timestamp_ms=1, max_timestamp_ms=1, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            record_count=1,
        )
    )  # fmt: skip


def _produce(n: Names, value: bytes, transactional_id: str | None = None) -> dict[str, Any]:
    partitions = [{"index": index, "records": [batch(value)]} for index in (0, 7)]
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": n.topic, "partition_data": partitions}],
    }


def _fetch(n: Names) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    return {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "topics": [{"topic": n.topic, "partitions": [partition]}],
        "forgotten_topics_data": [],
    }


def _metadata(n: Names, *, by_id: bool, create: bool = True) -> dict[str, Any]:
    topic = {"name": None, "topic_id": n.topic_id} if by_id else {"name": n.topic}
    return {
        "topics": [topic],
        "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def _committed(n: Names) -> list[dict[str, Any]]:
    return [
        {
            "name": n.topic,
            "partitions": [{"partition_index": i, "committed_offset": 1, "committed_metadata": ""} for i in (0, 7)],
        }
    ]


def _commit(n: Names, member: str, generation: int) -> dict[str, Any]:
    return {
        "group_id": n.group,
        "member_id": member,
        "generation_id_or_member_epoch": generation,
        "topics": _committed(n),
    }


def _join(n: Names, member: str) -> dict[str, Any]:
    return {
        "group_id": n.group,
        "session_timeout_ms": 300_000,
        "rebalance_timeout_ms": 1_000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
    }


def _sync(n: Names, member: str) -> dict[str, Any]:
    return {"group_id": n.group, "generation_id": 1, "member_id": member, "assignments": []}


def _txn_commit(n: Names, member: str) -> dict[str, Any]:
    return {
        "transactional_id": n.transactional_id,
        "group_id": n.group,
        "producer_id": 1,
        "producer_epoch": 0,
        "generation_id": 1 if member else -1,
        "member_id": member,
        "topics": _committed(n),
    }


def _offsets(n: Names) -> dict[str, Any]:
    topics = [{"name": n.topic, "partition_indexes": [0, 7]}]
    return {"group_id": n.group, "topics": topics, "groups": [{"group_id": n.group, "topics": topics}]}


def _configs(n: Names, **more: Any) -> list[dict[str, Any]]:
    return [{"resource_type": TOPIC, "resource_name": n.topic, **more}]


def _member_beat(n: Names, epoch: int, topics: list[str] | None, regex: str | None) -> dict[str, Any]:
    return {
        "group_id": n.group,
        "member_id": n.member,
        "member_epoch": epoch,
        "rebalance_timeout_ms": 1_000,
        "subscribed_topic_names": topics,
        "subscribed_topic_regex": regex,
        "topic_partitions": [] if epoch == 0 else [{"topic_id": n.topic_id, "partitions": [0]}],
    }


def _of_group(n: Names, **more: Any) -> list[dict[str, Any]]:
    return [{"resource_type": GROUP, "resource_name": n.group, **more}]


def _leave(n: Names, member: str) -> dict[str, Any]:
    return {"group_id": n.group, "member_id": member, "members": [{"member_id": member, "group_instance_id": None}]}


def _create(n: Names, **more: Any) -> dict[str, Any]:
    topic = {"name": n.topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return {"topics": [topic], **more}


def _by_id(n: Names) -> dict[str, Any]:
    return _metadata(n, by_id=True)


def _deletion_by_id(n: Names) -> dict[str, Any]:
    return {"topics": [{"name": None, "topic_id": n.topic_id}], "timeout_ms": 30_000}


def _produce_by_id(n: Names) -> dict[str, Any]:
    body = _produce(n, b'{"salary": 1}')
    return body | {"topic_data": [t | {"topic_id": n.topic_id} for t in body["topic_data"]]}


def _fetch_by_id(n: Names) -> dict[str, Any]:
    body = _fetch(n)
    return body | {"topics": [t | {"topic_id": n.topic_id} for t in body["topics"]]}


def _commit_by_id(n: Names) -> dict[str, Any]:
    body = _commit(n, "", -1)
    return body | {"topics": [t | {"topic_id": n.topic_id} for t in body["topics"]]}


def _offsets_by_id(n: Names) -> dict[str, Any]:
    topics = [{"topic_id": n.topic_id, "partition_indexes": [0, 7]}]
    return {"groups": [{"group_id": n.group, "topics": topics}]}


def _acl(n: Names) -> dict[str, Any]:
    return {
        "resource_type": TOPIC, "resource_name": n.topic, "principal": "User:x", "host": "*", "operation": 2,
        "permission_type": 3,
    }  # fmt: skip


def _acl_filter(n: Names) -> dict[str, Any]:
    return {
        "resource_type_filter": TOPIC, "resource_name_filter": n.topic, "principal_filter": None, "host_filter": None,
        "operation": 1, "permission_type": 1,
    }  # fmt: skip


def _quotas(n: Names) -> dict[str, Any]:
    entity = [{"entity_type": "user", "entity_name": n.group}]
    ops = [{"key": "producer_byte_rate", "value": 1e6, "remove": False}]
    return {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}


Request = Callable[[Names], dict[str, Any]]


def _pages(topics: list[str], first: str | None) -> dict[str, Any]:
    cursor = None if first is None else {"topic_name": first, "partition_index": 0}
    return {"topics": [{"name": name} for name in topics], "response_partition_limit": 2_000, "cursor": cursor}


LAST_VERSION_ONLY = (_by_id, _deletion_by_id, _produce_by_id, _fetch_by_id, _commit_by_id, _offsets_by_id)
"""Requests that have no form in the first version."""
REQUESTS_ABOUT: dict[str, list[Request]] = {
    "Produce": [
        lambda n: _produce(n, b"no json"),
        lambda n: _produce(n, b'{"salary": true}'),
        lambda n: _produce(n, b'{"salary": 1}'),
        lambda n: _produce(n, b"no json", n.transactional_id),
        _produce_by_id,
    ],
    "Fetch": [_fetch, _fetch_by_id],
    "ListOffsets": [
        lambda n: {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": n.topic, "partitions": [{"partition_index": i, "timestamp": -1} for i in (0, 7)]}],
        }
    ],
    "Metadata": [
        lambda n: _metadata(n, by_id=False),
        lambda n: _metadata(n, by_id=False, create=False),
        _by_id,
    ],
    "OffsetCommit": [
        lambda n: _commit(n, "", -1), lambda n: _commit(n, n.member, 1), lambda n: _commit(n, "other", 9), _commit_by_id
    ],
    "OffsetFetch": [_offsets, _offsets_by_id],
    "FindCoordinator": [
        lambda n: {"key": n.group, "key_type": 0, "coordinator_keys": [n.group]},
        lambda n: {"key": n.transactional_id, "key_type": 1, "coordinator_keys": [n.transactional_id]},
    ],
    "JoinGroup": [lambda n: _join(n, ""), lambda n: _join(n, n.member)],
    "Heartbeat": [lambda n: {"group_id": n.group, "generation_id": 1, "member_id": n.member}],
    "LeaveGroup": [lambda n: _leave(n, n.member), lambda n: _leave(n, "other")],
    "SyncGroup": [lambda n: _sync(n, n.member), lambda n: _sync(n, "other")],
    "InitProducerId": [lambda n: {"transactional_id": n.transactional_id, "transaction_timeout_ms": 10_000}],
    "OffsetForLeaderEpoch": [
        lambda n: {"topics": [{"topic": n.topic, "partitions": [{"partition": 0, "leader_epoch": 0}]}]}
    ],
    "DescribeGroups": [lambda n: {"groups": [n.group], "include_authorized_operations": False}],
    "ListGroups": [lambda n: {"states_filter": [], "types_filter": []}],
    "DeleteGroups": [lambda n: {"groups_names": [n.group]}],
    "OffsetDelete": [
        lambda n: {"group_id": n.group, "topics": [{"name": n.topic, "partitions": [{"partition_index": 0}]}]}
    ],
    "CreateTopics": [lambda n: _create(n), lambda n: _create(n, validate_only=True)],
    "DeleteTopics": [
        lambda n: {"topics": [{"name": n.topic, "topic_id": UUID(int=0)}], "topic_names": [n.topic], "timeout_ms": 30_000},
        _deletion_by_id,
    ],
    "DeleteRecords": [
        lambda n: {
            "topics": [{"name": n.topic, "partitions": [{"partition_index": i, "offset": 0} for i in (0, 7)]}],
            "timeout_ms": 30_000,
        }
    ],
    "CreatePartitions": [
        lambda n: {
            "topics": [{"name": n.topic, "count": 3, "assignments": None}], "timeout_ms": 30_000, "validate_only": False
        },
        lambda n: {
            "topics": [{"name": n.topic, "count": 3, "assignments": None}], "timeout_ms": 30_000, "validate_only": True
        },
    ],
    "AddPartitionsToTxn": [
        lambda n: {
            "v3_and_below_transactional_id": n.transactional_id,
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": n.topic, "partitions": [0, 7]}],
        }
    ],
    "AddOffsetsToTxn": [
        lambda n: {
            "transactional_id": n.transactional_id, "producer_id": 1, "producer_epoch": 0, "group_id": n.group
        }
    ],
    "EndTxn": [
        lambda n: {
            "transactional_id": n.transactional_id, "producer_id": 1, "producer_epoch": 0, "committed": True
        }
    ],
    "TxnOffsetCommit": [lambda n: _txn_commit(n, ""), lambda n: _txn_commit(n, n.member)],
    "ListTransactions": [lambda n: {"state_filters": [], "producer_id_filters": []}],
    "DescribeTransactions": [lambda n: {"transactional_ids": [n.transactional_id]}],
    "DescribeProducers": [lambda n: {"topics": [{"name": n.topic, "partition_indexes": [0, 7]}]}],
    "DescribeConfigs": [
        lambda n: {"resources": _configs(n, configuration_keys=None), "include_synonyms": True},
        lambda n: {"resources": _of_group(n, configuration_keys=None), "include_synonyms": True},
    ],
    "AlterConfigs": [
        lambda n: {
            "resources": _configs(n, configs=[{"name": "retention.ms", "value": "5"}]), "validate_only": False
        },
        lambda n: {"resources": _configs(n, configs=[{"name": "nonsense", "value": "5"}]), "validate_only": True},
    ],
    "IncrementalAlterConfigs": [
        lambda n: {
            "resources": _configs(n, configs=[{"name": "retention.ms", "config_operation": 0, "value": "5"}]),
            "validate_only": False,
        },
        lambda n: {
            "resources": _configs(n, configs=[{"name": "retention.ms", "config_operation": 0, "value": "5"}]),
            "validate_only": True,
        },
        lambda n: {
            "resources": _of_group(
                n, configs=[{"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "60000"}]
            ),
            "validate_only": False,
        },
    ],
    "DescribeAcls": [_acl_filter],
    "CreateAcls": [lambda n: {"creations": [_acl(n)]}],
    "DeleteAcls": [lambda n: {"filters": [_acl_filter(n)]}],
    "ElectLeaders": [lambda n: {"topic_partitions": [{"topic": n.topic, "partitions": [0, 7]}]}],
    "AlterPartitionReassignments": [
        lambda n: {"topics": [{"name": n.topic, "partitions": [{"partition_index": i, "replicas": [0]} for i in (0, 7)]}]},
        lambda n: {
            "topics": [{"name": n.topic, "partitions": [{"partition_index": 0, "replicas": [0, 1]}]}],
            "allow_replication_factor_change": False,
        },
    ],
    "ListPartitionReassignments": [lambda n: {"topics": [{"name": n.topic, "partition_indexes": [0, 7]}]}],
    "DescribeClientQuotas": [
        lambda n: {"components": [{"entity_type": "user", "match_type": 0, "match": n.group}], "strict": False}
    ],
    "AlterClientQuotas": [_quotas, lambda n: _quotas(n) | {"validate_only": True}],
    "DescribeUserScramCredentials": [lambda n: {"users": [{"name": n.group}]}],
    "AlterUserScramCredentials": [
        lambda n: {"deletions": [{"name": n.group, "mechanism": 1}], "upsertions": []},
        lambda n: {
            "deletions": [],
            "upsertions": [
                {"name": n.group, "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": bytes(32)}
            ],
        },
    ],
    "ConsumerGroupHeartbeat": [
        lambda n: _member_beat(n, 0, [n.topic], None),
        lambda n: _member_beat(n, 0, None, ".*"),
        lambda n: _member_beat(n, 3, None, None),
        lambda n: _member_beat(n, -1, None, None),
    ],
    "ConsumerGroupDescribe": [lambda n: {"group_ids": [n.group], "include_authorized_operations": False}],
    "ListConfigResources": [lambda n: {"resource_types": []}],
    "DescribeTopicPartitions": [
        lambda n: _pages([n.topic], None),
        lambda n: _pages([], None),
        lambda n: _pages([], n.topic),
    ],
    "DescribeLogDirs": [lambda n: {"topics": [{"topic": n.topic, "partitions": [0]}]}],
    "DescribeCluster": [
        lambda n: {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}
    ],
}  # fmt: skip
