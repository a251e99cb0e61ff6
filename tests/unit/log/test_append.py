"""Appending: offsets, stamps, refusals, rolls, and the undoing when the disk fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.errors import (
    BrokerShuttingDownError,
    CorruptBatchError,
    InvalidRequestError,
    InvalidTimestampError,
    MessageTooLargeError,
    SparklogError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    UnknownSchemaError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_OFFSET_COLUMN,
    ATTRIBUTE_TRANSACTIONAL,
    encode_batch,
    iterate_batches,
)
from sparklog.format.offset_index import RELATIVE_OFFSET_MAX
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.state.check import fits
from tests.support.logs import (
    LimitedFiles,
    ManualClock,
    append,
    batch,
    open_log,
    read_all,
    records,
    segment_files,
    values,
)


def test_offsets_are_dense_and_stamped_in_place(tmp_path: Path) -> None:
    log = open_log(tmp_path, clock=ManualClock(5000))
    log.appender.append(records(3))
    payload = records(2) + records(4)
    info = log.appender.append(payload, leader_epoch=7)
    assert info == AppendInfo(3, 8, 5000, 2, 6, size_bytes=len(payload))
    stamped = [h for _, h in iterate_batches(payload)]
    assert [(h.base_offset, h.leader_epoch, h.append_time_ms) for h in stamped] == [(3, 7, 5000), (5, 7, 5000)]
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 0, 9)
    log.raise_high_watermark(9)
    assert [h for h, _ in read_all(log)][1:] == stamped


def test_append_time_never_goes_back(tmp_path: Path) -> None:
    clock = ManualClock(5000)
    log = open_log(tmp_path, clock=clock)
    log.appender.append(records(1))
    clock.time_ms = 4000
    assert log.appender.append(records(1)).append_time_ms == 5000
    log.close()
    assert open_log(tmp_path, clock=clock).appender.append(records(1)).append_time_ms == 5000


def unknown_schema() -> bytearray:
    columns = pa.record_batch([pa.nulls(1, f.type) for f in ENVELOPE_SCHEMA], schema=ENVELOPE_SCHEMA)
    return bytearray(encode_batch(columns, schema_id=9, min_timestamp_ms=0, max_timestamp_ms=0))


def impossible_times() -> bytearray:
    columns = pa.record_batch([pa.nulls(1, f.type) for f in ENVELOPE_SCHEMA], schema=ENVELOPE_SCHEMA)
    return bytearray(encode_batch(columns, schema_id=1, min_timestamp_ms=5, max_timestamp_ms=4))


def flipped() -> bytearray:
    data = records(3)
    data[-9] ^= 1
    return data


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (flipped, CorruptBatchError),
        (lambda: records(3)[:-8], CorruptBatchError),
        (lambda: bytearray(b"garbage, no batch at all"), CorruptBatchError),
        (lambda: bytearray(), InvalidRequestError),
        (unknown_schema, UnknownSchemaError),
        (impossible_times, InvalidRequestError),
        (lambda: records(1, value=b"x" * 5000), MessageTooLargeError),
        (lambda: records(1, attributes=ATTRIBUTE_CONTROL), InvalidRequestError),
        (lambda: records(1, attributes=ATTRIBUTE_TRANSACTIONAL), InvalidRequestError),
        (lambda: records(1, attributes=ATTRIBUTE_OFFSET_COLUMN), InvalidRequestError),
        (lambda: records(1, attributes=1 << 9), InvalidRequestError),
        (lambda: records(1, attributes=ATTRIBUTE_LOG_APPEND_TIME), InvalidRequestError),
    ],
)
def test_a_payload_with_a_bad_batch_is_refused_as_a_whole(
    tmp_path: Path, bad: Callable[[], bytearray], error: type[SparklogError]
) -> None:
    log = open_log(tmp_path, {"max.message.bytes": 4096})
    append(log, records(2))
    before = segment_files(tmp_path)[0].read_bytes()
    data = bad()
    with pytest.raises(error):
        log.appender.append(bytearray(records(2) + data) if data else data)
    assert segment_files(tmp_path)[0].read_bytes() == before
    assert log.log_end_offset == 2
    assert append(log, records(1)) == 2


def test_too_large_names_both_sizes(tmp_path: Path) -> None:
    with pytest.raises(MessageTooLargeError, match=r"a batch of \d+ bytes; the topic's max\.message\.bytes is 4096"):
        open_log(tmp_path, {"max.message.bytes": 4096}).appender.append(records(1, value=b"x" * 5000))


def test_log_append_time_needs_the_producers_bit(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"message.timestamp.type": "LogAppendTime"}, clock=ManualClock(77))
    with pytest.raises(InvalidRequestError, match="LogAppendTime"):
        log.appender.append(records(1))
    append(log, records(2, attributes=ATTRIBUTE_LOG_APPEND_TIME))
    assert log.reader.offset_for_timestamp(77) == (0, 77)
    assert log.reader.offset_for_timestamp(78) == (-1, -1)


def test_rolls_before_segment_bytes_is_passed(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"segment.bytes": 8192})
    for _ in range(40):
        append(log, records(3))
    assert log.segment_count > 3
    sizes = [s.end.position for s in log.segments]
    assert max(sizes) <= 8192
    assert min(sizes[:-1]) > 8192 - 2 * len(records(3))
    assert len(values(log)) == 120


def test_one_payload_is_split_over_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"segment.bytes": 8192})
    append(log, *(records(3, value=bytes([i])) for i in range(40)))
    assert log.segment_count > 3
    assert max(s.end.position for s in log.segments) <= 8192
    assert values(log) == [(i, bytes([i // 3])) for i in range(120)]


def test_a_batch_larger_than_a_segment_has_one_of_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"segment.bytes": 4096})
    for _ in range(3):
        append(log, records(1, value=b"x" * 9000))
    assert [s.base_offset for s in log.segments] == [0, 1, 2]


def test_rolls_by_record_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"segment.ms": 1000})
    for t in (5000, 6000, 5500, 6001, 7001, 7002):
        append(log, batch([t]))
    assert [s.base_offset for s in log.segments] == [0, 3, 5]


def test_time_roll_holds_across_a_clean_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"segment.ms": 1000})
    append(log, batch([5000]))
    log.close()
    log = open_log(tmp_path, {"segment.ms": 1000})
    append(log, batch([5900]))
    assert log.segment_count == 1
    log.close()
    log = open_log(tmp_path, {"segment.ms": 1000})
    append(log, batch([6001]))
    assert log.segment_count == 2
    assert len(values(log)) == 3


def test_rolls_when_the_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"segment.index.bytes": 64, "index.interval.bytes": 1})
    for _ in range(30):
        append(log, records(1))
    assert [s.base_offset for s in log.segments] == [0, 9, 18, 27]


def test_rolls_for_another_schema_and_within_one_payload(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(2), records(2), records(2, schema_id=2), records(1))
    append(log, records(1))
    assert [(s.base_offset, s.info.schema_id) for s in log.segments] == [(0, 1), (4, 2), (6, 1)]
    assert [h.schema_id for h, _ in read_all(log)] == [1, 1, 2, 1, 1]


def test_rolls_when_a_relative_offset_would_not_fit(tmp_path: Path) -> None:
    """No test can append that many records: the rule is asked."""
    log = open_log(tmp_path)
    append(log, records(4))
    segment = log._state.segments.active
    assert segment is not None
    _, header = next(iterate_batches(records(4)))
    for last_offset, expected in ((RELATIVE_OFFSET_MAX, True), (RELATIVE_OFFSET_MAX + 1, False)):
        placed = header._replace(base_offset=last_offset - 3)
        assert (placed.last_offset, fits(segment, placed, 0, log.config)) == (last_offset, expected)


def test_roll_by_hand(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.appender.roll()
    append(log, records(1))
    log.appender.roll()
    log.appender.roll()
    append(log, records(1))
    assert [s.base_offset for s in log.segments] == [0, 1]


@pytest.mark.parametrize("room", [0, 1, 700, 3000])
def test_disk_full_takes_the_append_back(tmp_path: Path, room: int) -> None:
    files = LimitedFiles()
    log = open_log(tmp_path, {"segment.bytes": 4096}, files=files)
    append(log, records(1, value=b"before"))
    before = {p.name: p.read_bytes() for p in segment_files(tmp_path)}
    files.free_bytes = room
    with pytest.raises(StorageFullError, match="full"):
        log.appender.append(
            records(1, value=b"x" * 2000) + records(1, value=b"y" * 3000)
        )  # the second one needs a new segment
    assert {p.name: p.read_bytes() for p in segment_files(tmp_path)} == before
    assert log.log_end_offset == 1
    assert values(log) == [(0, b"before")]
    files.free_bytes = 1 << 30
    append(log, records(1, value=b"after"))
    assert values(log) == [(0, b"before"), (1, b"after")]
    log.close()
    assert values(open_log(tmp_path)) == [(0, b"before"), (1, b"after")]


@pytest.mark.parametrize("room", range(0, 9000, 150))
def test_disk_full_at_any_point_of_a_payload_over_three_segments(tmp_path: Path, room: int) -> None:
    files = LimitedFiles()
    log = open_log(tmp_path, {"segment.bytes": 4096}, files=files)
    append(log, records(2, first_ms=50, value=b"0"))
    log.close()
    log = open_log(tmp_path, {"segment.bytes": 4096}, files=files)  # so that the segment is un-sealed, too
    files.free_bytes = room
    payload = b"".join(records(1, first_ms=100 * i, value=bytes([i]) * 1500) for i in range(1, 7))
    with pytest.raises(StorageFullError):
        log.appender.append(bytearray(payload))
    assert len(segment_files(tmp_path)) == 1
    assert log.reader.offset_of_max_timestamp() == (1, 51)
    files.free_bytes = 1 << 30
    append(log, bytearray(payload))
    reopened = open_log(tmp_path, clean=False)
    for found in (log, reopened):
        assert [o for o, _ in values(found)] == list(range(8))
        assert found.reader.offset_of_max_timestamp() == (7, 600)
        assert found.reader.offset_for_timestamp(250) == (4, 300)


def test_an_append_that_cannot_be_undone_at_once_is_undone_later(tmp_path: Path) -> None:
    files = LimitedFiles()
    log = open_log(tmp_path, files=files)
    append(log, records(1))
    files.free_bytes, files.fail_truncate = 10, True
    for _ in range(2):
        with pytest.raises(StorageUnavailableError, match="not undone yet"):
            log.appender.append(records(1))
    assert log.write_error is not None
    size = segment_files(tmp_path)[0].stat().st_size
    files.free_bytes, files.fail_truncate = 1 << 30, False
    log.flusher.recover_writes()
    assert log.write_error is None
    assert segment_files(tmp_path)[0].stat().st_size == size - 10
    assert append(log, records(1)) == 1
    assert len(values(log)) == 2
    assert len(values(open_log(tmp_path, clean=False))) == 2


def test_when_taking_back_is_in_doubt_the_log_stops(tmp_path: Path) -> None:
    files = LimitedFiles()
    log = open_log(tmp_path, files=files)
    append(log, records(1))
    files.free_bytes, files.fail_sync = 10, True
    with pytest.raises(StorageError, match="could not be undone"):
        log.appender.append(records(1))
    files.free_bytes, files.fail_sync = 1 << 30, False
    with pytest.raises(StorageError, match="could not be undone"):
        log.appender.append(records(1))
    assert len(values(log)) == 1
    reopened = open_log(tmp_path, clean=False)
    assert append(reopened, records(1)) == 1


def test_disk_full_while_sealing_leaves_an_unsealed_segment(tmp_path: Path) -> None:
    files = LimitedFiles()
    log = open_log(tmp_path, files=files)
    append(log, records(3))
    data = segment_files(tmp_path)[0].read_bytes()
    files.free_bytes = 40
    with pytest.raises(StorageFullError):
        log.close()
    assert segment_files(tmp_path)[0].read_bytes() == data
    assert len(values(open_log(tmp_path, clean=False))) == 3


FIRST, SECOND = ([f"{base:020d}.{ending}" for ending in ("arrow", "index", "timeindex")] for base in (0, 3))


def test_a_flush_of_rolled_segments_syncs_each_once_and_moves_the_recovery_point(tmp_path: Path) -> None:
    files = LimitedFiles()
    log = open_log(tmp_path, files=files)
    append(log, records(3))
    files.synced.clear()
    log.flusher.flush(active=False)
    assert (log.recovery_point, files.synced) == (0, [])
    log.appender.roll()
    append(log, records(2))
    log.flusher.flush(active=False)
    log.flusher.flush(active=False)
    assert (log.recovery_point, files.synced) == (3, [*FIRST, f"{5:020d}.snapshot"])
    log.close()
    assert log.recovery_point == 5
    assert files.synced[4:] == SECOND


def test_a_flush_syncs_the_active_segment_too_but_only_new_data(tmp_path: Path) -> None:
    files = LimitedFiles()
    log = open_log(tmp_path, files=files)
    append(log, records(3))
    files.synced.clear()
    assert (log.flushed_offset, log.recovery_point) == (0, 0)
    log.flusher.flush()
    log.flusher.flush()
    assert (log.flushed_offset, log.recovery_point, files.synced) == (3, 3, FIRST[:1])
    append(log, records(2))
    assert (log.flushed_offset, log.recovery_point) == (3, 3)
    log.flusher.flush()
    assert (log.flushed_offset, log.recovery_point, files.synced) == (5, 5, FIRST[:1] * 2)


def test_after_a_failed_fsync_appends_are_refused(tmp_path: Path) -> None:
    files = LimitedFiles()
    log = open_log(tmp_path, files=files)
    append(log, records(3))
    log.appender.roll()
    files.fail_sync = True
    with pytest.raises(StorageError, match="failed fsync"):
        log.flusher.flush()
    files.fail_sync = False
    files.synced.clear()
    assert not log.flusher.flush_if_due()
    for use in (log.flusher.flush, lambda: log.appender.append(records(1)), lambda: log.truncation.truncate_to(1)):
        with pytest.raises(StorageError, match="failed fsync"):
            use()
        assert files.synced == []
    assert len(values(log)) == 3
    assert log.recovery_point == 0
    with pytest.raises(StorageError, match="failed fsync"):
        log.close()
    assert files.synced == []


def test_a_closed_or_deleted_log_says_so(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(1))
    log.close()
    log.close()
    with pytest.raises(BrokerShuttingDownError):
        log.appender.append(records(1))
    with pytest.raises(BrokerShuttingDownError):
        log.reader.read(0, 1)
    log = open_log(tmp_path)
    log.mark_deleted()
    with pytest.raises(UnknownTopicOrPartitionError):
        log.reader.read(0, 1)
    with pytest.raises(UnknownTopicOrPartitionError):
        log.appender.append(records(1))


def test_flush_after_an_append_was_taken_back_over_a_roll(tmp_path: Path) -> None:
    files = LimitedFiles()
    log = open_log(tmp_path, {"segment.bytes": 4096}, files=files)
    append(log, records(1))
    files.free_bytes = 8000
    with pytest.raises(StorageFullError):
        log.appender.append(bytearray(b"".join(records(1, value=b"x" * 2000) for _ in range(6))))
    files.free_bytes = 1 << 30
    log.flusher.flush()
    assert append(log, records(1)) == 1


def test_a_timestamp_too_far_ahead_is_refused(tmp_path: Path) -> None:
    now_ms = ManualClock().time_ms
    log = open_log(tmp_path)
    hour_ms = 3_600_000
    append(log, batch([now_ms, now_ms + hour_ms]))
    with pytest.raises(InvalidTimestampError, match="3600001 ms ahead"):
        append(log, batch([now_ms]), batch([now_ms + hour_ms + 1]))
    assert log.log_end_offset == 2
    other = open_log(tmp_path / "other", {"message.timestamp.after.max.ms": 5})
    append(other, batch([now_ms + 5]))
    with pytest.raises(InvalidTimestampError, match=r"after\.max\.ms is 5"):
        append(other, batch([now_ms + 6]))
    stamped = open_log(tmp_path / "stamped", {"message.timestamp.type": "LogAppendTime"})
    append(stamped, batch([now_ms + 10 * hour_ms], attributes=ATTRIBUTE_LOG_APPEND_TIME))
