"""Reads a topic's history from its Delta table: the rows below the next offset of each partition.

Only files and row groups are read whose statistics of `_offset` overlap with the range. Rows that users have deleted,
also by deletion vectors, are left out. The rows of a partition come in offset order even if an OPTIMIZE has rearranged
the files.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import InvalidConfigError, LakeUnavailableError
from sparklog.lake.columns import same_type
from sparklog.lake.delta_reader import TableFile, in_layout, kept_rows, to_stored_layout
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.location import file_system, normal_location
from sparklog.lake.parquet_checks import CHECKED_FOOTERS, FILE_ERRORS, open_parquet
from sparklog.lake.parquet_files import PREFIX
from sparklog.lake.rules import restored
from sparklog.lake.settings import LakeSettings
from sparklog.types import TopicPartition

logger = logging.getLogger(__name__)

ENVELOPE_TIMESTAMP = "timestamp"
ROWS_MAX = 65_536
"""Largest number of rows of one batch."""
SCAN_ROWS = 131_072
TEXT_LENGTH_BYTES = 4
"""Size of the length field before each text in a Parquet file."""


class HistoryBatch:
    """Rows of one partition from the table, in offset order, with the interface of a `ConsumedBatch`."""

    __slots__ = ("_data", "_next_offset", "_offsets", "_timestamps", "tp")

    def __init__(
        self, tp: TopicPartition, data: pa.RecordBatch, offsets: Any, timestamps: Any, next_offset: int
    ) -> None:
        """Create a batch."""
        self.tp = tp
        self._data = data
        self._next_offset = next_offset
        self._offsets = offsets
        self._timestamps = timestamps

    @property
    def decoder(self) -> None:
        """Return None: the rows are decoded already."""
        return None

    @property
    def data(self) -> pa.RecordBatch:
        """The requested columns."""
        return self._data

    @property
    def next_offset(self) -> int:
        """Offset at which reading continues after this batch."""
        return self._next_offset

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.tp.topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.tp.partition

    @property
    def base_offset(self) -> int:
        """Offset of the first row."""
        return int(self._offsets[0])

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self._data.num_rows)

    @property
    def size_bytes(self) -> int:
        """Size of the decoded rows in memory."""
        return int(self._data.nbytes)

    def offsets(self) -> np.ndarray:
        """Return the offset of each row."""
        return np.asarray(self._offsets)

    def timestamps_ms(self) -> np.ndarray:
        """Return the timestamp of each row in ms."""
        return np.asarray(self._timestamps) // 1000


class History:
    """The history of a topic in one version of its table."""

    def __init__(self, table: DeltaSnapshot, topic: str, topic_id: str, partitions: int) -> None:
        self._table = table
        self._topic = topic
        self.version = table.version
        """Version of the table."""
        self.next_offsets = table.next_offsets(topic_id, partitions)
        """Next offset by partition: rows from this offset on are only in the log."""
        self._files = table.files()
        self._masks: dict[str, Any] | None = None
        self._schema = table.schema

    def next_offset(self, partition: int) -> int:
        """Return the offset at which the log continues the table; 0 if the table does not have the partition."""
        return self.next_offsets.get(partition, 0)

    def first_offset(self, partition: int) -> int:
        """Return a lower bound of the partition's offsets in the table; the next offset if no file has its rows."""
        offsets = [f.first_offset or 0 for f in self._files if f.partition in (partition, None)]
        return min(offsets, default=self.next_offset(partition))

    def first_offset_from(self, partition: int, time_ms: int) -> int | None:
        """Return the smallest offset of the partition with a timestamp of at least `time_ms`; None if there is none.

        Files and row groups whose statistics exclude such rows are not read.

        Raises LakeUnavailableError."""
        end = self.next_offset(partition)
        chosen = [
            f
            for f in self._files
            if f.partition in (partition, None) and (f.last_time_ms is None or f.last_time_ms >= time_ms)
        ]
        if self._masks is None and chosen:
            self._masks = self._table.deletion_masks()
        for group in _overlapping(chosen):
            offsets: list[int] = []
            for rows in (rows for f in group for rows in self._file_rows(f, partition, 0, end, [], time_ms)):
                times_us = rows.column("_timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
                first = pc.min(rows.column("_offset").filter(pc.greater_equal(times_us, time_ms * 1000))).as_py()
                offsets += [] if first is None else [first]
            if offsets:
                return min(offsets)
        return None

    def read(
        self, partition: int, start: int, end: int, columns: Sequence[str], layout: pa.Schema
    ) -> Iterator[HistoryBatch]:
        """Read the rows of [start, end) of a partition. `end`: end of the range (exclusive), at most the next offset.
        `columns`: names of the topic's columns, in the order of the result. Yields batches in offset order. Raises
        LakeUnavailableError."""
        tp = TopicPartition(self._topic, partition)
        chosen = [
            f
            for f in self._files
            if f.partition in (partition, None)
            and (f.last_offset is None or f.last_offset >= start)
            and (f.first_offset is None or f.first_offset < end)
        ]
        if self._masks is None:
            self._masks = self._table.deletion_masks()
        for group in _overlapping(chosen):
            own_first = sorted(group, key=lambda f: not _is_own(f))
            parts = [rows for f in own_first for rows in self._file_rows(f, partition, start, end, columns)]
            if parts:
                yield from self._batches(tp, self._each_offset_once(pa.concat_tables(parts), tp), columns, layout)

    def _each_offset_once(self, rows: pa.Table, tp: TopicPartition) -> pa.Table:
        """Return the rows in offset order. If another program has appended rows of offsets that the table has already,
        keep the first row of each offset, which is that of a worker's file."""
        offsets = rows.column("_offset").to_numpy()
        if np.any(offsets[1:] <= offsets[:-1]):
            order = np.argsort(offsets, kind="stable")
            ordered = offsets[order]
            is_first = np.append(True, ordered[1:] != ordered[:-1])
            if not is_first.all():
                logger.warning(
                    "%s: the Delta table at %s has %d rows of offsets that it has already, from another program; they "
                    "are not read ('sparklog lake verify' names them)",
                    tp, self._table.location, len(order) - int(is_first.sum()),
                )  # fmt: skip
            rows = rows.take(pa.array(order[is_first]))
        return rows.combine_chunks()

    def dictionary_columns(self, schema: pa.Schema) -> set[str]:
        """Return the text columns that the files store as dictionaries, so that a scan need not copy each text.

        The statistics of the largest file decide for all files. A column counts as a dictionary if it is smaller than
        the length fields of its texts would be."""
        texts = {f.name for f in schema if pa.types.is_string(f.type)}
        if not texts or not self._files:
            return set()
        file = max(self._files, key=lambda f: f.size_bytes)
        try:
            with file_system(self._table.location).open_input_file(unquote(file.path)) as source:
                metadata = open_parquet(source, file.path).metadata
        except FILE_ERRORS:
            return set()  # the read of the rows will raise the error
        if not metadata.num_row_groups:
            return set()
        columns = [metadata.row_group(0).column(i) for i in range(metadata.num_columns)]
        return {
            c.path_in_schema
            for c in columns
            if c.path_in_schema in texts and c.total_uncompressed_size < TEXT_LENGTH_BYTES * c.num_values
        }

    def scanner(
        self,
        spans: Mapping[int, tuple[int, int]],
        schema: pa.Schema,
        expression: pc.Expression | None,
        dictionaries: Collection[str] = (),
    ) -> Any | None:
        """Return Arrow's scanner over the files, which uses all processors and yields rows in any order. `spans`:
        offsets [start, end) by partition; other partitions are not read. `expression`: a filter over these columns;
        None for all rows. `dictionaries`: names of text columns to read as dictionaries. The result: the scanner. None
        if it would not read exactly these rows: the table has deletion vectors, partition columns or files of other
        writers, files of a partition overlap, a file has offsets outside of its partition's span, or a column is
        missing."""
        import pyarrow.dataset as ds  # imports pandas, which takes a Python worker of Spark 0.2 s of processor time

        self._masks = self._table.deletion_masks() if self._masks is None else self._masks
        files = [f for f in self._files if f.partition is None or f.partition in spans]
        if self._masks or self._table.partition_columns:
            return None
        for file in files:
            if file.partition is None or file.first_offset is None or file.last_offset is None:
                return None
            start, end = spans[file.partition]
            if not _is_own(file) or file.first_offset < start or file.last_offset >= end:
                return None
        if _has_overlap(files):
            return None
        types = {f.name: f.type for f in self._schema}
        if any(f.name not in types or not same_type(types[f.name], f.type) for f in schema):
            return None
        paths, source = [unquote(f.path) for f in files], file_system(self._table.location)
        CHECKED_FOOTERS.check(self._table.location, source, paths)
        dataset = ds.dataset(
            paths,
            schema=with_dictionaries(schema, dictionaries),
            format=ds.ParquetFileFormat(
                read_options=ds.ParquetReadOptions(dictionary_columns=list(dictionaries)),
                default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True),
            ),
            filesystem=source,
        )
        return dataset.scanner(columns=schema.names, filter=expression, batch_size=SCAN_ROWS)

    def _batches(
        self, tp: TopicPartition, rows: pa.Table, columns: Sequence[str], layout: pa.Schema
    ) -> Iterator[HistoryBatch]:
        offsets = rows.column("_offset").to_numpy()
        times = rows.column("_timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).fill_null(0).to_numpy()
        arrays = []
        for name in columns:
            target = layout.field(name).type
            if name in rows.column_names:
                arrays.append(rows.column(name).cast(target))
            elif name == ENVELOPE_TIMESTAMP:
                arrays.append(rows.column("_timestamp").cast(target))
            else:
                arrays.append(pa.nulls(rows.num_rows, target))
        table = pa.table(arrays, schema=pa.schema([layout.field(c) for c in columns])).combine_chunks()
        for at in range(0, rows.num_rows, ROWS_MAX):
            n = min(ROWS_MAX, rows.num_rows - at)
            piece = table.slice(at, n)
            data = (
                piece.to_batches(max_chunksize=n)[0]
                if columns
                else pa.RecordBatch.from_struct_array(pa.array([{}] * n, pa.struct([])))
            )
            yield HistoryBatch(tp, data, offsets[at : at + n], times[at : at + n], int(offsets[at + n - 1]) + 1)

    def _file_rows(
        self,
        file: TableFile,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str],
        time_ms: int | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the partition's rows of [start, end) in one file, one row group at a time. Row groups are skipped if
        all their rows are older than `time_ms`; None: no time limit."""
        assert self._masks is not None
        mask = self._masks.get(file.name)
        names = dict.fromkeys([*columns, "_partition", "_offset", "_timestamp"])
        layout = pa.schema([self._schema.field(c).with_nullable(True) for c in names if c in self._schema.names])
        try:
            with file_system(self._table.location).open_input_file(unquote(file.path)) as source:
                parquet = open_parquet(source, file.path)
                stored = set(parquet.schema_arrow.names)
                own = [c for c in layout.names if c in stored]
                at = 0
                for group in range(parquet.num_row_groups):
                    metadata = parquet.metadata.row_group(group)
                    first, at = at, at + metadata.num_rows
                    if not _may_have(metadata, start, end) or (time_ms is not None and _is_older(metadata, time_ms)):
                        continue
                    rows = to_stored_layout(parquet.read_row_group(group, columns=own))
                    rows = in_layout(rows, layout, file.partition_values)
                    yield from self._selected(rows, file, mask, first, partition, start, end)
        except FILE_ERRORS as e:
            raise LakeUnavailableError(f"file {file.path} of the table at {self._table.location}: {e}") from e

    def _selected(
        self, rows: pa.Table, file: TableFile, mask: Any, first: int, partition: int, start: int, end: int
    ) -> Iterator[pa.Table]:
        offsets = rows.column("_offset")
        low, high = pc.min_max(offsets).as_py().values()
        keep = None
        if low is None or low < start or high >= end or offsets.null_count:
            keep = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
        if file.partition is None:
            same = pc.equal(rows.column("_partition"), partition)
            keep = same if keep is None else pc.and_(keep, same)
        if mask is not None:
            is_kept = pa.chunked_array([pa.array(kept_rows(mask, first, rows.num_rows))])
            keep = is_kept if keep is None else pc.and_(keep, is_kept)
        selected = rows if keep is None else rows.filter(keep)
        if selected.num_rows:
            yield selected


def with_dictionaries(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Return the schema with dictionary types for the named text columns."""
    texts = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([f.with_type(texts) if f.name in names else f for f in schema])


def _may_have(metadata: Any, start: int, end: int) -> bool:
    for i in range(metadata.num_columns):
        column = metadata.column(i)
        if column.path_in_schema == "_offset":
            offsets = column.statistics
            return not (offsets is not None and offsets.has_min_max and (offsets.max < start or offsets.min >= end))
    return True


def _is_older(metadata: Any, time_ms: int) -> bool:
    """True if the statistics show that all rows of the row group are older than `time_ms`."""
    for i in range(metadata.num_columns):
        column = metadata.column(i)
        if column.path_in_schema == "_timestamp":
            times = column.statistics
            try:
                newest = times.max if times is not None and times.has_min_max else None
            except (OverflowError, ValueError):
                return False  # Python has no times outside of the years 1 to 9999
            if not isinstance(newest, datetime):
                return False
            newest = newest if newest.tzinfo else newest.replace(tzinfo=UTC)
            return bool(newest < datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms))
    return False


def _is_own(file: TableFile) -> bool:
    """Return True if a worker has written the file."""
    return file.name.startswith(PREFIX)


def _has_overlap(files: Sequence[TableFile]) -> bool:
    """Return True if two files of one partition have common offsets, by their statistics."""
    spans = sorted((f.partition or 0, f.first_offset or 0, f.last_offset or 0) for f in files)
    return any(a[0] == b[0] and b[1] <= a[2] for a, b in pairwise(spans))


def _overlapping(files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Yield groups of files with overlapping offsets, in offset order."""
    group: list[TableFile] = []
    end = -1
    for file in sorted(files, key=lambda f: f.first_offset or 0):
        if group and (file.first_offset or 0) > end:
            yield group
            group = []
        group.append(file)
        end = max(end, 2**63 - 1 if file.last_offset is None else file.last_offset)
    if group:
        yield group


def open_history(
    settings: LakeSettings, topic: str, topic_id: str, partitions: int, *, newest: bool = False
) -> History | None:
    """Open the history of a topic. `newest`: True to open also an upserted table, which has only the newest row of each
    key. Returns the history; None if the topic has no table, or only an upserted one and `newest` is False. Raises
    LakePausedError: The table was overwritten and has no offsets, or a user has restored an older version;
    LakeUnavailableError: The table cannot be reached, or has rows twice that only a RESTORE can remove;
    InvalidConfigError."""
    if not settings.location or (settings.is_upsert and not newest):
        return None
    table = DeltaSnapshot.open(normal_location(settings.location))
    if table is None or table.topic_id != topic_id:
        return None
    table.check_positions()
    doubled_by, restored_to = table.doubled_or_restored()
    if restored_to is not None:
        raise restored(restored_to)
    if doubled_by is not None and doubled_by != table.version:
        raise LakeUnavailableError(
            f"version {doubled_by} of the table at {table.location} is a compaction that has added rows, and other "
            f"commits follow it: restore the table to version {doubled_by - 1}, then use 'sparklog lake resume'"
        )
    if doubled_by is not None:  # read the previous version until a worker has undone this one
        table = DeltaSnapshot.open(table.location, table.version - 1)
        if table is None:
            return None
    return History(table, topic, topic_id, partitions)


def require_history(settings: LakeSettings, topic: str, topic_id: str, partitions: int) -> History:
    """Open the history of a topic that must have one. Raises InvalidConfigError: The topic has no table, or an upserted
    one; or the package deltalake is not installed; LakePausedError; LakeUnavailableError."""
    history = open_history(settings, topic, topic_id, partitions)
    if history is None:
        why = "its table holds the newest row of each key only" if settings.is_upsert else "it has no Delta table"
        raise InvalidConfigError(f"topic {topic!r} has no history: {why}; 'sparklog lake enable {topic}' makes one")
    return history
