"""HANDSHAKE and METADATA: this broker's identity, its API versions, and the topics."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from sparklog.errors import InvalidRequestError, LeaderNotAvailableError, UnknownTopicOrPartitionError
from sparklog.metadata.store import Topic
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import encode, encode_value
from sparklog.protocol.messages import ApiRange, HandshakeRequest, HandshakeResponse
from sparklog.protocol.topic_messages import (
    BrokerEndpoint,
    MetadataRequest,
    MetadataResponse,
    PartitionState,
    SchemaVersion,
    TopicState,
)
from sparklog.protocol.versions import field_names
from sparklog.replication.cluster_image import NO_LEADER, PartitionImage
from sparklog.security.acls import Operation, ResourceType
from sparklog.security.listeners import GATEWAY_PREFIX, REGISTRY_NAMES, endpoint_for
from sparklog.types import TopicPartition
from sparklog.version import __version__
from sparklog_broker.broker import Broker
from sparklog_broker.cluster.replica import ClusterReplica
from sparklog_broker.handlers.auto_creation import create_missing
from sparklog_broker.handlers.leader_hints import endpoint_of
from sparklog_broker.handlers.locate import is_same_host
from sparklog_broker.network.large_responses import binary_header, message_header, parts_of
from sparklog_broker.network.reply import Response
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.request_context import RequestContext

SMALL_TOPIC_PARTITIONS, SMALL_TOPIC_BYTES = 32, 16 * 1024
"""Largest number of partitions, and of bytes of schemas, of a topic that is encoded in one part."""


async def handshake(request: HandshakeRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer a handshake. Clients on this host that are connected directly (without a proxy or container) are offered
    the Unix socket, where they authenticate as on the listener. A listener whose clients authenticate by certificate
    has no Unix socket.
    """
    broker = context.broker
    direct = request.client_address == context.peer_name and is_same_host(context.peer_host, context.local_address[0])
    return Response(
        HandshakeResponse(
            broker_id=broker.config.broker_id,
            cluster_id=broker.storage.cluster_id,
            broker_version=__version__,
            apis=[ApiRange(int(api), spec.version_min, spec.version_max) for api, spec in APIS.items()],
            request_bytes_max=broker.config.socket_request_max_bytes,
            local_socket=context.local_socket if direct else "",
        )
    )


async def metadata(request: MetadataRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the topics that the peer is allowed to see. This broker, if it has no registered endpoints, is named
    with the address of the peer's connection, the only address that the peer certainly reaches.
    """
    if len(payload):
        raise InvalidRequestError("a METADATA request has no payload")
    broker = context.broker
    await broker.time_slices.begin()
    if request.create_missing:
        context = await create_missing(context, request.topics)
    response = MetadataResponse(
        cluster_id=broker.storage.cluster_id,
        controller=broker.cluster.controller_id,
        brokers=_brokers(context),
        topics=[],
        suspected=[b.broker_id for b in broker.cluster.image.brokers.values() if b.is_suspected],
        registries=registries_of(broker) if request.with_registries else [],
    )
    remedy = "ask for fewer topics at once, or use a newer client, which requests pages"
    version = context.older_version
    items = _topics(context, request, response, version)
    return await broker.large_responses.build(
        response, "topics", items, paged=request.paged, remedy=remedy, version=version
    )


def _brokers(context: RequestContext) -> list[BrokerEndpoint]:
    """Return this broker and all registered brokers, with their addresses for the peer."""
    broker, me = context.broker, context.broker.config.broker_id
    host, port = broker.config.security.advertised_of(context.listener) or context.local_address
    endpoints = {me: BrokerEndpoint(me, host, port, broker.config.broker_rack)}
    for registered in broker.cluster.image.brokers.values():
        where = endpoint_of(context, registered.broker_id)
        if where is not None:
            endpoints[registered.broker_id] = BrokerEndpoint(registered.broker_id, *where, registered.rack or "")
    return [endpoints[i] for i in sorted(endpoints)]


def registries_of(broker: Broker) -> list[str]:
    """Return the addresses of the schema registry in the brokers' gateways, first those with TLS. An outside registry
    is left out: it must not get the passwords of the cluster's users."""
    if broker.config.schema_registry_url:
        return []
    names = sorted(REGISTRY_NAMES, reverse=True)
    urls = [
        f"{name}://{address}"
        for name in names
        for registered in broker.cluster.image.brokers.values()
        if (address := endpoint_for(registered.endpoints, GATEWAY_PREFIX + name))
    ]
    return urls or sorted(broker.registries, reverse=True)


def _topics(
    context: RequestContext, request: MetadataRequest, response: MetadataResponse, version: int | None
) -> Iterator[Iterator[bytes]]:
    """Yield for each requested topic the encoded parts of its description, with as many schemas as fit. If schemas are
    left over, note the next schema in `response` and stop. `LargeResponses.build` takes the next topic only after it
    has added the previous topic to the answer."""
    broker = context.broker
    if request.topics is None:
        names = sorted(context.shown(Api.METADATA, _names(broker.partitions.topics, request.topic_ids)))
    else:
        names = list(dict.fromkeys(request.topics))
    if request.after:
        first = bisect_right(names, request.after) if request.topics is None else _position_after(names, request.after)
        names = names[first:]
    entries = [(name, -1) for name in names]
    may_continue = context.may(Operation.DESCRIBE, ResourceType.TOPIC, request.after)
    if request.after and request.schemas_from >= 0 and may_continue:
        entries.insert(0, (request.after, request.schemas_from))
    room = broker.large_responses.limit_bytes // 2 if request.paged else None
    for name, schemas_from in entries:
        if name in context.denied:
            yield iter((encode(TopicState(context.denied[name].code, name), version),))
            continue
        topic = broker.partitions.topics.get(name)
        if topic is None:
            yield iter((encode(unknown_topic(name), version),))
            continue
        schemas = (
            [s for s in broker.partitions.schema_bytes(topic) if s[0] >= schemas_from] if request.with_schemas else []
        )
        sent = schemas if room is None else _fitting(schemas, room)
        partitions = request.with_partitions and schemas_from < 0
        yield topic_parts(broker, topic, sent, version, with_partitions=partitions)
        if len(sent) < len(schemas):
            response.more, response.schemas_from = True, schemas[len(sent)][0]
            return


def _names(topics: Mapping[str, Topic], topic_ids: list[str] | None) -> Iterable[str]:
    """Return the names of the topics with some ids; None: of all topics."""
    if topic_ids is None:
        return topics
    requested = set(topic_ids)
    return [name for name, topic in topics.items() if topic.topic_id in requested]


def _position_after(names: list[str], name: str) -> int:
    return names.index(name) + 1 if name in names else 0


def _fitting(schemas: Iterable[tuple[int, bytes]], room_bytes: int) -> list[tuple[int, bytes]]:
    """Return the first schemas that fit into `room_bytes`, at least one."""
    fitting: list[tuple[int, bytes]] = []
    for schema in schemas:
        room_bytes -= len(schema[1])
        if fitting and room_bytes < 0:
            break
        fitting.append(schema)
    return fitting


def unknown_topic(name: str) -> TopicState:
    return TopicState(UnknownTopicOrPartitionError.code, name)


async def topic_answer(context: RequestContext, response: Message, name: str) -> Response:
    """Return `response`, which describes one topic, with the topic's present state. If not all schemas fit, only the
    newest schemas are sent: the change is stored, so its answer must not fail.
    """
    broker = context.broker
    topic = broker.partitions.topics.get(name)
    if topic is None:
        return Response(response)
    newest_first = reversed(broker.partitions.schema_bytes(topic))
    schemas = _fitting(newest_first, broker.large_responses.limit_bytes // 2)[::-1]
    fields = message_header(len(field_names(type(response), context.older_version)))
    parts = chain((fields,), topic_parts(broker, topic, schemas, context.older_version))
    return await broker.large_responses.build_one(
        response, parts, remedy="the change is made; read the topic's metadata"
    )


def topic_parts(
    broker: Broker,
    topic: Topic,
    schemas: Sequence[tuple[int, bytes]],
    version: int | None,
    *,
    with_partitions: bool = True,
) -> Iterator[bytes]:
    """Yield the encoded parts of a topic's description. `version` None: the newest."""
    partitions = list(filter(None, map(broker.partitions.find, _keys(topic)))) if with_partitions else []
    state = _topic_state(broker, topic)
    if len(partitions) <= SMALL_TOPIC_PARTITIONS and sum(len(data) for _, data in schemas) <= SMALL_TOPIC_BYTES:
        state.partitions = [_partition_state(p) for p in partitions]
        state.schemas = [SchemaVersion(*s) for s in schemas]
        return iter((encode(state, version),))
    return parts_of(
        state,
        {
            "partitions": (len(partitions), (encode(_partition_state(p), version) for p in partitions)),
            "schemas": (len(schemas), chain.from_iterable(map(_schema_parts, schemas))),
        },
        version,
    )


def _topic_state(broker: Broker, topic: Topic) -> TopicState:
    """Return the state of a topic without partitions and schemas."""
    return TopicState(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        kind=topic.kind,
        key_columns=list(topic.key_columns),
        timestamp_column=topic.timestamp_column,
        configs=dict(topic.configs),
        created_ms=topic.created_ms,
        broker_defaults=dict(broker.config.topic_defaults),
        partition_count=topic.partitions,
    )


def planned_topic(broker: Broker, topic: Topic, partitions: Sequence[PartitionImage]) -> TopicState:
    """Return the state of a topic that could be created, with the replicas of some partitions. It has no id."""
    state = _topic_state(broker, topic)
    state.topic_id, state.created_ms = "", 0
    state.partitions = [
        PartitionState(i, p.leader, p.leader_epoch, list(p.replicas), list(p.isr)) for i, p in enumerate(partitions)
    ]
    return state


def _keys(topic: Topic) -> Iterator[TopicPartition]:
    return (TopicPartition(topic.name, p) for p in range(topic.partitions))


def _schema_parts(schema: tuple[int, bytes]) -> Iterator[bytes]:
    """Yield the encoded parts of a SchemaVersion. Answers share the schema's bytes, which can be large."""
    schema_id, data = schema
    yield message_header(len(SchemaVersion.__struct_fields__)) + encode_value(schema_id) + binary_header(len(data))
    yield data


def _partition_state(partition: Partition) -> PartitionState:
    replicas, log = partition.replicas, partition.open_log
    image = replicas.image if isinstance(replicas, ClusterReplica) else None
    return PartitionState(
        partition=partition.key.partition,
        leader=replicas.leader,
        leader_epoch=replicas.leader_epoch,
        replicas=list(replicas.replicas),
        isr=list(replicas.isr),
        error_code=_error_code(partition),
        log_start_offset=log.log_start_offset if log is not None else -1,
        high_watermark=log.high_watermark if log is not None else -1,
        size_bytes=log.size_bytes if log is not None else -1,
        local_log_start_offset=log.local_log_start_offset if log is not None else -1,
        remote_size_bytes=log.remote_size_bytes if log is not None else -1,
        write_error=partition.write_error,
        elr=image.elr if image is not None else (),
        adding=image.adding if image is not None else (),
        removing=image.removing if image is not None else (),
    )


def _error_code(partition: Partition) -> int:
    """Return 0 if a broker leads the partition, and this broker's replica, if any, is usable. Otherwise return the code
    of the error."""
    if (error := partition.sole_error) is not None:
        return error.code
    if partition.replicas.leader == NO_LEADER:
        return LeaderNotAvailableError.code
    return partition.error.code if partition.error is not None and not partition.has_no_replica else 0
