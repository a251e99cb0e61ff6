"""Idempotent appends to one log: what is new, what is a repetition, what is refused; also after a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import InvalidProducerEpochError, InvalidRequestError, OutOfOrderSequenceError
from sparklog.log.partition_log import PartitionLog
from sparklog.log.producers import SEQUENCE_MAX
from sparklog.log.segment_writer import SegmentWriter
from tests.unit.log.producer_support import produced, send
from tests.unit.log.support import ManualClock, open_log, read_all, records


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


def test_the_last_five_batches_are_known_and_no_more(log: PartitionLog) -> None:
    for n in range(6):
        send(log, produced(7, n))
    for n in range(1, 6):
        assert send(log, produced(7, n)).base_offset == n
    with pytest.raises(OutOfOrderSequenceError, match="sequence 0 where 6 is due"):
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
    with pytest.raises(OutOfOrderSequenceError, match="where 0 is due"):
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
    again = send(log, produced(7, 0, rows=2), produced(7, 2, rows=2), produced(7, 4))
    assert (again.base_offsets, again.duplicate, again.last_offset) == ((0, 5, 7), True, 7)


def test_nothing_is_written_when_one_batch_of_a_payload_is_refused(log: PartitionLog) -> None:
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
def test_all_five_batches_are_known_after_a_start(tmp_path: Path, clean: bool) -> None:
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
    assert log.expire_producers(2500, 1000) == 1
    assert [p.producer_id for p in log.producers()] == [8]
    send(log, produced(7, 5))


def test_truncation_takes_the_producers_back(log: PartitionLog) -> None:
    for n in range(8):
        send(log, produced(7, n))
    log.truncate_to(6)
    assert send(log, produced(7, 5)).duplicate
    assert send(log, produced(7, 1)).base_offset == 1
    assert not send(log, produced(7, 6)).duplicate
