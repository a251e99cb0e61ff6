"""Pure rules for the image that an operator writes back into a store. The store is older than the brokers' copies, or
only lacks topics.

| record | older store | store that only lacks topics |
|---|---|---|
| topics of the copy | as in the copy; partitions that only the store has are kept | as stored |
| topics that brokers have put aside | restored | restored |
| stored topics with an order to delete them in the copy | deleted | as stored |
| stored topics that the copy does not know | as stored | as stored |
| settings, security records, deletions, broker epochs | as in the copy | as stored |

A topic is left out if another topic has the same name now: the operator must choose one of the two. The partitions that
are written back have leader and partition epochs above those of the store and of the copy, and no leader. The
controller elects one among the in-sync replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from sparklog.replication.cluster_image import NO_LEADER, ClusterDelta, ClusterImage, PartitionImage, TopicImage

K = TypeVar("K")
V = TypeVar("V")

EPOCHS_SKIPPED = 1_000
"""Distance of the new leader and partition epochs from the known ones. The copy can lack the last changes, and no epoch
must be used twice."""


class Restoration(NamedTuple):
    """The image to write, and the topics that it restores or leaves out."""

    after: ClusterImage
    """The image to write."""
    restored: tuple[str, ...]
    """Names of the topics that the store lacks and gets back."""
    refused: tuple[str, ...]
    """Names of the topics that are left out because another topic has the name."""


def restore(
    stored: ClusterImage, copy: ClusterImage, put_aside: Mapping[str, TopicImage], *, is_older: bool
) -> Restoration:
    """Return the image to write back. `copy`: the newest image that a broker has applied. Without `is_older` it is not
    used. `put_aside`: by topic id: topics whose files brokers have put aside. `is_older`: True if the store is older
    than `copy`; False if the store only lacks topics."""
    topics = dict(stored.topics)
    ids = {topic.topic_id: topic for topic in stored.topics.values()}
    lost = {i: t for i, t in put_aside.items() if i not in ids and i not in stored.deleted}
    deleted = dict(stored.deleted)
    if is_older:
        topics = {name: topic for name, topic in topics.items() if topic.topic_id not in copy.deleted}
        lost |= {topic.topic_id: topic for topic in copy.topics.values()}
        deleted |= copy.deleted
    refused, restored = [], []
    for topic_id, topic in sorted(lost.items(), key=lambda item: item[1].name):
        holder = topics.get(topic.name)
        if holder is not None and holder.topic_id != topic_id:
            refused.append(topic.name)
            continue
        deleted.pop(topic_id, None)
        topics[topic.name] = _without_leader(topic, ids.get(topic_id))
        if holder is None:
            restored.append(topic.name)
    after = replace(stored, topics=topics, deleted=deleted)
    if is_older:
        after = replace(
            after, known={**stored.known, **copy.known}, configs=dict(copy.configs), security=dict(copy.security)
        )
    return Restoration(after, tuple(restored), tuple(refused))


def _without_leader(topic: TopicImage, stored: TopicImage | None) -> TopicImage:
    partitions = []
    for number, partition in enumerate(topic.partitions):
        versions = [partition]
        if stored is not None and number < len(stored.partitions):
            versions.append(stored.partitions[number])
        partitions.append(_after_all(partition, versions))
    if stored is not None:  # keep partitions that the copy lacks: it has no order to delete them
        partitions += stored.partitions[len(partitions) :]
    schemas = topic.schemas if stored is None else {**stored.schemas, **topic.schemas}
    return replace(topic, partitions=tuple(partitions), schemas=schemas)


def _after_all(partition: PartitionImage, versions: list[PartitionImage]) -> PartitionImage:
    return replace(
        partition,
        leader=NO_LEADER,
        last_leader=partition.leader if partition.leader != NO_LEADER else partition.last_leader,
        leader_epoch=max(p.leader_epoch for p in versions) + EPOCHS_SKIPPED,
        partition_epoch=max(p.partition_epoch for p in versions) + EPOCHS_SKIPPED,
    )


def is_restored(partition: PartitionImage) -> bool:
    """Tell apart two kinds of partitions that are new to a broker. Returns True for a partition that was written back,
    False for a newly created one, whose leader epoch is still below EPOCHS_SKIPPED."""
    return partition.leader_epoch >= EPOCHS_SKIPPED


def changes_of(stored: ClusterImage, after: ClusterImage) -> list[tuple[str, str]]:
    """Return the changes from `stored` to `after` as pairs of a name and a description. Topics that the store lacks are
    left out (`Restoration.restored` has them)."""
    changes: list[tuple[str, str]] = []
    for name, topic in sorted(after.topics.items()):
        before = stored.topics.get(name)
        if before is None:
            continue
        if before.topic_id != topic.topic_id:
            changes.append((f"topic    {name}", "is another topic of that name; the stored topic was deleted"))
        elif len(topic.partitions) > len(before.partitions):
            gained = f"{len(before.partitions)} to {len(topic.partitions) - 1}"
            changes.append((f"topic    {name}", f"has {len(topic.partitions)} partitions, the store lacks {gained}"))
        elif replace(before, partitions=()) != replace(topic, partitions=()):
            changes.append((f"topic    {name}", "has other settings or schemas"))
    changes += [
        (f"topic    {name}", "was deleted, but the store has it")
        for name in sorted(stored.topics.keys() - after.topics)
    ]
    delta = difference(stored, after)
    kinds: dict[str, list[bool]] = {}
    for record, value in delta.security.items():
        kinds.setdefault(record.kind, []).append(value is None)
    if delta.configs:
        kinds["broker settings"] = [value is None for value in delta.configs.values()]
    for kind, gone in sorted(kinds.items()):
        changes.append((f"records  {kind}", f"{gone.count(False)} are written, {gone.count(True)} are removed"))
    return changes


def difference(before: ClusterImage, after: ClusterImage) -> ClusterDelta:
    """Return the delta from one image to another. Registered brokers are not compared."""
    return ClusterDelta(
        known={i: epoch for i, epoch in after.known.items() if before.known.get(i) != epoch},
        topics=_changes(before.topics, after.topics),
        configs=_changes(before.configs, after.configs),
        security=_changes(before.security, after.security),
        deleted=_changes(before.deleted, after.deleted),
    )


def _changes(before: Mapping[K, V], after: Mapping[K, V]) -> dict[K, V | None]:
    changed: dict[K, V | None] = {key: value for key, value in after.items() if before.get(key) != value}
    return changed | {key: None for key in before if key not in after}
