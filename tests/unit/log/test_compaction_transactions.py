"""Compaction of a log with transactions: aborted data go, markers stay as long as somebody may need them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.format.batch import ATTRIBUTE_CONTROL, BatchHeader
from sparklog.log.housekeeping.cleaner import due_for_compaction
from sparklog.log.partition_log import PartitionLog
from tests.support.compaction import OWNER, compact, open_keyed, stored
from tests.support.logs import ManualClock
from tests.support.producers import end, produced, send, send_in_transaction

DAY_MS = 86_400_000
SETTINGS = {"delete.retention.ms": 1000}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(DAY_MS)


def headers(log: PartitionLog) -> list[BatchHeader]:
    return [h for s in log.segments for _, h in s.headers_from(None)]


def markers(log: PartitionLog) -> list[int]:
    return [h.base_offset for h in headers(log) if h.attributes & ATTRIBUTE_CONTROL]


def fill(log: PartitionLog) -> None:
    """0 and 1 aborted, 3 committed, all of one key; producers 7 and 8 are forgotten at the end."""
    send_in_transaction(log, 7, 0, rows=2, value=b"aborted")
    end(log, 7, 1, commit=False)  # 2
    send_in_transaction(log, 8, 0, value=b"committed")  # 3
    end(log, 8, 1, commit=True)  # 4
    send(log, produced(-1, -1, epoch=-1, value=b"other", key=b"other"))  # 5


def test_aborted_rows_go_and_delete_no_committed_ones(tmp_path: Path, clock: ManualClock) -> None:
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    send_in_transaction(log, 8, 0, value=b"committed")  # 0
    end(log, 8, 1, commit=True)
    send_in_transaction(log, 7, 0, value=b"aborted")  # 2: newer, the same key
    end(log, 7, 1, commit=False)
    compact(log)
    assert stored(log) == [(0, b"k", b"committed")]
    assert markers(log) == [1, 3]
    assert log.reader.aborted_transactions(0, 4) == [(7, 2, 3)]
    log.close()


def test_a_marker_goes_after_its_data_and_the_horizon(tmp_path: Path, clock: ManualClock) -> None:
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    fill(log)
    assert log.appender.expire_producers(clock.time_ms + 2 * DAY_MS) == 2
    assert compact(log) is not None  # data go, markers have no horizon yet
    assert (stored(log), markers(log)) == ([(3, b"k", b"committed"), (5, b"other", b"other")], [2, 4])
    send(log, produced(-1, -1, epoch=-1, key=b"more"))
    assert compact(log) is not None  # the abort marker has no data any more: its time runs
    assert markers(log) == [2, 4]
    assert log.reader.aborted_transactions(0, 6) == [(7, 0, 2)]
    clock.time_ms += 999
    assert due_for_compaction(log) is None
    clock.time_ms += 1
    assert due_for_compaction(log) is not None
    compact(log, roll=False)
    assert markers(log) == [4]  # the committed one still has data
    assert log.reader.aborted_transactions(0, 6) == []
    assert due_for_compaction(log) is None
    log.close()
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    assert log.reader.aborted_transactions(0, 6) == []
    assert log.last_stable_offset == log.high_watermark
    log.close()


def test_a_committed_marker_goes_when_newer_records_have_replaced_its_data(tmp_path: Path, clock: ManualClock) -> None:
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    fill(log)
    send(log, produced(-1, -1, epoch=-1, value=b"newer"))
    assert log.appender.expire_producers(clock.time_ms + 2 * DAY_MS) == 2
    compact(log)
    send(log, produced(-1, -1, epoch=-1, key=b"more"))
    compact(log)
    clock.time_ms += 1000
    compact(log, roll=False)
    assert markers(log) == []
    assert [v for _, _, v in stored(log)] == [b"other", b"newer", b"v"]
    log.close()


def test_the_last_marker_of_a_live_producer_stays(tmp_path: Path, clock: ManualClock) -> None:
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    fill(log)
    compact(log)
    for _ in range(3):
        send(log, produced(-1, -1, epoch=-1, key=b"more"))
        clock.time_ms += 5000
        compact(log)
    assert markers(log) == [2, 4]
    assert due_for_compaction(log) is None  # and nothing waits for a time that has passed
    producers = log.producers()
    log.close()
    for path in (tmp_path / OWNER.directory_name).glob("*.snapshot"):
        path.unlink()
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    assert log.producers() == producers
    log.close()


def test_an_open_transaction_stops_compaction(tmp_path: Path, clock: ManualClock) -> None:
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    send_in_transaction(log, 7, 0, value=b"open")
    send(log, produced(-1, -1, epoch=-1, value=b"newer"))
    assert compact(log) is None
    end(log, 7, 1, commit=False)
    compact(log)
    assert stored(log) == [(1, b"k", b"newer")]
    log.close()


@pytest.mark.parametrize("snapshots", [True, False])
def test_the_last_batch_of_a_producer_keeps_its_sequence(tmp_path: Path, clock: ManualClock, snapshots: bool) -> None:
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    for n in range(8):
        send(log, produced(7, n))
    send(log, produced(-1, -1, epoch=-1, value=b"newer"))
    compact(log)
    assert [(h.base_offset, h.record_count) for h in headers(log)] == [(7, 0), (8, 1)]
    log.close()
    if not snapshots:
        for path in (tmp_path / OWNER.directory_name).glob("*.snapshot"):
            path.unlink()
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    assert send(log, produced(7, 7)).duplicate
    assert not send(log, produced(7, 8)).duplicate
    log.close()


def test_the_rest_of_an_aborted_transaction_opens_none(tmp_path: Path, clock: ManualClock) -> None:
    """All of the log is replayed, and a batch that has lost its rows comes before a marker that is gone."""
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    send_in_transaction(log, 7, 0, value=b"aborted")
    log.appender.begin_segment()
    end(log, 7, 1, commit=False)
    log.appender.begin_segment()
    assert log.appender.expire_producers(clock.time_ms + 2 * DAY_MS) == 1
    for _ in range(4):
        compact(log, roll=False)
        clock.time_ms += 1000
    log.close()
    for path in (tmp_path / OWNER.directory_name).glob("*.snapshot"):
        path.unlink()
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    assert log.last_stable_offset == log.high_watermark == 2
    log.close()


def test_merged_segments_have_one_file_of_aborted_transactions(tmp_path: Path, clock: ManualClock) -> None:
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    for n in range(4):
        send_in_transaction(log, 7, 0, epoch=n)
        end(log, 7, n + 1, commit=False)
        log.appender.begin_segment()
    aborted = log.reader.aborted_transactions(0, 8)
    compact(log, roll=False)
    names = [p.name for p in (tmp_path / OWNER.directory_name).glob("*.txnindex")]
    assert names == [f"{0:020d}.txnindex"]
    assert log.reader.aborted_transactions(0, 8) == aborted
    log.close()
    log = open_keyed(tmp_path, SETTINGS, clock=clock)
    assert log.reader.aborted_transactions(0, 8) == aborted
    log.close()
