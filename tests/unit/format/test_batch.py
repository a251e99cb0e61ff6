"""The record batch: round trip, header, damage."""

from __future__ import annotations

import binascii
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import CorruptBatchError, InvalidRequestError
from sparklog.format import batch as b
from sparklog.format.schema import ENVELOPE_SCHEMA
from tests.golden.make_golden import TYPED_SCHEMA, envelope_rows, stamped, typed_rows
from tests.support.cases import for_each

FACTS: dict[str, Any] = {"schema_id": 1, "min_timestamp_ms": 10, "max_timestamp_ms": 20}


@for_each("compression", b.COMPRESSIONS)
@for_each("rows", [envelope_rows(0, 1), envelope_rows(7, 300), typed_rows(0, 1), typed_rows(3, 300)])
def test_round_trip(rows: pa.RecordBatch, compression: str) -> None:
    data = b.encode_batch(rows, compression=compression, **FACTS)
    header = b.decode_header(data)
    b.verify_batch(data, 0, header)
    assert header.size_bytes == len(data)
    assert len(data) % 8 == header.body_length_bytes % 8 == 0
    assert (header.base_offset, header.record_count, header.next_offset) == (0, rows.num_rows, rows.num_rows)
    assert (header.min_timestamp_ms, header.max_timestamp_ms, header.schema_id) == (10, 20, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    decoded = b.decode_batch(data, rows.schema)
    decoded.validate(full=True)
    assert decoded.equals(rows)
    assert decoded.schema.equals(rows.schema)


@for_each("compression", b.COMPRESSIONS)
@for_each("columns", [[0], [3], [0, 2], [1, 2, 3], [0, 1, 2, 3], []])
def test_columns_decode_alone(columns: list[int], compression: str) -> None:
    rows = envelope_rows(0, 50)
    data = b.encode_batch(rows, compression=compression, **FACTS)
    decoded = b.decode_batch(data, rows.schema, columns)
    assert decoded.schema.names == [rows.schema.names[i] for i in columns]
    assert decoded.equals(rows.select(columns))


def test_decoding_does_not_copy_an_uncompressed_batch() -> None:
    rows = envelope_rows(0, 5000)
    data = pa.py_buffer(bytes(b.encode_batch(rows, **FACTS)))
    before = pa.total_allocated_bytes()
    whole = b.decode_batch(data, rows.schema)
    some = b.decode_batch(data, rows.schema, [1, 3])
    assert pa.total_allocated_bytes() - before < 4096
    start, end = data.address, data.address + data.size
    for decoded in (whole.column(1), some.column(0)):
        assert all(start <= part.address < end for part in decoded.buffers() if part is not None)


def test_a_slice_is_encoded_alone() -> None:
    rows = typed_rows(0, 400)
    data = b.encode_batch(rows.slice(101, 7), **FACTS)
    assert len(data) < len(b.encode_batch(rows, **FACTS)) / 5
    assert b.decode_batch(data, rows.schema).equals(rows.slice(101, 7))


def test_stamp_changes_only_the_stamp_and_keeps_the_checksum() -> None:
    plain = bytes(b.encode_batch(envelope_rows(0, 3), **FACTS))
    data = bytearray(b"12345678" + plain)
    header = b.decode_header(data, 8)
    b.stamp_batch(data, 8, header, base_offset=2**40, leader_epoch=9, append_time_ms=123)
    stamp = slice(8 + header.stamp_position, 8 + header.stamp_position + b.STAMP_CHARS)
    assert data[: stamp.start] + data[stamp.stop :] == b"12345678" + plain[: stamp.start - 8] + plain[stamp.stop - 8 :]
    again = b.decode_header(data, 8)
    b.verify_batch(data, 8, again)
    assert again == header._replace(base_offset=2**40, leader_epoch=9, append_time_ms=123)
    assert again.last_offset == 2**40 + 2


def test_header_has_the_producers_fields() -> None:
    data = b.encode_batch(
        envelope_rows(0, 2),
        schema_id=2**31 - 1,
        min_timestamp_ms=-(2**63),
        max_timestamp_ms=2**63 - 1,
        attributes=b.ATTRIBUTE_LOG_APPEND_TIME | b.ATTRIBUTE_TRANSACTIONAL,
        producer_id=2**62,
        producer_epoch=32_767,
        base_sequence=2**31 - 1,
    )
    header = b.decode_header(data)
    assert (header.schema_id, header.attributes) == (2**31 - 1, 3)
    assert (header.min_timestamp_ms, header.max_timestamp_ms) == (-(2**63), 2**63 - 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**62, 32_767, 2**31 - 1)


def test_bad_calls_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="empty batch"):
        b.encode_batch(envelope_rows(0, 0), **FACTS)
    with pytest.raises(InvalidRequestError, match="use one of none, lz4, zstd"):
        b.encode_batch(envelope_rows(0, 1), compression="gzip", **FACTS)


def test_header_needs_only_the_metadata() -> None:
    data = stamped(envelope_rows(0, 200), 5)
    full = b.decode_header(data)
    front = data[: b.PREFIX_BYTES + full.metadata_length_bytes]
    assert b.decode_header(front, available_bytes=len(data)) == full
    with pytest.raises(b.TruncatedBatchError, match=f"has {len(data)} bytes, but only {len(data) - 1} are present"):
        b.decode_header(front, available_bytes=len(data) - 1)


def test_iterate_yields_the_good_ones_before_it_raises() -> None:
    parts = [stamped(envelope_rows(i, 2), i) for i in (0, 2, 4)]
    data = bytearray(b"".join(parts))
    assert [h.base_offset for _, h in b.iterate_batches(data)] == [0, 2, 4]
    seen: list[int] = []
    with pytest.raises(b.TruncatedBatchError):
        seen.extend(at for at, _ in b.iterate_batches(data[:-1]))
    data[len(parts[0]) + len(parts[1]) - 1] ^= 1
    positions: list[int] = []
    with pytest.raises(CorruptBatchError, match="checksum"):
        for at, _ in b.iterate_batches(data):
            positions.append(at)
    assert positions == [0]
    assert len(list(b.iterate_batches(data, verify=False))) == 3


@pytest.mark.parametrize("rows", [envelope_rows(0, 200), typed_rows(0, 200)])
def test_one_flipped_bit_anywhere_is_noticed(rows: pa.RecordBatch) -> None:
    good = stamped(rows, 1000)
    header = b.decode_header(good)
    stamp = range(header.stamp_position, header.stamp_position + b.STAMP_CHARS)
    data = bytearray(good)
    noticed = 0
    for at in range(len(data)):
        data[at] ^= 1 << (at % 8)
        try:
            found = b.decode_header(data)
            b.verify_batch(data, 0, found)
        except CorruptBatchError:
            noticed += 1
        else:
            assert at in stamp, f"a flipped bit in byte {at} was accepted"
            assert found[4:] == header[4:]
            assert found[:4] != header[:4]
        data[at] ^= 1 << (at % 8)
    assert noticed >= len(good) - b.STAMP_CHARS
    assert data == good


def test_every_bit_of_the_metadata_is_covered() -> None:
    good = stamped(envelope_rows(0, 3), 1000)
    header = b.decode_header(good)
    stamp = range(header.stamp_position, header.stamp_position + b.STAMP_CHARS)
    data = bytearray(good)
    for bit in range(8 * (b.PREFIX_BYTES + header.metadata_length_bytes)):
        if bit // 8 in stamp:
            continue
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatchError):
            b.verify_batch(data, 0, b.decode_header(data))
        data[bit // 8] ^= 1 << bit % 8


def test_truncation_at_every_byte() -> None:
    good = stamped(typed_rows(0, 10), 1000)
    for size in range(len(good)):
        with pytest.raises(b.TruncatedBatchError):
            b.decode_header(good[:size])
    assert b.decode_header(good).base_offset == 1000


def test_padding_in_the_header_is_no_base64() -> None:
    data = bytearray(stamped(envelope_rows(0, 3), 0))
    last = b.decode_header(data).stamp_position + b.STAMP_CHARS + b.PRODUCER_FIELDS_CHARS
    for tail in (b"=", b"=="):
        data[last - len(tail) : last] = tail
        with pytest.raises(CorruptBatchError, match="base64"):
            b.decode_header(data)


@for_each("offset", [-1, -(2**63), 2**63 - 1])
def test_offsets_that_cannot_be(offset: int) -> None:
    data = bytearray(stamped(envelope_rows(0, 3), 0))
    header = b.decode_header(data)
    b.stamp_batch(data, 0, header, base_offset=offset, leader_epoch=0, append_time_ms=0)
    with pytest.raises(CorruptBatchError, match="contradicts itself"):
        b.decode_header(data)


def resealed(data: bytes, **changes: Any) -> bytearray:
    """`data` with other header fields and a right checksum, as a broken producer could send it."""
    out = bytearray(data)
    header = b.decode_header(data)._replace(**changes)
    at = header.stamp_position + b.STAMP_CHARS
    seal = b._PRODUCER_FIELDS.pack(*header[4:14], 0)
    out[at : at + b.PRODUCER_FIELDS_CHARS] = binascii.b2a_base64(seal, newline=False)
    crc = b._crc(memoryview(out), header.stamp_position, len(out))
    b._write_stamp(out, header.stamp_position, crc, 0, 0, 0)
    return out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"record_count": 4}, "contradicts"),
        ({"record_count": 2}, "the Arrow message has 3 rows"),
        ({"record_count": -1}, "contradicts"),
        ({"last_offset_delta": 1}, "contradicts"),
        ({"body_length_bytes": -8}, "contradicts"),
        ({"body_length_bytes": 7}, "contradicts"),
        ({"body_length_bytes": 8}, "the Arrow message has|checksum"),
        ({"body_length_bytes": 1 << 40}, "are present"),
    ],
)
def test_a_lying_header_is_refused_although_its_checksum_fits(changes: dict[str, int], message: str) -> None:
    data = resealed(stamped(envelope_rows(0, 3), 0), **changes)
    with pytest.raises(CorruptBatchError, match=message):
        b.verify_batch(data, 0, b.decode_header(data))


def test_an_arrow_message_of_another_program() -> None:
    plain = envelope_rows(0, 3).serialize().to_pybytes()
    with pytest.raises(CorruptBatchError, match="without sparklog's header"):
        b.decode_header(plain)
    with pytest.raises(CorruptBatchError, match="without sparklog's header"):
        b.decode_header(ENVELOPE_SCHEMA.serialize().to_pybytes())


@for_each("columns", [None, [0], [1, 3]])
def test_decoding_damaged_bytes_raises_only_corruption_errors(columns: list[int] | None) -> None:
    """Without the checksum (check.crcs=false) damage may go unnoticed, but never ends in another exception."""
    for compression in b.COMPRESSIONS:
        data = bytearray(b.encode_batch(envelope_rows(0, 20), compression=compression, **FACTS))
        size = 8 + b.decode_header(data).metadata_length_bytes
        for at in range(size):
            data[at] ^= 1 << at % 8
            try:
                b.decode_batch(bytes(data), ENVELOPE_SCHEMA, columns)
            except CorruptBatchError as e:
                assert str(e)
            data[at] ^= 1 << at % 8


def test_decoding_with_a_foreign_schema() -> None:
    data = bytes(b.encode_batch(envelope_rows(0, 20), **FACTS))
    with pytest.raises(CorruptBatchError, match=r"nodes and .* buffers"):
        b.decode_batch(data, TYPED_SCHEMA)


def test_a_producer_put_in_afterwards_makes_the_same_bytes() -> None:
    rows = pa.record_batch({"a": list(range(1000)), "b": ["x"] * 1000})
    late = b.encode_batch(rows, **FACTS, attributes=1, checksum=False)
    with pytest.raises(CorruptBatchError):
        b.verify_batch(late, 0, b.decode_header(late))
    identity: dict[str, Any] = {"producer_id": 2**40, "producer_epoch": 7, "base_sequence": 2**31 - 1}
    b.assign_producer(late, **identity, transactional=True)
    assert bytes(late) == bytes(b.encode_batch(rows, **FACTS, **identity, attributes=1 | b.ATTRIBUTE_TRANSACTIONAL))
    b.assign_producer(late, **identity | {"producer_epoch": 8})
    assert bytes(late) == bytes(b.encode_batch(rows, **FACTS, **identity | {"producer_epoch": 8}, attributes=1))


@for_each("rows", [1, b.SIZED_ROWS_MIN - 1, b.SIZED_ROWS_MIN, 3 * b.SIZED_ROWS_MIN])
def test_batches_of_any_number_of_rows_and_columns(rows: int) -> None:
    for columns in (1, 300):  # the schema message of the latter is longer than expected
        batch = pa.record_batch({f"a column with a long name {i}": list(range(rows)) for i in range(columns)})
        data = b.encode_batch(batch, schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0)
        b.verify_batch(data, 0, b.decode_header(data))
        assert b.decode_batch(data, batch.schema).equals(batch)
