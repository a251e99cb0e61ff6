"""sparklog: a Spark-native streaming log.

Topics are Arrow IPC segment files behind a light broker; Spark reads and writes them with `format("sparklog")`.
Names are imported on first use, so that `import sparklog` costs nothing in a worker that needs one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparklog.version import __version__ as __version__

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin, TopicDescription
    from sparklog.client.consumer.consumer import ConsumedBatch, Consumer
    from sparklog.client.local import LocalBroker
    from sparklog.client.local_cluster import LocalCluster
    from sparklog.client.producer.producer import Producer
    from sparklog.client.reading.read_table import read_table
    from sparklog.client.start_local import start_local
    from sparklog.debezium import unwrap_debezium
    from sparklog.errors import SparklogError
    from sparklog.query.session import SqlSession, sql
    from sparklog.security.profiles import profile
    from sparklog.spark import history, latest, register
    from sparklog.types import (
        GroupMetadata,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        Record,
        RecordMetadata,
        TopicPartition,
    )

_WHERE = {
    "Admin": "sparklog.client.admin.admin",
    "TopicDescription": "sparklog.client.admin.admin",
    "Consumer": "sparklog.client.consumer.consumer",
    "ConsumedBatch": "sparklog.client.consumer.consumer",
    "LocalBroker": "sparklog.client.local",
    "start_local": "sparklog.client.start_local",
    "LocalCluster": "sparklog.client.local_cluster",
    "Producer": "sparklog.client.producer.producer",
    "read_table": "sparklog.client.reading.read_table",
    "SparklogError": "sparklog.errors",
    "SqlSession": "sparklog.query.session",
    "sql": "sparklog.query.session",
    "history": "sparklog.spark",
    "latest": "sparklog.spark",
    "profile": "sparklog.security.profiles",
    "register": "sparklog.spark",
    "unwrap_debezium": "sparklog.debezium",
    "GroupMetadata": "sparklog.types",
    "OffsetAndMetadata": "sparklog.types",
    "OffsetAndTimestamp": "sparklog.types",
    "Record": "sparklog.types",
    "RecordMetadata": "sparklog.types",
    "TopicPartition": "sparklog.types",
}

__all__ = [
    "Admin",
    "ConsumedBatch",
    "Consumer",
    "GroupMetadata",
    "LocalBroker",
    "LocalCluster",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "Record",
    "RecordMetadata",
    "SparklogError",
    "SqlSession",
    "TopicDescription",
    "TopicPartition",
    "history",
    "latest",
    "profile",
    "read_table",
    "register",
    "sql",
    "start_local",
    "unwrap_debezium",
]


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'sparklog' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
