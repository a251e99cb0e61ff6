"""Batches of the gateway that end in a gap, the offsets of refused records which the producer has counted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.errors import InvalidRequestError, OutOfOrderSequenceError
from sparklog.format.batch import encode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.partition_log import PartitionLog
from sparklog.log.state.check import GAP_OFFSETS_MAX
from tests.support.compaction import compact, open_keyed, stored
from tests.support.logs import open_log, read_all
from tests.support.producers import end


def batch(rows: int, offsets: int, sequence: int = -1, *, transactional: bool = False) -> bytearray:
    """A batch with `rows` records that spans `offsets` offsets, of the producer 7 if it has a sequence number."""
    records = [{"key": b"%d" % i, "value": b"v", "headers": None, "timestamp": i} for i in range(rows)]
    return bytearray(
        encode_batch(
            pa.RecordBatch.from_pylist(records, schema=ENVELOPE_SCHEMA),
            schema_id=1,
            min_timestamp_ms=0,
            max_timestamp_ms=rows,
            attributes=2 if transactional else 0,
            producer_id=-1 if sequence < 0 else 7,
            producer_epoch=-1 if sequence < 0 else 0,
            base_sequence=sequence,
            last_offset_delta=offsets - 1,
        )
    )


def append(log: PartitionLog, data: bytearray) -> AppendInfo:
    appended = log.appender.append(data, converted=True)
    log.raise_high_watermark(log.log_end_offset)
    return appended


def offsets_of(log: PartitionLog) -> list[int]:
    return [row.offset for row in stored(log)]


@pytest.mark.parametrize("restart", ["no", "clean", "crash"])
def test_sequence_numbers_count_refused_records(tmp_path: Path, restart: str) -> None:
    log = open_log(tmp_path)
    append(log, batch(2, 5, 0))
    append(log, batch(0, 3, 5))
    if restart != "no":
        if restart == "clean":
            log.close()
        log = open_log(tmp_path, clean=restart == "clean")
    assert append(log, batch(1, 1, 8)).base_offset == 8
    for repeated, base in ((batch(2, 5, 0), 0), (batch(0, 3, 5), 5)):
        again = append(log, repeated)
        assert (again.duplicate, again.base_offset) == (True, base)
    with pytest.raises(OutOfOrderSequenceError):
        append(log, batch(1, 1, 8 + 2))
    assert offsets_of(log) == [0, 1, 8] and log.segment_count == 1
    assert [header.next_offset for header, _ in read_all(log, offset=3)] == [5, 8, 9]


def test_a_follower_and_compaction_keep_the_gap(tmp_path: Path) -> None:
    leader, follower = open_keyed(tmp_path / "leader"), open_log(tmp_path / "follower")
    for data in (batch(2, 5, 0), batch(0, 3, 5), batch(1, 2, 8)):
        append(leader, data)
    while (piece := leader.reader.read(follower.log_end_offset, 1, to_log_end=True)) is not None:
        follower.replica.append(piece.read())
        piece.release()
    follower.raise_high_watermark(10)
    assert offsets_of(follower) == [0, 1, 8] and read_all(follower) == read_all(leader)
    compact(leader)
    assert offsets_of(leader) == [1, 8] and leader.log_end_offset == 10
    assert append(leader, batch(1, 1, 10)).base_offset == 10


def in_transaction(log: PartitionLog, data: bytearray) -> None:
    log.appender.append(data, guard=log.appender.begin_verification(7, 0), converted=True)


def test_a_transaction_without_rows_ends(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    in_transaction(log, batch(0, 4, 0, transactional=True))
    end(log, 7, 0, commit=True, keeps_epoch=True)
    in_transaction(log, batch(0, 1, 4, transactional=True))
    in_transaction(log, batch(1, 2, 5, transactional=True))
    end(log, 7, 0, commit=True, keeps_epoch=True)
    assert offsets_of(log) == [6] and log.last_stable_offset == log.log_end_offset == 9


@pytest.mark.parametrize(
    ("rows", "offsets", "converted"), [(2, 5, False), (0, 3, False), (1, GAP_OFFSETS_MAX + 1, True)]
)
def test_other_gaps_are_refused(tmp_path: Path, rows: int, offsets: int, converted: bool) -> None:
    log = open_log(tmp_path)
    with pytest.raises(InvalidRequestError, match=f"{rows} records cannot have last offset delta {offsets - 1}"):
        log.appender.append(batch(rows, offsets), converted=converted)
    assert log.log_end_offset == 0
