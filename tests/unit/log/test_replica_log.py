"""A follower's log: the leader's batches as they are, its epochs, and where it begins anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import (
    CorruptBatchError,
    FencedLeaderEpochError,
    OffsetOutOfRangeError,
    StorageFullError,
    UnknownSchemaError,
)
from sparklog.log.partition_log import PartitionLog
from tests.support.compaction import headers
from tests.support.logs import SCHEMAS, LimitedFiles, ManualClock, open_log, read_all, records, values
from tests.support.producers import produced, send_in_transaction


def copy(leader: PartitionLog, follower: PartitionLog, max_bytes: int = 1 << 20) -> None:
    """All that the follower does not have, up to the leader's log end."""
    while (piece := leader.reader.read(follower.log_end_offset, max_bytes, to_log_end=True)) is not None:
        follower.replica.append(piece.read())
        piece.release()


def pair(tmp_path: Path) -> tuple[PartitionLog, PartitionLog]:
    leader = open_log(tmp_path / "leader", {"segment.bytes": 4096}, clock=ManualClock(5000))
    return leader, open_log(tmp_path / "follower", {"segment.bytes": 5000}, clock=ManualClock(9000))


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
@pytest.mark.parametrize("restart", ["no", "clean", "crash"])
def test_a_follower_has_the_same_batches_epochs_and_stamps(tmp_path: Path, max_bytes: int, restart: str) -> None:
    leader, follower = pair(tmp_path)
    for i in range(12):
        leader.appender.append(records(3, first_ms=i, value=b"x" * 400), leader_epoch=i // 5)
    copy(leader, follower, max_bytes)
    leader.raise_high_watermark(36)
    assert follower.high_watermark == 0  # what is committed the leader says
    if restart != "no":
        if restart == "clean":
            follower.close()
        follower = open_log(tmp_path / "follower", clean=restart == "clean")
    follower.raise_high_watermark(36)
    assert read_all(follower) == read_all(leader)
    assert follower.epochs.entries == leader.epochs.entries == ((0, 0), (1, 15), (2, 30))


def test_a_follower_knows_the_producers_and_their_transactions(tmp_path: Path) -> None:
    leader, follower = pair(tmp_path)
    leader.appender.append(produced(7, 0, rows=2))
    send_in_transaction(leader, 8, 0, rows=3)
    leader.appender.append_marker(8, 1, 1, commit=False)
    send_in_transaction(leader, 9, 0)
    copy(leader, follower)
    follower.raise_high_watermark(follower.log_end_offset)
    assert follower.producers() == leader.producers()
    assert follower.last_stable_offset == leader.last_stable_offset == 6
    assert follower.reader.aborted_transactions(0, 6) == leader.reader.aborted_transactions(0, 6) != []
    again = follower.appender.append(produced(7, 0, rows=2))  # it leads now, and the producer sends again
    assert (again.duplicate, again.base_offset) == (True, 0)


def test_uncommitted_records_are_for_followers_only(tmp_path: Path) -> None:
    leader, _ = pair(tmp_path)
    leader.appender.append(records(3))
    assert leader.reader.read(0, 1000) is None
    piece = leader.reader.read(0, 1000, to_log_end=True)
    assert piece is not None
    assert piece.next_offset == 3
    piece.release()
    with pytest.raises(OffsetOutOfRangeError):
        leader.reader.read(4, 1000, to_log_end=True)


@pytest.mark.parametrize("what", ["gap", "before", "checksum", "cut", "epoch", "schema", "hole", "empty", "falling"])
def test_batches_that_do_not_follow_the_log_are_refused_as_a_whole(tmp_path: Path, what: str) -> None:
    leader, follower = pair(tmp_path)
    pieces = []
    for i in range(4):
        payload = records(2, first_ms=i)
        leader.appender.append(payload, leader_epoch=3)
        pieces.append(bytes(payload))
    follower.replica.append(pieces[0] + pieces[1])
    sent, error = {
        "gap": (pieces[3], OffsetOutOfRangeError),
        "before": (pieces[1], OffsetOutOfRangeError),
        "checksum": (pieces[2] + pieces[3][:-1] + bytes([pieces[3][-1] ^ 1]), CorruptBatchError),
        "cut": (pieces[2] + pieces[3][:-8], CorruptBatchError),
        "epoch": (_stamped(tmp_path, 4, epoch=2), FencedLeaderEpochError),
        "schema": (_stamped(tmp_path, 4, epoch=3, schema_id=2), UnknownSchemaError),
        "hole": (pieces[2] + pieces[2], CorruptBatchError),
        "empty": (b"", CorruptBatchError),
        "falling": (_stamped(tmp_path, 4, epoch=5) + _stamped(tmp_path, 6, epoch=4), CorruptBatchError),
    }[what]
    if what == "schema":
        follower.use_schemas({1: SCHEMAS[1]}.__getitem__)
    with pytest.raises(error):
        follower.replica.append(sent)
    assert (follower.log_end_offset, follower.leader_epoch) == (4, 3)
    follower.replica.append(pieces[2] + pieces[3])
    follower.raise_high_watermark(8)
    assert len(values(follower)) == 8


def _stamped(tmp_path: Path, offset: int, *, epoch: int, schema_id: int = 1) -> bytes:
    """A batch of two records as another leader would have it at `offset`."""
    log = open_log(tmp_path / f"other-{offset}-{epoch}-{schema_id}")
    log.truncation.restart_at(offset)
    payload = records(2, schema_id=schema_id)
    log.appender.append(payload, leader_epoch=epoch)
    return bytes(payload)


def test_a_full_disk_keeps_no_partial_append(tmp_path: Path) -> None:
    leader, _ = pair(tmp_path)
    for _ in range(3):
        leader.appender.append(records(2, value=b"x" * 400))
    files = LimitedFiles()
    follower = open_log(tmp_path / "follower", files=files)
    copy(leader, follower, 1)
    leader.appender.append(records(2, value=b"x" * 400))
    files.free_bytes = 100
    with pytest.raises(StorageFullError):
        copy(leader, follower)
    assert follower.log_end_offset == 6
    files.free_bytes = 1 << 30
    copy(leader, follower)
    assert follower.log_end_offset == 8


def test_an_epoch_begins_without_records(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.appender.append(records(3), leader_epoch=1)
    log.replica.begin_epoch(4)
    assert log.epochs.entries == ((1, 0), (4, 3))
    with pytest.raises(FencedLeaderEpochError):
        log.replica.begin_epoch(3)
    with pytest.raises(FencedLeaderEpochError):
        log.appender.append(records(1), leader_epoch=2)
    log.appender.append(records(1), leader_epoch=4)
    log.replica.begin_epoch(6)
    log.close()
    # who leads after a restart does so in a later epoch
    assert open_log(tmp_path).epochs.entries == ((1, 0), (4, 3))


def test_with_group_flush_no_record_is_durable_before_the_fsync(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"flush.mode": "group"})
    log.appender.append(records(3))
    assert (log.durable_end_offset, log.log_end_offset) == (0, 3)
    log.flusher.make_durable(3)
    assert log.durable_end_offset == 3
    log = open_log(tmp_path / "other")
    log.appender.append(records(3))
    assert log.durable_end_offset == 3


@pytest.mark.parametrize("restart", ["no", "clean", "crash"])
@pytest.mark.parametrize(("held", "offset"), [(0, 0), (0, 50), (6, 0), (6, 4), (6, 6), (6, 50)])
def test_a_log_begins_anew_where_the_leader_does(tmp_path: Path, held: int, offset: int, restart: str) -> None:
    log = open_log(tmp_path)
    for _ in range(held // 2):
        log.appender.append(records(2), leader_epoch=1)
    log.raise_high_watermark(held)
    log.truncation.restart_at(offset)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (offset, offset, offset)
    assert log.epochs.entries == ()
    if restart != "no":
        if restart == "clean":
            log.close()
        log = open_log(tmp_path, clean=restart == "clean", log_start_offset=offset, high_watermark=offset)
        assert log.log_end_offset == offset
    log.replica.append(_stamped(tmp_path, offset, epoch=2))
    log.raise_high_watermark(offset + 2)
    assert [o for o, _ in values(log)] == [offset, offset + 1]
    assert log.epochs.entries == ((2, offset),)


@pytest.mark.parametrize("restart", ["no", "clean", "crash"])
def test_gaps_that_meet_where_a_segment_began_are_copied(tmp_path: Path, restart: str) -> None:
    """Two repairs of the leader have lost the end of one segment, and the beginning of the next."""
    leader, follower = pair(tmp_path)
    for count in (3, 1, 2, 3):
        leader.appender.append(records(count), leader_epoch=1)
    batches = [leader.reader.read(at, 1, to_log_end=True) for at in (0, 6)]
    payload = b"".join(piece.read() for piece in batches if piece is not None)
    for gaps in ([(3, 4)], [(4, 6)], [(3, 5), (4, 6)]):
        with pytest.raises(CorruptBatchError, match="does not follow"):
            follower.replica.append(payload, gaps=gaps)
    follower.replica.append(payload, gaps=[(3, 4), (4, 6)], segments=[0, 4])
    assert follower.gaps == ((3, 4), (4, 6))
    if restart != "no":
        if restart == "clean":
            follower.close()
        follower = open_log(tmp_path / "follower", clean=restart == "clean")
    follower.raise_high_watermark(9)
    assert [header.base_offset for header in headers(follower)] == [0, 6]
    assert follower.gaps == ((3, 4), (4, 6))
