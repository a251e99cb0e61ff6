"""Kafka's record batches: each conversion has the other as its inverse, and kafka-python reads what is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from sparklog.errors import SparklogError
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.gateway.records.encode import encode_records, timestamps_ms
from sparklog.gateway.records.small import read_small, write_small
from sparklog.kafka.records import compression
from sparklog.kafka.records.batch_v2 import HEAD_BYTES, iterate_batches, read_head, write_batch
from sparklog.kafka.records.decode import ROUNDS_MAX, decode_records

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = 64 * 1024 * 1024

binary = st.one_of(st.none(), st.binary(max_size=200))
headers = st.one_of(
    st.none(),
    st.lists(
        st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.one_of(st.none(), st.binary(max_size=5))}),
        min_size=1,
        max_size=4,
    ),
)
stamps = st.one_of(st.none(), st.integers(0, 10**12).map(lambda ms: BEGIN + timedelta(milliseconds=ms)))
rows = st.lists(
    st.fixed_dictionaries({"key": binary, "value": binary, "headers": headers, "timestamp": stamps}),
    min_size=1,
    max_size=40,
)


def batch_of(records: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(records, schema=ENVELOPE_SCHEMA)


def written(batch: pa.RecordBatch, codec: int = 0, *, base_offset: int = 0) -> bytes:
    """The rows as one batch of Kafka's."""
    times = timestamps_ms(batch.column(3))
    first = int(times[0])
    parts: list[Any] = list(encode_records(batch, np.arange(batch.num_rows), times - first))
    if codec:
        parts = [compression.compress(codec, parts)]
    return b"".join(
        write_batch(
            parts,
            base_offset=base_offset,
            leader_epoch=0,
            attributes=codec,
            last_offset_delta=batch.num_rows - 1,
            base_timestamp_ms=first,
            max_timestamp_ms=int(times.max()),
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=batch.num_rows,
        )
    )


@given(rows)
def test_records_come_back_as_they_were(records: list[dict[str, Any]]) -> None:
    batch = batch_of(records)
    head, data = next(iterate_batches(memoryview(written(batch))))
    found = decode_records(data, head.record_count, head.base_timestamp_ms)
    found.validate(full=True)
    assert found.to_pylist() == batch.to_pylist()


@given(rows)
def test_kafka_python_reads_them(records: list[dict[str, Any]]) -> None:
    batch = batch_of(records)
    theirs = DefaultRecordBatch(bytearray(written(batch, base_offset=70)))
    assert theirs.validate_crc()
    found = list(theirs)
    assert [r.offset for r in found] == [70 + i for i in range(len(records))]
    assert [(r.key, r.value) for r in found] == [(r["key"], r["value"]) for r in records]
    assert [list(r.headers) for r in found] == [[(h["key"], h["value"]) for h in r["headers"] or ()] for r in records]
    assert [r.timestamp for r in found] == timestamps_ms(batch.column(3)).tolist()


@given(rows, st.sampled_from(range(5)))
def test_batches_of_kafka_python_are_read(records: list[dict[str, Any]], codec: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec if codec in (0, 1) else 0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1_000_000,
    )
    batch = batch_of(records)
    for i, (r, ms) in enumerate(zip(records, timestamps_ms(batch.column(3)).tolist(), strict=True)):
        pairs = [(h["key"], h["value"]) for h in r["headers"] or ()]
        builder.append(i, ms, r["key"], r["value"], pairs)
    head, data = next(iterate_batches(memoryview(bytes(builder.build()))))
    raw: Any = compression.decompress(head.codec, data, LIMIT) if head.codec else data
    assert decode_records(raw, head.record_count, head.base_timestamp_ms).to_pylist() == batch.to_pylist()


@given(st.lists(st.tuples(binary, binary, st.integers(-(2**40), 2**40)), min_size=1, max_size=16))
def test_few_records_are_written_and_read_in_the_same_form(records: list[tuple[Any, Any, int]]) -> None:
    columns: list[list[Any]] = [[r[i] for r in records] for i in range(3)]
    keys, values, times = columns
    data = write_small(keys, values, times)
    found = read_small(data, len(records), 0)
    assert found is not None
    assert (found.keys, found.values, found.timestamps_ms) == (keys, values, times)
    if min(times) >= 0:
        rows = decode_records(data, len(records), 0)
        assert rows.column(0).to_pylist() == keys and rows.column(1).to_pylist() == values


@given(rows, st.data())
def test_damaged_records_raise_typed_errors_only(records: list[dict[str, Any]], data: st.DataObject) -> None:
    body = bytearray(written(batch_of(records))[HEAD_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))]
    for read in (
        lambda: decode_records(bytes(body), len(records), 0),
        lambda: read_small(bytes(body), len(records), 0),
    ):
        try:
            found = read()
        except SparklogError:
            continue
        if isinstance(found, pa.RecordBatch):
            found.validate(full=True)


def test_many_headers_of_one_record_are_read() -> None:
    many = [{"key": f"h{i}", "value": None if i % 3 else b"v"} for i in range(ROUNDS_MAX + 1)]
    batch = batch_of(
        [
            {"key": b"k", "value": b"v", "headers": many, "timestamp": BEGIN},
            {"key": None, "value": b"w", "headers": None, "timestamp": BEGIN},
        ]
    )
    head, data = next(iterate_batches(memoryview(written(batch))))
    assert decode_records(data, head.record_count, head.base_timestamp_ms).to_pylist() == batch.to_pylist()


def test_a_batch_without_a_producers_id_has_no_epoch_and_no_sequence_number() -> None:
    parts = write_batch(
        [write_small(None, [b"v"], [0])], base_offset=0, leader_epoch=0, attributes=0, last_offset_delta=0,
        base_timestamp_ms=1, max_timestamp_ms=1, producer_id=-1, producer_epoch=0, base_sequence=0, record_count=1,
    )  # fmt: skip
    head = read_head(memoryview(b"".join(parts)))
    assert (head.producer_id, head.producer_epoch, head.base_sequence) == (-1, -1, -1)


def test_a_batch_with_another_checksum_or_format_is_refused() -> None:
    data = bytearray(written(batch_of([{"key": None, "value": b"v", "headers": None, "timestamp": BEGIN}])))
    for place, value, said in ((-1, 9, "checksum"), (16, 1, "format 1"), (8, 0x7F, "bytes")):
        broken = bytearray(data)
        broken[place] = value
        with pytest.raises(SparklogError, match=said):
            read_head(memoryview(bytes(broken)))


@pytest.mark.parametrize("codec", [compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD])
def test_a_bomb_is_not_decompressed(codec: int) -> None:
    import gzip

    plain = bytes(8 * 1024 * 1024)
    bomb = gzip.compress(plain) if codec == compression.GZIP else pa.Codec(compression.NAMES[codec]).compress(
        plain, asbytes=True
    )  # fmt: skip
    assert bytes(compression.decompress(codec, memoryview(bomb), len(plain))) == plain
    with pytest.raises(SparklogError, match="send smaller batches"):
        compression.decompress(codec, memoryview(bomb), len(plain) - 1)
    with pytest.raises(SparklogError, match="cannot be decompressed"):
        compression.decompress(codec, memoryview(bomb[: len(bomb) // 2]), len(plain))


def test_both_framings_of_snappy_are_read() -> None:
    block = pa.Codec("snappy").compress(b"abc" * 100, asbytes=True)
    xerial = b"\x82SNAPPY\0" + bytes(8) + 2 * (len(block).to_bytes(4, "big") + block)
    assert bytes(compression.decompress(compression.SNAPPY, memoryview(block), LIMIT)) == b"abc" * 100
    assert bytes(compression.decompress(compression.SNAPPY, memoryview(xerial), LIMIT)) == b"abc" * 200
    with pytest.raises(SparklogError):
        compression.decompress(compression.SNAPPY, memoryview(xerial[:-3]), LIMIT)
