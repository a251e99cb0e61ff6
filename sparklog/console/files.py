"""Encodes rows as a file piece by piece, so that the console sends the file while reading the rows."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

from sparklog.export.writers import ArrowWriter, CsvWriter, JsonWriter, ParquetWriter
from sparklog.settings import MIB

ROWS_TOGETHER = 65_536
BYTES_TOGETHER = 16 * MIB


class FileFormat(NamedTuple):
    """A file format, with its writer, media type and ending."""

    writer: Any
    media_type: str
    suffix: str


FORMATS = {
    "csv": FileFormat(CsvWriter, "text/csv; charset=utf-8", "csv"),
    "json": FileFormat(JsonWriter, "application/x-ndjson; charset=utf-8", "jsonl"),
    "parquet": FileFormat(ParquetWriter, "application/vnd.apache.parquet", "parquet"),
    "arrow": FileFormat(ArrowWriter, "application/vnd.apache.arrow.file", "arrow"),
}


class _Drain:
    """A file object that keeps written bytes in memory until `take` returns them."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._size_bytes += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._size_bytes

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing, because written bytes are not buffered."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


def file_pieces(batches: Iterable[pa.RecordBatch], schema: pa.Schema, format: str) -> Generator[bytes, None, None]:
    """Yield the bytes of a file with these rows in pieces.

    Each step reads one of `batches`. Its piece is empty if the writer waits for more rows. So the first bytes come when
    the format has accepted the first row group.
    """
    drain = _Drain()
    writer = FORMATS[format].writer(cast(BinaryIO, drain), schema)
    for row_group in _row_groups(batches):
        for batch in row_group:
            writer.write(batch)
        yield drain.take() if row_group else b""
    writer.close()
    yield drain.take()


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield one list per batch: the combined batches of a row group if the batch completes it, otherwise no batches.
    Yield the last, incomplete row group at the end."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= ROWS_TOGETHER or size_bytes >= BYTES_TOGETHER:
            yield _combine(held)
            held, rows, size_bytes = [], 0, 0
        else:
            yield []
    if held:
        yield _combine(held)


def _combine(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())
