"""The cluster's image as ZooKeeper nodes (JSON):

| node | content |
|---|---|
| `/cluster` | a `ClusterNode` |
| `/controller_epoch` | the epoch; every write of the controller sets it, so its version fences earlier controllers |
| `/terms` | the last TERMS_MAX controller epochs, each a `Term` |
| `/controller` | ephemeral: `{"broker_id", "epoch"}` |
| `/brokers/ids/<id>` | ephemeral: a `Registration`; its czxid is the broker epoch |
| `/brokers/known/<id>` | the last broker epoch that the controller has acted on |
| `/config` | settings of the cluster; `broker/<id>/<name>` and `broker/*/<name>` are dynamic settings of brokers |
| `/security/<kind>/<key>` | a security record (`security.records`); the key is percent-encoded |
| `/deleted_topics/<topic_id>` | a `DeletedTopic`: brokers delete the files of the topic |
| `/topics/<name>` | the fields of a `TopicImage` without its partitions, settings and schemas |
| `/topics/<name>/config` | settings of the topic |
| `/topics/<name>/schemas/<id>` | Arrow IPC schema message |
| `/ids/producer`, `/ids/schema` | the lowest id that no broker has taken |
| `/topics/<name>/state/<chunk>` | 256 partitions, each with all fields of PartitionImage in their order |

The mzxid of `/controller_epoch` is the image's zxid. Partitions are in chunks so that a failover reads and writes few
nodes. If the ensemble loses these nodes, an operator can write them back from the brokers' copies (`image_copy`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from sparklog.format.decoders import convert, json_decoder
from sparklog.metadata.coordination import Create, Delete, Node, NodeExistsError, NoNodeError, Op, SetData, Steps
from sparklog.replication.cluster_image import (
    NO_EPOCH,
    UNKNOWN_WRITES,
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    DeletedTopic,
    PartitionImage,
    TopicImage,
    Version,
)
from sparklog.replication.controller.write_parts import CHUNK_PARTITIONS, chunk_of
from sparklog.security.records import RecordId, RecordKind

CONTROLLER = "/controller"
CLUSTER = "/cluster"
TERMS = "/terms"
TERMS_MAX = 200
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
REGISTERED = "/brokers/known"
TOPICS = "/topics"
DELETED = "/deleted_topics"
CONFIG = "/config"
SECURITY = "/security"
IDS = "/ids"
PRODUCER_IDS = f"{IDS}/producer"
SCHEMA_IDS = f"{IDS}/schema"
_BASE = (
    ("/brokers", b""),
    (BROKER_IDS, b""),
    (REGISTERED, b""),
    (TOPICS, b""),
    (DELETED, b""),
    (CONFIG, b"{}"),
    (SECURITY, b""),
    *((f"{SECURITY}/{kind}", b"") for kind in RecordKind),
    (TERMS, b"[]"),
    (IDS, b"0"),
    (PRODUCER_IDS, b"0"),
    (SCHEMA_IDS, b"0"),
    (CONTROLLER_EPOCH, b"0"),
)
READS_MAX = 20
"""Largest number of attempts to read the image. An attempt fails if a topic is deleted during the attempt."""
T = TypeVar("T")
_FIELDS = PartitionImage.__struct_fields__
json_decoder(PartitionImage)  # prepare the decoder now, `convert` uses it
encode = msgspec.json.encode


def decode(data: bytes, kind: type[T]) -> T:
    """Decode the content of a node. Raises msgspec.DecodeError."""
    return json_decoder(kind).decode(data)


class Registration(msgspec.Struct, frozen=True):
    """The content of a broker's node. The epochs are as in BrokerImage."""

    incarnation: str
    """Id of the process, by which a broker recognises its own node."""
    rack: str | None = None
    endpoints: tuple[str, ...] = ()
    clean_epochs: tuple[int, ...] = ()
    flushed_epochs: tuple[int, ...] = ()
    last_written_epoch: int = NO_EPOCH


class ClusterNode(msgspec.Struct, frozen=True):
    """The identity of the cluster."""

    cluster_id: str
    format: int = 1
    """Version of the node layout."""
    generation: int = 0
    """The number of restores of the metadata, as in ClusterImage."""


class ControllerNode(msgspec.Struct, frozen=True):
    """The broker that is the controller, and its epoch."""

    broker_id: int
    epoch: int


class Term(msgspec.Struct, frozen=True, array_like=True):
    """A controller epoch: the session of its controller, and the version of `/controller_epoch` at its beginning."""

    epoch: int
    session: int
    first_write: int


def begin_term(terms: tuple[Term, ...], term: Term) -> Op:
    """Return the operation that appends `term` to the stored `terms`. Only the last TERMS_MAX terms stay."""
    return SetData(TERMS, encode((*terms, term)[-TERMS_MAX:]))


def base_ops() -> list[Op]:
    """Return the operations that create the fixed nodes."""
    return [Create(path, data) for path, data in _BASE]


def make_base(coordination: Any) -> Steps:
    """Create the fixed nodes that do not exist yet."""
    nodes = yield [coordination.get(path) for path, _ in _BASE]
    missing = [op for op, node in zip(base_ops(), nodes, strict=True) if node is None]
    if not missing:
        return
    try:
        yield coordination.transaction(missing)
    except NodeExistsError:  # another broker creates them, too
        for op in missing:
            with contextlib.suppress(NodeExistsError):
                yield coordination.transaction([op])


def take_cluster_id(coordination: Any, new_id: str) -> Steps:
    """Return the cluster's id. `new_id` becomes the id of a cluster that has none."""
    with contextlib.suppress(NodeExistsError):
        yield coordination.create(CLUSTER, encode(ClusterNode(new_id)))
    node = yield coordination.get(CLUSTER)
    return decode(node.data, ClusterNode).cluster_id


def broker_image(broker_id: int, node: Node) -> BrokerImage:
    """Decode the node of a registered broker. Raises msgspec.DecodeError for content of another form."""
    registration = decode(node.data, Registration)
    return BrokerImage(
        broker_id,
        node.czxid,
        registration.rack,
        registration.endpoints,
        registration.clean_epochs,
        registration.flushed_epochs,
        last_written_epoch=registration.last_written_epoch,
    )


# --- writing


def write_ops(delta: ClusterDelta, before: ClusterImage, after: ClusterImage) -> list[Op]:
    """Return the operations that write `delta`; `before` is the stored image, `after` the new one."""
    ops: list[Op] = []
    chunks = {chunk_of(tp) for tp in delta.partitions if tp.topic not in delta.topics}
    for name, topic in delta.topics.items():
        old = before.topics.get(name)
        if old is not None and (topic is None or topic.topic_id != old.topic_id):
            ops += _delete_topic(old)
            old = None
        if topic is not None:
            ops += _write_topic(old, after.topics[name])
    for name, chunk in sorted(chunks):
        data = chunk_of_partitions(_in_chunk(after.topics[name], chunk))
        ops.append(SetData(_chunk_path(name, chunk), data))
    for broker_id, epoch in sorted(delta.known.items()):
        path, data = f"{REGISTERED}/{broker_id}", encode(epoch)
        ops.append(SetData(path, data) if broker_id in before.known else Create(path, data))
    if delta.configs:
        ops.append(SetData(CONFIG, encode(dict(after.configs))))
    for topic_id, deleted in sorted(delta.deleted.items()):
        path = f"{DELETED}/{topic_id}"
        ops.append(Delete(path) if deleted is None else Create(path, encode(deleted)))
    for record, value in sorted(delta.security.items()):
        if value is not None:
            ops.append(SetData(_record(record), value) if record in before.security else Create(_record(record), value))
        elif record in before.security:
            ops.append(Delete(_record(record)))
    return ops


def _record(name: RecordId) -> str:
    return f"{SECURITY}/{name.kind}/{quote(name.key, safe='').replace('.', '%2E')}"


def _write_topic(old: TopicImage | None, new: TopicImage) -> list[Op]:
    path = f"{TOPICS}/{new.name}"
    ops: list[Op] = []
    if old is None:
        ops += [
            Create(path, _definition(new)),
            Create(f"{path}/config", encode(dict(new.configs))),
            Create(f"{path}/schemas", b""),
            Create(f"{path}/state", b""),
        ]
    elif old.configs != new.configs:
        ops.append(SetData(f"{path}/config", encode(dict(new.configs))))
    earlier = old.schemas if old is not None else {}
    ops += [Create(f"{path}/schemas/{i}", schema) for i, schema in sorted(new.schemas.items()) if i not in earlier]
    earlier_chunks = _chunks(old) if old is not None else 0
    for chunk in range(_chunks(new)):
        partitions = _in_chunk(new, chunk)
        if chunk >= earlier_chunks:
            ops.append(Create(_chunk_path(new.name, chunk), chunk_of_partitions(partitions)))
        elif old is not None and partitions != _in_chunk(old, chunk):
            ops.append(SetData(_chunk_path(new.name, chunk), chunk_of_partitions(partitions)))
    return ops


def _delete_topic(topic: TopicImage) -> list[Op]:
    path = f"{TOPICS}/{topic.name}"
    inner = [_chunk_path(topic.name, chunk) for chunk in range(_chunks(topic))]
    inner += [f"{path}/schemas/{i}" for i in sorted(topic.schemas)]
    return [Delete(p) for p in (*inner, f"{path}/state", f"{path}/schemas", f"{path}/config", path)]


def _definition(topic: TopicImage) -> bytes:
    return encode(
        {
            "topic_id": topic.topic_id,
            "kind": topic.kind,
            "key_columns": topic.key_columns,
            "timestamp_column": topic.timestamp_column,
            "created_ms": topic.created_ms,
            "owner": topic.owner,
            **({"request_id": topic.request_id} if topic.request_id else {}),
            **({"first_leader_epoch": topic.first_leader_epoch} if topic.first_leader_epoch else {}),
        }
    )


def _chunks(topic: TopicImage) -> int:
    return -(-len(topic.partitions) // CHUNK_PARTITIONS)


def _chunk_path(name: str, chunk: int) -> str:
    return f"{TOPICS}/{name}/state/{chunk}"


def _in_chunk(topic: TopicImage, chunk: int) -> tuple[PartitionImage, ...]:
    first = chunk * CHUNK_PARTITIONS
    return topic.partitions[first : first + CHUNK_PARTITIONS]


def chunk_of_partitions(partitions: Iterable[PartitionImage]) -> bytes:
    """Encode partitions as the content of a `/topics/<name>/state/<chunk>` node."""
    return encode([[getattr(p, name) for name in _FIELDS] for p in partitions])


def partitions_in(data: bytes) -> list[PartitionImage]:
    """Decode the content of a `/topics/<name>/state/<chunk>` node. Raises msgspec.DecodeError, ValueError."""
    rows = msgspec.json.decode(data)
    return convert([dict(zip(_FIELDS, row, strict=True)) for row in rows], list[PartitionImage])


# --- reading


def load_image(coordination: Any, controller_epoch: int, zxid: int, writes: int = UNKNOWN_WRITES) -> Steps:
    """Return the stored ClusterImage, without brokers. If a topic is deleted during the read, all topics are read
    again: a starting broker reads while the controller writes.

    Raises the errors of the calls; msgspec.DecodeError, KeyError or ValueError for invalid nodes.
    """
    for remaining_reads in reversed(range(READS_MAX)):
        try:
            return (yield from _load_image(coordination, controller_epoch, zxid, writes))
        except NoNodeError:
            if not remaining_reads:
                raise
    raise AssertionError("unreachable")


def _load_image(coordination: Any, controller_epoch: int, zxid: int, writes: int) -> Steps:
    """Read the image once. Raises NoNodeError if a node is deleted during the read."""
    names, deleted_ids, registered_ids, config, cluster, terms = yield [
        coordination.children(TOPICS),
        coordination.children(DELETED),
        coordination.children(REGISTERED),
        coordination.get(CONFIG),
        coordination.get(CLUSTER),
        coordination.get(TERMS),
    ]
    deleted = yield [coordination.get(f"{DELETED}/{i}") for i in deleted_ids]
    registered = yield [coordination.get(f"{REGISTERED}/{i}") for i in registered_ids]
    topics = yield from _load_topics(coordination, names)
    security = yield from _load_security(coordination)
    return ClusterImage(
        Version(controller_epoch, zxid),
        {},
        {int(i): decode(node.data, int) for i, node in zip(registered_ids, registered, strict=True)},
        topics,
        msgspec.json.decode(config.data),
        security,
        {i: decode(_existing(node).data, DeletedTopic) for i, node in zip(deleted_ids, deleted, strict=True)},
        writes,
        next((t.session for t in terms_in(terms) if t.epoch == controller_epoch), 0),
        0 if cluster is None else decode(cluster.data, ClusterNode).generation,
    )


def _load_topics(coordination: Any, names: Sequence[str]) -> Steps:
    """Read the topics in two rounds of calls, regardless of their number."""
    calls = []
    for name in names:
        path = f"{TOPICS}/{name}"
        calls += [coordination.get(path), coordination.get(f"{path}/config")]
        calls += [coordination.children(f"{path}/schemas"), coordination.children(f"{path}/state")]
    results = yield calls
    calls = []
    for name, schema_ids, chunk_ids in zip(names, results[2::4], results[3::4], strict=True):
        path = f"{TOPICS}/{name}"
        calls += [coordination.get(f"{path}/schemas/{s}") for s in schema_ids]
        calls += [coordination.get(f"{path}/state/{c}") for c in sorted(map(int, chunk_ids))]
    parts = iter((yield calls))
    topics: dict[str, TopicImage] = {}
    for i, name in enumerate(names):
        definition, settings, schema_ids, chunk_ids = results[4 * i : 4 * i + 4]
        schemas = {int(s): _existing(next(parts)).data for s in schema_ids}
        chunks = [_existing(next(parts)) for _ in chunk_ids]
        definition, settings = _existing(definition), _existing(settings)
        topics[name] = _topic(
            name, msgspec.json.decode(definition.data), msgspec.json.decode(settings.data), chunks, schemas
        )
    return topics


def terms_in(node: Node | None) -> tuple[Term, ...]:
    """Decode the node `/terms`; None has no terms."""
    return () if node is None else decode(node.data, tuple[Term, ...])


def _existing(node: Node | None) -> Node:
    """Return `node`. Raises NoNodeError if it is None."""
    if node is None:
        raise NoNodeError("a node was deleted while the cluster's nodes were read")
    return node


def _load_security(coordination: Any) -> Steps:
    keys = yield [coordination.children(f"{SECURITY}/{kind}") for kind in RecordKind]
    names = [(kind, key) for kind, kind_keys in zip(RecordKind, keys, strict=True) for key in kind_keys]
    nodes = yield [coordination.get(f"{SECURITY}/{kind}/{key}") for kind, key in names]
    return {RecordId(kind, unquote(key)): _existing(node).data for (kind, key), node in zip(names, nodes, strict=True)}


def _topic(
    name: str,
    definition: Mapping[str, Any],
    configs: Mapping[str, Any],
    chunks: list[Node],
    schemas: Mapping[int, bytes],
) -> TopicImage:
    return TopicImage(
        name,
        definition["topic_id"],
        tuple(partition for chunk in chunks for partition in partitions_in(chunk.data)),
        definition["kind"],
        tuple(definition["key_columns"]),
        definition["timestamp_column"],
        definition["created_ms"],
        dict(configs),
        dict(schemas),
        definition.get("owner", ""),
        definition.get("request_id", ""),
        definition.get("first_leader_epoch", 0),
    )
