"""Checks of a topic's Delta table: every offset once, files present, statistics true."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sparklog.client.admin.admin import Admin
from sparklog.client.admin.lake_admin import settings_with_lake
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.range_reader import read_range
from sparklog.errors import LakePausedError, SparklogError
from sparklog.lake.delta_reader import TableFile
from sparklog.lake.delta_snapshot import DeltaSnapshot, table_dropped_error
from sparklog.lake.location import normal_location
from sparklog.lake.rules import check_table
from sparklog.lake.settings import LakeSettings
from sparklog.types import READ_COMMITTED, TopicPartition

PROBLEMS_MAX = 100
USER_CHANGES = ("DELETE", "UPDATE", "MERGE", "TRUNCATE", "WRITE", "REPLACE TABLE", "RESTORE", "OVERWRITE")
"""Operations of other writers that can remove rows on purpose."""


@dataclass(frozen=True)
class LakeVerification:
    """The result of a check."""

    topic: str
    """Name of the topic."""
    version: int
    """Version of the table that was checked."""
    files: int
    """Number of its files."""
    rows: int
    """Number of its rows."""
    problems: list[str] = field(default_factory=list)
    """Faults that were found; empty: the table is sound."""
    remarks: list[str] = field(default_factory=list)
    """Facts that are no faults, such as rows that users have deleted."""


def verify_lake(admin: Admin, topic: str, *, full: bool = False) -> LakeVerification:
    """Check the newest version of a topic's table against its own statistics and against the log. `full`: True to read
    every file whole and compare its checksums. False checks the footers, and the pages of `_partition` and `_offset`.
    Raises UnknownTopicOrPartitionError, InvalidConfigError, LakePausedError and LakeUnavailableError."""
    shared = admin._cluster
    info = shared.topic(topic, refresh=True)
    settings = settings_with_lake(info)
    location = normal_location(settings.location)
    table = DeltaSnapshot.open(location)
    if table is None:
        raise table_dropped_error(location, settings.table_id)
    check = _Check(shared, info, settings, table, full=full)
    check.run()
    return LakeVerification(topic, table.version, len(check.files), check.rows, check.problems, check.remarks)


class _Check:
    def __init__(
        self, cluster: Cluster, info: TopicInfo, settings: LakeSettings, table: DeltaSnapshot, *, full: bool
    ) -> None:
        self._cluster = cluster
        self._info = info
        self._settings = settings
        self._table = table
        self._full = full
        self.files = table.files()
        self.rows = 0
        self.problems: list[str] = []
        self.remarks: list[str] = []
        self._offsets: dict[int, list[np.ndarray]] = {}
        self._rows_of_others = 0

    def run(self) -> None:
        try:
            state = self._table.state(self._info.topic_id, self._info.partitions, file_offsets={})
            check_table(state, self._info.topic_id, self._settings.table_id)
        except LakePausedError as e:
            self._problem(str(e))
        masks = self._table.deletion_masks()
        for file in self.files:
            try:
                if self._full:
                    self._table.reader.check_checksums(file)
                self._check_file(file, masks)
            except SparklogError as e:
                self._problem(str(e))
        if self._rows_of_others:
            self.remarks.append(
                f"{self._rows_of_others} rows have no _partition and _offset: other writers have appended them"
            )
        next_offsets = self._table.next_offsets(self._info.topic_id, self._info.partitions)
        for partition in sorted({*self._offsets, *next_offsets}):
            self._check_partition(partition, next_offsets.get(partition))

    def _problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)

    def _check_file(self, file: TableFile, masks: dict[str, np.ndarray]) -> None:
        reader = self._table.reader
        whole = reader.read_file(file, ["_partition", "_offset"], masks={})
        if file.rows is not None and file.rows != whole.num_rows:
            self._problem(f"file {file.path} has {whole.num_rows} rows, its statistics say {file.rows}")
        own = whole.drop_null()
        offsets = own.column("_offset").to_numpy()
        if len(offsets) and file.first_offset is not None and file.last_offset is not None:
            low, high = int(offsets.min()), int(offsets.max())
            if low < file.first_offset or high > file.last_offset:
                self._problem(
                    f"file {file.path} has offsets {low} to {high}, its statistics say {file.first_offset} to "
                    f"{file.last_offset}"
                )
        rows = reader.read_file(file, ["_partition", "_offset"], masks=masks) if masks else whole
        self.rows += rows.num_rows
        positions = rows.drop_null()
        self._rows_of_others += rows.num_rows - positions.num_rows
        partitions, offsets = positions.column("_partition").to_numpy(), positions.column("_offset").to_numpy()
        for partition in np.unique(partitions):
            if file.partition is not None and int(partition) != file.partition:
                self._problem(
                    f"file {file.path} has rows of partition {partition}, its statistics say {file.partition}"
                )
            self._offsets.setdefault(int(partition), []).append(offsets[partitions == partition])

    def _check_partition(self, partition: int, next_offset: int | None) -> None:
        offsets = np.sort(np.concatenate(self._offsets.get(partition, [np.empty(0, np.int64)])))
        twice = offsets[1:][offsets[1:] == offsets[:-1]]
        if len(twice):
            self._problem(f"partition {partition} has offset {twice[0]} more than once, as {len(twice) - 1} others")
        if next_offset is None or partition >= self._info.partitions:
            if len(offsets):
                self._problem(f"partition {partition} has {len(offsets)} rows, but no transaction")
            return
        above = offsets[offsets >= next_offset]
        if len(above):
            self._problem(f"partition {partition} has offset {above[-1]}, its transaction ends before {next_offset}")
        if self._settings.is_upsert:
            return
        start = self._info.partition_states[partition].log_start_offset
        while True:
            try:
                expected = self._log_offsets(partition, start, next_offset)
                break
            except SparklogError as e:
                before, start = start, self._log_start(partition)
                if start <= before:
                    self._problem(f"partition {partition} of the log cannot be read: {e}")
                    return
                # retention has deleted records that this check was reading
        missing = np.setdiff1d(expected, offsets)
        foreign = np.setdiff1d(offsets[offsets >= start], expected)
        if len(missing):
            text = f"partition {partition} lacks {len(missing)} rows, the first at offset {missing[0]}"
            changes = sorted({o for o in self._table.operations() if o.upper().startswith(USER_CHANGES)})
            if changes:
                self.remarks.append(f"{text}: the table's history has {', '.join(changes)} by other writers")
            else:
                self._problem(text)
        if len(foreign):
            text = f"partition {partition} has {len(foreign)} rows that the log does not have, the first at offset {foreign[0]}"
            if self._info.is_compacted:
                self.remarks.append(f"{text}: the log is compacted")
            else:
                self._problem(text)

    def _log_start(self, partition: int) -> int:
        """Return the partition's current log start offset; -1 if it is not known."""
        states = self._cluster.topic(self._info.name, refresh=True).partition_states
        return states[partition].log_start_offset if partition < len(states) else -1

    def _log_offsets(self, partition: int, start: int, next_offset: int) -> np.ndarray:
        """Return the offsets of the committed rows in the log from `start` to `next_offset` (exclusive)."""
        if start < 0 or start >= next_offset:
            return np.empty(0, np.int64)
        column = "timestamp" if self._info.is_envelope else min(self._info.schema, key=_width).name
        batches = read_range(
            self._cluster,
            TopicPartition(self._info.name, partition),
            start,
            next_offset,
            columns=[column],
            isolation=READ_COMMITTED,
        )
        offsets = [batch.offsets() for batch in batches]
        return np.concatenate(offsets) if offsets else np.empty(0, np.int64)


def _width(column: pa.Field) -> int:
    """Return the bits per value of a column; 1,000 for a type of variable length."""
    return int(column.type.bit_width) if pa.types.is_primitive(column.type) else 1_000
