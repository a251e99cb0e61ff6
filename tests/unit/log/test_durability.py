"""Times at which appends reach the disk: flush.mode, flush.messages, flush.ms, rolled segments, and shared fsyncs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sparklog.log.model.flush_policy import FlushPolicy
from sparklog.log.partition_log import PartitionLog
from tests.support.logs import LimitedFiles, ManualClock, open_log, records


def opened(
    tmp_path: Path, settings: dict[str, Any], clock: ManualClock | None = None
) -> tuple[PartitionLog, list[str]]:
    files = LimitedFiles()
    log = open_log(tmp_path, settings, files=files, clock=clock)
    log.appender.append(records(1))  # with the first one the leader epoch is written, too
    log.flusher.flush()
    files.synced.clear()
    return log, files.synced


def append(log: PartitionLog, count: int) -> None:
    info = log.appender.append(records(count))
    log.flusher.make_durable(info.last_offset + 1)


@pytest.mark.parametrize(
    ("policy", "unflushed", "due"),
    [
        (FlushPolicy(), 10**9, False),
        (FlushPolicy(group=True), 1, True),
        (FlushPolicy(group=True), 0, False),
        (FlushPolicy(messages=5), 4, False),
        (FlushPolicy(messages=5), 5, True),
        (FlushPolicy(messages=5), -3, False),
    ],
)
def test_conditions_of_an_acknowledgement(policy: FlushPolicy, unflushed: int, due: bool) -> None:
    assert policy.due_after_append(unflushed) == due
    assert policy.at_append == (policy.group or policy.messages >= 0)


def test_by_default_no_append_waits(tmp_path: Path) -> None:
    log, synced = opened(tmp_path, {})
    append(log, 50)
    assert (synced, log.flushed_offset) == ([], 1)
    assert not log.flusher.flush_if_due()


def test_in_group_mode_an_append_is_on_the_disk(tmp_path: Path) -> None:
    log, synced = opened(tmp_path, {"flush.mode": "group"})
    for i in range(3):
        append(log, 2)
        assert (log.flushed_offset, len(synced)) == (log.log_end_offset, i + 1)


def test_appends_that_wait_share_one_fsync(tmp_path: Path) -> None:
    log, synced = opened(tmp_path, {"flush.mode": "group"})
    ends = [log.appender.append(records(2)).last_offset + 1 for _ in range(20)]
    for end in ends:
        log.flusher.make_durable(end)
    assert (log.flushed_offset, len(synced)) == (41, 1)


def test_a_waiter_for_a_running_fsync_does_not_repeat_it(tmp_path: Path) -> None:
    started, gate = threading.Event(), threading.Event()

    class SlowFiles(LimitedFiles):
        waits = False

    files = SlowFiles()
    log = open_log(tmp_path, {"flush.mode": "group"}, files=files)
    end = log.appender.append(records(2)).last_offset + 1
    segment = log.local_segments[0]
    original = segment.hold_for_sync

    def slow() -> object:
        started.set()
        gate.wait(30)
        return original()

    segment.hold_for_sync = slow  # type: ignore[method-assign, assignment]
    files.synced.clear()
    threads = [threading.Thread(target=log.flusher.make_durable, args=(end,)) for _ in range(4)]
    threads[0].start()
    assert started.wait(30)
    for thread in threads[1:]:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(30)
    assert files.synced == ["00000000000000000000.arrow"]
    assert log.flushed_offset == end


def test_flush_messages_counts_records(tmp_path: Path) -> None:
    log, synced = opened(tmp_path, {"flush.messages": 5})
    append(log, 2)
    append(log, 2)
    assert (synced, log.flushed_offset) == ([], 1)
    assert log.durable_end_offset == 5, "fewer records may be acknowledged without an fsync"
    append(log, 1)
    assert (len(synced), log.flushed_offset) == (1, 6)
    append(log, 4)
    assert len(synced) == 1
    assert log.durable_end_offset == 10


def test_records_that_wait_for_an_fsync_are_not_acknowledged() -> None:
    by_number, group, never = FlushPolicy(messages=5), FlushPolicy(group=True), FlushPolicy()
    assert [by_number.durable_end(10, written) for written in (10, 14, 15, 20)] == [10, 14, 10, 10]
    assert [group.durable_end(10, written) for written in (10, 11)] == [10, 10]
    assert never.durable_end(10, 1_000_000) == 1_000_000


def test_flush_ms_counts_from_the_first_record_that_waits(tmp_path: Path) -> None:
    clock = ManualClock()
    log, synced = opened(tmp_path, {"flush.ms": 100}, clock)
    clock.time_ms += 1000
    assert not log.flusher.has_work
    assert not log.flusher.flush_if_due()  # nothing waits
    append(log, 1)
    assert log.flusher.has_work
    clock.time_ms += 60
    append(log, 1)
    assert not log.flusher.flush_if_due()
    clock.time_ms += 40
    assert log.flusher.flush_if_due()
    assert (len(synced), log.flushed_offset) == (1, 3)
    assert not log.flusher.has_work
    assert not log.flusher.flush_if_due()


def test_rolled_segments_are_synced_soon_the_active_one_is_not(tmp_path: Path) -> None:
    log, synced = opened(tmp_path, {})
    append(log, 1)
    assert not log.flusher.flush_if_due()
    log.appender.roll()
    append(log, 3)
    assert log.flusher.has_work
    assert log.flusher.flush_if_due()
    assert synced == [*(f"{0:020d}.{ending}" for ending in ("arrow", "index", "timeindex")), f"{5:020d}.snapshot"]
    assert (log.flushed_offset, log.recovery_point, log.log_end_offset) == (2, 2, 5)


def test_settings_can_be_changed_while_running(tmp_path: Path) -> None:
    from sparklog.log.model.log_config import LogConfig

    log, synced = opened(tmp_path, {})
    append(log, 1)
    log.reconfigure(LogConfig.from_settings({"flush.mode": "group"}))
    append(log, 1)
    assert (len(synced), log.flushed_offset) == (1, 3)


def test_a_segment_that_goes_while_it_is_flushed_does_no_harm(tmp_path: Path) -> None:
    log, _ = opened(tmp_path, {"file.delete.delay.ms": 0, "retention.bytes": 0})
    append(log, 3)
    log.appender.roll()
    append(log, 3)
    log.raise_high_watermark(log.log_end_offset)
    segment = log.local_segments[0]
    original = segment.hold_for_sync

    def hold() -> object:
        held = original()
        segment.delete()  # retention, the moment after
        return held

    segment.hold_for_sync = hold  # type: ignore[method-assign, assignment]
    log.flusher.flush()
    assert log.flushed_offset == 7
