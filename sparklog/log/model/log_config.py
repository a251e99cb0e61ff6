"""Value types of the log: its owner, its settings, and the results of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from sparklog.log.model.compaction_policy import CompactionPolicy
from sparklog.log.model.flush_policy import FlushPolicy
from sparklog.log.model.retention_policy import POLICY_COMPACT, POLICY_DELETE, RetentionPolicy, roll_jitter_ms
from sparklog.log.model.tiering_policy import TieringPolicy
from sparklog.settings import Scope, resolve
from sparklog.types import TopicPartition


class LogOwner(Struct, frozen=True):
    """The partition a log belongs to.

    `timestamp_column`: the column that holds the records' timestamps ("timestamp" for an envelope topic); None: a
    record has its batch's timestamp.
    """

    topic: str
    topic_id: str
    partition: int
    timestamp_column: str | None = None
    key_columns: tuple[str, ...] = ()
    """The columns of the key for compaction: "key" for an envelope topic. Empty: the log is never compacted."""
    value_columns: tuple[str, ...] = ()
    """The columns that are null in a tombstone: "value" for an envelope topic. Empty: all columns outside the key."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def directory_name(self) -> str:
        return f"{self.topic}-{self.partition}"


class LogConfig(Struct, frozen=True):
    """A topic's settings as the log uses them; see `sparklog.settings` for their meaning."""

    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    segment_index_bytes: int
    max_message_bytes: int
    inflated_bytes_max: int
    log_append_time: bool
    timestamp_after_max_ms: int
    producers_max: int
    segment_jitter_ms: int
    cleanup_policy: str
    retention: RetentionPolicy
    file_delete_delay_ms: int
    compaction: CompactionPolicy
    flush: FlushPolicy
    tiering: TieringPolicy
    lake_holds: bool = False
    """True if records that are not in the topic's Delta table yet are neither deleted nor compacted."""

    @classmethod
    def from_settings(cls, values: Mapping[str, object]) -> Self:
        """Create from topic settings (Kafka's names); missing ones have their defaults. Raises InvalidConfigError."""
        settings = resolve(Scope.TOPIC, values)
        retention = RetentionPolicy(
            deletes=POLICY_DELETE in str(settings["cleanup.policy"]).split(","),
            retention_ms=int(settings["retention.ms"]),
            retention_bytes=int(settings["retention.bytes"]),
        )
        return cls(
            segment_bytes=int(settings["segment.bytes"]),
            segment_ms=int(settings["segment.ms"]),
            index_interval_bytes=int(settings["index.interval.bytes"]),
            segment_index_bytes=int(settings["segment.index.bytes"]),
            max_message_bytes=int(settings["max.message.bytes"]),
            inflated_bytes_max=int(settings["max.message.bytes"]) * int(settings["max.message.inflated.ratio"]),
            log_append_time=settings["message.timestamp.type"] == "LogAppendTime",
            timestamp_after_max_ms=int(settings["message.timestamp.after.max.ms"]),
            producers_max=int(settings["max.producers.per.partition"]),
            segment_jitter_ms=int(settings["segment.jitter.ms"]),
            cleanup_policy=str(settings["cleanup.policy"]),
            retention=retention,
            file_delete_delay_ms=int(settings["file.delete.delay.ms"]),
            compaction=CompactionPolicy(
                compacts=POLICY_COMPACT in str(settings["cleanup.policy"]).split(","),
                min_cleanable_dirty_ratio=float(settings["min.cleanable.dirty.ratio"]),
                delete_retention_ms=int(settings["delete.retention.ms"]),
                min_compaction_lag_ms=int(settings["min.compaction.lag.ms"]),
                max_compaction_lag_ms=int(settings["max.compaction.lag.ms"]),
            ),
            flush=FlushPolicy(
                messages=int(settings["flush.messages"]),
                ms=int(settings["flush.ms"]),
                group=settings["flush.mode"] == "group",
            ),
            tiering=TieringPolicy.of(settings, retention),
            lake_holds=bool(settings["lake.location"]) and bool(settings["lake.hold.retention"]),
        )

    def for_partition(self, owner: LogOwner) -> Self:
        """Return the settings with the partition's share of `segment.jitter.ms` deducted from `segment.ms`."""
        jitter_ms = roll_jitter_ms(self.segment_jitter_ms, self.segment_ms, f"{owner.topic_id}-{owner.partition}")
        return replace(self, segment_ms=self.segment_ms - jitter_ms, segment_jitter_ms=0)


class AppendInfo(NamedTuple):
    """The place of an appended payload: the offsets of its first and last record, and its append time. `batch_count`,
    `record_count` and `size_bytes` count only the batches that were written by this append.

    `base_offsets`: the base offset of every batch, if the batches are not contiguous because some were in the log
    already; else empty. `duplicate`: all batches were in the log already, and nothing was written.
    """

    base_offset: int
    last_offset: int
    append_time_ms: int
    batch_count: int
    record_count: int
    base_offsets: tuple[int, ...] = ()
    duplicate: bool = False
    size_bytes: int = 0


class ProducerInfo(NamedTuple):
    """A partition's state of a producer. `last_sequence`, `transaction_first_offset` and `coordinator_epoch` are -1 if
    the producer has none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_time_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


class LocatedRange(NamedTuple):
    """Whole batches [start_position, end_position) of a segment file; `base_offset` is the segment's, `first_offset`
    the first batch's."""

    path: str
    schema_id: int
    base_offset: int
    start_position: int
    end_position: int
    first_offset: int
