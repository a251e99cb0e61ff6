"""The record batch: one encapsulated Arrow IPC RecordBatch message with the log's header inside it.

Layout of a batch (all sizes multiples of 8, little-endian)::

    offset  size   field
    0       4      continuation mark 0xFFFFFFFF                                (Arrow)
    4       4      metadata_length i32, a multiple of 8                        (Arrow)
    8       m      Message flatbuffer: RecordBatch; its custom_metadata holds
                   the key "sparklog" with the header below as its value       (Arrow)
    8+m     b      body: the columns' buffers, uncompressed, compressed, or
                   with repeated content packed (packed_batch.py)              (Arrow)

The header is 108 ASCII characters (Arrow demands UTF-8 in custom_metadata)::

    offset  size   field                                      written by   covered by the CRC
    0       4      version mark "SLB1"                        producer     yes
    4       32     stamp, base64 of 24 bytes:                 leader       no
                     crc32c         u32  of the whole batch except the stamp
                     base_offset    i64  offset of the first row
                     leader_epoch   i32
                     append_time_ms i64  broker's clock at the append
    36      72     producer's fields, base64 of 54 bytes:     producer     yes
                     attributes         u16  bits below
                     schema_id          i32
                     record_count       i32  rows
                     last_offset_delta  i32  record_count - 1, or more
                     min_timestamp_ms   i64  with bit 4: the delete horizon
                     max_timestamp_ms   i64
                     producer_id        i64  -1: none
                     producer_epoch     i16  -1: none
                     base_sequence      i32  -1: none
                     body_length_bytes  i64  b
                     reserved           u16  0

    attributes: bit 0 timestamp type (0 CreateTime, 1 LogAppendTime), bit 1 transactional, bit 2 control,
                bit 3 has an `__offset` column (compacted), bit 4 has a delete horizon: from that time on (broker's
                clock, ms) compaction may remove the batch's tombstones; it stands in min_timestamp_ms, as in Kafka,
                bit 5 of a control batch: the transaction is committed, not aborted,
                bits 6 and 7: Kafka's producer has compressed the batch with gzip (6) or snappy (7), which Arrow does
                not have; Kafka's consumers get the same codec

A control batch (a transaction's marker) has no rows and one offset; its base_sequence is the coordinator's epoch.

The CRC does not cover the stamp. So the leader assigns offsets by overwriting 32 characters in place, without decoding
the Arrow message and without a new checksum. Offsets are dense: row i has base_offset + i, unless bit 3 is set. If
last_offset_delta is larger than record_count - 1, the offsets behind the rows are a gap: compaction or a mirror has
left it, or the gateway has refused some of a producer's records there.

Example: a batch of 3 rows that is appended at log end 50 is stamped base_offset=50. Its last_offset_delta is 2, so the
log end becomes 53. No batch depends on another batch (there are no dictionaries and no deltas): if a batch is lost or
damaged, all other batches can be read.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.errors import CorruptBatchError, InvalidRequestError
from sparklog.format.body_layout import INFLATED_BYTES_MAX, ROW_BYTES, layout_of_schema, stated_bytes
from sparklog.format.checksum import crc32c
from sparklog.format.flat import Bytes, RecordBatchMessage, record_batch_message
from sparklog.format.value_check import check_values

HEADER_KEY = b"sparklog"
VERSION_MARK = b"SLB1"

_STAMP = struct.Struct(
    "<"
    "I"  # crc32c
    "q"  # base_offset
    "i"  # leader_epoch
    "q"  # append_time_ms
)
_PRODUCER_FIELDS = struct.Struct(
    "<"
    "H"  # attributes
    "i"  # schema_id
    "i"  # record_count
    "i"  # last_offset_delta
    "q"  # min_timestamp_ms
    "q"  # max_timestamp_ms
    "q"  # producer_id
    "h"  # producer_epoch
    "i"  # base_sequence
    "q"  # body_length_bytes
    "H"  # reserved
)
_PREFIX = struct.Struct("<Ii")
_CONTINUATION = 0xFFFFFFFF

STAMP_CHARS = 32
PRODUCER_FIELDS_CHARS = 72
HEADER_CHARS = 4 + STAMP_CHARS + PRODUCER_FIELDS_CHARS
HEADER_MARK = struct.pack("<I", HEADER_CHARS) + VERSION_MARK
"""The 8 bytes by which the header is found in the metadata: a FlatBuffers string begins with its length. No other field
of a RecordBatch message has these bytes: as an i64 they would be a buffer of 3.5 exabytes."""

assert (_STAMP.size, _PRODUCER_FIELDS.size, HEADER_CHARS) == (24, 54, 108)

PREFIX_BYTES = 8
METADATA_BYTES_MAX = 4 * 1024 * 1024
"""Largest metadata of a batch. A batch of 10,000 flat columns needs about 1 MiB."""
HEADER_READ_BYTES = 2048
"""Size of the first read of a batch. It contains prefix and metadata of nearly every batch."""

ATTRIBUTE_LOG_APPEND_TIME = 1 << 0
ATTRIBUTE_TRANSACTIONAL = 1 << 1
ATTRIBUTE_CONTROL = 1 << 2
ATTRIBUTE_OFFSET_COLUMN = 1 << 3
ATTRIBUTE_DELETE_HORIZON = 1 << 4
ATTRIBUTE_COMMIT = 1 << 5
ATTRIBUTE_GZIP = 1 << 6
ATTRIBUTE_SNAPPY = 1 << 7

SIZED_ROWS_MIN = 256
"""Smallest number of rows for which the encoder computes the size before it writes; with fewer rows that costs more
than it saves."""
STREAM_OVERHEAD_BYTES = 8192
"""Size added to that of a batch for the schema's message and the header, which need less in most streams."""

COMPRESSIONS = ("none", "lz4", "zstd")
_ZSTD_LEVEL = 3
"""The default level of zstd and of Kafka. Arrow's default is 1, which looks back half a MiB only."""
_OFFSET_MAX = 2**63 - 2  # the offset after it must still be an i64


class TruncatedBatchError(CorruptBatchError):
    """The bytes end before the batch does: a torn tail if they are the end of a file."""


class BatchHeader(NamedTuple):
    """A decoded header. `size_bytes` is the size of the whole batch, `stamp_position` relative to its first byte."""

    crc: int
    base_offset: int
    leader_epoch: int
    append_time_ms: int
    attributes: int
    schema_id: int
    record_count: int
    last_offset_delta: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    body_length_bytes: int
    metadata_length_bytes: int
    stamp_position: int

    @property
    def size_bytes(self) -> int:
        return PREFIX_BYTES + self.metadata_length_bytes + self.body_length_bytes

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def is_dense(self) -> bool:
        """True if row i has the offset base_offset + i, up to the last offset."""
        return not self.attributes & ATTRIBUTE_OFFSET_COLUMN and self.last_offset_delta == self.record_count - 1

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


class ProducerFields(NamedTuple):
    """The header's fields that a producer writes, in their order."""

    attributes: int
    schema_id: int
    record_count: int
    last_offset_delta: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    body_length_bytes: int


def encode_batch(
    batch: pa.RecordBatch,
    *,
    schema_id: int,
    min_timestamp_ms: int,
    max_timestamp_ms: int,
    compression: str = "none",
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = 0,
    append_time_ms: int = 0,
    last_offset_delta: int | None = None,
    checksum: bool = True,
    allocate: Callable[[int], Any] = pa.allocate_buffer,
) -> memoryview:
    """Encode a batch into its message.

    A producer leaves `base_offset`, `leader_epoch` and `append_time_ms` to the leader's stamp. Compaction passes those
    of the original batch.

    `batch`: the rows, in the topic's canonical schema (`sparklog.format.schema`). `last_offset_delta`: the original
    batch's value for a compacted batch, which is allowed to have no rows; None for the number of rows less one.
    `checksum`: False to leave the CRC out; `assign_producer` then writes it. `allocate`: `allocate(size_bytes)` returns
    a writable Arrow buffer. It is called for uncompressed batches of at least SIZED_ROWS_MIN rows. Returns a writable
    view of the message's bytes. Raises InvalidRequestError: The batch is empty and `last_offset_delta` None, or the
    compression is unknown."""
    if batch.num_rows == 0 and last_offset_delta is None:
        raise InvalidRequestError("an empty batch cannot be appended")
    if compression not in COMPRESSIONS:
        raise InvalidRequestError(f"unknown compression {compression!r}: use one of {', '.join(COMPRESSIONS)}")
    placeholder = VERSION_MARK + b"A" * (STAMP_CHARS + PRODUCER_FIELDS_CHARS)
    options = pa.ipc.IpcWriteOptions(compression=_codec(compression), use_threads=False)
    stream = _write_stream(batch, placeholder, options, allocate=allocate if compression == "none" else None)
    # content of the stream: schema message, our message, 8 bytes end-of-stream
    schema_bytes = PREFIX_BYTES + _PREFIX.unpack_from(stream, 0)[1]
    message = stream[schema_bytes : len(stream) - 8]
    metadata_length = _PREFIX.unpack_from(message, 0)[1]
    mark = _find_mark(message, 0, metadata_length)
    delta = batch.num_rows - 1 if last_offset_delta is None else last_offset_delta
    fields = ProducerFields(
        attributes, schema_id, batch.num_rows, delta, min_timestamp_ms, max_timestamp_ms,
        producer_id, producer_epoch, base_sequence, len(message) - PREFIX_BYTES - metadata_length,
    )  # fmt: skip
    crc = write_producer_fields(message, mark + 4, fields, checksum=checksum)
    _write_stamp(message, mark + 4, crc, base_offset, leader_epoch, append_time_ms)
    return message


def write_producer_fields(
    message: memoryview, stamp_position: int, fields: ProducerFields, *, checksum: bool = True
) -> int:
    """Write the producer's fields, and a stamp with the CRC and otherwise zeros. Returns the CRC; 0 without
    `checksum`."""
    _write_fields(message, stamp_position, fields)
    crc = _crc(message, stamp_position, len(message)) if checksum else 0
    _write_stamp(message, stamp_position, crc, 0, 0, 0)
    return crc


def write_fields_of_parts(
    head: memoryview, stamp_position: int, fields: ProducerFields, body: Sequence[memoryview]
) -> int:
    """Write the producer's fields into the prefix and metadata of a batch whose body is in several parts. Returns the
    batch's CRC."""
    _write_fields(head, stamp_position, fields)
    crc = _crc(head, stamp_position, len(head))
    for part in body:
        crc = crc32c(part, crc)
    return crc


def _write_fields(message: memoryview, stamp_position: int, fields: ProducerFields) -> None:
    start = stamp_position + STAMP_CHARS
    message[start : start + PRODUCER_FIELDS_CHARS] = binascii.b2a_base64(
        _PRODUCER_FIELDS.pack(*fields, 0), newline=False
    )


def _codec(compression: str) -> Any:
    if compression == "zstd":
        return pa.Codec(compression, _ZSTD_LEVEL)
    return None if compression == "none" else compression


def _write_stream(
    batch: pa.RecordBatch, header: bytes, options: Any, *, allocate: Callable[[int], Any] | None
) -> memoryview:
    """Return an Arrow IPC stream of one batch. With `allocate` a large batch is written into one buffer of a size that
    is computed before; otherwise the memory grows while the stream is written."""
    if allocate is not None and batch.num_rows >= SIZED_ROWS_MIN:
        size = pa.ipc.get_record_batch_size(batch) + STREAM_OVERHEAD_BYTES
        buffer = allocate(size)
        try:
            with pa.FixedSizeBufferWriter(buffer) as fixed:
                _write_batch(fixed, batch, header, options)
                return memoryview(buffer).cast("B")[: fixed.tell()]
        except OSError:
            pass  # the schema's message is longer than STREAM_OVERHEAD_BYTES allows
    sink = pa.BufferOutputStream()
    _write_batch(sink, batch, header, options)
    return memoryview(sink.getvalue()).cast("B")


def _write_batch(sink: Any, batch: pa.RecordBatch, header: bytes, options: Any) -> None:
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata={HEADER_KEY: header})


def assign_producer(
    data: memoryview, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool = False
) -> None:
    """Write a producer's identity, a base sequence, the transactional bit and the new CRC into the one batch in
    `data`."""
    mark = _find_mark(data, 0, _PREFIX.unpack_from(data, 0)[1])
    stamp_position = mark + 4
    fields_position = stamp_position + STAMP_CHARS
    fields = list(_PRODUCER_FIELDS.unpack(binascii.a2b_base64(data[fields_position : mark + HEADER_CHARS])))
    fields[0] = fields[0] & ~ATTRIBUTE_TRANSACTIONAL | (ATTRIBUTE_TRANSACTIONAL if transactional else 0)
    fields[6:9] = producer_id, producer_epoch, base_sequence
    data[fields_position : mark + HEADER_CHARS] = binascii.b2a_base64(_PRODUCER_FIELDS.pack(*fields), newline=False)
    stamp = _STAMP.unpack(binascii.a2b_base64(data[stamp_position:fields_position]))
    _write_stamp(data, stamp_position, _crc(data, stamp_position, len(data)), *stamp[1:])


def encode_marker(
    schema: pa.Schema,
    *,
    schema_id: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    commit: bool,
    timestamp_ms: int,
    started_ms: int = -1,
) -> memoryview:
    """Encode the marker that ends a transaction: a control batch without rows that takes one offset.

    The marker's smallest timestamp is `started_ms`, the time at which the transaction began; with -1 (not known) it is
    `timestamp_ms`. The time of the beginning is the same in all markers of a transaction, also if the leaders' clocks
    differ.

    `schema` is the schema in the head of the segment that gets the marker. Returns a writable view of the bytes, not
    yet stamped.
    """
    return encode_batch(
        pa.RecordBatch.from_arrays([pa.nulls(0, t) for t in schema.types], schema=schema),
        schema_id=schema_id,
        min_timestamp_ms=started_ms if started_ms >= 0 else timestamp_ms,
        max_timestamp_ms=max(started_ms, timestamp_ms),
        attributes=ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL | (ATTRIBUTE_COMMIT if commit else 0),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=coordinator_epoch,
        last_offset_delta=0,
    )


def decode_header(data: Bytes, position: int = 0, *, available_bytes: int | None = None) -> BatchHeader:
    """Decode the header of the batch at `position` of `data`. Only the batch's prefix and metadata must be in `data`.

    `available_bytes`: the number of bytes that exist from `position` on; None for the rest of `data`. Raises
    TruncatedBatchError if the batch is longer than that, CorruptBatchError for bytes that cannot be a batch.
    """
    held = len(data) - position
    available = held if available_bytes is None else available_bytes
    if held < PREFIX_BYTES:
        raise TruncatedBatchError(f"{held} bytes are not a batch")
    continuation, metadata_length = _PREFIX.unpack_from(data, position)
    if (
        continuation != _CONTINUATION
        or metadata_length <= 0
        or metadata_length % 8
        or metadata_length > METADATA_BYTES_MAX
    ):
        raise CorruptBatchError(f"no batch begins here (found {bytes(data[position : position + 8]).hex()})")
    if held < PREFIX_BYTES + metadata_length:
        raise TruncatedBatchError("the batch ends inside its metadata")
    mark = _find_mark(data, position, metadata_length)
    text = bytes(data[mark + 4 : mark + HEADER_CHARS])
    try:
        raw = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as e:
        raise CorruptBatchError("the batch header is not base64") from e
    if len(raw) != _STAMP.size + _PRODUCER_FIELDS.size:  # padding ("=") makes it shorter
        raise CorruptBatchError("the batch header is not base64")
    stamp = _STAMP.unpack_from(raw, 0)
    fields = _PRODUCER_FIELDS.unpack_from(raw, _STAMP.size)
    header = BatchHeader._make((*stamp, *fields[:-1], metadata_length, mark + 4 - position))
    if (
        header.record_count < 0
        or header.last_offset_delta < header.record_count - 1
        or not 0 <= header.base_offset <= _OFFSET_MAX - header.last_offset_delta
        or header.body_length_bytes < 0
        or header.body_length_bytes % 8
    ):
        raise CorruptBatchError("the batch header contradicts itself")
    if header.size_bytes > available:
        raise TruncatedBatchError(f"the batch has {header.size_bytes} bytes, but only {available} are present")
    return header


def verify_checksum(data: Bytes, position: int, header: BatchHeader) -> None:
    """Check the CRC of the batch at `position`, which covers all bytes except the stamp. Raises CorruptBatchError."""
    crc = _crc(memoryview(data)[position : position + header.size_bytes], header.stamp_position, header.size_bytes)
    if crc != header.crc:
        raise CorruptBatchError(f"checksum is {crc:08x}, the batch header has {header.crc:08x}")


def verify_batch(data: Bytes, position: int, header: BatchHeader) -> None:
    """Check the CRC, and that Arrow's own metadata agree with the header. The columns' content is not checked here, but
    by `decode_batch`. Raises CorruptBatchError."""
    verify_checksum(data, position, header)
    message_of(data, position, header)


def message_of(data: Bytes, position: int, header: BatchHeader) -> RecordBatchMessage:
    """Return Arrow's metadata of the batch at `position`. Raises CorruptBatchError if they are damaged, or the header
    states other numbers of rows or bytes."""
    start = position + PREFIX_BYTES
    message = record_batch_message(memoryview(data)[start : start + header.metadata_length_bytes])
    if message.body_length_bytes != header.body_length_bytes or message.rows != header.record_count:
        raise CorruptBatchError(
            f"the Arrow message has {message.rows} rows in {message.body_length_bytes} bytes, the header "
            f"{header.record_count} in {header.body_length_bytes}"
        )
    return message


def decoded_size_bytes(data: Bytes, header: BatchHeader) -> int:
    """Return the memory, in bytes, that a reader of the one batch in `data` needs beside the batch's bytes: for the
    decompressed columns, by the sizes that the batch states, and for the offset of each row. Raises
    CorruptBatchError."""
    message = message_of(data, 0, header)
    body = memoryview(data)[header.size_bytes - header.body_length_bytes : header.size_bytes]
    return stated_bytes(message, body) + ROW_BYTES * max(header.record_count, 0)


def stamp_batch(
    data: bytearray | memoryview,
    position: int,
    header: BatchHeader,
    *,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int,
) -> None:
    """Write the leader's stamp into the batch at `position` of the writable `data`. The CRC stays the same."""
    _write_stamp(data, position + header.stamp_position, header.crc, base_offset, leader_epoch, append_time_ms)


def iterate_batches(data: Bytes, *, verify: bool = True) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the batches that fill `data` exactly.

    `verify`: True to check each batch with `verify_batch`. After the good batches, raises CorruptBatchError for a
    damaged batch, TruncatedBatchError for a batch that `data` cuts.
    """
    position = 0
    while position < len(data):
        header = decode_header(data, position)
        if verify:
            verify_batch(data, position, header)
        yield position, header
        position += header.size_bytes


def decode_batch(
    data: Any,
    schema: pa.Schema,
    columns: Sequence[int] | None = None,
    *,
    header: BatchHeader | None = None,
    message: RecordBatchMessage | None = None,
    inflated_bytes_max: int = INFLATED_BYTES_MAX,
) -> pa.RecordBatch:
    """Decode one batch's bytes without copying uncompressed columns.

    The bytes can come from any source: the metadata are compared with `schema` before Arrow reads them, and the
    columns' offsets, text and nulls are checked afterwards.

    `data`: the bytes, in an object with the buffer protocol. The result keeps the object alive. `columns`: indexes of
    the columns to decode, ascending; None for all. In a compressed batch, other columns are neither decompressed nor
    checked. `header`: the batch's header, if it is decoded already. Raises InflatedSizeError: The batch is larger.
    Raised before any buffer is decompressed; CorruptBatchError: The batch is damaged, or does not fit `schema`."""
    buffer = pa.py_buffer(data)
    view = memoryview(buffer).cast("B")
    if header is None:
        header = decode_header(view)
    if message is None:
        message = message_of(view, 0, header)
    body = view[header.size_bytes - header.body_length_bytes : header.size_bytes]
    layout_of_schema(schema).check(message, body, columns=columns, inflated_bytes_max=inflated_bytes_max)
    try:
        if columns is not None and not columns:  # only `select` keeps how many rows there are
            return pa.RecordBatch.from_arrays([pa.nulls(message.rows)], names=[""]).select([])
        if columns is None or message.compression == "none":
            batch = pa.ipc.read_record_batch(buffer, schema)
            batch = batch if columns is None else batch.select(list(columns))
        else:
            stream = pa.BufferOutputStream()
            stream.write(schema.serialize())
            stream.write(buffer)
            options = pa.ipc.IpcReadOptions(included_fields=list(columns), use_threads=False)
            batch = pa.ipc.open_stream(stream.getvalue(), options=options).read_next_batch()
        check_values(batch, schema, columns)
    except pa.ArrowMemoryError:
        raise  # nothing is wrong with the batch
    except (pa.ArrowException, OSError, EOFError, StopIteration) as e:
        raise CorruptBatchError(f"Arrow cannot read the batch: {e}") from e
    return batch


def read_checked_batch(data: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Decode the bytes of a batch that `decode_batch` has accepted before, without repeating the checks. Raises
    CorruptBatchError if Arrow cannot read the bytes, because they have changed since."""
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    except (pa.ArrowException, OSError) as e:
        raise CorruptBatchError(f"Arrow cannot read the batch: {e}") from e


def _find_mark(data: Bytes, position: int, metadata_length: int) -> int:
    metadata = bytes(data[position + PREFIX_BYTES : position + PREFIX_BYTES + metadata_length])
    index = metadata.find(HEADER_MARK)
    if index < 0 or index + 4 + HEADER_CHARS > metadata_length:
        raise CorruptBatchError("an Arrow message without sparklog's header")
    return position + PREFIX_BYTES + index + 4


def _write_stamp(
    data: bytearray | memoryview,
    position: int,
    crc: int,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int,
) -> None:
    stamp = _STAMP.pack(crc, base_offset, leader_epoch, append_time_ms)
    data[position : position + STAMP_CHARS] = binascii.b2a_base64(stamp, newline=False)


def _crc(message: memoryview, stamp_position: int, size_bytes: int) -> int:
    before: int = crc32c(message[:stamp_position])
    after: int = crc32c(message[stamp_position + STAMP_CHARS : size_bytes], before)
    return after
