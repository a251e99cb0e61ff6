"""Parquet files of a Delta table, and their statistics in the table's log."""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from sparklog.lake.columns import POSITION_COLUMNS
from sparklog.lake.parquet_checks import ChecksummedSink

logger = logging.getLogger(__name__)

PREFIX = "sparklog-"
"""First part of the names of a worker's files. Only such files are merged."""
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Size in memory of the collected rows at which they are written as a row group."""
DICTIONARY_BYTES_MAX = 256 * 1024
"""Size of a column's dictionary in a row group at which the other values are written without one. Columns of distinct
values reach any limit; with Parquet's usual 1 MiB they took 1.9 times the processor time, and more bytes."""
TEXT_STATISTIC_CHARS_MAX = 32
STATISTICS_COLUMNS_MAX = 32
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
NAME_BYTES_MAX = 255
"""Longest name of a directory in common file systems."""
_EPOCH_ORDINAL = datetime.date(1970, 1, 1).toordinal()
DAYS_MIN, DAYS_MAX = (d.toordinal() - _EPOCH_ORDINAL for d in (datetime.date.min, datetime.date.max))
"""First and last date that a partition value can have, in days since 1970."""


class DataFile(Struct, frozen=True):
    """A complete Parquet file below the table's location that is not part of the table yet."""

    path: str
    """Path relative to the table's location, not URL-encoded."""
    size_bytes: int
    rows: int
    partition_values: dict[str, str | None]
    """Values of the partition columns as texts; None for null."""
    statistics: str
    """Statistics in Delta's JSON form."""


class DataFileWriter:
    """Writes rows of one partition of a topic to files of about `file_bytes`. A file has one set of partition values.

    The rows of at most one row group are in memory.
    """

    def __init__(
        self, files: Any, schema: pa.Schema, partition_by: Sequence[str], file_bytes: int, *, name: str, fsync: Any
    ) -> None:
        """Create the writer. `schema`: columns of the rows, including those of `partition_by`. `file_bytes`: size in
        bytes at which the next file begins. `fsync`: function that makes a finished file durable, given its path."""
        self._files = files
        self._schema = schema
        self._partition_by = list(partition_by)
        self._stored = pa.schema([f for f in schema if f.name not in self._partition_by])
        self._file_bytes = file_bytes
        self._name = name
        self._fsync = fsync
        self._open: _OpenFile | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._done: list[DataFile] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows. They stay in memory until ROW_GROUP_BYTES are collected, or until `close`."""
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> list[DataFile]:
        """Finish the last file. Returns all files in the order of their rows."""
        self._flush()
        self._finish()
        return self._done

    def abandon(self) -> list[str]:
        """Close the open file. Rows that are not written yet are dropped, and the file is not made durable. Returns
        paths of all files so far, for removal."""
        self._waiting.clear()
        open_file, self._open = self._open, None
        paths = [f.path for f in self._done]
        if open_file is not None:
            open_file.abandon()
            paths.append(open_file.path)
        return paths

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if not self._partition_by:
            self._append(table, {})
            return
        for values, rows in split_by(table, self._partition_by):
            if self._open is not None and self._open.values != values:
                self._finish()  # the rows of a file have the same partition values
            self._append(rows, values)

    def _append(self, rows: pa.Table, values: dict[str, str | None]) -> None:
        if self._open is None:
            first = (rows.column("_offset")[0].as_py() or 0) if rows.num_rows else 0
            directory = value_directory(values)
            if directory:
                self._files.create_dir(directory, recursive=True)
            path = f"{directory}{PREFIX}{self._name}-{first:020d}-{uuid4().hex}.parquet"
            self._open = _OpenFile(self._files, path, self._stored, values)
        self._open.write(rows.select(self._stored.names).cast(self._stored))
        if self._open.size_bytes >= self._file_bytes:
            self._finish()

    def _finish(self) -> None:
        if self._open is not None:
            path, done = self._open.close()
            self._open = None
            self._done.append(done)  # before the fsync, whose failure must not hide the file from `abandon`
            self._fsync(path)


class _OpenFile:
    def __init__(self, files: Any, path: str, schema: pa.Schema, values: dict[str, str | None]) -> None:
        self.path = path
        self._schema = schema
        self.values = values
        self._collected: list[Any] = []
        self._sink = ChecksummedSink(files.open_output_stream(path))
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, "w"),
            schema,
            compression="zstd",
            compression_level=1,
            dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
            write_page_checksum=True,
        )
        self._rows = 0

    @property
    def size_bytes(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    def abandon(self) -> None:
        try:
            self._writer.close()
            self._sink.close()
        except (OSError, pa.ArrowException):
            pass  # the caller removes the file

    def close(self) -> tuple[str, DataFile]:
        size = self._sink.finish(self._writer)
        statistics = json.dumps(delta_statistics(self._writer.writer.metadata, self._schema))
        return self.path, DataFile(self.path, size, self._rows, self.values, statistics)


def split_by(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Split a table by the values of its partition columns. The rows of each part keep their order. Yields the
    partition values as Delta writes them, and the rows."""
    table = _with_readable_dates(table, columns)
    for values in table.select(list(columns)).group_by(list(columns)).aggregate([]).to_pylist():
        mask = None
        for column, value in values.items():
            matches = (
                pc.is_null(table[column]) if value is None else pc.fill_null(pc.equal(table[column], value), False)
            )
            mask = matches if mask is None else pc.and_(mask, matches)
        yield {c: partition_text(v) for c, v in values.items()}, table.filter(mask)


def _with_readable_dates(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the table with null for each date in a partition column that is outside of the years 1 to 9999. Readers of
    Delta tables cannot take such a date from a partition, and one of them would make the whole table unreadable."""
    for name in columns:
        column = table.column(name)
        if not pa.types.is_date32(column.type):
            continue
        days = column.cast(pa.int32())
        readable = pc.and_(pc.greater_equal(days, DAYS_MIN), pc.less_equal(days, DAYS_MAX))
        if pc.all(readable, min_count=0).as_py():
            continue
        logger.warning(
            "%d dates of partition column %r are outside of the years 1 to 9999: they become null in the Delta table",
            pc.sum(pc.invert(readable)).as_py(), name,
        )  # fmt: skip
        dates = pc.if_else(readable, column, pa.scalar(None, column.type))
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), dates)
    return table


def partition_text(value: Any) -> str | None:
    """Return a partition value as Delta writes it. Delta has no empty text: it becomes null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def value_directory(values: Mapping[str, str | None]) -> str:
    """Return the directory of files with these partition values, in Hive's form.

    Readers of Delta's protocol take the values from the table's log only, but polars takes them from the paths.

    `values`: by column, the values as `partition_text` writes them. The result: the directory with a slash at its end;
    "" if there are no values, or file systems do not allow the name."""
    names = [f"{column}={HIVE_NULL if text is None else quote(text, safe='')}" for column, text in values.items()]
    if any("/" in column for column in values) or any(len(name.encode()) > NAME_BYTES_MAX for name in names):
        return ""
    return "".join(f"{name}/" for name in names)


def delta_statistics(metadata: Any, schema: pa.Schema) -> dict[str, Any]:
    """Return the statistics of a file in Delta's form, from the statistics of its row groups.

    The position columns come first, because every read is planned by their statistics.

    The result: number of rows, smallest and largest values, numbers of nulls."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    columns = (
        {metadata.row_group(0).column(i).path_in_schema: i for i in range(metadata.num_columns)}
        if metadata.num_row_groups
        else {}
    )
    names = [n for n in (*POSITION_COLUMNS, *(n for n in schema.names if n not in POSITION_COLUMNS)) if n in columns]
    for name in names[:STATISTICS_COLUMNS_MAX]:
        if pa.types.is_nested(schema.field(name).type):
            continue
        groups = [metadata.row_group(g).column(columns[name]).statistics for g in range(metadata.num_row_groups)]
        if any(s is None or not s.has_null_count for s in groups):
            continue
        nulls[name] = sum(s.null_count for s in groups)
        with_values = [s for s in groups if s.null_count < s.num_values + s.null_count]
        if not with_values or not all(s.has_min_max for s in with_values):
            continue
        try:
            smallest, largest = min(s.min for s in with_values), max(s.max for s in with_values)
        except (OverflowError, ValueError):
            continue  # Python has no dates outside of the years 1 to 9999
        low = _statistic(smallest, schema.field(name).type, up=False)
        high = _statistic(largest, schema.field(name).type, up=True)
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _statistic(value: Any, t: Any, *, up: bool) -> Any:
    """Return a smallest or largest value in Delta's JSON form; None if the type or length allows no exact value."""
    if isinstance(value, bool):
        return None
    if pa.types.is_integer(t):
        return int(value)
    if pa.types.is_string(t):
        return value if isinstance(value, str) and len(value) <= TEXT_STATISTIC_CHARS_MAX else None
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}Z" if t.tz else text
    if isinstance(value, datetime.date):
        return value.isoformat()
    return None
