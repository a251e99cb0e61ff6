"""Creation and deletion of replicas as the image assigns them to this broker.

| finding | action |
|---|---|
| the image names this broker, there is no log | create an empty log, into which the leader's records are copied |
| a log, and the image does not name this broker | end the role, close the log, rename its directory, unlink it |
| a directory of a partition that is on other brokers (first image after a start) | rename it, then unlink it |
| a directory of a topic with an order in the image to delete it (first image after a start) | rename, then unlink |
| a directory without records of a partition that its topic does not have (first image) | rename it, then unlink it |
| a directory of a topic that the image lacks without an order to delete it (first image after a start) | put aside |
| a replica with records of a newer leader epoch than the image, which does not name this broker | put aside |

A replica that is assigned again never uses files of an earlier assignment, which are out of date. Such a replica is not
in the ISR, so no record is lost. A failed creation, for example on a full disk, is retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from sparklog.environment.clock import MachineClock
from sparklog.errors import NotLeaderError, SparklogError
from sparklog.format.checkpoint import PartitionMeta
from sparklog.log.directories.log_directory import DELETED_ENDING, REMOVED_ENDING, STRAY_ENDING
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.metadata.store import Topic
from sparklog.replication.cluster_image import ClusterImage, PartitionImage, TopicImage
from sparklog.types import TopicPartition
from sparklog_broker.cluster.replicas import Replicas
from sparklog_broker.config import BrokerConfig
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage
from sparklog_broker.partitions.topic_directories import partition_specs

log = logging.getLogger(__name__)

RETRY_MS = 5_000


class ReplicaPlaces:
    """Creates and removes replicas. Event-loop thread only."""

    def __init__(
        self, config: BrokerConfig, clock: MachineClock, storage: Storage, partitions: Partitions, replicas: Replicas
    ) -> None:
        self._config = config
        self._clock = clock
        self._storage = storage
        self._partitions = partitions
        self._replicas = replicas
        self._has_cleared = False
        self._followed: Mapping[str, TopicImage] = {}
        self._retry_at_ms = 0
        """Time of the next attempt to create the missing directories, in ms; 0 if none is missing."""

    async def follow(self, image: ClusterImage) -> None:
        """Create a log for each partition that `image` assigns to this broker, and remove logs of other partitions."""
        if not self._has_cleared:
            self._has_cleared = True
            await self._storage.run(partial(self._clear, image))
        is_late = bool(self._retry_at_ms) and self._now_ms() >= self._retry_at_ms
        changed = [t for t in image.topics.values() if is_late or self._followed.get(t.name) is not t]
        self._followed = image.topics
        added: list[Partition] = []
        removed: list[Partition] = []
        for topic in changed:
            for number, state in enumerate(topic.partitions):
                partition = self._partitions.find(TopicPartition(topic.name, number))
                if partition is None or partition.topic_id != topic.topic_id:
                    continue
                is_assigned = self._config.broker_id in state.replicas
                if is_assigned == partition.has_no_replica:
                    (added if is_assigned else removed).append(partition)
        if removed:
            await self._remove(removed, image)
        if added or is_late:
            self._retry_at_ms = 0
        if added:
            await self._make(added)

    @property
    def has_to_retry(self) -> bool:
        """True if `follow` must be called again with the same image, to retry failed creations."""
        return bool(self._retry_at_ms) and self._now_ms() >= self._retry_at_ms

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1_000) + 1

    async def _remove(self, removed: list[Partition], image: ClusterImage) -> None:
        owners = [spec.owner for spec in self._specs(removed)]
        newer: set[TopicPartition] = set()
        for partition in removed:
            state = image.partition(partition.key)
            assert state is not None, "found in this image"
            partition_log = partition.open_log
            if partition_log is not None and not is_end_of_replica(state, partition_log.leader_epoch):
                newer.add(partition.key)
            self._replicas.release(partition, state)
            partition.end_replica(
                NotLeaderError(f"partition {partition.key} is on brokers {list(state.replicas)} now; read the metadata")
            )
        logs = self._storage.logs
        for owner in owners:
            gone = NotLeaderError(f"partition {owner.topic_partition} has moved to other brokers; read the metadata")
            try:
                ending = STRAY_ENDING if owner.topic_partition in newer else REMOVED_ENDING
                await asyncio.shield(self._storage.run(partial(logs.removal.remove_replica, owner, gone, ending)))
            except SparklogError as e:  # the next start removes it
                log.error("the files of %s, which was moved to other brokers, stay: %s", owner.topic_partition, e)  # noqa: TRY400
        log.info("%d replicas have moved to other brokers", len(removed))
        if newer:
            log.error(
                "%s: have records that are newer than the cluster's metadata; their files are put aside", sorted(newer)
            )
        self._storage.run(logs.removal.purge).add_done_callback(_log_failure)

    async def _make(self, added: list[Partition]) -> None:
        specs = list(self._specs(added))
        job = partial(self._create, specs)
        try:
            await asyncio.shield(self._storage.run(job))
        except SparklogError as e:
            log.error("creating %d replicas failed and will be retried: %s", len(added), e)  # noqa: TRY400 - it says it all
            self._retry_at_ms = self._now_ms() + RETRY_MS
        table = self._storage.logs.table
        for partition in added:
            partition_log = table.find(partition.key)
            if partition_log is not None:
                partition.begin_replica(partition_log)
        log.info("starting to copy %d replicas from their leaders", len(added))
        for topic in {p.key.topic: self._partitions.topics[p.key.topic] for p in added if not p.key.partition}.values():
            self._storage.run(partial(self._storage.topic_directories.note, topic))

    async def make_room(self, specs: Sequence[PartitionSpec]) -> None:
        """Put aside directories of earlier partitions with the same names. They belong to a history in which the topic
        already had these partitions.
        """
        job = partial(self._make_room, specs)
        try:
            await asyncio.shield(self._storage.run(job))
        except SparklogError as e:
            log.error("files of earlier partitions cannot be put aside: %s", e)  # noqa: TRY400

    def _make_room(self, specs: Sequence[PartitionSpec]) -> None:
        """Put the directories aside. Runs on the admin thread."""
        for spec in specs:
            owner = spec.owner
            self._storage.logs.removal.remove_replicas(
                _is_of(owner.topic_id), [owner.topic_partition], ending=STRAY_ENDING
            )

    def _create(self, specs: list[PartitionSpec]) -> None:
        """Remove files of earlier assignments, and create the logs. Runs on the admin thread."""
        for spec in specs:
            owner = spec.owner
            self._storage.logs.removal.remove_replicas(_is_of(owner.topic_id), [owner.topic_partition])
        self._storage.logs.creation.create_partitions(specs)

    def _clear(self, image: ClusterImage) -> None:
        """Remove replicas that left this broker while it was down, by the rules in the module's text. Records of topics
        that the store has lost are kept. Runs on the admin thread.
        """
        topics = {topic.topic_id: topic for topic in image.topics.values()}
        logs = self._storage.logs

        def state_of(owner: PartitionMeta) -> PartitionImage | None:
            topic = topics.get(owner.topic_id)
            if topic is None or not 0 <= owner.partition < len(topic.partitions):
                return None
            return topic.partitions[owner.partition]

        def is_elsewhere(owner: PartitionMeta, epoch: int) -> bool:
            state = state_of(owner)
            return (
                state is not None and self._config.broker_id not in state.replicas and is_end_of_replica(state, epoch)
            )

        def is_unused(owner: PartitionMeta, _: int) -> bool:
            """True for a partition that its topic was about to get when this broker died. Its log has no segments."""
            name = f"{owner.topic}-{owner.partition}"
            return (
                owner.topic_id in topics
                and state_of(owner) is None
                and not any(d.files.exists(d.path / name) and d.has_segments(name) for d in logs.directories.live)
            )

        def is_absent(owner: PartitionMeta, _: int) -> bool:
            state = state_of(owner)
            return state is None or self._config.broker_id not in state.replicas

        try:
            moved = logs.removal.remove_replicas(is_elsewhere)
            deleted = logs.removal.remove_replicas(
                lambda owner, _: owner.topic_id in image.deleted, ending=DELETED_ENDING
            )
            moved += logs.removal.remove_replicas(is_unused)
            absent = logs.removal.remove_replicas(is_absent, ending=STRAY_ENDING)
            if moved or deleted:
                log.info("%d replicas were moved or deleted while this broker was down", moved + deleted)
                logs.removal.purge()
            if absent:
                log.error("%d directories belong to no partition in the cluster's metadata; they are put aside", absent)
        except SparklogError as e:
            log.error("files of moved replicas stay until the next start: %s", e)  # noqa: TRY400

    def _specs(self, partitions: Iterable[Partition]) -> Iterable[PartitionSpec]:
        by_topic: dict[str, set[int]] = {}
        for partition in partitions:
            by_topic.setdefault(partition.key.topic, set()).add(partition.key.partition)
        for name, numbers in by_topic.items():
            topic: Topic = self._partitions.topics[name]
            yield from partition_specs(topic, self._config, is_here=_is_one_of(numbers))


def is_end_of_replica(state: PartitionImage, newest_epoch: int) -> bool:
    """Return True if a state that does not name the broker is an order to delete its replica.

    `newest_epoch` is the newest leader epoch in the replica's log. The leader epoch ends when a replica leaves the
    assignment (`election.settled`), so the order has a higher epoch than the log. Otherwise the state is from a time
    before the replica was added.
    """
    return state.leader_epoch > newest_epoch


def _is_of(topic_id: str) -> Callable[[PartitionMeta, int], bool]:
    return lambda owner, _: owner.topic_id == topic_id


def _is_one_of(numbers: set[int]) -> Callable[[str, int], bool]:
    return lambda topic, number: number in numbers


def _log_failure(purging: asyncio.Future[int]) -> None:
    error = None if purging.cancelled() else purging.exception()
    if error is not None:
        log.error("files of replicas that have moved could not be unlinked, the next round tries again: %s", error)
