"""Reading a whole log like a reader, with the checks of every answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sparklog.format.batch import BatchHeader, iterate_batches
from sparklog.format.offset_column import decode_rows, row_offsets
from sparklog.log.partition_log import PartitionLog
from tests.support.logs import SCHEMAS


class Row(NamedTuple):
    """A record; its value is unique, None in a tombstone."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def read_headers(log: PartitionLog, max_bytes: int, offset: int) -> Iterator[BatchHeader]:
    for header, _ in read_batches(log, max_bytes, offset):
        yield header


def read_batches(log: PartitionLog, max_bytes: int, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Every batch a reader gets that goes on where the last slice ended, checksums verified."""
    while (piece := log.reader.read(offset, max_bytes)) is not None:
        data = piece.read()
        found = list(iterate_batches(data))
        assert found[0][1].base_offset == piece.base_offset
        assert found[-1][1].next_offset <= piece.next_offset  # what compaction has removed may follow
        assert len(data) <= max_bytes or len(found) == 1
        yield from ((header, data[at : at + header.size_bytes]) for at, header in found)
        assert piece.next_offset > offset
        offset = piece.next_offset
        piece.release()


def read_rows(log: PartitionLog) -> dict[int, Row]:
    """Everything that can be read, by offset, in the order of the log."""
    rows: dict[int, Row] = {}
    for header, data in read_batches(log, 1 << 20, log.log_start_offset):
        decoded, offsets = decode_rows(data, SCHEMAS[header.schema_id], header)
        times = [t // 1000 for t in decoded.column("timestamp").cast("int64").to_pylist()]
        columns = times, decoded.column("key").to_pylist(), decoded.column("value").to_pylist()
        numbers = row_offsets(header, offsets).tolist()
        assert numbers == sorted(set(numbers)) and (not rows or not numbers or numbers[0] > max(rows))
        rows |= {o: Row(*row) for o, row in zip(numbers, zip(*columns, strict=True), strict=True)}
    return {o: row for o, row in rows.items() if o >= log.log_start_offset}
