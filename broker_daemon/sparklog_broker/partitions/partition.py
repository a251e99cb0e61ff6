"""A partition as the broker serves it: its log, its replicas, and its waiting requests. Event-loop thread only."""

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
    """`log` None: the partition is offline because of `error`."""

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
        """The I/O thread that appends to it."""
        self.traffic = traffic
        """Where its topic is counted."""
        self.appends_pending = 0
        self.deleted = False
        self.error = error
        self.storage_error = ""
        """Why the last append was not taken; empty: it was."""
        self._log = log
        self._held: dict[object, int] = {}
        self._fetches = fetches
        self._produces = produces
        self.replicas = replicas
        if log is not None:
            log.raise_high_watermark(self.replicas.replicated_to)

    @property
    def log(self) -> PartitionLog:
        """Raises the error for which the partition is offline."""
        if self.deleted:
            raise UnknownTopicOrPartitionError(f"partition {self.key} has been deleted")
        if self._log is None:
            if self.error is None:
                raise NotLeaderError(f"this broker has no replica of partition {self.key}; read the metadata again")
            # A fresh exception: one that is raised again and again would gather tracebacks.
            raise type(self.error)(str(self.error))
        return self._log

    @property
    def stable_offset(self) -> int:
        """Where readers of committed records end: the log's last stable offset, or before it while a transaction is
        being ended whose other partitions shall not be behind. Never goes back. Raises as `log`."""
        stable = self.log.last_stable_offset
        return min(stable, *self._held.values()) if self._held else stable

    def hold_stable_offset(self, token: object) -> None:
        """Readers of committed records see nothing new until `token` is released."""
        if self._log is not None:
            self._held[token] = self._log.last_stable_offset

    def release_stable_offset(self, token: object) -> None:
        """What has been committed since the hold may be seen; those who wait for it are to be woken by `wake_readers`,
        when all partitions have been released."""
        self._held.pop(token, None)

    def wake_readers(self) -> None:
        """The stable offset may have risen."""
        self._fetches.check(self.key)

    def use_schemas(self, schema_of: Callable[[int], pa.Schema], newest_id: int) -> None:
        """The topic has a newer schema."""
        if self._log is not None:
            self._log.use_schemas(schema_of, newest_id)

    def check_offline(self) -> None:
        """Raises the error for which the partition is offline here, if no other broker has a replica."""
        if self.sole_error is not None:
            raise type(self.sole_error)(str(self.sole_error))

    @property
    def sole_error(self) -> SparklogError | None:
        """The error for which the partition is offline here, if no other broker has a replica: clients would wait for
        another leader in vain."""
        is_offline = self._log is None and not self.is_elsewhere and not self.deleted
        return self.error if is_offline and len(self.replicas.replicas) == 1 else None

    @property
    def is_elsewhere(self) -> bool:
        """Whether this broker has no replica of it, and no error of its own to tell."""
        return self._log is None and (self.error is None or isinstance(self.error, NotLeaderError))

    @property
    def open_log(self) -> PartitionLog | None:
        """None if the partition is offline or deleted."""
        return self._log

    @property
    def write_error(self) -> str:
        """Why nothing can be appended, or why the last append was not taken; empty: it was."""
        if self.is_elsewhere:
            return ""
        error = self.error if self._log is None else self._log.write_error
        return self.storage_error if error is None else str(error)

    @property
    def waits_for_disk(self) -> bool:
        """Whether an append may have to wait for an fsync."""
        return self._log is not None and self._log.config.flush.at_append

    def check_leader_epoch(self, leader_epoch: int) -> None:
        """Raises FencedLeaderEpochError or UnknownLeaderEpochError if the client knows another epoch."""
        ours = self.replicas.leader_epoch
        if leader_epoch in (UNKNOWN_LEADER_EPOCH, ours):
            return
        kind = FencedLeaderEpochError if leader_epoch < ours else UnknownLeaderEpochError
        raise kind(f"partition {self.key}: the request names leader epoch {leader_epoch}, it is {ours}")

    def on_appended(self, info: AppendInfo) -> None:
        """Something has been appended: the high watermark may rise, and requests that wait for it end."""
        if self._log is None or info.duplicate:
            return
        self.replicas.on_append(info.last_offset + 1)
        self._raise_high_watermark(self._log)

    def on_follower_fetch(self, replica: int, fetch_offset: int) -> None:
        """A follower has everything below `fetch_offset`: the high watermark may rise, and requests that wait for it
        end. Raises ValueError for a stranger."""
        self.replicas.on_follower_fetch(replica, fetch_offset)
        if self._log is not None:
            self._raise_high_watermark(self._log)

    def on_replicated(self) -> None:
        """More may be committed, as `replicas` says."""
        if self._log is not None:
            self._raise_high_watermark(self._log)

    def on_copied(self) -> None:
        """A follower's log has more records, or knows that more are committed."""
        self._fetches.check(self.key)

    def on_role_changed(self) -> None:
        """This broker leads the partition now, or no more: who waits has to look."""
        self._fetches.check(self.key)
        self._produces.check(self.key)

    def _raise_high_watermark(self, log: PartitionLog) -> None:
        before = log.high_watermark
        log.raise_high_watermark(self.replicas.replicated_to)
        if log.high_watermark > before:
            self._fetches.check(self.key)
            self._produces.check(self.key)

    def take_offline(self, error: SparklogError) -> None:
        """Its disk has failed: everything that asks for its log is told `error` from now on."""
        self.error, self._log = error, None
        self._fetches.check(self.key)
        self._produces.check(self.key)

    def begin_replica(self, log: PartitionLog) -> None:
        """This broker has a replica now."""
        self.error, self._log = None, log

    def end_replica(self, error: NotLeaderError) -> None:
        """This broker has a replica no more; everything that asks for its log is told `error` from now on."""
        self._held.clear()
        self.take_offline(error)

    def on_log_start_raised(self) -> None:
        """Records have been deleted: who waits below the new log start is told so, and who follows."""
        self.replicas.on_log_start()
        self._fetches.check(self.key)

    def on_deleted(self) -> PartitionLog | None:
        """The partition is no longer served; whoever waits is told so. Returns its log, to be closed."""
        self.deleted = True
        log, self._log = self._log, None
        self._fetches.check(self.key)
        self._produces.check(self.key)
        return log
