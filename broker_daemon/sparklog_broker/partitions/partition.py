"""A partition of the broker: its log, its replicas, and its waiting requests. Event-loop thread only."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from sparklog.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    SparklogError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.partition_log import PartitionLog
from sparklog.replication.partition import ReplicaRole
from sparklog.types import TopicPartition
from sparklog_broker.counters.traffic import TopicTraffic
from sparklog_broker.partitions.purgatory import Purgatory

UNKNOWN_LEADER_EPOCH = -1


class Partition:
    """A served partition. With `log` None it is offline because of `error`."""

    __slots__ = (
        "_fetches",
        "_held",
        "_log",
        "_produces",
        "appends_pending",
        "deleted",
        "error",
        "key",
        "replicas",
        "storage_error",
        "thread",
        "topic_id",
        "traffic",
    )

    def __init__(
        self,
        key: TopicPartition,
        topic_id: str,
        *,
        replicas: ReplicaRole,
        thread: int,
        fetches: Purgatory,
        produces: Purgatory,
        traffic: TopicTraffic,
        log: PartitionLog | None,
        error: SparklogError | None = None,
    ) -> None:
        self.key = key
        self.topic_id = topic_id
        self.thread = thread
        """The I/O thread of the partition's appends."""
        self.traffic = traffic
        """Counters of the partition's topic."""
        self.appends_pending = 0
        self.deleted = False
        self.error = error
        self.storage_error = ""
        """Error of the last append; empty if it succeeded."""
        self._log = log
        self._held: dict[object, int] = {}
        self._fetches = fetches
        self._produces = produces
        self.replicas = replicas
        if log is not None:
            log.raise_high_watermark(self.replicas.replicated_to)

    @property
    def log(self) -> PartitionLog:
        """The partition's log. Raises the error for which the partition is offline."""
        if self.deleted:
            raise UnknownTopicOrPartitionError(f"partition {self.key} has been deleted")
        if self._log is None:
            if self.error is None:
                raise NotLeaderError(f"this broker has no replica of partition {self.key}; read the metadata again")
            # A new exception: one that is raised repeatedly would gather tracebacks.
            raise type(self.error)(str(self.error))
        return self._log

    @property
    def stable_offset(self) -> int:
        """End of the records for readers of committed records. Raises as `log`.

        The end is the log's last stable offset, or lower while the end of a transaction is held back until its other
        partitions have it. The end never decreases.
        """
        stable = self.log.last_stable_offset
        return min(stable, *self._held.values()) if self._held else stable

    def hold_stable_offset(self, token: object) -> None:
        """Hide later commits from readers of committed records until `token` is released."""
        if self._log is not None:
            self._held[token] = self._log.last_stable_offset

    def release_stable_offset(self, token: object) -> None:
        """Release the commits since the hold. `wake_readers` follows, when all partitions have been released."""
        self._held.pop(token, None)

    def wake_readers(self) -> None:
        """Check the waiting fetches after a possible rise of the stable offset."""
        self._fetches.check(self.key)

    def use_schemas(self, schema_of: Callable[[int], pa.Schema], newest_id: int) -> None:
        """Use the newer schemas of the topic."""
        if self._log is not None:
            self._log.use_schemas(schema_of, newest_id)

    def check_offline(self) -> None:
        """Raise the error for which the partition is offline, if no other broker has a replica."""
        if self.sole_error is not None:
            raise type(self.sole_error)(str(self.sole_error))

    @property
    def sole_error(self) -> SparklogError | None:
        """The error for which the partition is offline, if no other broker has a replica: clients would wait in vain
        for another leader. None otherwise.
        """
        is_offline = self._log is None and not self.is_elsewhere and not self.deleted
        return self.error if is_offline and len(self.replicas.replicas) == 1 else None

    @property
    def is_elsewhere(self) -> bool:
        """True if this broker has no replica of the partition, and no error of its own."""
        return self._log is None and (self.error is None or isinstance(self.error, NotLeaderError))

    @property
    def open_log(self) -> PartitionLog | None:
        """The log, or None if the partition is offline or deleted."""
        return self._log

    @property
    def write_error(self) -> str:
        """The reason why the partition takes no appends, or the error of the last append; empty if it succeeded."""
        if self.is_elsewhere:
            return ""
        error = self.error if self._log is None else self._log.write_error
        return self.storage_error if error is None else str(error)

    @property
    def waits_for_disk(self) -> bool:
        """True if an append may have to wait for an fsync."""
        return self._log is not None and self._log.config.flush.at_append

    def check_leader_epoch(self, leader_epoch: int) -> None:
        """Raise FencedLeaderEpochError or UnknownLeaderEpochError if the client knows another epoch."""
        ours = self.replicas.leader_epoch
        if leader_epoch in (UNKNOWN_LEADER_EPOCH, ours):
            return
        kind = FencedLeaderEpochError if leader_epoch < ours else UnknownLeaderEpochError
        raise kind(
            f"partition {self.key}: the request names leader epoch {leader_epoch}, the current leader epoch is {ours}"
        )

    def on_appended(self, info: AppendInfo) -> None:
        """Raise the high watermark after an append, and end requests that wait for it."""
        if self._log is None or info.duplicate:
            return
        self.replicas.on_append(info.last_offset + 1)
        self._raise_high_watermark(self._log)

    def on_follower_fetch(self, replica: int, fetch_offset: int) -> None:
        """Note that a follower has everything below `fetch_offset`: raise the high watermark, and end requests that
        wait for it. Raises ValueError for a broker that is no replica.
        """
        self.replicas.on_follower_fetch(replica, fetch_offset)
        if self._log is not None:
            self._raise_high_watermark(self._log)

    def on_replicated(self) -> None:
        """Raise the high watermark as far as `replicas` allows."""
        if self._log is not None:
            self._raise_high_watermark(self._log)

    def on_copied(self) -> None:
        """Check the waiting fetches of a follower, whose log has more records or a higher high watermark."""
        self._fetches.check(self.key)

    def on_role_changed(self) -> None:
        """Check all waiting requests after a change of the partition's leader."""
        self._fetches.check(self.key)
        self._produces.check(self.key)

    def _raise_high_watermark(self, log: PartitionLog) -> None:
        before = log.high_watermark
        log.raise_high_watermark(self.replicas.replicated_to)
        if log.high_watermark > before:
            self._fetches.check(self.key)
            self._produces.check(self.key)

    def take_offline(self, error: SparklogError) -> None:
        """Take the partition offline: requests for its log get `error` from now on."""
        self.error, self._log = error, None
        self._fetches.check(self.key)
        self._produces.check(self.key)

    def begin_replica(self, log: PartitionLog) -> None:
        """Begin to serve a replica on this broker."""
        self.error, self._log = None, log

    def end_replica(self, error: NotLeaderError) -> None:
        """End this broker's replica: requests for its log get `error` from now on."""
        self._held.clear()
        self.take_offline(error)

    def on_log_start_raised(self) -> None:
        """Wake the requests of consumers and followers below the new log start."""
        self.replicas.on_log_start()
        self._fetches.check(self.key)

    def on_deleted(self) -> PartitionLog | None:
        """End the partition, and answer its waiting requests. Returns its log, for the caller to close."""
        self.deleted = True
        log, self._log = self._log, None
        self._fetches.check(self.key)
        self._produces.check(self.key)
        return log
