"""Transactions in one log: markers, the last stable offset, aborted ranges, verification."""

from __future__ import annotations

from pathlib import Path

import polars
import pyarrow as pa
import pytest

from sparklog.errors import (
    ConcurrentTransactionsError,
    CoordinatorFencedError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
from sparklog.format.batch import ATTRIBUTE_COMMIT, ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, encode_marker
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.partition_log import PartitionLog
from sparklog.types import OffsetAndTimestamp
from tests.support.logs import ManualClock, open_log, read_all, records
from tests.support.producers import end, produced, send, send_in_transaction


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path)


def test_an_open_transaction_holds_the_last_stable_offset(log: PartitionLog) -> None:
    send(log, records(2))
    assert log.last_stable_offset == 2
    send_in_transaction(log, 7, 0, rows=3)
    send(log, records(2))
    assert (log.last_stable_offset, log.high_watermark) == (2, 7)
    end(log, 7, 1, commit=True)
    assert log.last_stable_offset == log.high_watermark == 8
    assert log.reader.aborted_transactions(0, 8) == []


def test_the_oldest_open_transaction_counts(log: PartitionLog) -> None:
    send_in_transaction(log, 7, 0)
    send_in_transaction(log, 8, 0)
    end(log, 8, 1, commit=True)
    assert log.last_stable_offset == 0
    end(log, 7, 1, commit=False)
    assert log.last_stable_offset == 4
    assert log.reader.aborted_transactions(0, 4) == [(7, 0, 3)]


def test_a_decision_counts_when_its_marker_is_below_the_high_watermark(log: PartitionLog) -> None:
    send_in_transaction(log, 7, 0)
    info = log.appender.append_marker(7, 1, 0, commit=True)
    assert log.last_stable_offset == 0
    log.raise_high_watermark(info.last_offset)
    assert log.last_stable_offset == 0
    log.raise_high_watermark(info.last_offset + 1)
    assert log.last_stable_offset == 2


def test_a_marker_is_a_batch_without_rows(log: PartitionLog, tmp_path: Path) -> None:
    send_in_transaction(log, 7, 0, rows=2)
    info = end(log, 7, 1, commit=True, coordinator_epoch=4)
    assert (info.base_offset, info.last_offset, info.record_count, info.duplicate) == (2, 2, 0, False)
    header, _ = read_all(log)[-1]
    assert header.attributes == ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL | ATTRIBUTE_COMMIT
    assert (header.record_count, header.last_offset_delta) == (0, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 4)
    send(log, records(1))
    log.close()
    path = tmp_path / "events-0" / f"{0:020d}.arrow"
    with pa.OSFile(str(path)) as source:
        assert pa.ipc.open_file(source).read_all().num_rows == 3
    assert polars.read_ipc(path).height == 3


def test_reads_end_at_a_bound(log: PartitionLog) -> None:
    send(log, records(2))
    send_in_transaction(log, 7, 0, rows=2)
    piece = log.reader.read(0, 1 << 20, end=log.last_stable_offset)
    assert piece is not None
    assert piece.next_offset == 2
    piece.release()
    assert log.reader.read(2, 1 << 20, end=log.last_stable_offset) is None
    assert log.reader.bytes_available(2, end=2) == 0
    assert 0 < log.reader.bytes_available(0, end=2) < log.reader.bytes_available(0)


def test_a_client_cannot_append_a_marker(log: PartitionLog) -> None:
    marker = encode_marker(
        ENVELOPE_SCHEMA,
        schema_id=1,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        commit=True,
        timestamp_ms=1,
    )
    with pytest.raises(InvalidRequestError, match="attributes"):
        log.appender.append(marker)
    with pytest.raises(InvalidRequestError, match="attributes"):
        log.appender.append_internal(marker)


def test_a_marker_in_an_empty_log_and_of_an_unknown_producer(log: PartitionLog) -> None:
    assert end(log, 7, 1, commit=False).base_offset == 0
    assert log.reader.aborted_transactions(0, 1) == []
    with pytest.raises(InvalidProducerEpochError):
        send_in_transaction(log, 7, 0, epoch=0)
    send_in_transaction(log, 7, 0, epoch=1)


def test_a_marker_again_is_not_written_twice(log: PartitionLog) -> None:
    send_in_transaction(log, 7, 0)
    first = end(log, 7, 1, commit=True)
    again = end(log, 7, 1, commit=True)
    assert (again.base_offset, again.duplicate, log.log_end_offset) == (first.base_offset, True, 2)


def test_a_marker_must_have_a_newer_epoch(log: PartitionLog) -> None:
    send_in_transaction(log, 7, 0, epoch=3)
    for epoch in (2, 3):
        with pytest.raises(InvalidProducerEpochError):
            end(log, 7, epoch, commit=True)
    end(log, 7, 4, commit=True)
    with pytest.raises(InvalidProducerEpochError):
        end(log, 7, 3, commit=True)


def test_a_marker_of_an_older_coordinator_is_refused(log: PartitionLog) -> None:
    send_in_transaction(log, 7, 0)
    end(log, 7, 1, commit=True, coordinator_epoch=5)
    send_in_transaction(log, 7, 0, epoch=1)
    with pytest.raises(CoordinatorFencedError):
        end(log, 7, 2, commit=False, coordinator_epoch=4)
    end(log, 7, 2, commit=False, coordinator_epoch=5)


def test_after_a_marker_the_sequence_begins_again(log: PartitionLog) -> None:
    send_in_transaction(log, 7, 0)
    end(log, 7, 1, commit=True)
    with pytest.raises(OutOfOrderSequenceError):
        send_in_transaction(log, 7, 1, epoch=1)
    send_in_transaction(log, 7, 0, epoch=1)


def test_a_producer_that_keeps_its_epoch_goes_on_counting(log: PartitionLog) -> None:
    send_in_transaction(log, 7, 0, epoch=3, rows=2)
    end(log, 7, 3, commit=True, keeps_epoch=True)
    assert log.last_stable_offset == 3
    with pytest.raises(OutOfOrderSequenceError):
        send_in_transaction(log, 7, 0, epoch=3)
    send_in_transaction(log, 7, 2, epoch=3)
    assert log.last_stable_offset == 3
    end(log, 7, 3, commit=False, keeps_epoch=True)
    assert log.reader.aborted_transactions(0, 5) == [(7, 3, 4)]
    with pytest.raises(InvalidProducerEpochError):
        end(log, 7, 2, commit=True, keeps_epoch=True)


def test_a_delayed_marker_of_a_kept_epoch_does_not_end_the_next_transaction(log: PartitionLog) -> None:
    for started_ms in (1_000, 2_000):
        guard = log.appender.begin_verification(7, 0)
        assert guard is not None
        guard.started_ms = started_ms
        log.appender.append(produced(7, started_ms // 1_000 - 1, epoch=0, transactional=True), guard=guard)
        if started_ms == 1_000:
            end(log, 7, 0, commit=True, keeps_epoch=True, started_ms=1_000)
    with pytest.raises(InvalidProducerEpochError, match="began after"):
        end(log, 7, 0, commit=True, keeps_epoch=True, started_ms=1_000)
    end(log, 7, 0, commit=False, keeps_epoch=True, started_ms=2_000)
    assert log.reader.aborted_transactions(0, 4) == [(7, 2, 3)]


def test_a_marker_of_a_kept_epoch_voids_a_guard_without_an_open_transaction(log: PartitionLog) -> None:
    send_in_transaction(log, 7, 0)
    end(log, 7, 0, commit=True, keeps_epoch=True)
    guard = log.appender.begin_verification(7, 0)
    end(log, 7, 0, commit=False, keeps_epoch=True)
    with pytest.raises(InvalidTxnStateError, match="has ended"):
        log.appender.append(produced(7, 1, epoch=0, transactional=True), guard=guard)


def test_the_first_batch_needs_a_verification_and_later_ones_none(log: PartitionLog) -> None:
    with pytest.raises(InvalidTxnStateError):
        send(log, produced(7, 0, transactional=True))
    guard = log.appender.begin_verification(7, 0)
    log.appender.append(produced(7, 0, transactional=True), guard=guard)
    assert log.appender.begin_verification(7, 0) is None
    send(log, produced(7, 1, transactional=True))


def test_a_marker_makes_a_guard_void(log: PartitionLog) -> None:
    guard = log.appender.begin_verification(7, 1)
    end(log, 7, 1, commit=False)  # e.g. the transaction timed out meanwhile
    with pytest.raises(InvalidTxnStateError):
        log.appender.append(produced(7, 0, epoch=1, transactional=True), guard=guard)
    assert log.last_stable_offset == log.high_watermark


def test_a_guard_is_for_one_producer_and_epoch(log: PartitionLog) -> None:
    guard = log.appender.begin_verification(7, 0)
    with pytest.raises(InvalidTxnStateError):
        log.appender.append(produced(8, 0, transactional=True), guard=guard)
    with pytest.raises(InvalidTxnStateError):
        log.appender.append(produced(7, 0, epoch=1, transactional=True), guard=guard)
    log.appender.append(produced(7, 0, transactional=True), guard=guard)


def test_an_abandoned_verification_blocks_no_producer(log: PartitionLog) -> None:
    for epoch in (0, 5, 32_767):
        log.appender.begin_verification(7, epoch)
    assert log.producers() == []
    send_in_transaction(log, 7, 0)


def test_a_guard_does_not_outlive_a_truncation(log: PartitionLog) -> None:
    send(log, produced(1, 0))
    guard = log.appender.begin_verification(7, 0)
    log.appender.append(produced(1, 1))
    log.truncation.truncate_to(1)
    with pytest.raises(InvalidTxnStateError, match="verified"):
        log.appender.append(produced(7, 0, transactional=True), guard=guard)


def test_a_guard_of_a_producer_that_was_forgotten_has_to_be_renewed(log: PartitionLog) -> None:
    """Its marker may have come in between, and nobody knows any more."""
    guard = log.appender.begin_verification(7, 0)
    end(log, 7, 1, commit=False)
    log.appender.expire_producers(2**62)
    with pytest.raises(ConcurrentTransactionsError, match="try again"):
        log.appender.append(produced(7, 0, transactional=True), guard=guard)
    send_in_transaction(log, 7, 0)


def test_one_producer_does_not_mix(log: PartitionLog) -> None:
    send_in_transaction(log, 7, 0)
    with pytest.raises(InvalidTxnStateError, match="does not belong"):
        send(log, produced(7, 1))
    with pytest.raises(InvalidTxnStateError, match="has not ended"):
        send_in_transaction(log, 7, 0, epoch=1)


def test_the_broker_itself_needs_no_verification(log: PartitionLog) -> None:
    log.appender.append_internal(produced(7, 0, transactional=True))
    log.raise_high_watermark(1)
    assert log.last_stable_offset == 0


def test_aborted_ranges_are_those_that_overlap(log: PartitionLog) -> None:
    for n in range(4):  # [data, abort marker] at 2n, 2n + 1
        send_in_transaction(log, 7, 0, epoch=n)
        end(log, 7, n + 1, commit=False)
    send_in_transaction(log, 8, 0)  # 8
    send_in_transaction(log, 9, 0)  # 9
    end(log, 9, 1, commit=False)  # 10
    end(log, 8, 1, commit=False)  # 11
    assert log.reader.aborted_transactions(0, 2) == [(7, 0, 1)]
    assert log.reader.aborted_transactions(3, 5) == [(7, 2, 3), (7, 4, 5)]
    assert log.reader.aborted_transactions(8, 9) == [(8, 8, 11)]
    assert log.reader.aborted_transactions(9, 10) == [(9, 9, 10), (8, 8, 11)]
    assert log.reader.aborted_transactions(12, 20) == []


@pytest.mark.parametrize("clean", [True, False])
def test_all_transactions_are_restored_at_a_start(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path, {"segment.bytes": 4096})
    for n in range(10):
        send_in_transaction(log, 7, 0, epoch=n, value=b"x" * 500)
        end(log, 7, n + 1, commit=n % 2 == 0, coordinator_epoch=3)
    send(log, records(1))
    send_in_transaction(log, 8, 0)
    aborted, producers = log.reader.aborted_transactions(0, 22), log.producers()
    assert len(aborted) == 5
    log.close(seal=clean)
    log = open_log(tmp_path, {"segment.bytes": 4096}, clean=clean)
    assert log.last_stable_offset == 21
    assert log.reader.aborted_transactions(0, 22) == aborted
    assert log.producers() == producers
    assert end(log, 7, 10, commit=False, coordinator_epoch=3).duplicate
    send(log, produced(8, 1, transactional=True))
    end(log, 8, 1, commit=False)
    assert log.reader.aborted_transactions(20, 30) == [(8, 21, 23)]


def test_the_last_stable_offset_is_not_below_the_log_start(log: PartitionLog) -> None:
    send_in_transaction(log, 7, 0)
    send(log, records(5))
    log.retention.delete_records(4)
    assert log.last_stable_offset == 4
    assert [p.transaction_first_offset for p in log.producers()] == [0]


def test_truncation_takes_markers_and_batches_back(log: PartitionLog) -> None:
    send_in_transaction(log, 7, 0)
    end(log, 7, 1, commit=False)
    send_in_transaction(log, 7, 0, epoch=1)
    log.truncation.truncate_to(1)
    log.raise_high_watermark(1)
    assert log.last_stable_offset == 0
    assert log.reader.aborted_transactions(0, 9) == []
    end(log, 7, 1, commit=True)
    assert log.last_stable_offset == 2


def test_open_transactions_keep_their_producer(tmp_path: Path) -> None:
    log = open_log(tmp_path, clock=ManualClock(1000))
    send_in_transaction(log, 7, 0)
    assert log.appender.expire_producers(10**9, 1000) == 0
    end(log, 7, 1, commit=True)
    assert log.appender.expire_producers(10**9, 1000) == 1


def test_lookups_by_time_pass_over_markers(log: PartitionLog) -> None:
    end(log, 9, 1, commit=True)
    assert log.reader.offset_of_max_timestamp() == OffsetAndTimestamp(-1, -1)
    send_in_transaction(log, 7, 0)
    end(log, 7, 1, commit=True)
    log.appender.roll()
    end(log, 7, 2, commit=True)
    log.appender.roll()
    send(log, records(1, first_ms=500))
    assert log.reader.offset_of_max_timestamp() == OffsetAndTimestamp(4, 500)
    assert log.reader.offset_for_timestamp(0) == OffsetAndTimestamp(1, 1)
    assert log.reader.offset_for_timestamp(2) == OffsetAndTimestamp(4, 500)
