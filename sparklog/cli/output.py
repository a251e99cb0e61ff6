"""The output of `sparklog consume`: JSON lines, CSV, a table, an Arrow or a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from sparklog.errors import InvalidQueryError, SchemaMismatchError
from sparklog.export.printable import cells, printable, with_metadata
from sparklog.format.json_values import row_objects
from sparklog.format.schema_evolution import RowAdapter

if TYPE_CHECKING:
    from sparklog.client.consumer.consumer import ConsumedBatch
    from sparklog.export.writers import Writer as RowWriter

METADATA = (
    pa.field("_topic", pa.string()),
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
)


class Writer(Protocol):
    """Writer of records: `write` gets the first `rows` rows of a batch, `close` completes the output."""

    def write(self, batch: ConsumedBatch, rows: int) -> None: ...

    def close(self) -> None: ...


class SelectedRows(NamedTuple):
    """Some rows and columns of a batch, with the methods of ConsumedBatch that writers use."""

    topic: str
    partition: int
    data: pa.RecordBatch
    rows: np.ndarray
    """Indexes of the rows of `data` in `batch`."""
    batch: ConsumedBatch

    def offsets(self) -> np.ndarray:
        return np.asarray(self.batch.offsets()[self.rows])

    def timestamps_ms(self) -> np.ndarray:
        return np.asarray(self.batch.timestamps_ms()[self.rows])


def select_rows(batch: ConsumedBatch, rows: np.ndarray, columns: Sequence[str] | None) -> SelectedRows:
    """Return the rows with the indexes `rows`, with these columns (None: all)."""
    data = batch.data if columns is None else batch.data.select(list(columns))
    data = data if len(rows) == data.num_rows else data.take(pa.array(rows))
    return SelectedRows(batch.topic, batch.partition, data, rows, batch)


def _rows(batch: ConsumedBatch, rows: int, *, metadata: bool) -> pa.Table:
    return (with_metadata(batch) if metadata else pa.table(batch.data)).slice(0, rows)


class JsonWriter:
    """Writes a JSON object per record. For a typed topic the object has the row's columns, after the metadata if
    `metadata`. For an envelope topic it has partition, offset, timestamp, key, value and, if there are any, headers;
    with `metadata` also the topic."""

    def __init__(self, out: BinaryIO, *, envelope: bool, metadata: bool) -> None:
        self._out = out
        self._envelope = envelope
        self._metadata = metadata
        self._encoder = msgspec.json.Encoder(decimal_format="number")

    def write(self, batch: ConsumedBatch, rows: int) -> None:
        table = _rows(batch, rows, metadata=self._metadata or self._envelope)
        if self._envelope:
            table = _envelope_view(table, topic=self._metadata)
        columns = [printable(c.combine_chunks() if c.num_chunks != 1 else c.chunk(0)) for c in table.columns]
        self._out.write(self._encoder.encode_lines(row_objects(table.column_names, columns)))
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


def _envelope_view(table: pa.Table, *, topic: bool, always_headers: bool = False) -> pa.Table:
    """Return envelope records with the log's timestamp, and with the column of headers only if a record has headers.

    `topic` adds the topic's name. `always_headers` keeps the column of headers also if no record has headers.
    """
    names = {"_topic": "topic"} if topic else {}
    names |= {
        "_partition": "partition",
        "_offset": "offset",
        "_timestamp": "timestamp",
        "key": "key",
        "value": "value",
    }
    if "headers" in table.column_names and (always_headers or table.column("headers").null_count < table.num_rows):
        names["headers"] = "headers"
    names = {have: name for have, name in names.items() if have in table.column_names}
    return table.select(list(names)).rename_columns(list(names.values()))


class TableWriter:
    """Collects the rows and prints them as one table in `close`, because the widths of columns depend on all rows."""

    def __init__(self, *, envelope: bool, metadata: bool) -> None:
        self._envelope = envelope
        self._metadata = metadata
        self._rows: list[Sequence[str]] = []
        self._names: list[str] = []

    def write(self, batch: ConsumedBatch, rows: int) -> None:
        table = _rows(batch, rows, metadata=self._metadata or self._envelope)
        if self._envelope:
            # without headers, because the columns of the table must not differ between batches
            table = _envelope_view(
                table.drop_columns(["headers"]) if "headers" in table.column_names else table, topic=self._metadata
            )
        self._names = table.column_names
        columns = [cells(c.combine_chunks() if c.num_chunks != 1 else c.chunk(0)) for c in table.columns]
        self._rows.extend(zip(*columns, strict=True))

    def close(self) -> None:
        if not self._rows:
            return
        from sparklog.cli import console

        table = console.table(*self._names)
        for row in self._rows:
            table.add_row(*row)
        console.stdout().print(table)


class CsvRecordWriter:
    """Writes CSV with a line of column names. `schema` is the topic's, reduced to the selected columns."""

    def __init__(self, out: BinaryIO, schema: pa.Schema, *, envelope: bool, metadata: bool, delimiter: str) -> None:
        from sparklog.export.writers import CsvWriter

        self._envelope = envelope
        self._metadata = metadata
        self._out = out
        self._schema = pa.schema([*METADATA, *schema]) if metadata or envelope else schema
        self._writer = CsvWriter(out, self._view(self._schema.empty_table()).schema, delimiter=delimiter)

    def _view(self, table: pa.Table) -> pa.Table:
        return _envelope_view(table, topic=self._metadata, always_headers=True) if self._envelope else table

    def write(self, batch: ConsumedBatch, rows: int) -> None:
        table = _rows(batch, rows, metadata=self._metadata or self._envelope)
        for part in table.combine_chunks().to_batches():
            adapted = RowAdapter(part.schema, self._schema, batch.topic).adapt(part)
            for view in self._view(pa.Table.from_batches([adapted])).to_batches():
                self._writer.write(view)
        self._out.flush()

    def close(self) -> None:
        self._writer.close()


class FileWriter:
    """Writes row groups to an Arrow IPC stream, an Arrow IPC file or a Parquet file. `schema` is the topic's, reduced
    to the selected columns; it is known before the first batch, so that an empty file has it, too. `is_live`: each
    batch goes to a stream at once, for a reader that follows the topic."""

    def __init__(
        self, out: BinaryIO, format: str, schema: pa.Schema, *, metadata: bool, is_stream: bool, is_live: bool = False
    ) -> None:
        self._metadata = metadata
        if metadata:
            schema = pa.schema([*METADATA, *schema])
        self._schema = schema
        self._writer = self._open(out, format, is_stream=is_stream, is_live=is_live)

    def _open(self, out: BinaryIO, format: str, *, is_stream: bool, is_live: bool) -> RowWriter:
        from sparklog.export.writers import ArrowWriter, ParquetWriter, RowGroupWriter

        if format == "parquet":
            try:
                return RowGroupWriter(ParquetWriter(out, self._schema))
            except InvalidQueryError as e:
                raise SchemaMismatchError(str(e)) from e
        writer = ArrowWriter(out, self._schema, is_stream=is_stream)
        return writer if is_stream and is_live else RowGroupWriter(writer)

    def write(self, batch: ConsumedBatch, rows: int) -> None:
        for part in _rows(batch, rows, metadata=self._metadata).to_batches():
            self._writer.write(RowAdapter(part.schema, self._schema, batch.topic).adapt(part))

    def close(self) -> None:
        self._writer.close()
