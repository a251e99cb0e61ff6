"""Replicas come and go: what the image gives this broker is made, what it takes away is deleted.

| what is found | what is done |
|---|---|
| the image names this broker, there is no log | a new log, empty: its leader fills it, and it joins the ISR |
| a log, and the image does not name this broker | role ended, then log closed, its directory renamed, then unlinked |
| a directory of a partition that is elsewhere (first image after a start) | renamed, then unlinked |

A replica that is named anew never goes on with files that an earlier one has left: nobody has kept them up to date. It
is not in the ISR, so nothing is lost by it. What cannot be made (a full disk) is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from sparklog.environment.clock import MachineClock
from sparklog.errors import NotLeaderError, SparklogError
from sparklog.format.checkpoint import PartitionMeta
from sparklog.log.log_manager import PartitionSpec
from sparklog.metadata.store import Topic
from sparklog.replication.cluster_image import ClusterImage, TopicImage
from sparklog.types import TopicPartition
from sparklog_broker.cluster.replicas import Replicas
from sparklog_broker.config import BrokerConfig
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage
from sparklog_broker.partitions.topic_files import partition_specs

log = logging.getLogger(__name__)

RETRY_MS = 5_000


class ReplicaPlaces:
    """Event-loop thread only."""

    def __init__(
        self, config: BrokerConfig, clock: MachineClock, storage: Storage, partitions: Partitions, replicas: Replicas
    ) -> None:
        self._config = config
        self._clock = clock
        self._storage = storage
        self._partitions = partitions
        self._replicas = replicas
        self._has_cleared = False
        self._followed: dict[str, TopicImage] = {}
        self._again_ms = 0
        """When what could not be made is tried again; 0: all is made."""

    async def follow(self, image: ClusterImage) -> None:
        """Has a log for each partition that `image` gives this broker, and for no other one."""
        if not self._has_cleared:
            self._has_cleared = True
            await self._storage.run(partial(self._clear, image))
        is_late = bool(self._again_ms) and self._now_ms() >= self._again_ms
        changed = [t for t in image.topics.values() if is_late or self._followed.get(t.name) is not t]
        self._followed = dict(image.topics)
        added: list[Partition] = []
        removed: list[Partition] = []
        for topic in changed:
            for number, state in enumerate(topic.partitions):
                partition = self._partitions.find(TopicPartition(topic.name, number))
                if partition is None or partition.topic_id != topic.topic_id:
                    continue
                is_wanted = self._config.broker_id in state.replicas
                if is_wanted == partition.is_elsewhere:
                    (added if is_wanted else removed).append(partition)
        if removed:
            await self._remove(removed, image)
        if added or is_late:
            self._again_ms = 0
        if added:
            await self._make(added)

    @property
    def has_to_retry(self) -> bool:
        """Whether `follow` has something to do though the image is the same."""
        return bool(self._again_ms) and self._now_ms() >= self._again_ms

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1_000) + 1

    async def _remove(self, removed: list[Partition], image: ClusterImage) -> None:
        owners = [spec.owner for spec in self._specs(removed)]
        for partition in removed:
            state = image.partition(partition.key)
            assert state is not None, "found in this image"
            self._replicas.release(partition, state)
            partition.end_replica(
                NotLeaderError(f"partition {partition.key} is on brokers {list(state.replicas)} now; read the metadata")
            )
        logs = self._storage.logs
        for owner in owners:
            gone = NotLeaderError(f"partition {owner.topic_partition} has moved to other brokers; read the metadata")
            try:
                await asyncio.shield(self._storage.run(partial(logs.remove_replica, owner, gone)))
            except SparklogError as e:  # the next start finds it
                log.error("the files of %s, which has moved, stay: %s", owner.topic_partition, e)  # noqa: TRY400
        log.info("%d replicas have moved to other brokers", len(removed))
        self._storage.run(logs.purge_deleted).add_done_callback(_log_failure)

    async def _make(self, added: list[Partition]) -> None:
        specs = list(self._specs(added))
        job = partial(self._create, specs)
        try:
            await asyncio.shield(self._storage.run(job))
        except SparklogError as e:
            log.error("%d new replicas, which is tried again: %s", len(added), e)  # noqa: TRY400 - it says it all
            self._again_ms = self._now_ms() + RETRY_MS
        open_logs = self._storage.logs.logs
        for partition in added:
            partition_log = open_logs.get(partition.key)
            if partition_log is not None:
                partition.begin_replica(partition_log)
        log.info("%d replicas are to be copied from their leaders", len(added))
        for topic in {p.key.topic: self._partitions.topics[p.key.topic] for p in added if not p.key.partition}.values():
            self._storage.run(partial(self._storage.topic_files.note, topic))

    def _create(self, specs: list[PartitionSpec]) -> None:
        """On the admin thread."""
        for spec in specs:
            wanted = spec.owner
            self._storage.logs.remove_replicas(_is_of(wanted.topic_id), [wanted.directory_name])
        self._storage.logs.create_partitions(specs)

    def _clear(self, image: ClusterImage) -> None:
        """On the admin thread. What a reassignment has taken away while this broker was down. Directories of topics
        that the image does not have are left alone: a store that has lost topics must not take their records along."""
        topics = {topic.topic_id: topic for topic in image.topics.values()}

        def is_elsewhere(owner: PartitionMeta) -> bool:
            topic = topics.get(owner.topic_id)
            if topic is None or not 0 <= owner.partition < len(topic.partitions):
                return False
            return self._config.broker_id not in topic.partitions[owner.partition].replicas

        try:
            count = self._storage.logs.remove_replicas(is_elsewhere)
            if count:
                log.info("%d replicas have moved to other brokers while this one was away", count)
                self._storage.logs.purge_deleted()
        except SparklogError as e:
            log.error("files of replicas that have moved stay until the next start: %s", e)  # noqa: TRY400

    def _specs(self, partitions: Iterable[Partition]) -> Iterable[PartitionSpec]:
        by_topic: dict[str, set[int]] = {}
        for partition in partitions:
            by_topic.setdefault(partition.key.topic, set()).add(partition.key.partition)
        for name, numbers in by_topic.items():
            topic: Topic = self._partitions.topics[name]
            yield from partition_specs(topic, self._config, is_here=_is_one_of(numbers))


def _is_of(topic_id: str) -> Callable[[PartitionMeta], bool]:
    return lambda owner: owner.topic_id == topic_id


def _is_one_of(numbers: set[int]) -> Callable[[str, int], bool]:
    return lambda topic, number: number in numbers


def _log_failure(purging: asyncio.Future[int]) -> None:
    error = None if purging.cancelled() else purging.exception()
    if error is not None:
        log.error("files of replicas that have moved could not be unlinked, the next round tries again: %s", error)
