"""A partition on this broker: its log, its role, and its waiting requests. Event-loop thread only."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from sparklog.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    SparklogError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
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
    """A served partition. Without a log, it is offline because of `error`, or this broker has no replica of it."""

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
        """Index of the I/O thread for the partition's appends."""
        self.traffic = traffic
        """Counters of the partition's topic."""
        self.appends_pending = 0
        self.deleted = False
        self.error = error
        self.storage_error = ""
        """Text of the last append's StorageError or StorageFullError; "" after a successful append."""
        self._log = log
        self._held: dict[object, int] = {}
        self._fetches = fetches
        self._produces = produces
        self.replicas = replicas
        if log is not None:
            log.raise_high_watermark(self.replicas.replicated_to)

    @property
    def log(self) -> PartitionLog:
        """The partition's log. Raises the error for which the partition is offline, UnknownTopicOrPartitionError if it
        was deleted, NotLeaderError if this broker has no replica of it."""
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
        """End of the records for readers of committed records. Raises the errors of `log`.

        The end is the log's last stable offset. It stays lower while a transaction's end is held back until all its
        partitions have their markers. It never falls.
        """
        stable = self.log.last_stable_offset
        return min(stable, *self._held.values()) if self._held else stable

    def hold_stable_offset(self, token: object) -> None:
        """Hide later commits from readers of committed records until `token` is released."""
        if self._log is not None:
            self._held[token] = self._log.last_stable_offset

    def release_stable_offset(self, token: object) -> None:
        """Release the hold of `token`. After all partitions of the transaction, the caller must call `wake_readers`."""
        self._held.pop(token, None)

    def wake_readers(self) -> None:
        """Check the waiting fetches, because the stable offset is perhaps higher."""
        self._fetches.check(self.key)

    def use_schemas(self, schema_of: Callable[[int], pa.Schema], newest_id: int) -> None:
        """Set the newer schemas of the topic."""
        if self._log is not None:
            self._log.use_schemas(schema_of, newest_id)

    def check_offline(self) -> None:
        """Raise the error for which the partition is offline, unless another broker has a replica."""
        if self.sole_error is not None:
            raise type(self.sole_error)(str(self.sole_error))

    @property
    def sole_error(self) -> SparklogError | None:
        """The error for which the partition is offline, if no other broker has a replica, so that clients would wait in
        vain for another leader. None otherwise.
        """
        is_offline = self._log is None and not self.has_no_replica and not self.deleted
        return self.error if is_offline and len(self.replicas.replicas) == 1 else None

    @property
    def has_no_replica(self) -> bool:
        """True if this broker has no replica of the partition, and no error that concerns it."""
        return self._log is None and (self.error is None or isinstance(self.error, NotLeaderError))

    @property
    def open_log(self) -> PartitionLog | None:
        """The log; None if the partition is offline or deleted."""
        return self._log

    @property
    def write_error(self) -> str:
        """The reason why the partition accepts no appends, or the error of the last append; "" if it succeeded."""
        if self.has_no_replica:
            return ""
        error = self.error if self._log is None else self._log.write_error
        return self.storage_error if error is None else str(error)

    @property
    def waits_for_disk(self) -> bool:
        """True if appends are acknowledged only after an fsync."""
        return self._log is not None and self._log.config.flush.at_append

    def check_leader_epoch(self, leader_epoch: int) -> None:
        """Raise FencedLeaderEpochError for an older leader epoch, UnknownLeaderEpochError for a newer one; -1 is
        accepted."""
        ours = self.replicas.leader_epoch
        if leader_epoch in (UNKNOWN_LEADER_EPOCH, ours):
            return
        kind = FencedLeaderEpochError if leader_epoch < ours else UnknownLeaderEpochError
        raise kind(
            f"partition {self.key}: the request names leader epoch {leader_epoch}, the current leader epoch is {ours}"
        )

    def check_topic_id(self, topic_id: str) -> None:
        """Raise UnknownTopicIdError if the partition is of a topic with another id; "" is accepted."""
        if topic_id and topic_id != self.topic_id:
            raise UnknownTopicIdError(
                f"partition {self.key} is of the topic with id {self.topic_id}, the request names {topic_id}: the topic "
                "was deleted and created again"
            )

    def on_appended(self, info: AppendInfo) -> None:
        """Raise the high watermark after an append, and end requests that wait for it."""
        if self._log is None or info.duplicate:
            return
        self.replicas.on_append(info.last_offset + 1)
        self._raise_high_watermark(self._log)

    def on_follower_fetch(self, replica: int, fetch_offset: int) -> None:
        """Record that a follower has all records below `fetch_offset`: raise the high watermark, and end requests that
        wait for it. Raises ValueError for a broker without a replica.
        """
        self.replicas.on_follower_fetch(replica, fetch_offset)
        if self._log is not None:
            self._raise_high_watermark(self._log)

    def on_replicated(self) -> None:
        """Raise the high watermark as far as the replicas allow."""
        if self._log is not None:
            self._raise_high_watermark(self._log)

    def on_copied(self) -> None:
        """Check waiting fetches on a follower, whose log has more records or a higher high watermark."""
        self._fetches.check(self.key)

    def on_role_changed(self) -> None:
        """Check all waiting requests after a change of this broker's role."""
        self._fetches.check(self.key)
        self._produces.check(self.key)

    def _raise_high_watermark(self, log: PartitionLog) -> None:
        before = log.high_watermark
        log.raise_high_watermark(self.replicas.replicated_to)
        if log.high_watermark > before:
            self._fetches.check(self.key)
            self._produces.check(self.key)

    def take_offline(self, error: SparklogError) -> None:
        """Take the partition offline. Requests for its log then get `error`."""
        self.error, self._log = error, None
        self._fetches.check(self.key)
        self._produces.check(self.key)

    def begin_replica(self, log: PartitionLog) -> None:
        """Begin to serve this broker's new replica."""
        self.error, self._log = None, log

    def end_replica(self, error: NotLeaderError) -> None:
        """End this broker's replica. Requests for its log then get `error`."""
        self._held.clear()
        self.take_offline(error)

    def on_log_start_raised(self) -> None:
        """Wake fetches of consumers and followers, because the log start is higher."""
        self.replicas.on_log_start()
        self._fetches.check(self.key)

    def on_deleted(self) -> PartitionLog | None:
        """End the partition, and its waiting requests. Returns its log, which the log manager must then close; None if
        the partition has no log."""
        self.deleted = True
        log, self._log = self._log, None
        self._fetches.check(self.key)
        self._produces.check(self.key)
        return log
