"""Leader epochs: the end of an epoch, the effect of truncation, and no loss of an epoch with records in a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import FencedLeaderEpochError, StorageFullError
from sparklog.format.batch import decode_header, stamp_batch
from sparklog.format.epoch_checkpoint import LEADER_EPOCHS_FILE, EpochEntry, decode_epochs, encode_epochs
from sparklog.log.partition_log import PartitionLog
from sparklog.log.state.leader_epochs import LeaderEpochs
from tests.support.logs import LimitedFiles, open_log, records

ENTRIES = [EpochEntry(2, 0), EpochEntry(4, 10), EpochEntry(7, 25)]
FILE = Path("events-0") / LEADER_EPOCHS_FILE


def append(log: PartitionLog, count: int, epoch: int) -> None:
    log.appender.append(records(count), leader_epoch=epoch)
    log.raise_high_watermark(log.log_end_offset)


@pytest.mark.parametrize(
    ("epoch", "end"),
    [
        (-1, (-1, -1)),  # unknown to the asker
        (0, (0, 0)),  # older than all: ends where the first begins
        (2, (2, 10)),
        (3, (2, 10)),  # never had records here: the largest smaller one
        (4, (4, 25)),
        (6, (4, 25)),
        (7, (7, 40)),  # the newest ends at the log end
        (8, (-1, -1)),  # newer than all
    ],
)
def test_the_end_of_an_epoch(epoch: int, end: tuple[int, int]) -> None:
    assert LeaderEpochs(ENTRIES).end_offset_for(epoch, 40) == end


def test_an_empty_log_knows_no_epoch() -> None:
    epochs = LeaderEpochs()
    assert (epochs.latest, epochs.epoch_of(0), epochs.end_offset_for(0, 0)) == (-1, -1, (-1, -1))


def test_a_new_entry_removes_those_it_contradicts() -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert not epochs.assign(7, 25)
    assert not epochs.assign(7, 30)
    assert epochs.assign(8, 25)  # epoch 7 had no records
    assert epochs.entries == (ENTRIES[0], ENTRIES[1], (8, 25))
    assert epochs.assign(4, 12)
    assert epochs.entries == (ENTRIES[0], (4, 12))
    assert epochs.assign(5, 0)
    assert epochs.entries == ((5, 0),)


def test_truncation_at_both_ends() -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert not epochs.truncate_from_end(26)
    assert epochs.truncate_from_end(25)
    assert epochs.latest == 4
    assert not epochs.truncate_from_start(0)
    assert epochs.truncate_from_start(7)
    assert epochs.entries == ((2, 7), (4, 10))
    assert epochs.truncate_from_start(10)
    assert epochs.entries == ((4, 10),)
    assert not epochs.truncate_from_start(10)
    assert epochs.truncate_from_end(0)
    assert epochs.entries == ()


@given(
    st.lists(st.tuples(st.sampled_from(["append", "elect", "cut", "delete"]), st.integers(0, 9)), max_size=30),
    st.integers(0, 12),
)
def test_epochs_against_a_list_of_every_record(moves: list[tuple[str, int]], asked: int) -> None:
    epochs, epoch, start, of_record = LeaderEpochs(), 0, 0, [0] * 0
    for move, n in moves:
        if move == "append" and n:
            epochs.assign(epoch, len(of_record))
            of_record += [epoch] * n
        elif move == "elect":
            epoch += 1 + n % 2
        elif move == "cut":
            del of_record[max(start, len(of_record) - n) :]
            epochs.truncate_from_end(len(of_record))
            epoch += 1
        elif move == "delete":
            start = min(start + n, len(of_record))
            epochs.truncate_from_start(start)
    live = dict(list(enumerate(of_record))[start:])
    assert {o: epochs.epoch_of(o) for o in live} == live
    if not live:
        return
    found = epochs.end_offset_for(asked, len(of_record))
    lower = [o for o, e in live.items() if e <= asked]
    if asked > max(live.values()):
        assert found == (-1, -1)
    elif lower:
        assert found == (live[lower[-1]], lower[-1] + 1)
    else:
        assert found == (asked, start)


def test_the_file_is_checked() -> None:
    data = encode_epochs(ENTRIES)
    assert decode_epochs(data) == ENTRIES
    assert decode_epochs(encode_epochs([])) == []
    for i in range(len(data)):
        flipped = bytearray(data)
        flipped[i] ^= 1
        assert decode_epochs(bytes(flipped)) in (None, ENTRIES)  # white space may change
        assert decode_epochs(data[:i]) in (None, ENTRIES)[: 1 + data[i:].isspace()]
    assert decode_epochs(encode_epochs([EpochEntry(3, 5), EpochEntry(2, 9)])) is None
    assert decode_epochs(encode_epochs([EpochEntry(2, 9), EpochEntry(3, 9)])) is None


def test_a_log_notes_an_epoch_before_its_first_record_is_written(tmp_path: Path) -> None:
    files = LimitedFiles()
    log = open_log(tmp_path, files=files)
    append(log, 3, 1)
    append(log, 2, 1)
    append(log, 4, 5)
    assert log.leader_epoch == 5
    assert decode_epochs((tmp_path / FILE).read_bytes()) == [(1, 0), (5, 5)]
    assert [log.epochs.end_offset_for(e, log.log_end_offset) for e in (0, 1, 4, 5, 6)] == [
        (0, 0),
        (1, 5),
        (1, 5),
        (5, 9),
        (-1, -1),
    ]
    with pytest.raises(FencedLeaderEpochError, match="leader epoch 4 has ended"):
        log.appender.append(records(1), leader_epoch=4)
    assert log.log_end_offset == 9
    files.free_bytes = 10  # not even the epoch can be written
    with pytest.raises(StorageFullError):
        log.appender.append(records(1), leader_epoch=6)
    assert (log.leader_epoch, log.log_end_offset) == (5, 9)
    files.free_bytes = 300  # the epoch can, the record cannot: an epoch without records
    with pytest.raises(StorageFullError):
        log.appender.append(records(1), leader_epoch=6)
    assert log.epochs.end_offset_for(5, log.log_end_offset) == (5, 9)
    files.free_bytes = 1 << 30
    append(log, 1, 8)
    assert log.epochs.end_offset_for(6, log.log_end_offset) == (5, 9)


def test_an_epoch_that_could_not_be_written_is_written_before_its_first_record_all_the_same(tmp_path: Path) -> None:
    """Else followers would cut and copy that record for ever: after a restart nobody knows of the epoch."""
    files = LimitedFiles()
    log = open_log(tmp_path, files=files)
    append(log, 2, 0)
    log.replica.begin_epoch(1)
    files.free_bytes = 10
    with pytest.raises(StorageFullError):
        log.appender.append(records(1), leader_epoch=1)
    files.free_bytes = 1 << 30
    append(log, 1, 1)
    assert decode_epochs((tmp_path / FILE).read_bytes()) == [(0, 0), (1, 2)]


def test_a_truncated_epoch_in_the_file_does_not_apply_to_later_records(
    tmp_path: Path,
) -> None:
    """The disk was full, or the power went, when the file was to be written."""
    log = open_log(tmp_path)
    append(log, 2, 0)
    log.close()
    (tmp_path / FILE).write_bytes(encode_epochs([EpochEntry(0, 0), EpochEntry(1, 2)]))
    log = open_log(tmp_path)
    append(log, 3, 0)
    log.close()
    log = open_log(tmp_path)
    assert log.epochs.end_offset_for(0, log.log_end_offset) == (0, 5)
    log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_epochs_survive_restarts_and_a_lost_or_damaged_file(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path, {"segment.bytes": 4096})
    for i in range(12):
        append(log, 5, i // 3)
    ends = [log.epochs.end_offset_for(e, log.log_end_offset) for e in range(6)]
    if clean:
        log.close()
    for damage in (None, b"", b"{}", "remove"):
        if damage == "remove":
            (tmp_path / FILE).unlink()
        elif damage is not None:
            (tmp_path / FILE).write_bytes(damage)  # type: ignore[arg-type]
        log = open_log(tmp_path, {"segment.bytes": 4096}, clean=clean)
        assert [log.epochs.end_offset_for(e, log.log_end_offset) for e in range(6)] == ends
        assert decode_epochs((tmp_path / FILE).read_bytes()) == [(0, 0), (1, 15), (2, 30), (3, 45)]


def test_a_crash_that_cut_the_tail_forgets_its_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 3, 0)
    (path,) = (tmp_path / "events-0").glob("*.arrow")
    size = path.stat().st_size
    append(log, 3, 2)
    path.write_bytes(path.read_bytes()[: size + 100])
    log = open_log(tmp_path, clean=False)
    assert (
        log.leader_epoch,
        log.epochs.end_offset_for(0, log.log_end_offset),
        log.epochs.end_offset_for(2, log.log_end_offset),
    ) == (
        0,
        (0, 3),
        (-1, -1),
    )


def test_a_damaged_epoch_in_a_batch_is_not_believed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 3, 0)
    append(log, 3, 2)
    (path,) = (tmp_path / "events-0").glob("*.arrow")
    data = bytearray(path.read_bytes())
    header = decode_header(data, log.segments[0].data_position)
    stamp_batch(data, log.segments[0].data_position, header, base_offset=0, leader_epoch=9000, append_time_ms=0)
    path.write_bytes(data)
    log = open_log(tmp_path, clean=False)
    assert (log.leader_epoch, log.epochs.end_offset_for(0, log.log_end_offset)) == (2, (0, 3))
    append(log, 1, 2)


def test_deleting_records_forgets_their_epochs(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in (0, 1, 2):
        append(log, 4, epoch)
    log.retention.delete_records(6)
    assert log.epochs.end_offset_for(0, log.log_end_offset) == (0, 6)
    assert log.epochs.end_offset_for(1, log.log_end_offset) == (1, 8)
    log.close()
    assert open_log(tmp_path, log_start_offset=6).epochs.end_offset_for(
        0, open_log(tmp_path, log_start_offset=6).log_end_offset
    ) == (0, 6)
