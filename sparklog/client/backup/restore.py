"""`restore`: the topics and groups of a backup, in a broker or cluster without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.client.admin.admin import Admin
from sparklog.client.backup.backup import Report
from sparklog.client.backup.manifest import Manifest, PartitionBackup, TopicBackup
from sparklog.client.producer.producer import Producer
from sparklog.errors import (
    DataLossError,
    InvalidConfigError,
    InvalidRequestError,
    SparklogError,
    TopicAlreadyExistsError,
)
from sparklog.format.key_format import KEY_FORMAT_SETTING
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.security.client_security import Security
from sparklog.settings import LAKE_PREFIX, MIRROR_PREFIX
from sparklog.types import OffsetAndMetadata, TopicPartition

NAMED_TOPICS_MAX = 10
"""Largest number of topics that an error names."""


def restore(
    bootstrap_servers: str | Sequence[str] | None,
    store: ObjectStore,
    manifest: Manifest,
    *,
    topics: Sequence[str] = (),
    replication_factor: int | None = None,
    configs: Mapping[str, object | None] | None = None,
    timeout_ms: int = 30_000,
    security: Security = None,
    report: Report = lambda tp, rows: None,
) -> dict[TopicPartition, int]:
    """Create the topics of a backup, send their records, and set the groups' offsets.

    Records keep their partitions, order and contents, and get new offsets from 0 on without gaps. A group's offset
    becomes the new offset of the same record. Settings of a Delta table (`lake.`) are left out, because the table
    belongs to the original topic, which perhaps still exists.

    `bootstrap_servers`: "host:port,…" or a list of addresses. None: the client's default. `topics`: names of topics.
    Empty: all of the backup. `replication_factor`: replicas of each partition. None: the default of the brokers.
    `configs`: values that replace the backup's settings of the topics, by setting name. A None as a value leaves the
    setting out. None: no changes. `timeout_ms`: the longest wait in ms for a broker that does not answer. `report`:
    called for each object of the backup after its records are sent. Returns the number of records by partition. Raises
    TopicAlreadyExistsError; InvalidRequestError; InvalidConfigError: The brokers refuse a setting of a topic; nothing
    was restored; RemoteStorageError; CorruptBatchError; DataLossError: Another producer has written to a topic during
    the restore; SparklogError: A record could not be sent. The error's note names the incomplete topics."""
    stored = {topic.name: topic for topic in manifest.topics}
    unknown = [name for name in topics if name not in stored]
    if unknown:
        raise InvalidRequestError(f"the backup has no topic {unknown[0]!r}: it has {', '.join(sorted(stored))}")
    chosen = [stored[name] for name in topics or stored]
    rows: dict[TopicPartition, int] = {}
    offsets = {
        (group, TopicPartition(o.topic, o.partition)): (o, 0)
        for group, group_offsets in manifest.groups.items()
        for o in group_offsets
    }
    with Admin(bootstrap_servers, request_timeout_ms=timeout_ms, security=security) as admin:
        existing = sorted({t.name for t in chosen} & set(admin.list_topics()))
        if existing:
            is_one = len(existing) == 1
            raise TopicAlreadyExistsError(
                f"topic{'' if is_one else 's'} {_listed(existing)} already exist{'s' if is_one else ''}; nothing was "
                "restored: name other topics, or delete these (an interrupted restore leaves incomplete topics)"
            )
        _create_topics(admin, chosen, configs or {}, replication_factor)
        try:
            with Producer(bootstrap_servers, security=security) as producer:
                for topic in chosen:
                    for number, partition in enumerate(topic.partitions):
                        tp = TopicPartition(topic.name, number)
                        rows[tp] = _send(producer, store, topic, partition, tp, offsets, report)
        except SparklogError as e:
            e.add_note(_incomplete_topics(chosen, rows))
            raise
        ends = admin.list_offsets(dict.fromkeys(rows, "latest"))
        for tp, count in rows.items():
            if ends[tp].offset != count:
                raise DataLossError(
                    f"{tp} ends at offset {ends[tp].offset} after {count} records: another producer has written to it "
                    "during the restore; stop it, delete the topic, and restore it again"
                )
        for group in manifest.groups:
            moved = {
                tp: OffsetAndMetadata(rank, at.metadata)
                for (name, tp), (at, rank) in offsets.items()
                if name == group and tp in rows
            }
            if moved:
                admin.alter_group_offsets(group, moved)
    return rows


def _create_topics(
    admin: Admin,
    chosen: Sequence[TopicBackup],
    configs: Mapping[str, object | None],
    replication_factor: int | None,
) -> None:
    """Create all topics or none, so that the restore can be repeated after a refused setting."""
    created: list[str] = []
    try:
        for topic in chosen:
            admin.create_topic(
                topic.name,
                len(topic.partitions),
                None if topic.kind == "envelope" else pa.ipc.read_schema(pa.py_buffer(topic.schema)),
                topic.key_columns,
                topic.timestamp_column if topic.kind != "envelope" else None,
                _restored_configs(topic.configs, configs),
                replication_factor=replication_factor,
            )
            created.append(topic.name)
    except (SparklogError, KeyboardInterrupt) as e:
        for name in created:
            try:
                admin.delete_topic(name)
            except SparklogError as failed:
                e.add_note(f"the new, empty topic {name!r} could not be deleted: {failed}")
        if isinstance(e, InvalidConfigError):
            e.add_note("nothing was restored: give the topics another value with --config NAME=VALUE (configs=)")
        raise


def _incomplete_topics(chosen: Sequence[TopicBackup], rows: Mapping[TopicPartition, int]) -> str:
    """Return the note about a restore that ended early; `rows` has the complete partitions."""
    done = {t.name: sum(tp.topic == t.name for tp in rows) == len(t.partitions) for t in chosen}
    missing, complete = (
        [name for name, is_done in done.items() if is_done == is_complete] for is_complete in (False, True)
    )
    return (
        f"the restore is incomplete: records are missing in {_listed(missing)}, and no group has offsets; delete the "
        f"restored topics before you repeat it{f'; complete: {_listed(complete)}' if complete else ''}"
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED_TOPICS_MAX
    return ", ".join(map(repr, names[:NAMED_TOPICS_MAX])) + (f" and {more} more" if more > 0 else "")


def _restored_configs(stored: Mapping[str, object], changes: Mapping[str, object | None]) -> dict[str, object]:
    kept: dict[str, object] = {KEY_FORMAT_SETTING: ""}  # a topic without the setting has another rule of partitions
    kept |= {name: value for name, value in stored.items() if not name.startswith((LAKE_PREFIX, MIRROR_PREFIX))}
    return {name: value for name, value in {**kept, **changes}.items() if value is not None}


def _send(
    producer: Producer,
    store: ObjectStore,
    topic: TopicBackup,
    partition: PartitionBackup,
    tp: TopicPartition,
    offsets: dict[tuple[str, TopicPartition], Any],
    report: Report,
) -> int:
    """Send a partition's records and return their number. Count in `offsets`, for each group, the records below its
    committed offset."""
    from sparklog.log.tiering.state import ObjectInfo

    count = 0
    for part in partition.parts:
        content = store.read(part.key, ObjectInfo(part.size_bytes, part.crc32c))
        table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
        table = table.filter(pc.field("_offset") >= partition.start)
        stored = np.asarray(table.column("_offset").to_numpy())
        for (group, of), (at, rank) in list(offsets.items()):
            if of == tp:
                offsets[(group, of)] = (at, rank + int(np.searchsorted(stored, at.offset, "left")))
        data = table.drop_columns(["_offset"])
        if data.num_rows:
            producer.send_batch(topic.name, data, partition=tp.partition)
            producer.flush()
        count += data.num_rows
        report(tp, data.num_rows)
    return count
