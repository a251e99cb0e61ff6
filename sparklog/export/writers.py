"""Writers of a result's batches as CSV, JSON lines, Parquet or Arrow. They only append to their stream."""

from __future__ import annotations

from typing import Any, BinaryIO, Protocol

import msgspec
import pyarrow as pa

from sparklog.errors import InvalidQueryError
from sparklog.export.printable import printable
from sparklog.format.json_exact import BINARY_MARK
from sparklog.format.json_values import base64_text, row_objects
from sparklog.format.row_groups import ROW_GROUP_BYTES, ROW_GROUP_ROWS, RowGroup
from sparklog.format.time_texts import csv_column

_MARK = f'{{"{BINARY_MARK}":'


class Writer(Protocol):
    """A writer of the batches of one result, in order. `close` writes the format's end, such as Parquet's footer."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class RowGroupWriter:
    """A writer that collects batches, and gives them to another writer as row groups. The rows of at most one row group
    are in memory."""

    def __init__(self, writer: Writer, *, rows_max: int = ROW_GROUP_ROWS, bytes_max: int = ROW_GROUP_BYTES) -> None:
        """Create the writer. `rows_max` and `bytes_max`: numbers of rows and bytes at which a row group is written."""
        self._writer = writer
        self._group = RowGroup(rows_max=rows_max, bytes_max=bytes_max)

    @property
    def has_rows(self) -> bool:
        """True if rows are collected that are not written yet."""
        return self._group.rows > 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._group.add(batch)
        if self._group.is_full:
            self._flush()

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._writer.close()

    def _flush(self) -> None:
        for batch in self._group.take():
            self._writer.write(batch)


class JsonWriter:
    """A writer of JSON lines: one object per row, with values as `sparklog consume` writes them."""

    def __init__(self, out: BinaryIO, schema: pa.Schema) -> None:
        self._out = out
        self._names = distinct(schema.names)
        self._encoder = msgspec.json.Encoder(decimal_format="number")

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [printable(plain_column(c)) for c in batch.columns]
        self._out.write(self._encoder.encode_lines(row_objects(self._names, columns)))

    def close(self) -> None:
        self._out.flush()


class CsvWriter:
    """A writer of CSV with a line of column names. Values without a form in CSV (lists, structs, maps, bytes that are
    not text) are written as JSON."""

    def __init__(self, out: BinaryIO, schema: pa.Schema, *, delimiter: str = ",") -> None:
        names = distinct(schema.names)
        self._delimiter = delimiter
        self._schema = pa.schema([pa.field(n, _csv_type(f.type)) for n, f in zip(names, schema, strict=True)])
        self._out = out
        self._write(self._schema.empty_table(), header=True)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [_csv_column(c, f.type) for c, f in zip(batch.columns, self._schema, strict=True)]
        self._write(pa.Table.from_arrays(columns, names=self._schema.names), header=False)

    def close(self) -> None:
        self._out.flush()

    def _write(self, rows: pa.Table, *, header: bool) -> None:
        import pyarrow.csv

        sink = pa.BufferOutputStream()
        options = pyarrow.csv.WriteOptions(
            include_header=header, delimiter=self._delimiter, quoting_style="needed", quoting_header="needed"
        )
        pyarrow.csv.write_csv(rows, sink, write_options=options)
        self._out.write(sink.getvalue())


class ParquetWriter:
    """A writer of a Parquet file, compressed with zstd: each batch becomes a row group. Raises InvalidQueryError for a
    type that Parquet lacks."""

    def __init__(self, out: BinaryIO, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._schema = pa.schema(
            [pa.field(name, f.type) for name, f in zip(distinct(schema.names), schema, strict=True)]
        )
        try:
            self._writer = pq.ParquetWriter(out, self._schema, compression="zstd")
        except pa.ArrowNotImplementedError as e:
            name = next(f.name for f in self._schema if not _has_parquet_form(f))
            raise InvalidQueryError(
                f"Parquet has no form for column {name!r} ({e}). Leave the column out; or cast it in SQL, for example with "
                f"::VARCHAR or epoch_us(); or choose another format"
            ) from e

    def write(self, batch: pa.RecordBatch) -> None:
        rows = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        self._writer.write_batch(rows, row_group_size=max(1, rows.num_rows))

    def close(self) -> None:
        self._writer.close()


def _has_parquet_form(field: pa.Field) -> bool:
    import pyarrow.parquet as pq

    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
    except pa.ArrowNotImplementedError:
        return False
    return True


class ArrowWriter:
    """A writer of an Arrow IPC file, or of an Arrow IPC stream if `is_stream`."""

    def __init__(self, out: BinaryIO, schema: pa.Schema, *, is_stream: bool = False) -> None:
        names = distinct(schema.names)
        self._schema = pa.schema([pa.field(name, f.type) for name, f in zip(names, schema, strict=True)])
        self._writer = (pa.ipc.new_stream if is_stream else pa.ipc.new_file)(out, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def distinct(names: list[str]) -> list[str]:
    """Return unique column names: a repeated name gets a number at its end. SQL allows the same name twice."""
    seen: set[str] = set()
    unique_names = []
    for name in names:
        number, unique = 1, name
        while unique in seen:
            unique = f"{name}_{number}"
            number += 1
        seen.add(unique)
        unique_names.append(unique)
    return unique_names


def plain_column(column: Any) -> Any:
    """Return the column as one array, in a type that `printable` knows."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    plain = _plain_type(column.type)
    return column if plain == column.type else column.cast(plain, safe=False)


def _plain_type(t: Any) -> Any:
    """Return the nearest type that `printable` knows, also for the fields of nested types."""
    if pa.types.is_large_binary(t) or pa.types.is_fixed_size_binary(t):
        return pa.binary()
    if pa.types.is_timestamp(t) and t.unit == "ns":
        return pa.timestamp("us", tz=t.tz)  # Python's datetime has no ns
    if pa.types.is_struct(t):
        return pa.struct([f.with_type(_plain_type(f.type)) for f in t])
    if pa.types.is_map(t):
        return pa.map_(t.key_field.with_type(_plain_type(t.key_type)), t.item_field.with_type(_plain_type(t.item_type)))
    if pa.types.is_list(t) or pa.types.is_fixed_size_list(t):
        return pa.list_(t.value_field.with_type(_plain_type(t.value_type)))
    return t


def is_number(t: Any) -> bool:
    return bool(pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t))


def _csv_type(t: Any) -> Any:
    plain = is_number(t) or pa.types.is_boolean(t) or pa.types.is_date(t) or pa.types.is_timestamp(t)
    return t if plain else pa.string()


def _csv_column(column: Any, t: Any) -> Any:
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return csv_column(column)
    if column.type == t:
        return column
    values = printable(plain_column(column))
    if pa.types.is_binary(column.type):
        values = [_marked(v) if isinstance(v, str) and v.startswith(_MARK) else v for v in values]
    return pa.array([_csv_text(v) for v in values], pa.string())


def _marked(text: str) -> dict[str, str]:
    """Return the form in CSV of a text that looks like the form of bytes."""
    return {BINARY_MARK: base64_text(text.encode())}


def _csv_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode().strip('"')  # a time of day is text in JSON
