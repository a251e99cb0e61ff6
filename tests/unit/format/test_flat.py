"""Reading two numbers out of a flatbuffer without trusting it."""

from __future__ import annotations

import contextlib
import struct

import pytest

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import encode_batch
from sparklog.format.flat import RecordBatchFacts, record_batch_facts
from sparklog.format.schema import ENVELOPE_SCHEMA
from tests.golden.make_golden import envelope_rows, typed_rows


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("rows", [envelope_rows(0, 1), envelope_rows(0, 999), typed_rows(0, 17)])
def test_facts_of_real_messages(rows: object, compression: str) -> None:
    data = encode_batch(rows, schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0, compression=compression)
    (metadata_length,) = struct.unpack_from("<i", data, 4)
    facts = record_batch_facts(data, 8)
    assert facts == RecordBatchFacts(rows.num_rows, len(data) - 8 - metadata_length, compression != "none")  # type: ignore[attr-defined]
    assert record_batch_facts(b"12345" + bytes(data), 13) == facts


def test_a_message_of_no_rows_and_no_body() -> None:
    data = envelope_rows(0, 0).serialize().to_pybytes()
    assert record_batch_facts(data, 8).rows == 0


def test_a_schema_message_is_no_batch() -> None:
    with pytest.raises(CorruptBatchError, match="not an Arrow RecordBatch message"):
        record_batch_facts(ENVELOPE_SCHEMA.serialize().to_pybytes(), 8)


@pytest.mark.parametrize("data", [b"", b"\0", bytes(4), bytes(64), b"\xff" * 64, b"\x04\0\0\0" + b"\xff" * 4])
def test_garbage(data: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        record_batch_facts(data, 0)


def test_every_bit_and_every_length() -> None:
    data = bytearray(encode_batch(envelope_rows(0, 2), schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0))
    for bit in range(64, 8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(CorruptBatchError):
            assert isinstance(record_batch_facts(data, 8), RecordBatchFacts)
        data[bit // 8] ^= 1 << bit % 8
    refused = 0
    for size in range(8, len(data)):
        try:
            record_batch_facts(bytes(data[:size]), 8)
        except CorruptBatchError:
            refused += 1
    assert refused > 50
