"""Repair: damaged bytes go to files beside the segment, intact batches stay at their offsets."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from sparklog.environment.files import RealFiles
from sparklog.errors import LogCorruptError
from sparklog.format.batch import iterate_batches
from sparklog.format.checkpoint import RECOVERY_POINTS_FILE, PartitionPoints, RecoveryPoints, encode
from sparklog.format.gaps import GAPS_FILE
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tools.repair import RepairReport, repair
from tests.support.logs import OWNER, SCHEMAS, append, open_log, read_all, records, segment_files
from tests.support.producers import end, produced, send, send_in_transaction

FILES = RealFiles()


def run(tmp_path: Path, *, dry_run: bool = False) -> RepairReport:
    return repair(tmp_path / "events-0", FILES, dry_run=dry_run, schema_of=SCHEMAS.__getitem__)


def offsets(log: PartitionLog) -> list[int]:
    found, offset = [], log.log_start_offset
    while (piece := log.reader.read(offset, 1 << 20)) is not None:
        found += [o for _, h in iterate_batches(piece.read()) for o in range(h.base_offset, h.next_offset)]
        offset = piece.next_offset
        piece.release()
    return found


def one_segment(tmp_path: Path, *, sealed: bool) -> tuple[Path, list[int]]:
    """Five batches of three records; the file, and where each batch begins, then the end."""
    log = open_log(tmp_path)
    for _ in range(5):
        append(log, records(3))
    segment = log.segments[0]
    positions = [segment.find(o).position for o in range(0, 15, 3)] + [segment.end.position]
    if sealed:
        log.close()
    return segment.path, positions


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_damaged_batch_is_put_aside_and_the_others_keep_their_offsets(tmp_path: Path, sealed: bool) -> None:
    path, at = one_segment(tmp_path, sealed=sealed)
    flip(path, at[2] - 10)
    damaged = path.read_bytes()
    with pytest.raises(LogCorruptError, match=r"sparklog log repair .*events-0") as e:
        open_log(tmp_path, clean=False)
    assert f"{path}, position {at[1]}" in str(e.value)
    report = run(tmp_path, dry_run=True)
    assert path.read_bytes() == damaged
    assert len(list(path.parent.glob("*.corrupt"))) == 0
    assert report.changed
    assert (report.gaps, report.batches, report.records, report.log_end_offset) == ([(3, 6)], 4, 12, 15)
    (finding,) = report.findings
    assert (finding.file, finding.position, finding.length_bytes) == (path.name, at[1], at[2] - at[1])
    assert "checksum" in finding.reason
    done = run(tmp_path)
    assert done.findings == report.findings
    assert (path.parent / f"{path.name}.{at[1]}.corrupt").read_bytes() == damaged[at[1] : at[2]]
    assert finding.quarantine == f"{path.name}.{at[1]}.corrupt"
    for clean in (False, True):
        log = open_log(tmp_path, clean=clean)
        assert offsets(log) == [0, 1, 2, *range(6, 15)]
    assert pl.scan_ipc(path).select(pl.len()).collect().item() == 12
    assert not run(tmp_path).changed
    assert append(log, records(2)) == 15  # into a new segment
    assert len(segment_files(tmp_path)) == 2
    log.close()
    log = open_log(tmp_path)
    assert offsets(log)[-2:] == [15, 16]
    assert [r.base_offset for r in log.reader.locate(0, 17)] == [0, 15]
    # a reader whose next offset is missing gets the next one there is
    piece = log.reader.read(4, 1)
    assert piece is not None
    assert (piece.base_offset, piece.next_offset) == (6, 9)
    piece.release()


@pytest.mark.parametrize("which", range(5))
def test_each_batch_of_a_sealed_segment(tmp_path: Path, which: int) -> None:
    path, at = one_segment(tmp_path, sealed=True)
    flip(path, at[which] + 400)
    report = run(tmp_path)
    kept = [o for o in range(15) if o // 3 != which]
    log = open_log(tmp_path)
    assert offsets(log) == kept
    assert (report.log_end_offset, log.log_end_offset) == (
        15,
        15,
    )  # no offset is given twice: the snapshot's name tells


def test_the_log_end_does_not_fall_below_the_recovery_point(tmp_path: Path) -> None:
    path, at = one_segment(tmp_path, sealed=True)
    points = RecoveryPoints({"events-0": PartitionPoints(OWNER.topic_id, 0, 15, 15)})
    (tmp_path / RECOVERY_POINTS_FILE).write_bytes(encode(points))
    flip(path, at[4] + 400)
    assert run(tmp_path).gaps == [(12, 15)]
    log = open_log(tmp_path, clean=False, recovery_point=15, high_watermark=15)
    assert (log.log_end_offset, offsets(log)) == (15, list(range(12)))
    assert log.reader.read(12, 1) is None
    assert log.reader.bytes_available(12) == 0
    assert append(log, records(1)) == 15
    piece = log.reader.read(12, 1)
    assert piece is not None
    assert piece.base_offset == 15
    piece.release()
    log.close()
    assert offsets(open_log(tmp_path)) == [*range(12), 15]
    assert not run(tmp_path).changed


def test_a_damaged_offset_is_restored_from_its_neighbours(tmp_path: Path) -> None:
    for which in range(5):
        directory = tmp_path / str(which)
        path, at = one_segment(directory, sealed=False)
        good = path.read_bytes()
        stamp = good.find(b"SLB1", at[which]) + 4 + 8  # within the base offset
        flip(path, stamp)
        with pytest.raises(LogCorruptError):
            open_log(directory, clean=False)
        report = run(directory)
        assert report.gaps == []
        assert "between its neighbours" in report.findings[0].reason
        log = open_log(directory, clean=False)
        assert offsets(log) == list(range(15))
        assert path.read_bytes().startswith(good)


def test_a_lost_segment_leaves_a_gap(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, records(3))
        log.appender.roll()
    log.close()
    segment_files(tmp_path)[1].unlink()
    assert run(tmp_path).gaps == [(3, 6)]
    for clean in (True, False):
        log = open_log(tmp_path, clean=clean, recovery_point=9)
        assert offsets(log) == [0, 1, 2, 6, 7, 8]
        piece = log.reader.read(3, 1)
        assert piece is not None
        assert piece.base_offset == 6
        piece.release()
        assert log.reader.bytes_available(4) > 0
        assert len(log.reader.locate(4, 9)) == 1
        assert log.reader.offset_for_timestamp(0).offset == 0


def test_a_segment_without_any_good_batch_goes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, records(3))
        log.appender.roll()
    log.close()
    path = segment_files(tmp_path)[1]
    damaged = bytes(path.stat().st_size)
    path.write_bytes(damaged)
    report = run(tmp_path)
    assert report.gaps == [(3, 6)]
    assert not path.exists()
    assert (path.parent / f"{path.name}.0.corrupt").read_bytes() == damaged
    assert offsets(open_log(tmp_path)) == [0, 1, 2, 6, 7, 8]


def test_a_damaged_head_is_rebuilt(tmp_path: Path) -> None:
    path, at = one_segment(tmp_path, sealed=False)
    good = path.read_bytes()
    path.write_bytes(b"XRROW1" + good[6:])
    with pytest.raises(LogCorruptError, match="schema 1"):
        repair(path.parent, FILES, dry_run=True)
    report = run(tmp_path)
    assert report.gaps == []
    log = open_log(tmp_path, clean=False)
    assert offsets(log) == list(range(15))
    assert path.read_bytes().startswith(good[: at[-1]])


def test_a_torn_tail_needs_no_repair(tmp_path: Path) -> None:
    path, at = one_segment(tmp_path, sealed=False)
    data = path.read_bytes()
    for content in (data, data[: at[5] - 7], data + bytes(100), data + b"\xff\xff\xff\xff\0\0\0\0half a footer"):
        path.write_bytes(content)
        report = run(tmp_path)
        assert not report.changed
        assert not list(path.parent.glob("*.corrupt"))
        assert open_log(tmp_path, clean=False).log_end_offset == (12 if len(content) < at[5] else 15)


def test_a_repair_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    path, at = one_segment(tmp_path, sealed=True)
    flip(path, at[2] + 400)
    damaged = path.read_bytes()
    run(tmp_path)
    path.write_bytes(damaged)  # as if the last step had not happened
    assert (path.parent / GAPS_FILE).exists()
    assert run(tmp_path).changed
    assert offsets(open_log(tmp_path)) == [o for o in range(15) if o // 3 != 2]


def test_a_segment_of_another_name_is_not_touched(tmp_path: Path) -> None:
    path, _ = one_segment(tmp_path, sealed=True)
    path.rename(path.with_name(f"{99:020d}.arrow"))
    with pytest.raises(LogCorruptError, match="restore its name"):
        run(tmp_path)


def test_a_healthy_log_stays_as_it_is(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"segment.bytes": 4096})
    for _ in range(20):
        append(log, records(3, value=b"x" * 200))
    before = read_all(log)
    log.close()
    files = {p: p.read_bytes() for p in (tmp_path / "events-0").iterdir()}
    report = run(tmp_path)
    assert (report.changed, report.batches, report.records, report.log_end_offset) == (False, 20, 60, 60)
    assert {p: p.read_bytes() for p in (tmp_path / "events-0").iterdir()} == files
    assert read_all(open_log(tmp_path)) == before


def test_segments_without_a_batch_in_a_row_are_one_gap(tmp_path: Path) -> None:
    """As a power cut leaves files that were made and not synced, with a later one that was."""
    log = open_log(tmp_path)
    for _ in range(5):
        append(log, records(3))
        log.appender.roll()
    log.close()
    files = segment_files(tmp_path)
    for path in files[1:3]:
        path.write_bytes(b"")
    report = run(tmp_path)
    assert report.gaps == [(3, 9)]
    log = open_log(tmp_path, clean=False)
    assert offsets(log) == [0, 1, 2, *range(9, 15)]
    log.close()
    assert all(path.read_bytes().endswith(b"ARROW1") for path in segment_files(tmp_path))


def test_adjacent_losses_are_one_gap(tmp_path: Path) -> None:
    """The first batch of a segment, and then all of it: else the gaps overlap, and the log cannot be opened."""
    log = open_log(tmp_path)
    for size in (3, 1, 2, 3):
        append(log, records(size))
        if size != 1:
            log.appender.roll()
    log.close()
    first, second, *_ = segment_files(tmp_path)
    data = bytearray(second.read_bytes())
    data[2 * len(data) // 5] ^= 0x55
    second.write_bytes(data)
    head = first.read_bytes()
    first.write_bytes(head[: len(head) // 3])
    before = run(tmp_path).gaps
    open_log(tmp_path, clean=False).close()
    second.write_bytes(b"")
    report = run(tmp_path)
    assert (before, report.gaps) == ([(0, 3), (3, 4)], [(0, 6)])
    log = open_log(tmp_path, clean=False)
    assert offsets(log) == [6, 7, 8]


def test_a_log_without_its_first_segments_is_read_from_the_next_one_on(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(4):
        append(log, records(3))
        log.appender.roll()
    log.close()
    first = segment_files(tmp_path)[0]
    first.unlink()
    log = open_log(tmp_path, clean=False)
    log._state.offsets.log_start = 0
    assert offsets(log) == list(range(3, 12))


def test_a_lost_batch_can_be_sent_again(tmp_path: Path) -> None:
    """The remaining batches give the log's knowledge of its producers: a lost batch is not answered as stored."""
    log = open_log(tmp_path)
    kept, lost = produced(1, 0, rows=3), produced(2, 0, rows=3)
    send(log, kept)
    position = log.segments[0].end.position
    send(log, lost)
    send(log, produced(3, 0, rows=3))
    log.close()  # with a snapshot that knows all three
    flip(log.segments[0].path, position + 400)
    assert run(tmp_path).gaps == [(3, 6)]
    log = open_log(tmp_path)
    assert log.log_end_offset == 9
    again = send(log, lost)
    assert (again.base_offset, again.duplicate) == (9, False)
    assert send(log, kept).base_offset == 0


def test_a_lost_marker_can_be_written_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send_in_transaction(log, 1, 0, rows=3)
    position = log.segments[0].end.position
    end(log, 1, 1, commit=True)
    send(log, produced(2, 0, rows=3))
    log.close()
    flip(log.segments[0].path, position + 10)
    run(tmp_path)
    log = open_log(tmp_path)
    assert log.last_stable_offset == 0
    end(log, 1, 1, commit=True)
    assert log.last_stable_offset == log.log_end_offset == 8


def test_producer_state_below_the_loss_stays(tmp_path: Path) -> None:
    """Their batches may be gone for long: only the snapshot tells of them."""
    log = open_log(tmp_path)
    send(log, produced(1, 0, rows=3))
    log.appender.begin_segment()
    log.retention.delete_records(3)
    log.retention.drop_below_log_start()
    log.close()
    log = open_log(tmp_path, log_start_offset=3)
    send(log, produced(2, 0, rows=3))
    position = log.segments[-1].end.position
    send(log, produced(3, 0, rows=3))
    log.close()
    flip(segment_files(tmp_path)[-1], position + 400)
    run(tmp_path)
    log = open_log(tmp_path, log_start_offset=3)
    assert {p.producer_id for p in log.producers()} == {1, 2}
