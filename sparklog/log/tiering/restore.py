"""Writing a lost journal again, from the manifests in the object store."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sparklog.environment.files import FileSystem, read_whole
from sparklog.errors import InvalidRequestError, LogCorruptError
from sparklog.format.checkpoint import PARTITION_FILE, PartitionMeta, decode
from sparklog.log.model.log_config import LogOwner
from sparklog.log.tiering.journal import JOURNAL_FILE, encode_journal
from sparklog.log.tiering.layout import decode_manifest, partition_prefix
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.log.tiering.state import CopyFinished, CopyStarted, Event, RemoteLogState, RemoteSegmentMetadata


class RestoreResult(NamedTuple):
    """`segments`: the copies that were found, in the order of their base offsets. `unreadable`: the keys of manifests
    that cannot be read or belong to another partition."""

    segments: list[RemoteSegmentMetadata]
    unreadable: list[str]


def restore_journal(files: FileSystem, directory: Path, store: ObjectStore, *, dry_run: bool) -> RestoreResult:
    """Find the finished copies of the partition in `directory` and, unless `dry_run`, write its journal. Of two copies
    with the same base offset, the later one counts.

    Raises InvalidRequestError (a journal exists), LogCorruptError (the directory's owner cannot be read),
    RemoteStorageError, StorageError, StorageFullError.
    """
    if files.exists(directory / JOURNAL_FILE):
        raise InvalidRequestError(f"{directory / JOURNAL_FILE} exists; move it away, then run the command again")
    data = read_whole(files, directory / PARTITION_FILE)
    meta = decode(data, PartitionMeta) if data is not None else None
    if meta is None:
        raise LogCorruptError(f"{directory / PARTITION_FILE} cannot be read: the partition's topic is unknown")
    by_base: dict[int, RemoteSegmentMetadata] = {}
    unreadable = []
    for key in store.manifests(partition_prefix(LogOwner(meta.topic, meta.topic_id, meta.partition))):
        manifest = decode_manifest(store.read_unchecked(key))
        if manifest is None or (manifest.topic_id, manifest.partition) != (meta.topic_id, meta.partition):
            unreadable.append(key)
            continue
        segment = manifest.segment
        present = by_base.get(segment.base_offset)
        if present is None or present.copied_ms <= segment.copied_ms:
            by_base[segment.base_offset] = segment
    segments = [by_base[base] for base in sorted(by_base)]
    if not dry_run:
        files.write_atomic(directory / JOURNAL_FILE, encode_journal(_state_of(segments)))
    return RestoreResult(segments, unreadable)


def _state_of(segments: list[RemoteSegmentMetadata]) -> RemoteLogState:
    events: list[Event] = []
    for s in segments:
        events += [CopyStarted(s.id, s.prefix, s.base_offset, s.next_offset), CopyFinished(s)]
    return RemoteLogState(events)
