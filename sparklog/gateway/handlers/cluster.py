"""DESCRIBE_CLUSTER and DESCRIBE_LOG_DIRS."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.errors import SparklogError
from sparklog.gateway.backend.topics import read_metadata, read_topics
from sparklog.gateway.handlers.authorized_operations import cluster_operations
from sparklog.gateway.handlers.names import is_topic_name
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, code_of, kafka_code
from sparklog.protocol.apis import Api
from sparklog.protocol.operation_messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from sparklog.protocol.topic_messages import BrokerEndpoint, MetadataRequest

BROKERS = 1
"""Endpoint type of brokers, which ordinary clients request; the other type is that of controllers."""


def node_endpoints(session: Session, brokers: Sequence[BrokerEndpoint]) -> list[responses.ProduceNodeEndpoint]:
    """Return the addresses of the gateways of some brokers, by the brokers' ids."""
    addresses = session.gateway.addresses(brokers, session.listener, session.local)
    return [
        {"node_id": a.node_id, "host": a.host, "port": a.port, "rack": a.rack}
        for a in (addresses[i] for i in sorted({b.broker_id for b in brokers}))
    ]


async def describe_cluster(
    session: Session, request: requests.DescribeCluster, version: int
) -> responses.DescribeCluster:
    """Answer with the addresses of all gateways. A gateway has the id of its broker."""
    if request.get("endpoint_type", BROKERS) != BROKERS:
        return {
            "error_code": Kafka.INVALID_REQUEST,
            "error_message": "controllers have no endpoint of their own",
            "cluster_id": "",
            "brokers": [],
        }
    answer = await read_metadata(await session.broker(), MetadataRequest([], paged=True))
    is_requested = request["include_cluster_authorized_operations"]
    operations = await cluster_operations(session, is_requested=is_requested)
    addresses = session.gateway.addresses(answer.brokers, session.listener, session.local)
    return {
        "error_code": Kafka.NONE,
        "cluster_id": answer.cluster_id,
        "controller_id": answer.controller,
        "brokers": [
            {"broker_id": a.node_id, "host": a.host, "port": a.port, "rack": a.rack, "is_fenced": False}
            for _, a in sorted(addresses.items())
        ],
        "cluster_authorized_operations": operations,
    }


async def describe_log_dirs(
    session: Session, request: requests.DescribeLogDirs, version: int
) -> responses.DescribeLogDirs:
    """Describe the log directories of the gateway's broker. The answer lists all partitions in the first directory,
    because the broker reports the size of a partition over all directories."""
    requested = None if request["topics"] is None else {t["topic"]: set(t["partitions"]) for t in request["topics"]}
    broker = await session.broker()
    try:
        dirs = await broker.ask(Api.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(), DescribeLogDirsResponse)
        names = None if requested is None else [n for n in requested if is_topic_name(n)]
        answer = await read_topics(broker, names)
    except SparklogError as e:
        return {"error_code": code_of(e), "results": []}
    topics: list[responses.DescribeLogDirsResultTopic] = [
        {
            "name": t.name,
            "partitions": [
                {
                    "partition_index": p.partition,
                    "partition_size": max(p.size_bytes, 0),
                    "offset_lag": 0,
                    "is_future_key": False,
                }
                for p in t.partitions
                if p.size_bytes >= 0 and (requested is None or p.partition in requested.get(t.name, ()))
            ],
        }
        for t in answer.topics
        if not t.error_code
    ]
    return {
        "error_code": Kafka.NONE,
        "results": [
            {
                "error_code": kafka_code(d.error_code),
                "log_dir": d.path,
                "topics": topics if i == 0 else [],
                "total_bytes": d.total_bytes,
                "usable_bytes": d.usable_bytes,
            }
            for i, d in enumerate(dirs.log_dirs)
        ],
    }
