"""Topics, groups, transactions, users and a tier in a broker, and the facts about them that clients can ask for."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

import sparklog
from sparklog.client.admin.admin import Admin
from sparklog.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.principals import user
from sparklog.security.quotas import Entity

SCHEMA = pa.schema([("id", pa.int64()), ("zone", pa.string())])
TIERED = {"remote.storage.enable": True, "segment.bytes": 4096, "local.retention.ms": 1}
SETTINGS: dict[str, Any] = {
    "authorizer": "acl",
    "allow.everyone.if.no.acl.found": True,
    "remote.log.manager.task.interval.ms": 200,
    "log.retention.check.interval.ms": 200,
}


def facts(admin: Admin) -> dict[str, Any]:
    """The content that clients can ask for."""
    topics = admin.describe_topics(admin.list_topics(include_internal=True))
    return {
        "cluster": admin.describe_cluster().cluster_id,
        "topics": {
            name: [t.topic_id, t.partitions, str(t.schema), list(t.key_columns or ()), dict(t.configs), t.created_ms]
            for name, t in topics.items()
        },
        "offsets": {str(tp): found.offset for tp, found in admin.list_group_offsets("readers").items()},
        "transactions": sorted([t.transactional_id, t.state] for t in admin.list_transactions()),
        "users": sorted(str(found) for found in admin.describe_users()),
        "acls": sorted(str(acl) for acl in admin.describe_acls()),
        "quotas": sorted(str(entry) for entry in admin.describe_client_quotas().quotas.items()),
    }


def fill(servers: str) -> None:
    """Topics, schemas, users, ACLs, quotas, groups, transactions that have ended and that are open, and a tier."""
    with sparklog.Admin(servers) as admin:
        admin.create_topic("trips", partitions=2, schema=SCHEMA, key_columns=["zone"], configs={"retention.ms": -1})
        admin.alter_schema("trips", add_columns=pa.schema([("fare", pa.float64())]))
        admin.create_topic("events", partitions=3)
        admin.add_partitions("events", 4)
        admin.create_topic("cold", partitions=1, configs=TIERED)
        admin.create_topic("gone", partitions=2)
        admin.delete_topic("gone")
        with sparklog.Producer(bootstrap_servers=servers) as producer:
            for i in range(300):
                producer.send("events", value=b"%d" % i, partition=i % 3)
            producer.send_batch("trips", pa.table({"id": [1, 2], "zone": ["a", "b"], "fare": [1.5, 2.5]}))
            for _ in range(20):
                producer.send("cold", value=b"x" * 1_000, partition=0)
                producer.flush()
        with sparklog.Producer(bootstrap_servers=servers, transactional_id="loader") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("events", value=b"300", partition=0)
            producer.commit_transaction()
        with sparklog.Consumer(bootstrap_servers=servers, group_id="readers", enable_auto_commit=False) as consumer:
            consumer.subscribe(["events"])
            read = 0
            while read < 301:
                read += len(list(consumer.poll(timeout_ms=500)))
            consumer.commit()
        while not any(s.is_remote for s in _segments(admin)):
            time.sleep(0.05)
        admin.set_user_password("alice", "alice's secret")
        admin.alter_client_quotas(Entity("alice"), {"max_topics": 7})
        private = ResourceType.TOPIC, PatternType.LITERAL, "private"
        everything = Acl(*private, user("bob"), "*", Operation.ALL, Permission.ALLOW)
        admin.create_acls([everything])


def _segments(admin: Admin) -> list[Any]:
    return list(admin.describe_segments(sparklog.TopicPartition("cold", 0)))
