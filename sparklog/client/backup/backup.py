"""`backup`: a consistent copy of topics and groups, from a live broker or cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.client.admin.admin import Admin, TopicDescription
from sparklog.client.backup.manifest import (
    FORMAT,
    LATEST,
    GroupOffset,
    Manifest,
    Part,
    PartitionBackup,
    TopicBackup,
    decode_manifest,
    encode_manifest,
    kept_parts,
    manifest_key,
)
from sparklog.client.net.cluster import cluster
from sparklog.client.reading.offset_lookup import list_offsets
from sparklog.client.reading.range_reader import read_range
from sparklog.errors import RemoteStorageError
from sparklog.format.row_groups import RowGroup
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.security.client_security import Security
from sparklog.settings import MIB
from sparklog.types import READ_COMMITTED, TopicPartition

PART_BYTES = 64 * MIB
"""Size of the records, before compression, at which an object is complete."""
OFFSET = pa.field("_offset", pa.int64())
Report = Callable[[TopicPartition, int], None]
"""Function that takes a partition, and the number of its records in one object."""


def newest_manifest(store: ObjectStore, key: str | None = None) -> Manifest | None:
    """Return a manifest of a store. Raises RemoteStorageError and InvalidRequestError."""
    if key is None:
        try:
            key = store.read_unchecked(LATEST).decode()
        except RemoteStorageError as e:
            if isinstance(e.__cause__, FileNotFoundError):
                return None
            raise
    return decode_manifest(store.read_unchecked(key), key)


def backup(
    bootstrap_servers: str | Sequence[str] | None,
    store: ObjectStore,
    *,
    now_ms: int,
    topics: Sequence[str] = (),
    part_bytes: int = PART_BYTES,
    timeout_ms: int = 30_000,
    security: Security = None,
    report: Report = lambda tp, rows: None,
) -> Manifest:
    """Copy the committed records of topics, their definitions and the groups' offsets into a store.

    The cut is one moment for all topics: of each transaction it has all records or none. Clients continue meanwhile.
    Objects of the store's newest backup are used again, so only newer records are written.

    `bootstrap_servers`: "host:port,…" or a list of addresses. None: the client's default. `topics`: names of topics.
    Empty: all but the internal ones. `part_bytes`: size of the records, before compression, at which an object is
    complete. `timeout_ms`: the longest wait in ms for a broker that does not answer. Returns the manifest of the
    backup. Raises UnknownTopicOrPartitionError; InvalidRequestError; RemoteStorageError; DataLossError: Records were
    deleted during the backup; run it again."""
    shared = cluster(bootstrap_servers, security)
    earlier = newest_manifest(store)
    before = {} if earlier is None else {t.topic_id: t for t in earlier.topics}
    with Admin(bootstrap_servers, request_timeout_ms=timeout_ms, security=security) as admin:
        names = list(topics) or admin.list_topics()
        groups = _group_offsets(admin, names)  # before the cut: no group is ahead of the records
        described = [admin.describe_topic(name) for name in names]
        tps = [TopicPartition(t.name, p) for t in described for p in range(t.partitions)]
        start = list_offsets(shared, dict.fromkeys(tps, "earliest"), timeout_ms=timeout_ms)
        end = list_offsets(
            shared, dict.fromkeys(tps, "latest"), isolation=READ_COMMITTED, all_at_once=True, timeout_ms=timeout_ms
        )
        described = [admin.describe_topic(name) for name in names]  # no record below the ends has a newer schema
    copied = []
    for topic in described:
        last_backup = before.get(topic.topic_id)
        partitions = []
        for p in range(len([tp for tp in tps if tp.topic == topic.name])):
            tp = TopicPartition(topic.name, p)
            first, last = start[tp].offset, end[tp].offset
            stored = last_backup.partitions[p] if last_backup is not None and p < len(last_backup.partitions) else None
            parts = kept_parts(stored, first, last)
            begin = parts[-1].end if parts else first
            for part in _new_parts(shared, store, topic, tp, begin, last, part_bytes, now_ms, timeout_ms):
                parts.append(part)
                report(tp, part.rows)
            partitions.append(PartitionBackup(first, last, parts))
        copied.append(_topic(topic, partitions))
    manifest = Manifest(FORMAT, now_ms, copied, groups)
    key = manifest_key(now_ms)
    store.make_folder("manifests")
    store.write(key, [encode_manifest(manifest)])
    store.replace(LATEST, key.encode())  # last, so that an interrupted backup is never the newest one
    return manifest


def _group_offsets(admin: Admin, topics: Sequence[str]) -> dict[str, list[GroupOffset]]:
    by_group: dict[str, list[GroupOffset]] = {}
    for group in admin.list_groups():
        offsets = [
            GroupOffset(tp.topic, tp.partition, at.offset, at.metadata)
            for tp, at in sorted(admin.list_group_offsets(group.group_id).items())
            if tp.topic in topics
        ]
        if offsets:
            by_group[group.group_id] = offsets
    return by_group


def _topic(topic: TopicDescription, partitions: list[PartitionBackup]) -> TopicBackup:
    return TopicBackup(
        topic.name,
        topic.topic_id,
        topic.kind,
        topic.schema.serialize().to_pybytes(),
        list(topic.key_columns),
        topic.timestamp_column,
        {name: value for name, value in topic.configs.items() if isinstance(value, int | float | str | bool)},
        partitions,
    )


def _new_parts(
    shared: Any,
    store: ObjectStore,
    topic: TopicDescription,
    tp: TopicPartition,
    first: int,
    end: int,
    part_bytes: int,
    now_ms: int,
    timeout_ms: int,
) -> Iterator[Part]:
    """Write the records of [first, end) to new objects, and yield each object."""
    schema = pa.schema([OFFSET, *topic.schema])
    waiting = RowGroup()
    begin = first

    def written(until: int) -> Part:
        folder = f"data/{topic.topic_id}/{tp.partition}"
        key = f"{folder}/{begin:020d}-{until:020d}-{now_ms:015d}.arrow"
        store.make_folder(folder)
        sink = pa.BufferOutputStream()
        rows = waiting.rows
        with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            for batch in waiting.take():
                writer.write_batch(batch)
        info = store.write(key, [sink.getvalue().to_pybytes()])
        return Part(key, begin, until, rows, info.size_bytes, info.crc32c)

    if first >= end:
        return
    for batch in read_range(
        shared, tp, first, end, layout=topic.schema, isolation=READ_COMMITTED, retry_timeout_ms=timeout_ms
    ):
        offsets = pa.array(np.asarray(batch.offsets(), np.int64))
        waiting.add(pa.RecordBatch.from_arrays([offsets, *batch.data.columns], schema=schema))
        if waiting.size_bytes >= part_bytes:
            until = min(batch.next_offset, end)
            yield written(until)
            begin = until
    if begin < end:
        yield written(end)  # also without rows: their offsets need not be read again
