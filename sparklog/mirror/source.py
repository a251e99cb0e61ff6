"""The source of a mirror, as its workers see it: topics, offsets and committed records of another cluster.

A `MirrorSource` is a Kafka cluster (`client/kafka/source.py`), or a sparklog cluster
(`client/admin/sparklog_source.py`). The records of a fetch convert themselves into batches at given offsets, because
each protocol has a form of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from sparklog.errors import SparklogError, UnknownTopicOrPartitionError
from sparklog.mirror.placing import Placed
from sparklog.mirror.rules import EpochAnswer, SourceBounds, absent_text
from sparklog.mirror.typed import TypedConversion
from sparklog.types import TopicPartition


class SourcePartition(NamedTuple):
    """A partition of the source."""

    leader: int
    """Id of the leading broker; -1: none."""
    leader_epoch: int


class SourceTopic(NamedTuple):
    """A topic of the source."""

    name: str
    topic_id: str
    """Id of the topic in hexadecimal digits; "" before Kafka 2.8."""
    partitions: tuple[SourcePartition, ...]
    is_internal: bool
    schemas: tuple[pa.Schema, ...] = ()
    """Schemas of a typed topic of a sparklog cluster, the oldest first; empty: an envelope topic."""
    key_columns: tuple[str, ...] = ()
    """Key columns of a typed topic."""
    timestamp_column: str | None = None
    """Column with the event time of a typed topic's rows."""
    key_schema: str = ""
    """Setting `kafka.key.schema` of a typed topic of a sparklog cluster; "": it has none."""


class SourceOffset(NamedTuple):
    """The committed offset of a group at the source."""

    offset: int
    metadata: str


class ConversionTarget(NamedTuple):
    """The topic here that gets the converted records."""

    inflated_bytes_max: int
    """Largest decompressed size of a batch."""
    now_ms: int
    """Time of records without a timestamp."""
    typed: TypedConversion | None = None
    """Conversion of values into the columns of a typed topic."""
    schemas: Mapping[int, pa.Schema] = {}
    """Schemas of the topic here by id; only batches of a sparklog cluster need them."""


class FetchedRecords(Protocol):
    """A partition's records in a fetch answer."""

    @property
    def size_bytes(self) -> int:
        """Size in the answer."""

    def place(self, position: int, target: ConversionTarget) -> Placed:
        """Return the records as batches at given offsets, from `position`, the log end here, on. Raises SparklogError
        for an answer that cannot be converted; a retriable one if the topic here has to change first."""


class FetchedPartition(NamedTuple):
    """A partition's part of a fetch answer."""

    error: SparklogError | None
    is_out_of_range: bool
    end: int
    """High watermark."""
    stable: int
    """Last stable offset."""
    diverging: EpochAnswer | None
    """The source's answer if it has other records at the position; None: it has the same, or did not compare."""
    records: FetchedRecords


def absent_bounds(
    topics: Mapping[str, SourceTopic], partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, SourceBounds | SparklogError], list[TopicPartition]]:
    """Return the bounds of partitions that the source does not have, and the other partitions. A partition that was
    added here alone is empty at the source; a topic that the source does not show is an error."""
    absent: dict[TopicPartition, SourceBounds | SparklogError] = {}
    present = []
    for tp in partitions:
        topic = topics.get(tp.topic)
        if topic is None:
            absent[tp] = UnknownTopicOrPartitionError(absent_text(tp.topic))
        elif tp.partition >= len(topic.partitions):
            absent[tp] = SourceBounds(0, 0, 0)
        else:
            present.append(tp)
    return absent, present


def consistent_bounds(start: int, end: int, stable: int) -> SourceBounds:
    """Return the bounds of a partition from three answers. The source can have got records between those about the end
    and the last stable offset, which no open transaction holds back."""
    return SourceBounds(start, max(end, stable), stable)


class MirrorSource(Protocol):
    """A cluster whose topics are mirrored, for one thread. It is only read."""

    def close(self) -> None:
        """Close the connections."""

    def topics(self, names: Sequence[str] | None = None) -> dict[str, SourceTopic]:
        """Return topics by name. `names` None: all. Topics that do not exist are absent, and those that the mirror's
        user must not describe. Raises errors of the source."""

    def hidden_topics(self, names: Sequence[str]) -> set[str]:
        """Return those of the topics that the mirror's user must not describe. Raises errors of the source."""

    def leader(self, topics: Mapping[str, SourceTopic], tp: TopicPartition) -> Any:
        """Return the address of a partition's leader; None: it has none."""

    def bounds(
        self, topics: Mapping[str, SourceTopic], partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, SourceBounds | SparklogError]:
        """Return the offsets of partitions, or their errors. A partition that the source's topic does not have is
        empty."""

    def epoch_ends(
        self, topics: Mapping[str, SourceTopic], epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochAnswer | SparklogError]:
        """Return the ends of leader epochs, or errors."""

    def fetch(
        self, broker: Any, positions: Mapping[TopicPartition, tuple[int, int, int]], *, wait_ms: int
    ) -> dict[TopicPartition, FetchedPartition]:
        """Fetch committed records from one broker. `positions`: offset, leader epoch at the source, and leader epoch of
        the record before the offset, by partition. `wait_ms`: longest wait for records. Raises errors of
        connections."""

    def settings(self, names: Sequence[str]) -> dict[str, Mapping[str, object] | SparklogError]:
        """Return the settings of topics, by topic and by name, or their errors."""

    def groups(self) -> list[str]:
        """Return the names of all groups of consumers."""

    def group_offsets(self, group_id: str) -> dict[TopicPartition, SourceOffset]:
        """Return the committed offsets of a group. Raises errors of the source."""
