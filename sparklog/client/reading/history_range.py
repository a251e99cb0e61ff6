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
from sparklog.errors import DataLossError, InvalidRequestError, LakeUnavailableError, OffsetOutOfRangeError
from sparklog.lake.history import History, HistoryBatch, open_history, require_history
from sparklog.lake.settings import LakeSettings
from sparklog.types import TopicPartition

REOPENINGS_MAX = 10


class HistorySource:
    """The history of a topic in one version of its Delta table; `reopen` replaces it by the newest version."""

    def __init__(self, info: TopicInfo, *, required: bool = True, newest: bool = False) -> None:
        """Open the newest version. `required`: True raises InvalidConfigError for a topic without a history, and
        ignores `newest`. `newest`: True also opens an upserted table, which has only the newest row of each key. Raises
        InvalidConfigError: The topic has no history, or the package deltalake is not installed; LakeUnavailableError;
        LakePausedError."""
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

    @property
    def is_upserted(self) -> bool:
        """True if the history is an upserted table: a newer version lacks rows of the version before it."""
        return self._history is not None and self._settings.is_upsert

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
    reaches_table_end: bool = False,
    has_begun: bool = False,
    read_log: Callable[..., Iterator[ConsumedBatch]] = read_range,
    **reading: Any,
) -> Iterator[ConsumedBatch | HistoryBatch]:
    """Yield the rows of [start_offset, end_offset) in offset order.

    If retention deletes offsets from the log during the read, or VACUUM files of the table, the newest version of the
    table is opened, which has the rows. An upserted table is read in one version only: in another one, keys that were
    read are deleted, and keys that were not read have moved to later offsets.

    `source`: the history; replaced by a newer version if necessary. `reaches_table_end`: True reads an upserted table
    to its end, which can be later than `end_offset`. `has_begun`: True if rows before `start_offset` were read from
    this `source`. `read_log`: function that reads the log, with the arguments of `read_range`. Raises DataLossError:
    Offsets are neither in the table nor in the log; or a version of an upserted table is gone before it was read whole;
    InvalidRequestError: The range ends before the end of an upserted table; LakeUnavailableError."""
    position = start_offset
    reopened = 0
    while True:
        end_offset = _end_of(tp, end_offset, source, reaches_table_end)
        if position >= end_offset:
            return
        until = min(source.next_offset(tp.partition), end_offset)
        try:
            if position < until:
                assert source.history is not None
                for part in source.history.read(tp.partition, position, until, columns, layout):
                    has_begun = True
                    yield part
                    position = part.next_offset
                position = until
                continue
            for batch in read_log(cluster, tp, position, end_offset, columns=list(columns), layout=layout, **reading):
                has_begun = True
                yield batch
                position = batch.next_offset
        except (OffsetOutOfRangeError, DataLossError, LakeUnavailableError) as e:
            reopened += 1
            if source.is_upserted and has_begun:
                raise DataLossError(
                    f"{tp}: version {source.history.version if source.history else '?'} of the upserted table is gone "
                    f"before it was read whole, and a newer version has other rows: read again ({e})"
                ) from e
            source.reopen()  # also for a table error: VACUUM can have removed files of the version
            gained = source.next_offset(tp.partition) > position
            if not gained or reopened > REOPENINGS_MAX:
                raise e from None
        else:
            return


def _end_of(tp: TopicPartition, end_offset: int, source: HistorySource, reaches_table_end: bool) -> int:
    """Return the end of the read. Raises InvalidRequestError if it is before the end of an upserted table: the table
    lacks the earlier rows of keys that have changed behind that offset."""
    table_end = source.next_offset(tp.partition)
    if not source.is_upserted or table_end <= end_offset:
        return end_offset
    if reaches_table_end:
        return table_end
    raise InvalidRequestError(
        f"{tp} cannot be read up to offset {end_offset}: the upserted table has the newest row of each key up to offset "
        f"{table_end}, and lacks older ones; read to the end"
    )
