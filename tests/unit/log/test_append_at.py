"""Batches at given offsets: appended only at the expected log end, with gaps that every reader passes over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import CorruptBatchError, InvalidRequestError, OffsetOutOfRangeError, SparklogError
from sparklog.format.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_OFFSET_COLUMN,
    ATTRIBUTE_TRANSACTIONAL,
    decode_header,
    encode_batch,
    stamp_batch,
)
from sparklog.format.offset_column import with_offset_column
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.partition_log import PartitionLog
from tests.support.compaction import compact, open_keyed, stored
from tests.support.logs import ManualClock, open_log, read_all, records

SCHEMA = with_offset_column(ENVELOPE_SCHEMA)
BY_BROKER = ATTRIBUTE_OFFSET_COLUMN | ATTRIBUTE_LOG_APPEND_TIME


def placed(offsets: Sequence[int], base: int, last: int, *, key: bytes = b"k", **fields: Any) -> bytearray:
    """A batch with a record at each of `offsets`, which spans the offsets from `base` to `last`."""
    n = len(offsets)
    columns = [
        pa.array([key] * n, pa.binary()),
        pa.array([b"v%d" % o for o in offsets], pa.binary()),
        pa.nulls(n, ENVELOPE_SCHEMA.field("headers").type),
        pa.array([o * 1000 for o in offsets], ENVELOPE_SCHEMA.field("timestamp").type),
        pa.array(offsets, pa.int64()),
    ]
    header: dict[str, Any] = {
        "min_timestamp_ms": min(offsets, default=-1),
        "max_timestamp_ms": max(offsets, default=-1),
        "attributes": ATTRIBUTE_OFFSET_COLUMN,
        "base_sequence": 3,
    }
    return bytearray(
        encode_batch(
            pa.RecordBatch.from_arrays(columns, schema=SCHEMA),
            schema_id=1,
            base_offset=base,
            last_offset_delta=last - base,
            **{**header, **fields},
        )
    )


def dense(offsets: Sequence[int], span: int) -> bytearray:
    """A batch without the column of offsets; without records it is a gap."""
    rows = [{"key": b"k", "value": b"v%d" % o, "headers": None, "timestamp": o * 1000} for o in offsets]
    return bytearray(
        encode_batch(
            pa.RecordBatch.from_pylist(rows, schema=ENVELOPE_SCHEMA),
            schema_id=1,
            base_offset=offsets[0] if offsets else 0,
            last_offset_delta=span - 1,
            min_timestamp_ms=-1,
            max_timestamp_ms=max(offsets, default=-1),
            base_sequence=3,
        )
    )


def gap(base: int, span: int) -> bytearray:
    """A gap without the column of offsets."""
    data = dense([], span)
    stamp_batch(data, 0, decode_header(data), base_offset=base, leader_epoch=0, append_time_ms=0)
    return data


def append_at(log: PartitionLog, *batches: bytearray, offset: int) -> None:
    log.appender.append_at(bytearray(b"".join(batches)), offset)
    log.raise_high_watermark(log.log_end_offset)


def offsets_of(log: PartitionLog) -> list[int]:
    return [row.offset for row in stored(log)]


@pytest.mark.parametrize("restart", ["no", "clean", "crash"])
def test_batches_keep_their_offsets_with_gaps_everywhere(tmp_path: Path, restart: str) -> None:
    log = open_log(tmp_path, {"index.interval.bytes": 1})
    append_at(log, placed([2, 3, 7], 0, 9), placed([10], 10, 10), offset=0)
    append_at(log, placed([], 11, 20), offset=11)
    append_at(log, placed([25], 21, 30), offset=21)
    if restart != "no":
        if restart == "clean":
            log.close()
        log = open_log(tmp_path, {"index.interval.bytes": 1}, clean=restart == "clean")
    assert log.log_end_offset == 31 and log.log_start_offset == 0
    assert offsets_of(log) == [2, 3, 7, 10, 25]
    assert [header.base_sequence for header, _ in read_all(log)] == [3, 3, 3, 3]
    for position in range(31):
        rest = [h.base_offset for h, _ in read_all(log, offset=position)]
        assert rest[0] <= position
    assert log.reader.offset_for_timestamp(8).offset == 10
    append_at(log, placed([31], 31, 31), offset=31)
    assert offsets_of(log)[-1] == 31


@pytest.mark.parametrize("restart", ["no", "clean", "crash"])
def test_dense_batches_and_gaps_between_them_share_a_segment(tmp_path: Path, restart: str) -> None:
    log = open_log(tmp_path)
    append_at(log, dense([0, 1], 2), gap(2, 1), dense([3], 1), gap(4, 100), offset=0)
    if restart != "no":
        if restart == "clean":
            log.close()
        log = open_log(tmp_path, clean=restart == "clean")
    append_at(log, dense([104], 1), offset=104)
    assert offsets_of(log) == [0, 1, 3, 104] and log.log_end_offset == 105
    assert log.segment_count == 1
    follower = open_log(tmp_path / "follower")
    follower.replica.append(dense([0], 1) + gap(1, 7))
    assert follower.log_end_offset == 8


def test_append_times_that_are_timestamps_stay(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_at(log, placed([0], 0, 0, attributes=BY_BROKER, append_time_ms=123), placed([1], 1, 1), offset=0)
    times = [header.append_time_ms for header, _ in read_all(log)]
    assert times[0] == 123 and times[1] > 123


def test_a_log_that_ends_elsewhere_refuses_the_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_at(log, placed([0], 0, 4), offset=0)
    for offset, batch in ((0, placed([0], 0, 4)), (9, placed([9], 9, 9))):
        with pytest.raises(OffsetOutOfRangeError, match="ends at 5"):
            append_at(log, batch, offset=offset)
    append_at(log, placed([5], 5, 5), offset=5)
    assert offsets_of(log) == [0, 5]


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (placed([1], 1, 1), InvalidRequestError),
        (dense([0, 1], span=3), InvalidRequestError),
        (placed([0], 0, 0, attributes=BY_BROKER, append_time_ms=-1), InvalidRequestError),
        (placed([0], 0, 0, attributes=ATTRIBUTE_OFFSET_COLUMN | ATTRIBUTE_TRANSACTIONAL), InvalidRequestError),
        (placed([0], 0, 0, attributes=ATTRIBUTE_OFFSET_COLUMN | ATTRIBUTE_CONTROL), InvalidRequestError),
        (placed([0], 0, 0, producer_id=7, producer_epoch=0), InvalidRequestError),
        (placed([0, 1], 0, 1) + placed([3], 3, 3), InvalidRequestError),
        (placed([1, 0], 0, 1), CorruptBatchError),
        (placed([0, 2], 0, 1), CorruptBatchError),
        (placed([0, 0], 0, 1), CorruptBatchError),
        (placed([0], 0, 0, max_timestamp_ms=-2), InvalidRequestError),
    ],
    ids=[
        "later",
        "span",
        "append-time",
        "transactional",
        "control",
        "producer",
        "hole",
        "order",
        "end",
        "twice",
        "time",
    ],
)
def test_a_wrong_batch_is_refused_as_a_whole(tmp_path: Path, batch: bytearray, error: type[SparklogError]) -> None:
    log = open_log(tmp_path)
    with pytest.raises(error):
        append_at(log, batch, offset=0)
    assert log.log_end_offset == 0
    append_at(log, placed([0], 0, 0), offset=0)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_compressed_batches_are_checked(tmp_path: Path, compression: str) -> None:
    log = open_log(tmp_path)
    append_at(log, placed(range(0, 600, 2), 0, 700, compression=compression), offset=0)
    with pytest.raises(CorruptBatchError):
        append_at(log, placed([*range(701, 900), 850], 701, 950, compression=compression), offset=701)
    assert offsets_of(log) == list(range(0, 600, 2))


def test_a_gap_can_be_longer_than_an_index_reaches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    far = 2**31 - 1
    append_at(log, placed([], 0, far), placed([], far + 1, 2 * far), offset=0)
    append_at(log, placed([2 * far + 5], 2 * far + 1, 2 * far + 9), offset=2 * far + 1)
    log.close()
    log = open_log(tmp_path)
    assert (log.log_end_offset, offsets_of(log)) == (2 * far + 10, [2 * far + 5])


def test_a_follower_copies_the_gaps(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader", clock=ManualClock(5000))
    follower = open_log(tmp_path / "follower", clock=ManualClock(9000))
    append_at(leader, placed([2], 0, 4), placed([], 5, 9), offset=0)
    while (piece := leader.reader.read(follower.log_end_offset, 1, to_log_end=True)) is not None:
        follower.replica.append(piece.read())
        piece.release()
    follower.raise_high_watermark(10)
    assert read_all(follower) == read_all(leader)
    assert follower.log_end_offset == 10


def test_a_truncation_ends_at_a_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_at(log, placed([2], 0, 4), placed([7], 5, 9), offset=0)
    assert log.truncation.truncate_to(7) == 5
    log.appender.append_at(placed([6], 5, 8), 5)
    assert log.log_end_offset == 9


def test_compaction_keeps_the_end(tmp_path: Path) -> None:
    log = open_keyed(tmp_path)
    append_at(log, placed([1, 2], 0, 4), placed([5], 5, 9, key=b"other"), placed([], 10, 14), offset=0)
    append_at(log, placed([15], 15, 15), placed([], 16, 19), offset=15)
    compact(log)
    assert offsets_of(log) == [5, 15]
    log.close()
    log = open_keyed(tmp_path)
    assert log.log_end_offset == 20
    append_at(log, placed([22], 20, 24), offset=20)
    assert offsets_of(log)[-1] == 22


def test_a_producer_continues_behind_the_gap(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_at(log, placed([2], 0, 4), offset=0)
    assert log.appender.append(records(2)).base_offset == 5
    log.raise_high_watermark(log.log_end_offset)
    assert offsets_of(log) == [2, 5, 6]
    log.close()
    assert offsets_of(open_log(tmp_path)) == [2, 5, 6]
