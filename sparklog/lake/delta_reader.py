"""Reads the files of one version of a table: their rows, with the columns of that version, and their metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from msgspec import Struct

from sparklog.errors import LakePausedError, LakeUnavailableError
from sparklog.format.plain_layout import plain_layout
from sparklog.lake.location import file_system
from sparklog.lake.parquet_checks import FILE_ERRORS, check_data, open_parquet

PIECE_ROWS, PIECE_ROWS_MIN = 16_384, 512
"""Largest and smallest number of rows of a file that are in memory at a time."""


class TableFile(Struct, frozen=True):
    """A Parquet file of a version of the table."""

    path: str
    """Path relative to the table's location, URL-encoded."""
    size_bytes: int
    rows: int | None
    """Number of rows in the statistics; None if they lack it."""
    partition: int | None
    """Partition of the topic to which all rows belong; None if the rows are of several, or the statistics lack it."""
    first_offset: int | None
    """Smallest `_offset` in the statistics; None if they lack it."""
    last_offset: int | None
    """Largest `_offset` in the statistics; None if they lack it."""
    partition_values: Mapping[str, str | None]
    """Values of the partition columns as texts; None for null."""
    modified_ms: int = 0
    last_time_ms: int | None = None
    """Largest `_timestamp` in the statistics, in ms since 1970; None if they lack it."""

    @property
    def name(self) -> str:
        """Name of the file, decoded and without directories."""
        return unquote(self.path).rsplit("/", 1)[-1]


class DeltaReader:
    """Reads files of one version of a table."""

    def __init__(self, location: str, schema: pa.Schema) -> None:
        """Create the reader. `schema`: columns of the version."""
        self._location = location
        self._schema = schema

    def read_file(self, file: TableFile, columns: Sequence[str] | None, *, masks: Mapping[str, Any]) -> pa.Table:
        """Read rows of a file with the table's column types. Columns that the file lacks are null. `columns`: names of
        the columns; None for all columns of the table. `masks`: the result of `DeltaSnapshot.deletion_masks`; an empty
        mapping to read also deleted rows. Raises LakePausedError and LakeUnavailableError."""
        return pa.concat_tables([self.layout(columns).empty_table(), *self.read_pieces(file, columns, masks=masks)])

    def read_pieces(
        self, file: TableFile, columns: Sequence[str] | None, *, masks: Mapping[str, Any]
    ) -> Iterator[pa.Table]:
        """Read rows of a file as `read_file` does, in pieces of at most PIECE_ROWS rows. Yields rows in the order of
        the file. Raises LakePausedError and LakeUnavailableError."""
        layout = self.layout(columns)
        mask = masks.get(file.name)
        at = 0
        try:
            with file_system(self._location).open_input_file(unquote(file.path)) as source:
                parquet = open_parquet(source, file.path)
                names = parquet.schema_arrow.names
                own = [c for c in layout.names if c in names and c not in file.partition_values]
                most = PIECE_ROWS
                if parquet.num_row_groups:  # wide rows: a row group takes up to ROW_GROUP_BYTES
                    most = min(most, max(PIECE_ROWS_MIN, parquet.metadata.row_group(0).num_rows // 8))
                for batch in parquet.iter_batches(most, columns=own or names[:1]):
                    rows = pa.Table.from_batches([batch])
                    rows = in_layout(to_stored_layout(rows), layout, file.partition_values)
                    if mask is not None:
                        is_kept = kept_rows(mask, at, rows.num_rows)
                        rows, at = rows.filter(pa.array(is_kept)), at + rows.num_rows
                    yield rows
        except FILE_ERRORS as e:
            raise LakeUnavailableError(f"file {file.path} of the table at {self._location} cannot be read: {e}") from e

    def largest_offsets(self, file: TableFile) -> dict[int, int]:
        """Read the largest offset by partition of a file. Deleted rows count. Raises LakePausedError and
        LakeUnavailableError."""
        rows = self.read_file(file, ["_partition", "_offset"], masks={})
        grouped = rows.group_by("_partition").aggregate([("_offset", "max")]).to_pylist()
        return {
            row["_partition"]: row["_offset_max"]
            for row in grouped
            if row["_partition"] is not None and row["_offset_max"] is not None
        }

    def metadata(self, file: TableFile) -> Any:
        """Return the metadata of a Parquet file. Raises LakeUnavailableError."""
        try:
            with file_system(self._location).open_input_file(unquote(file.path)) as source:
                return open_parquet(source, file.path).metadata
        except FILE_ERRORS as e:
            raise LakeUnavailableError(f"file {file.path} of the table at {self._location} cannot be read: {e}") from e

    def check_checksums(self, file: TableFile) -> None:
        """Read a file whole and compare its checksums. Raises LakeUnavailableError if one is wrong."""
        try:
            with file_system(self._location).open_input_file(unquote(file.path)) as source:
                check_data(source, file.path)
        except FILE_ERRORS as e:
            raise LakeUnavailableError(f"file {file.path} of the table at {self._location}: {e}") from e

    def layout(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the schema of these columns; None: of all columns. Raises LakePausedError for a missing column."""
        schema = self._schema
        missing = [c for c in columns or () if c not in schema.names]
        if missing:
            raise LakePausedError(
                f"the table has no column {', '.join(missing)}: the table was overwritten, or the column dropped; use "
                "'sparklog lake rebuild' to write the table again from the log, or restore it and use 'sparklog lake "
                "resume'"
            )
        return pa.schema([schema.field(c).with_nullable(True) for c in (schema.names if columns is None else columns)])


def kept_rows(mask: Any, at: int, n: int) -> np.ndarray:
    """Return the part of a file's mask for the `n` rows from row `at`. Rows behind the end of the mask are kept."""
    is_kept = np.ones(n, dtype=bool)
    piece = np.asarray(mask)[at : at + n]
    is_kept[: len(piece)] = piece
    return is_kept


def in_layout(rows: pa.Table, layout: pa.Schema, values: Mapping[str, str | None] = {}) -> pa.Table:
    """Return the rows with the columns and types of `layout`. `values`: values of partition columns as texts, None for
    null; they replace columns of the rows. Other columns that the rows lack are null."""
    arrays = []
    for f in layout:
        if f.name in values:
            value = values[f.name]
            scalar = pa.scalar(None, f.type) if value is None else pa.scalar(value).cast(f.type)
            arrays.append(pa.repeat(scalar, rows.num_rows))
        elif f.name in rows.column_names:
            arrays.append(rows.column(f.name).cast(f.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, f.type))
    return pa.table(arrays, schema=layout)


def to_stored_layout(rows: pa.Table) -> pa.Table:
    """Return the rows in the log's memory layout, without view types, which other writers' files can have."""
    columns = [
        column if _is_flat(f.type) else pa.chunked_array([plain_layout(c) for c in column.chunks], _plain_type(f.type))
        for f, column in zip(rows.schema, rows.columns, strict=True)
    ]
    return pa.table(columns, names=rows.column_names)


def _is_flat(t: Any) -> bool:
    return bool(pa.types.is_primitive(t) or pa.types.is_string(t) or pa.types.is_binary(t) or pa.types.is_decimal(t))


def _plain_type(t: Any) -> Any:
    return plain_layout(pa.nulls(0, t)).type
