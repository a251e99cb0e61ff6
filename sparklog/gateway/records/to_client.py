"""Conversion of the broker's batches into Kafka's batches. One batch becomes one batch with the same offsets and
producer; a marker becomes a control batch."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import SparklogError
from sparklog.format.batch import (
    ATTRIBUTE_COMMIT,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_GZIP,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_SNAPPY,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    decode_header,
    verify_checksum,
)
from sparklog.format.offset_column import decode_rows
from sparklog.format.packed_batch import compression_of_batch
from sparklog.format.small_batch import decode_small_batch
from sparklog.gateway.records.encode import encode_records, timestamps_ms
from sparklog.gateway.records.memory import fetched_bytes
from sparklog.gateway.records.small import SMALL_RECORDS_MAX, write_small
from sparklog.kafka.records import batch_v2, compression
from sparklog.kafka.records.errors import UnsupportedCodecError

NO_TIMESTAMP_MS = -1
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1
_SEQUENCE_MAX = 2**31 - 1

Part = bytes | bytearray | memoryview
Rows = Callable[[pa.RecordBatch, BatchHeader], pa.RecordBatch]
"""Function that converts a topic's rows into rows of the envelope. It can leave out rows at the end."""
Within = Callable[[int, Callable[[], Any]], Any]
"""Function that calls the conversion of a batch, which takes so many bytes of memory."""


def client_batches(
    data: memoryview,
    schema_of: Callable[[int], pa.Schema],
    rows_of: Rows,
    *,
    codec: int | None = None,
    has_zstd: bool = True,
    start_offset: int = 0,
    bytes_max: int | None = None,
    within: Within = lambda _, convert: convert(),
) -> list[Part]:
    """Return the batches in `data` as Kafka's batches, in parts to join.

    A batch that cannot be converted ends the answer if there are batches before it: the client gets these, and the
    error with its next request. A batch whose rows `rows_of` returns in part ends the answer, too.

    `schema_of`: function that returns the topic's schema of an id. `codec`: Kafka's number of the compression of all
    batches; None: each batch has that of its producer. `start_offset`: offset from which the client reads. Rows before
    it need not be converted. `bytes_max`: size in bytes after which no further batch is converted. The first batch can
    be larger. None: all batches are converted. `within`: function that calls the conversion of each batch that Arrow
    decodes. Raises CorruptBatchError; UnknownSchemaError; MessageTooLargeError: The JSON of a row has more than
    JSON_BYTES_MAX; UnsupportedCodecError: The first batch is compressed with zstd, which the client does not
    understand; SparklogError."""
    parts: list[Part] = []
    position = size = 0
    while position < len(data) and (bytes_max is None or size < bytes_max):
        try:
            header = decode_header(data, position)
            message = data[position : position + header.size_bytes]
            verify_checksum(message, 0, header)
            chosen = _codec(header, message) if codec is None else codec
            if chosen == compression.ZSTD and not has_zstd and header.record_count:
                raise UnsupportedCodecError(
                    "the batch is compressed with zstd: FETCH below version 10 does not have it"
                )
            converted = _client_batch(message, header, schema_of, rows_of, chosen, start_offset, within)
        except SparklogError:
            if parts:
                break
            raise
        size += sum(map(len, converted.parts))
        parts += converted.parts
        position += header.size_bytes
        if not converted.is_whole:
            break
    return parts


class _Converted(NamedTuple):
    """A converted batch."""

    parts: list[Part]
    is_whole: bool = True
    """False if rows at the end are left out. The client reads them next."""


def _client_batch(
    message: memoryview,
    header: BatchHeader,
    schema_of: Callable[[int], pa.Schema],
    rows_of: Rows,
    codec: int,
    start_offset: int,
    within: Within,
) -> _Converted:
    if header.attributes & ATTRIBUTE_CONTROL:
        return _Converted(_marker(header))
    if not header.record_count:
        return _Converted(_batch(header, [], 0, NO_TIMESTAMP_MS, NO_TIMESTAMP_MS))
    schema = schema_of(header.schema_id)
    if header.record_count <= SMALL_RECORDS_MAX and rows_of is as_they_are and header.is_dense:
        small = decode_small_batch(message, 0, header)
        if small is not None:
            stamps = [us // 1000 for us in small.timestamps_us]
            records = write_small(small.keys, small.values, [ms - stamps[0] for ms in stamps])
            return _Converted(_batch(header, [records], header.record_count, stamps[0], max(stamps)))
    size = fetched_bytes(message, header, schema, typed=rows_of is not as_they_are)
    converted: _Converted = within(size, partial(_arrow_batch, message, header, schema, rows_of, codec, start_offset))
    return converted


def _arrow_batch(
    message: memoryview, header: BatchHeader, schema: pa.Schema, rows_of: Rows, codec: int, start_offset: int
) -> _Converted:
    rows, offsets = decode_rows(message, schema, header)
    deltas = np.arange(rows.num_rows, dtype=np.int64) if offsets is None else offsets - header.base_offset
    first_delta = max(start_offset - header.base_offset, 0) if rows_of is not as_they_are else 0
    if first_delta:
        first = int(np.searchsorted(deltas, first_delta))
        rows, deltas = rows.slice(first), deltas[first:] - first_delta
        if not len(deltas):
            return _Converted(_batch(header, [], 0, NO_TIMESTAMP_MS, NO_TIMESTAMP_MS))
    rows = rows_of(rows, header)
    is_whole = rows.num_rows == len(deltas)
    deltas = deltas[: rows.num_rows]
    stamps_ms = timestamps_ms(rows.column(3))
    first_ms = int(stamps_ms[0])
    parts: list[Part] = list(encode_records(rows, deltas, stamps_ms - first_ms))
    record_count = rows.num_rows
    del rows  # the parts are copies
    if codec != compression.NONE:
        parts = [compression.compress(codec, parts)]
    last_delta = header.last_offset_delta - first_delta if is_whole else int(deltas[-1])
    batch = _batch(header, parts, record_count, first_ms, int(stamps_ms.max()), codec, deltas=(first_delta, last_delta))
    return _Converted(batch, is_whole)


def _codec(header: BatchHeader, message: memoryview) -> int:
    """Return Kafka's number of the compression with which the producer has sent a stored batch."""
    if header.attributes & ATTRIBUTE_GZIP:
        return compression.GZIP
    if header.attributes & ATTRIBUTE_SNAPPY:
        return compression.SNAPPY
    return compression.NAMES.index(compression_of_batch(message))


def as_they_are(rows: pa.RecordBatch, header: BatchHeader) -> pa.RecordBatch:
    """Return the rows unchanged: the `Rows` function of envelope topics."""
    return rows


def _batch(
    header: BatchHeader,
    records: list[Part],
    record_count: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    codec: int = compression.NONE,
    deltas: tuple[int, int] | None = None,
) -> list[Part]:
    """Return a batch for the client. `deltas`: the first offset as a distance from the stored batch's first offset, and
    the last offset as a distance from that; None: those of the stored batch."""
    first_delta, last_delta = deltas or (0, header.last_offset_delta)
    attributes = codec | (batch_v2.TRANSACTIONAL if header.attributes & ATTRIBUTE_TRANSACTIONAL else 0)
    if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        attributes |= batch_v2.LOG_APPEND_TIME
        max_timestamp_ms = header.append_time_ms
    if header.attributes & ATTRIBUTE_CONTROL:
        attributes |= batch_v2.CONTROL
    return batch_v2.write_batch(
        records,
        base_offset=header.base_offset + first_delta,
        leader_epoch=header.leader_epoch,
        attributes=attributes,
        last_offset_delta=last_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=-1
        if header.attributes & ATTRIBUTE_CONTROL
        else _sequence_after(header.base_sequence, first_delta),
        record_count=record_count,
    )


def _sequence_after(sequence: int, records: int) -> int:
    """Return the sequence number that is so many records later; -1 stays -1."""
    return sequence if sequence < 0 else (sequence + records) & _SEQUENCE_MAX


def _marker(header: BatchHeader) -> list[Part]:
    """Return a transaction's marker as a control batch. It has one record, whose key has the kind (commit or abort),
    and whose value has the coordinator's epoch."""
    kind = _COMMIT if header.attributes & ATTRIBUTE_COMMIT else _ABORT
    record = write_small([_MARKER_KEY.pack(0, kind)], [_MARKER_VALUE.pack(0, max(header.base_sequence, 0))], [0])
    return _batch(header, [record], 1, header.max_timestamp_ms, header.max_timestamp_ms)
