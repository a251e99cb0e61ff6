"""Reads [start, end) of one partition: offsets below the Delta table's next offset from the table, the rest from the
log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.consumed import ConsumedBatch
from sparklog.client.reading.range_reader import read_range
from sparklog.errors import DataLossError, LakeUnavailableError, OffsetOutOfRangeError
from sparklog.lake.history import History, HistoryBatch, open_history, require_history
from sparklog.lake.settings import LakeSettings
from sparklog.types import TopicPartition

REOPENINGS_MAX = 10


class HistorySource:
    """The history of a topic in one version of its Delta table; `reopen` replaces it by the newest version."""

    def __init__(self, info: TopicInfo, *, required: bool = True, newest: bool = False) -> None:
        """Open the newest version.

        Args:
            info: The topic.
            required: True raises InvalidConfigError for a topic without a history, and ignores `newest`.
            newest: True also opens an upserted table, which has only the newest row of each key.

        Raises:
            InvalidConfigError: The topic has no history, or the package deltalake is not installed.
            LakeUnavailableError: The table cannot be reached.
            LakePausedError: The table was overwritten and has no offsets.
        """
        self._info = info
        self._settings = LakeSettings.of(info.configs, info.broker_defaults)
        self._newest = newest
        self._history: History | None = (
            require_history(self._settings, info.name, info.topic_id, info.partitions) if required else self._open()
        )

    @property
    def history(self) -> History | None:
        """The history; None if the topic has none."""
        return self._history

    def first_offset(self, partition: int, log_start: int) -> int:
        """Return the first offset that can be read without a gap, from the table and then from the log. It is the log
        start if there is no history, or if the log has deleted offsets that the table lacks."""
        history = self._history
        if history is None or history.next_offset(partition) < log_start:
            return log_start
        return min(log_start, history.first_offset(partition))

    def first_offset_from(self, partition: int, time_ms: int) -> int | None:
        """Return the first offset of the history whose row is not older than a time; None if there is no such row."""
        return None if self._history is None else self._history.first_offset_from(partition, time_ms)

    def next_offset(self, partition: int) -> int:
        """Return the offset at which the log continues the table; 0 without a history."""
        return 0 if self._history is None else self._history.next_offset(partition)

    def reopen(self) -> None:
        """Replace the history by the newest version of the table."""
        self._history = self._open()

    def _open(self) -> History | None:
        info = self._info
        return open_history(self._settings, info.name, info.topic_id, info.partitions, newest=self._newest)


def read_range_with_history(
    cluster: Cluster,
    tp: TopicPartition,
    start_offset: int,
    end_offset: int,
    source: HistorySource,
    *,
    columns: Sequence[str],
    layout: pa.Schema,
    read_log: Callable[..., Iterator[ConsumedBatch]] = read_range,
    **reading: Any,
) -> Iterator[ConsumedBatch | HistoryBatch]:
    """Yield the rows of [start_offset, end_offset) in offset order.

    If retention deletes offsets from the log during the read, the newest version of the table is opened, which has
    them.

    Args:
        cluster: The cluster.
        tp: The partition.
        start_offset: First offset.
        end_offset: End of the range (exclusive).
        source: The history; replaced by a newer version if necessary.
        columns: Names of the columns, in this order.
        layout: Schema with the types of these columns.
        read_log: Function that reads the log, with the arguments of `read_range`.
        **reading: Further arguments of `read_range`.

    Raises:
        DataLossError: Offsets are neither in the table nor in the log.
        LakeUnavailableError: The table cannot be read.
    """
    position = start_offset
    reopened = 0
    while position < end_offset:
        until = min(source.next_offset(tp.partition), end_offset)
        try:
            if position < until:
                assert source.history is not None
                for found in source.history.read(tp.partition, position, until, columns, layout):
                    yield found
                    position = found.next_offset
                position = until
                continue
            for batch in read_log(cluster, tp, position, end_offset, columns=list(columns), layout=layout, **reading):
                yield batch
                position = batch.next_offset
        except (OffsetOutOfRangeError, DataLossError, LakeUnavailableError) as e:
            reopened += 1
            source.reopen()  # also for a table error: VACUUM can have removed files of the version
            gained = source.next_offset(tp.partition) > position
            if not gained or reopened > REOPENINGS_MAX:
                raise e from None
        else:
            return
