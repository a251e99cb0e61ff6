"""Encodes rows as a file piece by piece, so that the console sends the file while reading the rows."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

from sparklog.export.writers import ArrowWriter, CsvWriter, JsonWriter, ParquetWriter, RowGroupWriter
from sparklog.settings import MIB

ROWS_TOGETHER = 65_536
BYTES_TOGETHER = 16 * MIB
"""Rows and bytes of a row group. They are fewer than in the files of commands, so that a browser gets bytes earlier,
and because the console can send several files at once."""


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
    writer = RowGroupWriter(
        FORMATS[format].writer(cast(BinaryIO, drain), schema), rows_max=ROWS_TOGETHER, bytes_max=BYTES_TOGETHER
    )
    for batch in batches:
        writer.write(batch)
        yield b"" if writer.has_rows else drain.take()
    writer.close()
    yield drain.take()
