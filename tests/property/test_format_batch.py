"""Properties of batch and segment bytes: any rows survive, any damage is noticed, nothing else is ever raised."""

from __future__ import annotations

import contextlib
import random

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from sparklog.errors import CorruptBatchError, LogCorruptError
from sparklog.format import segment as s
from sparklog.format.batch import (
    COMPRESSIONS,
    HEADER_MARK,
    BatchHeader,
    TruncatedBatchError,
    decode_batch,
    decode_header,
    encode_batch,
    iterate_batches,
    stamp_batch,
    verify_batch,
)
from sparklog.format.flat import record_batch_message
from sparklog.format.schema import ENVELOPE_SCHEMA
from tests.golden.make_golden import envelope_rows, segment, stamped

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
OFFSET = st.integers(0, 2**62)
ROW = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=20),
        "value": st.none() | st.binary(max_size=50),
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=5)}), max_size=3
        ),
        "timestamp": st.none() | I64,
    }
)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.lists(ROW, min_size=1, max_size=30))
    arrays = [pa.array([r[f.name] for r in rows], f.type) for f in ENVELOPE_SCHEMA]
    return pa.record_batch(arrays, schema=ENVELOPE_SCHEMA)


@given(batches(), st.sampled_from(COMPRESSIONS), I32, I64, I64, I64, st.integers(-(2**15), 2**15 - 1), I32, OFFSET)
def test_any_rows_and_any_header_survive(
    rows: pa.RecordBatch,
    compression: str,
    schema_id: int,
    low: int,
    high: int,
    producer_id: int,
    epoch: int,
    sequence: int,
    offset: int,
) -> None:
    data = encode_batch(
        rows,
        schema_id=schema_id,
        min_timestamp_ms=low,
        max_timestamp_ms=high,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    stamp_batch(data, 0, decode_header(data), base_offset=offset, leader_epoch=schema_id, append_time_ms=low)
    header = decode_header(data)
    verify_batch(data, 0, header)
    assert header[1:4] == (offset, schema_id, low)
    assert header[5:13] == (schema_id, rows.num_rows, rows.num_rows - 1, low, high, producer_id, epoch, sequence)
    decoded = decode_batch(data, ENVELOPE_SCHEMA)
    decoded.validate(full=True)
    assert decoded.equals(rows)
    for i in range(rows.num_columns):
        assert decode_batch(data, ENVELOPE_SCHEMA, [i]).column(0).equals(rows.column(i))


GOOD = stamped(envelope_rows(0, 5), 0)


@given(st.binary(max_size=300))
@example(HEADER_MARK)
def test_random_bytes_raise_only_corruption_errors(data: bytes) -> None:
    for candidate in (data, GOOD[:8] + data, GOOD[: GOOD.index(b"SLB1") + 4] + data + GOOD):
        with contextlib.suppress(CorruptBatchError):
            verify_batch(candidate, 0, decode_header(candidate))
        with contextlib.suppress(CorruptBatchError):
            record_batch_message(candidate)
        with contextlib.suppress(CorruptBatchError):
            for position, header in iterate_batches(candidate):
                assert candidate[position : position + header.size_bytes] == GOOD
    with contextlib.suppress(CorruptBatchError):
        decode_batch(data, ENVELOPE_SCHEMA)


@given(st.data())
def test_overwriting_any_run_of_bytes_is_noticed(data: st.DataObject) -> None:
    header = decode_header(GOOD)
    at = data.draw(st.integers(0, len(GOOD) - 1))
    new = data.draw(st.binary(min_size=1, max_size=40))[: len(GOOD) - at]
    damaged = GOOD[:at] + new + GOOD[at + len(new) :]
    stamp = slice(header.stamp_position, header.stamp_position + 32)
    try:
        found = decode_header(damaged)
        verify_batch(damaged, 0, found)
    except CorruptBatchError:
        assert damaged != GOOD
    else:
        assert damaged[: stamp.start] + damaged[stamp.stop :] == GOOD[: stamp.start] + GOOD[stamp.stop :]
        assert found[4:] == header[4:]


COUNT = 4
SEALED = segment(ENVELOPE_SCHEMA, "events", [stamped(envelope_rows(i, 3), i) for i in range(0, 3 * COUNT, 3)])


def read_from(data: bytes) -> s.PositionedRead:
    return lambda position, size: data[position : position + size]


ACTIVE_END = s.decode_seal(read_from(SEALED), len(SEALED)).data_end  # type: ignore[union-attr]
START = s.decode_head(read_from(SEALED)).data_position
POSITIONS = s.decode_seal(read_from(SEALED), len(SEALED)).positions.tolist()  # type: ignore[union-attr]


@given(st.integers(START, len(SEALED)), st.booleans(), st.integers(1, 64), st.randoms(use_true_random=False))
def test_a_scan_of_damaged_bytes_ends_in_one_of_three_ways(at: int, cut: bool, length: int, rng: random.Random) -> None:
    damaged = bytearray(SEALED[:at] if cut else SEALED)
    if not cut:
        for i in range(at, min(at + length, len(damaged))):
            damaged[i] = rng.randrange(256)
    data = bytes(damaged)
    visited: list[tuple[int, BatchHeader]] = []
    result = s.scan(read_from(data), START, len(data), lambda p, h: visited.append((p, h)), next_offset=0)
    intact = [p for p, end in zip(POSITIONS, [*POSITIONS[1:], ACTIVE_END], strict=True) if end <= at]
    assert [p for p, _ in visited][: len(intact)] == intact
    for position, header in visited:  # only a stamp may differ in what was accepted
        assert data[position : position + header.stamp_position] == SEALED[position : position + header.stamp_position]
        rest = slice(position + header.stamp_position + 32, position + header.size_bytes)
        assert data[rest] == SEALED[rest]
    assert START <= result.position <= ACTIVE_END
    behind = [p for p in POSITIONS if p >= at + length]
    if result.end is s.ScanEnd.TORN:
        assert not behind or cut
    if cut and at < ACTIVE_END:
        assert result.end is (s.ScanEnd.END if at in POSITIONS else s.ScanEnd.TORN)
    seal = s.decode_seal(read_from(data), len(data))
    if seal is not None:
        assert seal.positions.tolist() == POSITIONS


@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_are_no_segment(data: bytes, magic: bool) -> None:
    if magic:
        data = s.HEAD_MAGIC + data + b"ARROW1"
    with contextlib.suppress(LogCorruptError, TruncatedBatchError):
        s.decode_head(read_from(data))
    assert s.decode_seal(read_from(data), len(data)) is None
    visited: list[int] = []
    result = s.scan(read_from(data), 0, len(data), lambda p, _: visited.append(p), next_offset=0)
    assert visited == []
    assert result.position == 0
    assert result.end in (s.ScanEnd.TORN, s.ScanEnd.END)
    assert (result.end is s.ScanEnd.END) is (not data or data.startswith(s.END_OF_STREAM))
