"""Idempotent appends to one log: new batches, repetitions and refusals; also after a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    OutOfOrderSequenceError,
)
from sparklog.log.model.log_config import LogConfig
from sparklog.log.partition_log import PartitionLog
from sparklog.log.producers.states import EPOCHS_AHEAD_MAX, SEQUENCE_MAX
from sparklog.log.state.segment_writer import SegmentWriter
from tests.support.compaction import compact, open_keyed
from tests.support.logs import ManualClock, open_log, read_all, records
from tests.support.producers import end, produced, send, send_in_transaction


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path)


def test_a_batch_sent_again_is_answered_with_its_first_offsets(log: PartitionLog) -> None:
    first = send(log, produced(7, 0, rows=3))
    send(log, records(2))
    again = send(log, produced(7, 0, rows=3))
    assert (again.base_offset, again.last_offset, again.append_time_ms) == (0, 2, first.append_time_ms)
    assert again.duplicate
    assert again.base_offsets == ()
    assert (again.batch_count, again.record_count) == (0, 0)
    assert log.log_end_offset == 5


def test_exactly_the_last_five_batches_are_remembered(log: PartitionLog) -> None:
    for n in range(6):
        send(log, produced(7, n))
    for n in range(1, 6):
        assert send(log, produced(7, n)).base_offset == n
    with pytest.raises(OutOfOrderSequenceError, match="sequence number 0 where 6 is expected"):
        send(log, produced(7, 0))


def test_only_the_next_sequence_is_taken(log: PartitionLog) -> None:
    send(log, produced(7, 0, rows=2))
    for sequence, rows in ((3, 1), (1, 1), (0, 1), (1, 2), (0, 3)):
        with pytest.raises(OutOfOrderSequenceError):
            send(log, produced(7, sequence, rows=rows))
    assert send(log, produced(7, 2)).base_offset == 2


def test_sequences_go_on_with_zero_after_the_largest(log: PartitionLog) -> None:
    send(log, produced(7, SEQUENCE_MAX - 1, rows=3))  # rows 2^31 - 2, 2^31 - 1 and 0
    assert send(log, produced(7, SEQUENCE_MAX - 1, rows=3)).duplicate
    send(log, produced(7, 1, rows=1))
    assert log.producers()[0].last_sequence == 1
    send(log, produced(8, SEQUENCE_MAX))
    with pytest.raises(OutOfOrderSequenceError, match="where 0 is expected"):
        send(log, produced(8, 1))
    send(log, produced(8, 0))


def test_a_newer_epoch_begins_with_zero_and_ends_the_older(log: PartitionLog) -> None:
    send(log, produced(7, 0), produced(7, 1))
    with pytest.raises(OutOfOrderSequenceError):
        send(log, produced(7, 2, epoch=1))
    send(log, produced(7, 0, epoch=1))
    for sequence in (1, 2):  # known, or next: too late either way
        with pytest.raises(InvalidProducerEpochError):
            send(log, produced(7, sequence, epoch=0))


def test_an_unknown_producer_begins_anywhere(log: PartitionLog) -> None:
    send(log, produced(7, 41, epoch=3))
    send(log, produced(7, 42, epoch=3))
    assert log.log_end_offset == 2


def test_a_payload_of_repeated_and_new_batches(log: PartitionLog) -> None:
    send(log, produced(7, 0, rows=2))
    send(log, records(3))
    info = send(log, produced(7, 0, rows=2), produced(7, 2, rows=2, value=b"new"), produced(7, 4))
    assert info.base_offsets == (0, 5, 7)
    assert (info.base_offset, info.last_offset, info.duplicate) == (0, 7, False)
    assert (info.batch_count, info.record_count) == (2, 3)
    assert [h.base_sequence for h, _ in read_all(log)] == [0, -1, 2, 4]
    again = send(log, produced(7, 0, rows=2), produced(7, 2, rows=2, value=b"new"), produced(7, 4))
    assert (again.base_offsets, again.duplicate, again.last_offset) == ((0, 5, 7), True, 7)


def test_a_refused_batch_refuses_its_payload(log: PartitionLog) -> None:
    with pytest.raises(OutOfOrderSequenceError):
        send(log, produced(7, 0), produced(7, 1), produced(7, 3))
    assert log.log_end_offset == 0
    assert log.producers() == []
    send(log, produced(7, 0), produced(8, 0), produced(7, 1))


def test_a_failed_write_leaves_the_producer_as_it_was(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    send(log, produced(7, 0))

    def fail(*_: object) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "write", fail)
        with pytest.raises(OSError):
            send(log, produced(7, 1))
    info = send(log, produced(7, 1))
    assert (info.base_offset, info.duplicate) == (1, False)


@pytest.mark.parametrize("clean", [True, False])
def test_all_five_batches_are_remembered_after_a_start(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path)
    for n in range(7):
        send(log, produced(7, 2 * n, rows=2))
    log.close(seal=clean)
    log = open_log(tmp_path, clean=clean)
    for n in range(2, 7):
        assert send(log, produced(7, 2 * n, rows=2)).base_offset == 2 * n
    assert send(log, produced(7, 14)).base_offset == 14


def test_half_a_producer_is_refused(log: PartitionLog) -> None:
    for batch in (
        produced(7, -1),
        produced(7, 0, epoch=-1),
        produced(-1, 0),
        produced(-1, -1, epoch=-1, transactional=True),
    ):
        with pytest.raises(InvalidRequestError):
            send(log, batch)


def test_expired_producers_are_forgotten(tmp_path: Path) -> None:
    clock = ManualClock(1000)
    log = open_log(tmp_path, clock=clock)
    send(log, produced(7, 0))
    clock.time_ms = 2000
    send(log, produced(8, 0))
    assert log.appender.expire_producers(2500, 1000) == 1
    assert [p.producer_id for p in log.producers()] == [8]
    send(log, produced(7, 5))


def test_truncation_takes_the_producers_back(log: PartitionLog) -> None:
    for n in range(8):
        send(log, produced(7, n))
    log.truncation.truncate_to(6)
    assert send(log, produced(7, 5)).duplicate
    assert send(log, produced(7, 1)).base_offset == 1
    assert not send(log, produced(7, 6)).duplicate


# --- who may write ---


def test_a_producer_id_that_was_never_issued_adds_no_state(log: PartitionLog) -> None:
    for producer_id, transactional in ((10, False), (2**63 - 1, False), (10, True)):
        payload = produced(producer_id, 0, epoch=32_767, transactional=transactional)
        with pytest.raises(InvalidProducerIdMappingError, match="never issued"):
            log.appender.append(payload, issued=range(10).__contains__)
    assert (log.producers(), log.log_end_offset) == ([], 0)
    log.appender.append(produced(9, 0), issued=range(10).__contains__)


def test_a_producer_with_state_needs_no_other_check(log: PartitionLog) -> None:
    send(log, produced(7, 0))
    log.appender.append(produced(7, 1), issued=lambda _: False)


def test_an_epoch_that_no_producer_can_have_come_to_is_refused(log: PartitionLog) -> None:
    send(log, produced(7, 0, epoch=3))
    for producer_id, epoch in ((7, 4 + EPOCHS_AHEAD_MAX), (8, 1 + EPOCHS_AHEAD_MAX), (8, 32_767)):
        with pytest.raises(InvalidProducerEpochError, match="is impossible"):
            send(log, produced(producer_id, 0, epoch=epoch))
    assert [(p.producer_id, p.producer_epoch) for p in log.producers()] == [(7, 3)]
    send(log, produced(7, 0, epoch=3 + EPOCHS_AHEAD_MAX))
    send(log, produced(8, 0, epoch=EPOCHS_AHEAD_MAX))


# --- what is called a repetition is stored ---


@pytest.mark.parametrize("clean", [None, True, False], ids=["running", "clean start", "crash"])
def test_another_batch_under_the_same_sequence_is_no_repetition(tmp_path: Path, clean: bool | None) -> None:
    log = open_log(tmp_path)
    send(log, produced(7, 0, value=b"foreign"))
    if clean is not None:
        log.close(seal=clean)
        log = open_log(tmp_path, clean=clean)
    with pytest.raises(OutOfOrderSequenceError, match="another batch with sequence 0 is stored at offset 0"):
        log.appender.append(produced(7, 0, value=b"own"))
    assert log.appender.append(produced(7, 0, value=b"foreign")).duplicate
    log.appender.append(produced(7, 0, epoch=1, value=b"own"))


def test_a_batch_that_was_compacted_is_recognised_by_its_sequence(tmp_path: Path) -> None:
    """Compaction writes it anew, its checksum is not the producer's any more."""
    log = open_keyed(tmp_path)
    batch = produced(7, 0, rows=3)
    send(log, bytearray(batch))
    compact(log)
    log.close(seal=False)
    for path in tmp_path.rglob("*.snapshot"):
        path.unlink()
    log = open_keyed(tmp_path, clean=False)
    assert log.appender.append(batch).duplicate


# --- how many ---


def few(tmp_path: Path, producers: int = 10, *, clean: bool = True) -> PartitionLog:
    return open_log(tmp_path, {"max.producers.per.partition": producers}, clean=clean)


def test_a_new_producer_takes_the_place_of_the_oldest(tmp_path: Path) -> None:
    log = few(tmp_path)
    for producer_id in range(10):
        send(log, produced(producer_id, 0))
    send(log, produced(0, 1))
    send(log, produced(10, 0))
    assert [p.producer_id for p in log.producers()] == [0, *range(2, 11)]
    for start in ("clean", "crash"):
        log.close(seal=start == "clean")
        log = few(tmp_path, clean=start == "clean")
        assert [p.producer_id for p in log.producers()] == [0, *range(2, 11)]
    send(log, produced(11, 0))
    assert [p.producer_id for p in log.producers()] == [0, *range(3, 12)]


def test_a_producer_with_only_a_marker_goes_first(tmp_path: Path) -> None:
    log = few(tmp_path)
    for producer_id in range(9):
        send(log, produced(producer_id, 0))
    send_in_transaction(log, 100, 0)
    end(log, 100, 1, commit=True)
    send(log, produced(9, 0))
    assert [p.producer_id for p in log.producers()] == list(range(10))


def test_no_producer_with_an_open_transaction_goes(tmp_path: Path) -> None:
    log = few(tmp_path)
    send(log, produced(0, 0))
    for producer_id in range(1, 11):
        send_in_transaction(log, producer_id, 0)
    before = log.producers()
    assert [p.producer_id for p in before] == list(range(1, 11))
    for write in (send, lambda log, _: send_in_transaction(log, 11, 0)):
        with pytest.raises(ConcurrentTransactionsError, match=r"max\.producers\.per\.partition is 10") as refused:
            write(log, produced(11, 0))
        assert refused.value.retriable
    assert log.producers() == before
    end(log, 5, 1, commit=True)
    send_in_transaction(log, 11, 0)


def test_a_smaller_limit_holds_from_the_next_new_producer_on(tmp_path: Path) -> None:
    log = few(tmp_path, 20)
    for producer_id in range(20):
        send(log, produced(producer_id, 0))
    log.reconfigure(LogConfig.from_settings({"max.producers.per.partition": 10}))
    send(log, produced(20, 0))
    assert [p.producer_id for p in log.producers()] == list(range(11, 21))
