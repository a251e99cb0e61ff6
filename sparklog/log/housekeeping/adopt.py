"""Adoption of copies that another replica has made: this replica finds their manifests in the object store, and enters
the copies into its own journal.

A manifest is the last object of a copy, so a copy with a manifest is complete. A copy is adopted under these
conditions:

- Its offsets are in the log, with the same leader epochs (an unclean election can have changed these).
- If this log has a gap there (records that a repair could not save), the copy has gaps too.
- It overlaps with no known copy. Of two copies of the same offsets, the later one is adopted.

On request, copies wholly below the log start are adopted too, to be deleted: the replica that made them can be gone.
"""

from __future__ import annotations

from sparklog.log.partition_log import PartitionLog
from sparklog.log.state.leader_epochs import UNDEFINED
from sparklog.log.tiering.layout import decode_manifest, partition_prefix
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.log.tiering.state import CopyFinished, CopyStarted, Phase, RemoteSegmentMetadata


def adopt_copies(log: PartitionLog, store: ObjectStore, *, with_deleted: bool) -> int:
    """Adopt the copies of other replicas that `is_needed`, and return their number; this lists the store once.
    `with_deleted`: adopt copies wholly below the log start too.

    Raises RemoteStorageError, StorageError, StorageFullError.
    """
    manifests = {s.id: s for s in _manifests(log, store)}
    taken = 0
    for metadata in sorted(manifests.values(), key=lambda s: (s.base_offset, -s.copied_ms)):
        if metadata.id in log.tier.state.copies or not is_needed(log, metadata, with_deleted=with_deleted):
            continue
        started = CopyStarted(metadata.id, metadata.prefix, metadata.base_offset, metadata.next_offset, adopted=True)
        log.tier.record(started)
        log.tier.record(CopyFinished(metadata))
        taken += 1
    return taken


def _manifests(log: PartitionLog, store: ObjectStore) -> list[RemoteSegmentMetadata]:
    owner = log.owner
    manifests = []
    for key in store.manifests(partition_prefix(owner)):
        if any(key.startswith(c.started.prefix + "/") for c in log.tier.state.copies.values()):
            continue
        manifest = decode_manifest(store.read_unchecked(key))
        if manifest is not None and (manifest.topic_id, manifest.partition) == (owner.topic_id, owner.partition):
            manifests.append(manifest.segment)
    return manifests


def find_copy(store: ObjectStore, started: CopyStarted) -> RemoteSegmentMetadata | None:
    """Return the copy from its manifest in the store; None without a manifest. Raises RemoteStorageError."""
    for key in store.manifests(started.prefix):
        manifest = decode_manifest(store.read_unchecked(key))
        if manifest is not None and manifest.segment.id == started.id:
            return manifest.segment
    return None


def is_needed(log: PartitionLog, metadata: RemoteSegmentMetadata, *, with_deleted: bool) -> bool:
    """Return True if the copy belongs to this log, and no known copy has any of its offsets. A copy wholly below the
    log start is wanted if `with_deleted`."""
    if metadata.next_offset <= log.log_start_offset:
        return with_deleted
    if metadata.next_offset > log.tierable_end:
        return False
    local = [
        c.segment for c in log.tier.state.copies.values() if c.phase is not Phase.COPYING and c.segment is not None
    ]
    if any(k.base_offset < metadata.next_offset and metadata.base_offset < k.next_offset for k in local):
        return False
    return has_its_records(log, metadata)


def has_its_records(log: PartitionLog, metadata: RemoteSegmentMetadata) -> bool:
    """Return True if the log, which has the copy's offsets, has the same records there.

    The records can differ after an unclean election; the leader epochs show this, and an unknown epoch of the first
    record counts as equal. They can also differ after a leader has lost records for good; the gaps show this.
    """
    is_lost = any(first < metadata.next_offset and metadata.base_offset < behind for first, behind in log.gaps)
    if is_lost and not metadata.has_gaps:
        return False
    start = max(metadata.base_offset, log.log_start_offset)
    before = [epoch for epoch, first in metadata.leader_epochs if first <= start]
    epochs = [before[-1] if before else UNDEFINED, *(e for e, first in metadata.leader_epochs if first > start)]
    here = [epoch for epoch, _ in log.epochs.between(start, metadata.next_offset)]
    return epochs[1:] == here[1:] and (epochs[0] == here[0] or UNDEFINED in (epochs[0], here[0]))
