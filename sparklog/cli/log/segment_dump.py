"""Reads a segment file for `sparklog log dump`: head, batches, seal and indexes. No broker is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.environment.files import odd_file, open_regular, read_regular
from sparklog.errors import CorruptBatchError, LogCorruptError, StorageError
from sparklog.format import batch as batches
from sparklog.format import offset_index, segment, time_index
from sparklog.format.checkpoint import PARTITION_FILE
from sparklog.format.index_checksum import entries_in
from sparklog.format.offset_column import decode_rows, row_offsets, topic_schema
from sparklog.format.packed_batch import compression_of_batch
from sparklog.log.segments.stored_rows import TOOL_INFLATED_BYTES_MAX, RowsCheck


@dataclass
class BatchFacts:
    """One batch."""

    position: int
    """Position in the file, in bytes."""
    size_bytes: int
    base_offset: int
    last_offset: int
    records: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    append_time_ms: int
    timestamp_type: str
    leader_epoch: int
    schema_id: int
    compression: str
    crc: str
    crc_ok: bool
    """False if the batch is damaged."""
    kind: str
    """"data", "transactional", or for a transaction marker "commit" or "abort"."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    """Sequence number of the first record; of a marker, the coordinator's epoch."""
    problem: str = ""
    """Reason why the records cannot be read although the checksum is right; empty if they can be read."""


@dataclass
class SegmentFacts:
    """One segment file."""

    path: str
    size_bytes: int
    topic: str
    topic_id: str
    partition: int
    base_offset: int
    schema_id: int
    schema: pa.Schema
    sealed: bool
    end: str
    """Result of the scan, a value of `ScanEnd`."""
    problem: str
    """Reason why the scan stopped before the end; empty if it reached the end."""
    data_end: int
    """Position in bytes at which the scan stopped."""
    index_entries: int | None
    """Number of entries of the offset index; None if the file is missing."""
    time_index_entries: int | None
    """Number of entries of the time index; None if the file is missing."""
    batches: list[BatchFacts] = field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(b.records for b in self.batches)

    @property
    def is_damaged(self) -> bool:
        """True if readers cannot read a record. An incomplete last batch, as after a crash, is not damage."""
        return self.end == segment.ScanEnd.CORRUPT.value or any(b.problem for b in self.batches)

    def as_json(self) -> dict[str, Any]:
        facts = asdict(self)
        facts["schema"] = {f.name: str(f.type) for f in self.schema}
        facts["records"] = self.records
        return facts


def segment_paths(path: Path) -> list[Path]:
    """Return the segment file `path`, or the segment files of the partition directory `path` in offset order. Raises
    LogCorruptError for a directory that is not a partition's."""
    if path.is_dir():
        paths = sorted(p for p in path.iterdir() if segment.parse_segment_name(p.name) is not None)
        if paths or (path / PARTITION_FILE).exists():
            return paths
        deeper = sorted(p.parent.name for p in path.glob(f"*/*{segment.SUFFIX}"))
        hint = f"; partitions in it: {', '.join(dict.fromkeys(deeper))}" if deeper else ""
        raise LogCorruptError(f"{path}: no segment files in this directory, which is no partition's{hint}")
    return [path]


def dump_segment(path: Path) -> SegmentFacts:
    """Read a whole segment and check every batch. Raises OSError, StorageError, and for a damaged head LogCorruptError
    or CorruptBatchError."""
    if reason := odd_file(path):
        raise StorageError(reason)
    with open(open_regular(path), "rb") as file:  # noqa: PTH123  (a descriptor)
        read = _reader(file.fileno())
        size = os.fstat(file.fileno()).st_size
        try:
            head = segment.decode_head(read)
        except (LogCorruptError, CorruptBatchError) as e:
            raise type(e)(f"{path}: {e}") from e
        seal = segment.decode_seal(read, size)
        facts: list[BatchFacts] = []
        rows = RowsCheck(head.schema)
        result = segment.scan(
            read,
            head.data_position,
            seal.data_end if seal else size,
            lambda position, header: facts.append(_batch_facts(read, position, header, rows)),
            next_offset=head.info.base_offset,
        )
        if result.end is not segment.ScanEnd.END:
            facts.extend(_damaged_batch(read, result.position, size, rows))
    return SegmentFacts(
        path=str(path),
        size_bytes=size,
        **head.info._asdict(),
        schema=head.schema,
        sealed=seal is not None,
        end=result.end.value,
        problem=result.reason,
        data_end=result.position,
        index_entries=_entries(path, offset_index),
        time_index_entries=_entries(path, time_index),
        batches=facts,
    )


def read_records(facts: SegmentFacts, limit: int) -> Iterator[dict[str, Any]]:
    """Yield the first `limit` records of a segment, each with its offset, up to the first damaged batch."""
    from sparklog.export.printable import printable

    remaining = limit
    schema = topic_schema(facts.schema)
    with open(open_regular(Path(facts.path)), "rb") as file:  # noqa: PTH123  (a descriptor)
        read = _reader(file.fileno())
        for b in facts.batches:
            if remaining <= 0 or not b.crc_ok or b.problem:
                return
            data = read(b.position, b.size_bytes)
            header = batches.decode_header(data)
            rows, offsets = decode_rows(data, schema, header, inflated_bytes_max=TOOL_INFLATED_BYTES_MAX)
            numbers = row_offsets(header, offsets).tolist()
            rows = rows.slice(0, remaining)
            names = rows.schema.names
            columns = [printable(column) for column in rows.columns]
            for offset, row in zip(numbers, zip(*columns, strict=True), strict=False):
                yield {"_offset": offset, **dict(zip(names, row, strict=True))}
            remaining -= rows.num_rows


def read_indexes(path: Path, base_offset: int) -> dict[str, list[dict[str, int]]]:
    """Return the entries of a segment's index files by the index's name, with absolute offsets.

    A missing index file has no key. An incomplete last entry and the checksum are left out.
    """
    indexes: dict[str, list[dict[str, int]]] = {}
    for name, module in (("offset_index", offset_index), ("time_index", time_index)):
        count = _entries(path, module)
        if count is None:
            continue
        data = read_regular(path.with_suffix(module.SUFFIX))
        entries = np.frombuffer(data[: count * module.ENTRY.itemsize], module.ENTRY)
        offsets = (entries["relative_offset"].astype(np.int64) + base_offset).tolist()
        other = "position" if "position" in (module.ENTRY.names or ()) else "timestamp_ms"
        values = entries[other].tolist()
        indexes[name] = [{"offset": o, other: v} for o, v in zip(offsets, values, strict=True)]
    return indexes


def _reader(descriptor: int) -> segment.PositionedRead:
    def read(position: int, size: int) -> bytes:
        return os.pread(descriptor, size, position)

    return read


def _batch_facts(
    read: segment.PositionedRead, position: int, header: batches.BatchHeader, rows: RowsCheck, *, crc_ok: bool = True
) -> BatchFacts:
    data = read(position, header.size_bytes)
    misfit = rows.misfit(data, header) if crc_ok else None
    by_broker = header.attributes & batches.ATTRIBUTE_LOG_APPEND_TIME
    return BatchFacts(
        position=position,
        size_bytes=header.size_bytes,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        records=header.record_count,
        min_timestamp_ms=header.min_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        append_time_ms=header.append_time_ms,
        timestamp_type="LogAppendTime" if by_broker else "CreateTime",
        leader_epoch=header.leader_epoch,
        schema_id=header.schema_id,
        compression=_compression(data),
        crc=f"{header.crc:08x}",
        crc_ok=crc_ok,
        kind=_kind(header.attributes),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        problem="" if misfit is None else misfit.message,
    )


def _kind(attributes: int) -> str:
    if attributes & batches.ATTRIBUTE_CONTROL:
        return "commit" if attributes & batches.ATTRIBUTE_COMMIT else "abort"
    return "transactional" if attributes & batches.ATTRIBUTE_TRANSACTIONAL else "data"


def _damaged_batch(read: segment.PositionedRead, position: int, size: int, rows: RowsCheck) -> list[BatchFacts]:
    """Return the batch at which a scan stopped; an empty list if its header cannot be read."""
    try:
        head = read(position, batches.HEADER_READ_BYTES)
        header = batches.decode_header(head, 0, available_bytes=size - position)
    except CorruptBatchError:
        return []
    return [_batch_facts(read, position, header, rows, crc_ok=False)]


def _compression(batch: bytes) -> str:
    """Return the compression of a batch; "unknown" if the batch is damaged."""
    try:
        return compression_of_batch(batch)
    except CorruptBatchError:
        return "unknown"


def _entries(segment: Path, index: ModuleType) -> int | None:
    path = segment.with_suffix(index.SUFFIX)
    return entries_in(path.stat().st_size, index.ENTRY.itemsize, index.TRAILER_BYTES) if path.is_file() else None
