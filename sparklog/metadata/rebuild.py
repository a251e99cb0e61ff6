"""Rebuilds a lost metadata store from the partitions' directories.

partition.json in a directory names the partition. topic.json in the directory of partition 0 describes the whole topic;
it can be lost or damaged. The head of each segment has the schema of its batches. Facts that no file contains get their
defaults, and are listed in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
from msgspec import Struct, field

from sparklog.environment.files import FileSystem, read_whole
from sparklog.errors import CorruptBatchError, LogCorruptError, StorageError
from sparklog.format.checkpoint import META_FILE, PARTITION_FILE, DataDirMeta, PartitionMeta, decode
from sparklog.format.epoch_checkpoint import LEADER_EPOCHS_FILE, decode_epochs
from sparklog.format.offset_column import topic_schema
from sparklog.format.producer_snapshot import SUFFIX as SNAPSHOT_SUFFIX
from sparklog.format.producer_snapshot import decode_snapshot
from sparklog.format.schema import KIND_ENVELOPE, KIND_TYPED
from sparklog.format.segment import decode_head, parse_segment_name, seal_position
from sparklog.format.topic_record import TOPIC_FILE, TopicRecord, decode_topic
from sparklog.log.directories.broker_epoch import newest_life
from sparklog.log.directories.log_directory import is_moved_aside
from sparklog.log.segments.header_walk import walk_headers
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID, Topic
from sparklog.security.records import RecordId

KEPT_FOREVER: Mapping[str, int] = MappingProxyType({"retention.ms": -1, "retention.bytes": -1})
"""Settings of a topic whose own settings are lost: retention deletes none of its records."""
PRODUCER_IDS_SKIPPED = 1_000_000
"""Distance of the next producer id from the largest id in any log. Larger ids can be issued without a record in a
log."""


class Rebuilt(Struct):
    """The content of the directories, from which a new store is written."""

    cluster_id: str
    broker_id: int = 0
    topics: list[Topic] = field(default_factory=list)
    next_schema_id: int = ENVELOPE_SCHEMA_ID + 1
    next_producer_id: int = 0
    unknown: dict[str, list[str]] = field(default_factory=dict)
    """By topic name: facts that no file contains."""
    ignored: list[tuple[Path, str]] = field(default_factory=list)
    """Directories that were ignored, each with the reason."""
    security_records: Mapping[RecordId, bytes] = MappingProxyType({})
    """Users, ACLs and quotas, from another source (`lost_security`)."""
    leader_epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic id and partition: the highest leader epoch in the partition's files."""
    session: int = 0
    """Number of the last session of the lost store (`local_coordination.py`), from the newest broker epoch in the
    directories."""


class _TopicEntry(Struct):
    """A topic's directories by partition, and their content."""

    name: str
    directories: dict[int, Path] = field(default_factory=dict)
    record: TopicRecord | None = None
    schemas: dict[int, pa.Schema] = field(default_factory=dict)
    created_ms: int = 0
    leader_epoch: int = 0
    """The highest leader epoch in the batch headers of the directory that is being read."""


def topic_record(topic: Topic) -> TopicRecord:
    """Return the content of topic.json for `topic`."""
    return TopicRecord(
        topic.name,
        topic.topic_id,
        topic.kind,
        topic.partitions,
        {i: schema.serialize().to_pybytes() for i, schema in topic.schemas.items()},
        list(topic.key_columns),
        topic.timestamp_column,
        dict(topic.configs),
        topic.created_ms,
        topic.owner,
        topic.first_leader_epoch,
    )


def rebuild(
    log_dirs: Sequence[Path],
    files: FileSystem,
    *,
    topic_configs: Mapping[str, Mapping[str, int | float | str | bool]] = MappingProxyType({}),
    on_directory: Callable[[Path], None] = lambda _: None,
) -> Rebuilt:
    """Read all partitions' directories in `log_dirs`; write nothing. `topic_configs`: by topic name: the settings of
    topics that have no topic.json. Raises StorageError: A directory cannot be read, or the log directories belong to
    several clusters, or to none."""
    rebuilt = Rebuilt(*_identity(log_dirs, files))
    entries: dict[str, _TopicEntry] = {}
    highest_producer_id = -1
    for path, owner in _partitions(log_dirs, files, rebuilt):
        on_directory(path)
        topic = entries.setdefault(owner.topic_id, _TopicEntry(owner.topic))
        if owner.partition in topic.directories:
            rebuilt.ignored.append((path, f"{topic.directories[owner.partition]} holds the same partition"))
            continue
        topic.directories[owner.partition] = path
        record = decode_topic(read_whole(files, path / TOPIC_FILE) or b"")
        topic.record = record if record is not None and record.topic_id == owner.topic_id else topic.record
        highest_producer_id = max(highest_producer_id, _read_segments(path, files, topic, rebuilt))
        epochs = decode_epochs(read_whole(files, path / LEADER_EPOCHS_FILE) or b"") or ()
        key = owner.topic_id, owner.partition
        rebuilt.leader_epochs[key] = max(topic.leader_epoch, *(entry.epoch for entry in epochs), 0)
        topic.leader_epoch = 0
    rebuilt.session = max(newest_life(files, path) for path in log_dirs) >> 32
    rebuilt.next_producer_id = highest_producer_id + 1 + PRODUCER_IDS_SKIPPED
    by_name: dict[str, Topic] = {}
    for topic_id, entry in entries.items():
        rebuilt_topic = _topic(topic_id, entry, rebuilt, topic_configs.get(entry.name, {}))
        if rebuilt_topic is None:
            continue
        other = by_name.get(rebuilt_topic.name)
        newest = rebuilt_topic if other is None or rebuilt_topic.created_ms > other.created_ms else other
        if other is not None:
            older = other if newest is rebuilt_topic else rebuilt_topic
            reason = f"topic id {older.topic_id} had the name {older.name} before {newest.topic_id}"
            rebuilt.ignored += [(p, reason) for p in entries[older.topic_id].directories.values()]
        by_name[rebuilt_topic.name] = newest
    rebuilt.topics = sorted(by_name.values(), key=lambda t: t.name)
    rebuilt.unknown = {n: u for n, u in rebuilt.unknown.items() if n in by_name}
    highest_schema_id = max((i for t in rebuilt.topics for i in t.schemas), default=ENVELOPE_SCHEMA_ID)
    rebuilt.next_schema_id = max(highest_schema_id, ENVELOPE_SCHEMA_ID) + 1
    return rebuilt


def _identity(log_dirs: Sequence[Path], files: FileSystem) -> tuple[str, int]:
    """Return the cluster's id and the broker's id from meta.json of the log directories. Raises StorageError if the
    directories name several pairs of ids, or none."""
    ids: dict[tuple[str, int], Path] = {}
    for path in log_dirs:
        data = read_whole(files, path / META_FILE)
        meta = decode(data, DataDirMeta) if data is not None else None
        if meta is not None:
            ids[(meta.cluster_id, meta.broker_id)] = path
    if len(ids) != 1:
        fault = f"belong to several clusters or brokers: {ids}" if ids else f"have no {META_FILE} that can be read"
        raise StorageError(f"the log directories {', '.join(map(str, log_dirs))} {fault}")
    return next(iter(ids))


def _partitions(log_dirs: Sequence[Path], files: FileSystem, rebuilt: Rebuilt) -> Iterator[tuple[Path, PartitionMeta]]:
    for log_dir in log_dirs:
        for name in files.list_directory(log_dir):
            path = log_dir / name
            if not files.is_directory(path) or is_moved_aside(name):
                continue
            data = read_whole(files, path / PARTITION_FILE)
            owner = decode(data, PartitionMeta) if data is not None else None
            if owner is not None and name == f"{owner.topic}-{owner.partition}":
                yield path, owner
            elif data is not None:
                rebuilt.ignored.append((path, f"its {PARTITION_FILE} cannot be read, or is another partition's"))


def _read_segments(path: Path, files: FileSystem, topic: _TopicEntry, rebuilt: Rebuilt) -> int:
    """Add the schemas, the first append time and the highest leader epoch of a partition's segments to `topic`. Returns
    the largest producer id in the partition's files; -1 if there is none."""
    highest = -1
    for name in files.list_directory(path):
        if name.endswith(SNAPSHOT_SUFFIX):
            snapshot = decode_snapshot(read_whole(files, path / name) or b"")
            highest = max(
                [highest, *(p.producer_id for p in snapshot.producers)] if snapshot is not None else [highest]
            )
        if parse_segment_name(name) is None:
            continue
        file = files.open(path / name)
        try:
            size = file.size()
            head = decode_head(file.read)
            topic.schemas[head.info.schema_id] = topic_schema(head.schema)
            for _, header in walk_headers(file.read, head.data_position, seal_position(file.read, size) or size):
                highest = max(highest, header.producer_id)
                topic.leader_epoch = max(topic.leader_epoch, header.leader_epoch)
                first = min(topic.created_ms or header.append_time_ms, header.append_time_ms)
                topic.created_ms = first
        except (CorruptBatchError, LogCorruptError) as e:
            rebuilt.unknown.setdefault(topic.name, []).append(f"what follows in {path / name}: {e}")
        finally:
            file.close()
    return highest


def _topic(
    topic_id: str, entry: _TopicEntry, rebuilt: Rebuilt, configs: Mapping[str, int | float | str | bool]
) -> Topic | None:
    """Return the topic, and add the facts that no file contains to `rebuilt.unknown`. If no file has the topic's
    columns, return None, and add its directories to `rebuilt.ignored`."""
    unknown: list[str] = []
    record = entry.record
    schemas = dict(entry.schemas)
    if record is not None:
        schemas |= {i: pa.ipc.read_schema(pa.py_buffer(message)) for i, message in record.schemas.items()}
    if not schemas:
        reason = f"{TOPIC_FILE} and all segments are missing: the topic's columns are unknown"
        rebuilt.ignored += [(path, reason) for path in entry.directories.values()]
        return None
    highest = max(entry.directories)
    if record is None:
        is_envelope = set(schemas) == {ENVELOPE_SCHEMA_ID}
        record = TopicRecord(
            entry.name, topic_id, KIND_ENVELOPE if is_envelope else KIND_TYPED, highest + 1, {}, [], None, dict(configs),
            entry.created_ms,
        )  # fmt: skip
        if not configs:
            record.configs.update(KEPT_FOREVER)
            unknown.append(f"settings ({', '.join(f'{k}={v}' for k, v in KEPT_FOREVER.items())} until you set them)")
        unknown.append("owner (the topic counts for no user's max_topics and max_partitions)")
        unknown += [] if is_envelope else ["key columns", "timestamp column", "schemas without records"]
        unknown.append(f"partitions above {highest}")
    missing = sorted(set(range(max(record.partitions, highest + 1))) - set(entry.directories))
    if missing:
        unknown.append(f"the directories of partitions {', '.join(map(str, missing))}")
    if unknown:
        rebuilt.unknown.setdefault(entry.name, []).extend(unknown)
    return Topic(
        name=record.name,
        topic_id=topic_id,
        kind=record.kind,
        partitions=max(record.partitions, highest + 1),
        schemas=MappingProxyType(dict(sorted(schemas.items()))),
        key_columns=tuple(record.key_columns),
        timestamp_column=record.timestamp_column,
        configs=MappingProxyType(dict(record.configs)),
        created_ms=record.created_ms,
        owner=record.owner,
        first_leader_epoch=record.first_leader_epoch,
    )
