"""Checksums of Parquet files: a CRC of each page, of all bytes before the footer, and of the footer.

Parquet defines the CRC of a page only. The other two are entries of the footer's key-value metadata, which readers
without this module ignore. The value of FOOTER_CRC is computed over the footer with eight zeros in the value's place.
Files of other writers have no entries, and are checked only as far as their pages have a CRC.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparklog.errors import LakeUnavailableError

DATA_CRC = b"sparklog.data.crc32"
FOOTER_CRC = b"sparklog.footer.crc32"
_DIGITS = 8
_MAGIC = b"PAR1"
_TAIL_BYTES = 64 * 1024
_READ_BYTES = _PIECE_BYTES = 1 << 20
_CHECKED_MAX = 100_000
_THREADS = 8


class DamagedFileError(Exception):
    """A checksum of a Parquet file is wrong."""


FILE_ERRORS = (OSError, pa.ArrowException, DamagedFileError)
"""Errors of reading a Parquet file that is damaged, gone or out of reach."""


class ChecksummedSink:
    """A file-like object that a Parquet writer writes to. It computes the CRC of the data, and holds the footer back
    until the footer has its own CRC."""

    def __init__(self, sink: Any) -> None:
        # a stream of deltalake takes bytes only: the buffer makes bytes of every piece that is smaller than itself
        self._sink = pa.BufferedOutputStream(sink, 2 * _PIECE_BYTES)
        self._crc = 0
        self._footer: list[bytes] | None = None
        self.closed = False

    def finish(self, writer: pq.ParquetWriter) -> int:
        """Close a Parquet writer after its last row group, write the footer with its CRC, and close the sink. Returns
        the size of the file."""
        writer.add_key_value_metadata({DATA_CRC: _digits(self._crc), FOOTER_CRC: b"0" * _DIGITS})
        self._footer = []
        writer.close()
        footer = b"".join(self._footer)
        at = footer.index(FOOTER_CRC)
        at = footer.index(b"0" * _DIGITS, at + len(FOOTER_CRC))
        self._footer = None
        self._write(footer[:at] + _digits(zlib.crc32(footer)) + footer[at + _DIGITS :])
        size = self.tell()
        self.close()
        return size

    def _write(self, data: Any) -> None:
        view = memoryview(data)
        for at in range(0, len(view), _PIECE_BYTES):
            self._sink.write(view[at : at + _PIECE_BYTES])

    def write(self, data: Any) -> int:
        """Write bytes of the file."""
        if self._footer is not None:
            self._footer.append(bytes(data))
        else:
            self._crc = zlib.crc32(data, self._crc)
            self._write(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: `close` of the sink below makes the bytes durable."""

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return int(self._sink.tell()) + sum(map(len, self._footer or []))

    def close(self) -> None:
        """Close the sink below."""
        if not self.closed:
            self.closed = True
            self._sink.close()


def _digits(crc: int) -> bytes:
    return b"%08x" % crc


def open_parquet(source: Any, path: str) -> pq.ParquetFile:
    """Open a Parquet file whose footer is checked now, and whose pages are checked when they are read. Raises
    DamagedFileError; OSError: The file is no Parquet file, or cannot be read."""
    footer = _footer(source)
    _check_footer(footer, path)
    metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
    return pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)


def _footer(source: Any) -> bytes:
    """Return the footer with its length and the magic bytes at the end. Raises OSError."""
    size = source.size()
    tail = source.read_at(min(size, _TAIL_BYTES), size - min(size, _TAIL_BYTES))
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise OSError("the file does not end as a Parquet file does: it is damaged, or no Parquet file")
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if length > size - len(_MAGIC):
        raise OSError(
            f"the footer's length of {length} bytes does not fit into the file of {size} bytes: it is damaged"
        )
    return bytes(tail[-length:] if length <= len(tail) else source.read_at(length, size - length))


def _check_footer(footer: bytes, path: str) -> None:
    at = footer.find(FOOTER_CRC)
    if (at < 0) != (DATA_CRC not in footer):
        raise DamagedFileError(f"the footer of file {path} has one checksum of two: the file is damaged")
    if at < 0:
        return
    at += len(FOOTER_CRC)
    plain = footer[at:]
    start = next((i for i in range(min(len(plain), 16)) if plain[i : i + 1] in b"0123456789abcdef"), None)
    if start is None:
        raise DamagedFileError(f"the footer of file {path} has no checksum where one should be: the file is damaged")
    at += start
    zeroed = footer[:at] + b"0" * _DIGITS + footer[at + _DIGITS :]
    if _digits(zlib.crc32(zeroed)) != footer[at : at + _DIGITS]:
        raise DamagedFileError(f"the checksum of the footer of file {path} is wrong: the file is damaged")


def check_data(source: Any, path: str) -> None:
    """Read a whole file and compare its checksums; files of other writers are decoded, which checks their pages. Raises
    DamagedFileError; OSError: The file cannot be read, or a page is damaged."""
    footer = _footer(source)
    _check_footer(footer, path)
    parquet = open_parquet(source, path)
    stated = (parquet.metadata.metadata or {}).get(DATA_CRC)
    if stated is not None:
        crc, at, end = 0, 0, source.size() - len(footer)
        while at < end:
            data = source.read_at(min(_READ_BYTES, end - at), at)
            if not data:
                raise OSError(f"file {path} ends early")
            crc, at = zlib.crc32(data, crc), at + len(data)
        if _digits(crc) != stated:
            raise DamagedFileError(f"the checksum of the data of file {path} is wrong: the file is damaged")
    for _ in parquet.iter_batches(16_384):
        pass


class CheckedFooters:
    """Checks the footers of files for scans that read footers by themselves. A file is checked once in a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checked: dict[tuple[str, str], None] = {}

    def check(self, location: str, files: Any, paths: Iterable[str]) -> None:
        """Check the footers of files. `paths`: paths of the files in the file system. Raises LakeUnavailableError."""
        with self._lock:
            waiting = [path for path in paths if (location, path) not in self._checked]

        def check(path: str) -> None:
            try:
                with files.open_input_file(path) as source:
                    _check_footer(_footer(source), path)
            except FILE_ERRORS as e:
                raise LakeUnavailableError(f"file {path} of the table at {location} cannot be read: {e}") from e

        if not waiting:
            return
        with ThreadPoolExecutor(min(_THREADS, len(waiting)), thread_name_prefix="sparklog-footers") as pool:
            list(pool.map(check, waiting))
        with self._lock:
            self._checked |= {(location, path): None for path in waiting}
            while len(self._checked) > _CHECKED_MAX:
                del self._checked[next(iter(self._checked))]


CHECKED_FOOTERS = CheckedFooters()
