"""Reading a RecordBatch message from its flatbuffer without trusting it."""

from __future__ import annotations

import contextlib
import struct

import pytest

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import encode_batch
from sparklog.format.flat import RecordBatchMessage, record_batch_message
from sparklog.format.schema import ENVELOPE_SCHEMA
from tests.golden.make_golden import envelope_rows, typed_rows
from tests.support.cases import for_each


def metadata_of(data: object) -> bytes:
    (length,) = struct.unpack_from("<i", data, 4)  # type: ignore[arg-type]
    return bytes(data)[8 : 8 + length]  # type: ignore[call-overload]


@for_each("compression", ["none", "lz4", "zstd"])
@for_each("rows", [envelope_rows(0, 1), envelope_rows(0, 999), typed_rows(0, 17)])
def test_facts_of_real_messages(rows: object, compression: str) -> None:
    data = encode_batch(rows, schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0, compression=compression)
    found = record_batch_message(metadata_of(data))
    assert (found.rows, found.compression) == (rows.num_rows, compression)  # type: ignore[attr-defined]
    assert found.body_length_bytes == len(data) - 8 - len(metadata_of(data))
    assert found.nodes[0].tolist() == [rows.num_rows, rows.column(0).null_count]  # type: ignore[attr-defined]
    assert found.buffers[-1].sum() <= found.body_length_bytes < found.buffers[-1].sum() + 8


def test_a_message_of_no_rows_and_no_body() -> None:
    assert record_batch_message(metadata_of(envelope_rows(0, 0).serialize().to_pybytes())).rows == 0


def test_a_schema_message_is_no_batch() -> None:
    with pytest.raises(CorruptBatchError, match="not an Arrow RecordBatch message"):
        record_batch_message(metadata_of(ENVELOPE_SCHEMA.serialize().to_pybytes()))


def test_another_metadata_version_is_refused() -> None:
    """In V4 a key in the custom metadata made Arrow decompress a body that does not say it is compressed."""
    data = metadata_of(encode_batch(envelope_rows(0, 2), schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0))
    v5 = struct.pack("<h", 4)
    refused = 0
    for at in range(0, 64, 2):
        if data[at : at + 2] == v5:
            with contextlib.suppress(CorruptBatchError):
                record_batch_message(data[:at] + struct.pack("<h", 3) + data[at + 2 :])
                continue
            refused += 1
    assert refused


@for_each("data", [b"", b"\0", bytes(4), bytes(64), b"\xff" * 64, b"\x04\0\0\0" + b"\xff" * 4])
def test_garbage(data: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        record_batch_message(data)


def test_every_bit_and_every_length() -> None:
    data = bytearray(
        metadata_of(encode_batch(envelope_rows(0, 2), schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0))
    )
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(CorruptBatchError):
            assert isinstance(record_batch_message(data), RecordBatchMessage)
        data[bit // 8] ^= 1 << bit % 8
    refused = 0
    for size in range(len(data)):
        try:
            record_batch_message(bytes(data[:size]))
        except CorruptBatchError:
            refused += 1
    assert refused > 50
