"""Writes the markers of decided transactions to all partitions, with retries until each has its marker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from sparklog.environment.fault_points import reach
from sparklog.errors import (
    CoordinatorFencedError,
    InvalidProducerEpochError,
    NotLeaderError,
    SparklogError,
    UnknownTopicOrPartitionError,
)
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.partition_log import PartitionLog
from sparklog.replication.transactions import Marker
from sparklog.types import CONSUMER_OFFSETS_TOPIC, TopicPartition
from sparklog_broker.coordinators.other_brokers import OtherBrokers
from sparklog_broker.partitions.appender import Appender, Write
from sparklog_broker.partitions.partitions import Partitions

log = logging.getLogger(__name__)

MARKER_BYTES = 1024
"""Assumed size of a marker in bytes. From it the appender decides if the event loop appends the markers itself."""
REPLICATION_TIMEOUT_MS = 30_000
BACKOFF_S, BACKOFF_S_MAX = 0.1, 10.0

OnOffsetsMarker = Callable[[int, int, bool], None]
"""Called with (partition of __consumer_offsets, producer id, committed) after a marker was written there."""


class MarkerWriter:
    """Writes markers to partitions on this broker and on others. Event-loop thread only."""

    def __init__(
        self,
        partitions: Partitions,
        appender: Appender,
        on_offsets_marker: OnOffsetsMarker,
        other_brokers: OtherBrokers,
    ) -> None:
        """`other_brokers`: writes to the partitions that other brokers lead."""
        self._other_brokers = other_brokers
        self._partitions = partitions
        self._appender = appender
        self._on_offsets_marker = on_offsets_marker

    def wait_for_disk(self, markers: Iterable[Marker]) -> bool:
        """True if the partition of at least one marker acknowledges appends only after an fsync."""
        for tp in {marker.partition for marker in markers}:
            partition = self._partitions.find(tp)
            if partition is not None and partition.waits_for_disk:
                return True
        return False

    async def write_all(
        self,
        markers: Sequence[Marker],
        coordinator_epoch: int,
        done: Callable[[set[Marker]], None],
        started_ms: int = -1,
    ) -> None:
        """Write all markers, in repeated attempts. After each attempt, `done` is called with the markers that it has
        written. Markers of deleted partitions count as written. `coordinator_epoch` and `started_ms` are as in
        WriteTxnMarkersRequest."""
        remaining, backoff_s = list(markers), BACKOFF_S
        while True:
            written = await self.write(remaining, coordinator_epoch, started_ms)
            remaining = [m for m in remaining if m not in written]
            if written:
                done(written)
            if not remaining:
                return
            log.warning(
                "%d transaction markers cannot be written yet, the first to %s", len(remaining), remaining[0].partition
            )
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    async def write(self, markers: Iterable[Marker], coordinator_epoch: int, started_ms: int = -1) -> set[Marker]:
        """Try once to write markers, here and on other brokers. Returns the markers that are written or unnecessary."""
        here: list[Marker] = []
        away: dict[int, list[Marker]] = {}
        written: set[Marker] = set()
        for marker in markers:
            partition = self._partitions.find(marker.partition)
            if partition is None:
                written.add(marker)
            elif partition.replicas.leader == self._other_brokers.broker_id:
                here.append(marker)
            else:
                away.setdefault(partition.replicas.leader, []).append(marker)
        done = await asyncio.gather(
            self.write_here(here, coordinator_epoch, started_ms),
            *(self._write_away(leader, its, coordinator_epoch, started_ms) for leader, its in away.items()),
        )
        return written.union(*done)

    async def _write_away(
        self, leader: int, markers: list[Marker], coordinator_epoch: int, started_ms: int
    ) -> set[Marker]:
        try:
            return await self._other_brokers.write_markers(leader, markers, coordinator_epoch, started_ms)
        except SparklogError as e:
            log.info("%d transaction markers are not written by broker %d: %s", len(markers), leader, e)
            return set()

    async def write_here(self, markers: Iterable[Marker], coordinator_epoch: int, started_ms: int = -1) -> set[Marker]:
        """Write markers to partitions that this broker leads, and return the markers that are written or unnecessary.

        Markers for other partitions, and for topics that this broker's image lacks, are not written.
        The last stable offsets of all these partitions rise at the same time, after the attempt. A request that names
        all of them thus returns the whole transaction or nothing of it.
        """
        by_partition: dict[TopicPartition, list[Marker]] = {}
        for marker in markers:
            by_partition.setdefault(marker.partition, []).append(marker)
        written: set[Marker] = set()
        appends: list[tuple[_PartitionMarkers, Write]] = []
        for tp, its_markers in by_partition.items():
            try:
                partition = self._partitions.get(*tp)
            except (UnknownTopicOrPartitionError, NotLeaderError):
                continue
            if partition.open_log is not None:
                epoch = partition.replicas.leader_epoch
                job = _PartitionMarkers(its_markers, coordinator_epoch, epoch, started_ms)
                appends.append((job, Write(partition, partition.open_log, job, MARKER_BYTES * len(its_markers), epoch)))
        held = [w.partition for _, w in appends] if len(appends) > 1 else []
        token = object()
        for partition in held:
            partition.hold_stable_offset(token)
        try:
            outcomes = await self._appender.append_each(
                [w for _, w in appends], replicated_within_ms=REPLICATION_TIMEOUT_MS
            )
        finally:
            for partition in held:
                partition.release_stable_offset(token)
            for partition in held:
                partition.wake_readers()
        for (job, write), outcome in zip(appends, outcomes, strict=True):
            if isinstance(outcome, AppendInfo) or write.partition.deleted:
                written.update(job.markers)
                for marker in job.markers:
                    if marker.partition.topic == CONSUMER_OFFSETS_TOPIC:
                        self._on_offsets_marker(marker.partition.partition, marker.producer_id, marker.commit)
            elif not write.partition.storage_error:
                log.warning("partition %s: a transaction marker failed: %s", write.partition.key, outcome)
        return written


class _PartitionMarkers:
    """Appends the markers of one partition in order, on any thread."""

    def __init__(self, markers: Sequence[Marker], coordinator_epoch: int, leader_epoch: int, started_ms: int) -> None:
        self.markers = markers
        self._coordinator_epoch = coordinator_epoch
        self._leader_epoch = leader_epoch
        self._started_ms = started_ms

    def __call__(self, partition_log: PartitionLog) -> AppendInfo:
        last: AppendInfo | None = None
        for marker in self.markers:
            try:
                info = partition_log.appender.append_marker(
                    marker.producer_id,
                    marker.producer_epoch,
                    self._coordinator_epoch,
                    commit=marker.commit,
                    leader_epoch=self._leader_epoch,
                    started_ms=self._started_ms,
                    keeps_epoch=marker.keeps_epoch,
                )
            except (InvalidProducerEpochError, CoordinatorFencedError) as e:
                # The transaction has ended in this partition, which has a newer epoch.
                log.warning("partition %s does not need a marker: %s", marker.partition, e)
                continue
            if last is None or last.duplicate or not info.duplicate:
                last = info
        reach("txn.between-markers")
        if last is None:
            return AppendInfo(0, -1, 0, 0, 0, duplicate=True)
        return last
