"""HANDSHAKE and METADATA: who this broker is, what it speaks, and which topics there are."""

from __future__ import annotations

import sparklog
from sparklog.errors import InvalidRequestError, UnknownTopicOrPartitionError
from sparklog.metadata.store import Topic
from sparklog.protocol.messages import APIS, ApiRange, HandshakeRequest, HandshakeResponse
from sparklog.protocol.topic_messages import (
    BrokerEndpoint,
    MetadataRequest,
    MetadataResponse,
    PartitionState,
    SchemaVersion,
    TopicState,
)
from sparklog_broker.broker import Broker
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.handlers.locate import is_same_host
from sparklog_broker.reply import Response


async def handshake(request: HandshakeRequest, payload: memoryview, context: RequestContext) -> Response:
    """The Unix socket is offered to clients of this host that nothing stands between (a proxy, a container's address)."""
    broker = context.broker
    direct = request.client_address == context.peer_name and is_same_host(context.peer_host, context.local_address[0])
    return Response(
        HandshakeResponse(
            broker_id=broker.config.broker_id,
            cluster_id=broker.cluster_id,
            broker_version=sparklog.__version__,
            apis=[ApiRange(int(api), spec.version_min, spec.version_max) for api, spec in APIS.items()],
            request_bytes_max=broker.config.socket_request_max_bytes,
            local_socket=broker.local_socket if direct else "",
        )
    )


async def metadata(request: MetadataRequest, payload: memoryview, context: RequestContext) -> Response:
    """The host is the one the client has connected to: with one broker, the only one it certainly reaches."""
    if len(payload):
        raise InvalidRequestError("a METADATA request has no payload")
    broker = context.broker
    host, port = context.local_address
    names = sorted(broker.topics) if request.topics is None else request.topics
    return Response(
        MetadataResponse(
            cluster_id=broker.cluster_id,
            controller=broker.config.broker_id,
            brokers=[BrokerEndpoint(broker.config.broker_id, host, port)],
            topics=[topic_state(broker, name) for name in names],
        )
    )


def topic_state(broker: Broker, name: str) -> TopicState:
    """What clients are told of a topic; an unknown one has only its error code."""
    topic = broker.topics.get(name)
    if topic is None:
        return TopicState(UnknownTopicOrPartitionError.code, name)
    return TopicState(
        error_code=0,
        name=name,
        topic_id=topic.topic_id,
        kind=topic.kind,
        partitions=[_partition_state(broker, topic, p) for p in range(topic.partitions)],
        schemas=[SchemaVersion(i, schema) for i, schema in broker.schema_bytes(topic)],
        key_columns=list(topic.key_columns),
        timestamp_column=topic.timestamp_column,
        configs=dict(topic.configs),
        created_ms=topic.created_ms,
        broker_defaults=dict(broker.config.topic_defaults),
    )


def _partition_state(broker: Broker, topic: Topic, number: int) -> PartitionState:
    partition = broker.partition(topic.name, number)
    replicas, log = partition.replicas, partition.open_log
    return PartitionState(
        partition=number,
        leader=replicas.leader,
        leader_epoch=replicas.leader_epoch,
        replicas=list(replicas.replicas),
        isr=list(replicas.isr),
        error_code=partition.error.code if partition.error is not None else 0,
        log_start_offset=log.log_start_offset if log is not None else -1,
        high_watermark=log.high_watermark if log is not None else -1,
        size_bytes=log.size_bytes if log is not None else -1,
        local_log_start_offset=log.local_log_start_offset if log is not None else -1,
        remote_size_bytes=log.remote_size_bytes if log is not None else -1,
    )
