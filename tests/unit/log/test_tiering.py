"""Tiering of one log: copied, read back the same, released locally, deleted, with faults at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.environment.files import RealFiles
from sparklog.errors import (
    CorruptBatchError,
    InvalidRequestError,
    LogCorruptError,
    OffsetOutOfRangeError,
    RemoteStorageError,
)
from sparklog.log.housekeeping.tier_run import TierResult, delete_all
from sparklog.log.segments.slices import RemoteReadRequired
from sparklog.log.tiering.journal import JOURNAL_FILE
from sparklog.log.tiering.restore import restore_journal
from sparklog.log.tools.repair import repair
from sparklog.types import OffsetAndTimestamp
from tests.support.logs import OWNER, append, open_log, read_all, records, values
from tests.support.tiering import FailingStore, Tiered, memory_store, stored_names


def expected(end: int, start: int = 0) -> list[tuple[int, bytes]]:
    return [(i, b"%d" % i) for i in range(start, end)]


def failing() -> FailingStore:
    return FailingStore(memory_store().url)


def test_records_only_in_the_store_are_read_like_local_ones(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(3)
    assert tiered.tier() == TierResult(copied=3, released=3)
    log = tiered.log
    assert (log.log_start_offset, log.local_log_start_offset, log.tier.state.copied_to) == (0, 15, 15)
    assert tiered.local_files() == ["00000000000000000015.arrow"]
    assert values(log) == expected(16)
    for offset in (0, 4, 5, 14, 15):
        piece = log.reader.read(offset, 1)
        assert piece is not None and piece.base_offset == offset
        piece.release()
    log.close()


def test_an_object_in_the_store_is_an_arrow_file(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path, settings={"local.retention.bytes": -2})
    tiered.fill(1)
    before = (tiered.log.directory / "00000000000000000000.arrow").read_bytes()
    tiered.tier()
    name = next(n for n in stored_names(tiered.store) if n.endswith(".arrow"))
    data = tiered.store.read_unchecked(name)
    assert data == before
    assert pa.ipc.open_file(data).read_all().column("value").to_pylist() == [b"0", b"1", b"2", b"3", b"4"]
    assert name.startswith(f"{OWNER.topic}-{OWNER.topic_id}/0/{0:020d}-")
    tiered.log.close()


def test_timestamps_are_looked_up_in_the_store(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(3)
    asked = [0, 3, 7, 14, 15, 16]
    before = [tiered.log.reader.offset_for_timestamp(t) for t in asked], tiered.log.reader.offset_of_max_timestamp()
    tiered.tier()
    log = tiered.log
    assert ([log.reader.offset_for_timestamp(t) for t in asked], log.reader.offset_of_max_timestamp()) == before
    assert before[0][2] == OffsetAndTimestamp(7, 7)
    log.close()


def test_the_largest_timestamp_may_be_in_the_store(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    append(tiered.log, records(1, first_ms=5_000))
    tiered.log.appender.roll()
    tiered.fill(1)
    tiered.tier()
    assert tiered.log.reader.offset_of_max_timestamp() == OffsetAndTimestamp(0, 5_000)
    tiered.log.close()


def test_a_caller_that_must_not_wait_is_referred_to_another_path(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(1)
    tiered.tier()
    with pytest.raises(RemoteReadRequired):
        tiered.log.reader.read(0, 100, may_wait=False)
    piece = tiered.log.reader.read(5, 100, may_wait=False)
    assert piece is not None
    piece.release()
    assert tiered.log.reader.bytes_available(0) == tiered.log.size_bytes > tiered.log.remote_size_bytes > 0
    tiered.log.close()


def test_a_restart_goes_on_with_the_store(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(2)
    tiered.tier()
    for again in (tiered.reopen, tiered.crash):
        log = again()
        assert values(log) == expected(11)
        assert log.local_log_start_offset == 10
    tiered.fill(1)
    assert tiered.tier().copied == 1
    assert values(tiered.log)[:11] == expected(11)
    assert len(values(tiered.log)) == 17
    tiered.log.close()


def test_the_active_segment_and_unsynced_data_are_not_copied(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    append(tiered.log, records(3))
    assert tiered.tier() == TierResult()
    tiered.log.appender.roll()
    assert tiered.tier() == TierResult(), "sealed, but still the last one, and not fsynced"
    append(tiered.log, records(1))
    assert tiered.tier() == TierResult(), "a power cut could still take it"
    tiered.log.flusher.flush()
    assert tiered.tier() == TierResult(copied=1, released=1)
    tiered.log.close()


def test_no_record_above_the_high_watermark_is_copied(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    log = tiered.log
    for _ in range(2):
        log.appender.append(records(2))
        log.appender.roll()
    log.appender.append(records(1))
    log.flusher.flush()
    log.raise_high_watermark(3)
    assert tiered.tier().copied == 1
    log.raise_high_watermark(5)
    assert tiered.tier().copied == 1
    log.close()


def test_local_retention_by_age_and_size(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path, settings={"local.retention.bytes": -1, "local.retention.ms": 100})
    tiered.fill(3)  # the records' timestamps are their offsets
    tiered.clock.time_ms = 110
    assert tiered.tier() == TierResult(copied=3, released=2), "newest records of 4, 9 and 14 ms"
    assert tiered.log.local_log_start_offset == 10
    sizes = [s.data_bytes for s in tiered.log.local_segments]
    tiered.settings |= {"local.retention.ms": -1, "local.retention.bytes": sizes[-1]}
    log = tiered.reopen()
    assert tiered.tier().released == 1
    assert log.local_log_start_offset == 15
    log.close()


def test_without_local_retention_everything_stays_local_too(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path, settings={"local.retention.bytes": -2})
    tiered.fill(3)
    assert tiered.tier() == TierResult(copied=3)
    assert tiered.log.local_log_start_offset == 0
    tiered.log.close()


def test_retention_over_both_parts_deletes_objects_after_the_log_start(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path, settings={"retention.ms": 100})
    tiered.fill(3)
    tiered.tier()
    tiered.clock.time_ms = 110
    assert tiered.tier().deleted == 0, "the log start comes first"
    tiered.retain()
    assert tiered.log.log_start_offset == 10
    assert tiered.tier().deleted == 2
    assert len({n.rsplit("/", 1)[0] for n in stored_names(tiered.store)}) == 1
    assert values(tiered.crash()) == expected(16, 10)
    with pytest.raises(OffsetOutOfRangeError):
        tiered.log.reader.read(9, 100)
    tiered.log.close()


def test_retention_bytes_counts_both_parts(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(4)
    tiered.tier()
    sizes = [s.data_bytes for s in tiered.log.segments]
    tiered.settings["retention.bytes"] = sum(sizes[2:])
    tiered.reopen()
    tiered.retain()
    assert (tiered.log.log_start_offset, tiered.log.local_log_start_offset) == (10, 20)
    tiered.log.close()


def test_deleted_records_leave_the_store(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(3)
    tiered.tier()
    assert tiered.log.retention.delete_records(7) == 7
    tiered.retain()
    assert tiered.tier().deleted == 1
    assert values(tiered.log) == expected(16, 7), "the batch that holds 7 begins there"
    tiered.log.retention.delete_records(-1)
    tiered.retain()
    assert tiered.tier().deleted == 2
    assert stored_names(tiered.store) == []
    assert values(tiered.crash()) == []
    tiered.log.close()


def test_a_deleted_topic_keeps_no_object_in_the_store(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(3)
    tiered.tier()
    tiered.log.mark_deleted()
    assert delete_all(tiered.files, tiered.log.directory, tiered.store) == 3
    assert stored_names(tiered.store) == []
    assert not (tiered.log.directory / "remote-log.journal").exists()


def test_a_flipped_byte_is_an_error_without_a_result(tmp_path: Path) -> None:
    store = failing()
    tiered = Tiered(tmp_path, store)
    tiered.fill(1)
    tiered.tier()
    store.flips = lambda key: key.endswith(".arrow")
    with pytest.raises(CorruptBatchError, match="is damaged"):
        tiered.log.reader.read(0, 1 << 20)
    store.flips = lambda key: False
    assert values(tiered.log) == expected(6), "what was bad has not been kept"
    tiered.log.close()


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".checksums", ".arrow"])
def test_a_damaged_or_missing_object_is_a_typed_error(tmp_path: Path, suffix: str) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(1)
    tiered.tier()
    name = next(n for n in stored_names(tiered.store) if n.endswith(suffix))
    fs, path = tiered.store.file_system, tiered.store.path(name)
    data = fs.cat_file(path)
    assert data, suffix
    fs.pipe_file(path, data[:-1])
    with pytest.raises(CorruptBatchError, match="is damaged"):
        tiered.log.reader.read(2, 1 << 20)
    fs.rm_file(path)
    with pytest.raises(RemoteStorageError, match="FileNotFoundError"):
        tiered.log.reader.read(2, 1 << 20)
    fs.pipe_file(path, data)
    assert values(tiered.log) == expected(6)
    tiered.log.close()


def test_a_store_that_is_away_is_retriable_and_local_reads_go_on(tmp_path: Path) -> None:
    store = failing()
    tiered = Tiered(tmp_path, store)
    tiered.fill(1)
    tiered.tier()
    store.fails = lambda what, key: True
    with pytest.raises(RemoteStorageError) as raised:
        tiered.log.reader.read(0, 100)
    assert raised.value.retriable
    piece = tiered.log.reader.read(5, 100)
    assert piece is not None
    piece.release()
    tiered.log.close()


def test_a_failed_copy_is_cleaned_and_done_again(tmp_path: Path) -> None:
    store = failing()
    tiered = Tiered(tmp_path, store)
    tiered.fill(2)
    store.tears = lambda key: key.endswith(".timeindex")
    with pytest.raises(RemoteStorageError, match="torn"):
        tiered.tier()
    assert stored_names(store) == []
    assert tiered.log.tier.state.copies == {}
    assert len(tiered.local_files()) == 3
    store.tears = lambda key: False
    assert tiered.tier().copied == 2
    assert values(tiered.log) == expected(11)
    tiered.log.close()


def test_leftovers_of_a_failed_copy_are_cleaned_later(tmp_path: Path) -> None:
    store = failing()
    tiered = Tiered(tmp_path, store)
    tiered.fill(1)
    store.fails = lambda what, key: what == "remove" or key.endswith("manifest.json")
    with pytest.raises(RemoteStorageError):
        tiered.tier()
    assert len(stored_names(store)) >= 4
    assert len(tiered.crash().tier.state.orphans) == 1
    tiered.log.flusher.flush()
    store.fails = lambda what, key: False
    assert tiered.tier() == TierResult(copied=1, released=1, cleaned=1)
    assert len({n.rsplit("/", 1)[0] for n in stored_names(store)}) == 1
    tiered.log.close()


def test_without_the_url_old_offsets_raise_an_error_with_the_cause(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(1)
    tiered.tier()
    tiered.log.close()
    log = open_log(tmp_path, tiered.settings, files=tiered.files)
    assert log.log_start_offset == 0
    with pytest.raises(RemoteStorageError, match=r"remote\.log\.storage\.url"):
        log.reader.read(0, 100)
    log.close()


def test_missing_local_files_behind_the_copied_part_are_noticed(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path, settings={"local.retention.bytes": -1, "local.retention.ms": 100})
    tiered.fill(4)
    tiered.clock.time_ms = 110
    assert tiered.tier() == TierResult(copied=4, released=2)
    tiered.log.close()
    tiered.checkpoint()
    for path in tiered.log.directory.glob("00000000000000000010.*"):
        path.unlink()
    log = tiered.open()
    assert values(log) == expected(21), "a copy is there of what was lost"
    log.close()
    (tiered.log.directory / "remote-log.journal").unlink()
    with pytest.raises(LogCorruptError, match="restore-remote"):
        tiered.open()


def test_a_repair_abandons_the_missing_offsets_behind_the_copied_part(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(2)
    tiered.tier()
    tiered.fill(2)
    there = values(tiered.log)
    copied_to, behind = tiered.log.local_segments[0].base_offset, tiered.log.local_segments[1].base_offset
    tiered.log.close()
    (tiered.log.directory / f"{copied_to:020}.arrow").unlink()
    report = repair(tiered.log.directory, RealFiles(), dry_run=False)
    assert report.gaps == [(copied_to, behind)]
    tiered.open(clean=False)
    left = [header.base_offset for header, _ in read_all(tiered.log, offset=behind)]
    assert left == [offset for offset, _ in there if offset >= behind]
    assert tiered.log.gaps == ((copied_to, behind),)


def test_no_append_goes_into_a_remote_segment(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(1)
    tiered.tier()
    tiered.log.close()
    tiered.checkpoint()
    for path in [*tiered.log.directory.glob("00000000000000000005.*"), *tiered.log.directory.glob("*6.snapshot")]:
        path.unlink()
    tiered.points = {"log_start_offset": 0, "high_watermark": 5, "recovery_point": 5}
    log = tiered.open()
    assert log.log_end_offset == 5
    assert append(log, records(1, value=b"5")) == 5
    assert values(log) == expected(6)
    log.close()


@pytest.mark.parametrize("offset", [0, 3, 5, 7, 10, 12, 15])
def test_a_truncation_reaches_into_the_store(tmp_path: Path, offset: int) -> None:
    tiered = Tiered(tmp_path, settings={"local.retention.bytes": -1, "local.retention.ms": 105})
    tiered.fill(3)
    tiered.clock.time_ms = 110
    assert tiered.tier() == TierResult(copied=3, released=1)
    end = tiered.log.truncation.truncate_to(offset)
    assert end == (offset if offset >= 5 else 0), "a copy goes as a whole"
    append(tiered.log, records(1, value=b"new"))
    want = [*expected(end), (end, b"new")]
    assert values(tiered.log) == want
    assert values(tiered.reopen()) == want
    tiered.fill(2)
    want = values(tiered.log)
    tiered.clock.time_ms = 1 << 40
    tiered.tier()
    assert values(tiered.log) == want
    assert values(tiered.reopen()) == want
    tiered.log.close()
    state = tiered.log.tier.state
    starts = [s.base_offset for s in state.finished]
    assert len(starts) == len(set(starts))
    kept = {copy.started.prefix for copy in state.orphans}  # other replicas may have released local files for it
    assert len(kept) == (1 if end == 0 else 0)
    assert {n.strip("/").rsplit("/", 1)[0] for n in stored_names(tiered.store)} == {
        s.prefix for s in state.finished
    } | kept


def test_released_files_that_still_wait_go_with_a_cut_into_the_store(tmp_path: Path) -> None:
    """Otherwise they would lie beside their successors after a crash within file.delete.delay.ms."""
    tiered = Tiered(tmp_path, settings={"file.delete.delay.ms": 60_000})
    tiered.fill(3)
    assert tiered.tier().released == 3
    waiting = tiered.local_files()
    assert tiered.log.truncation.truncate_to(7) == 5
    assert tiered.local_files() == waiting[:1], "what lies before the cut waits on"
    for _ in range(2):
        append(tiered.log, records(4, value=b"new"))
    want = values(tiered.log)
    assert values(tiered.crash()) == want


def test_a_local_file_that_comes_back_after_a_power_cut_is_removed(tmp_path: Path) -> None:
    """Removals that were not synced may be undone, in any order: a gap between local files would look like damage."""
    tiered = Tiered(tmp_path)
    tiered.fill(3)
    tiered.settings["local.retention.bytes"] = -1
    first = tiered.log.directory / "00000000000000000000.arrow"
    content = first.read_bytes()
    assert tiered.tier().released == 3
    tiered.log.flusher.flush()
    tiered.checkpoint()
    tiered.log.close(seal=False)
    first.write_bytes(content)
    assert values(tiered.open(clean=False)) == expected(16)
    assert not first.exists()
    tiered.log.close()


def test_records_at_risk_of_a_power_cut_are_not_copied(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    append(tiered.log, records(3))
    tiered.log.appender.roll()
    append(tiered.log, records(1))
    assert (tiered.log.recovery_point, tiered.log.high_watermark) == (0, 4)
    assert tiered.log.tierable_end == 0
    assert tiered.tier() == TierResult()
    tiered.log.close()


def test_a_cache_far_too_small_still_reads_everything(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path, cache_bytes=1, settings={"segment.bytes": 16 << 20})
    for _ in range(3):
        for _ in range(3):
            append(tiered.log, records(2, value=b"x" * 600_000))
        tiered.log.appender.roll()
    append(tiered.log, records(1))
    tiered.log.flusher.flush()
    assert tiered.tier().copied == 3
    assert [len(v) for _, v in values(tiered.log)] == [600_000] * 18 + [1]
    piece = tiered.log.reader.read(0, 1 << 20)
    assert piece is not None
    for offset in (8, 14, 0, 2):
        other = tiered.log.reader.read(offset, 1 << 20)
        assert other is not None
        other.release()
    assert b"x" * 600_000 in piece.read(), "a reader under way keeps what it has"
    piece.release()
    held = sum(p.stat().st_blocks * 512 for p in (tmp_path / "cache").iterdir())
    assert held <= 4 << 20
    tiered.log.close()


def test_reads_fetch_only_the_needed_pieces(tmp_path: Path) -> None:
    store = failing()
    tiered = Tiered(tmp_path, store, settings={"segment.bytes": 64 << 20})
    for _ in range(20):
        append(tiered.log, records(2, value=b"x" * 600_000))
    tiered.log.appender.roll()
    append(tiered.log, records(1))
    tiered.log.flusher.flush()
    tiered.tier()
    store.read_bytes = 0
    piece = tiered.log.reader.read(20, 1 << 20)
    assert piece is not None
    piece.release()
    assert store.read_bytes <= 4 << 20 < tiered.log.remote_size_bytes
    tiered.log.close()


def test_a_lost_journal_is_written_again_from_the_store(tmp_path: Path) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(3)
    tiered.tier()
    tiered.log.close()
    tiered.checkpoint()
    journal = tiered.log.directory / JOURNAL_FILE
    with pytest.raises(InvalidRequestError, match="exists"):
        restore_journal(tiered.files, tiered.log.directory, tiered.store, dry_run=False)
    journal.write_bytes(journal.read_bytes()[:100] + b"?" + journal.read_bytes()[101:])
    with pytest.raises(LogCorruptError, match="restore-remote"):
        tiered.open()
    journal.unlink()
    assert len(restore_journal(tiered.files, tiered.log.directory, tiered.store, dry_run=True).segments) == 3
    assert not journal.exists()
    restore_journal(tiered.files, tiered.log.directory, tiered.store, dry_run=False)
    assert values(tiered.open()) == expected(16)
    assert tiered.tier() == TierResult()
    tiered.log.close()


def test_an_upload_that_silently_lost_bytes_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiered = Tiered(tmp_path)
    tiered.fill(1)
    fs = tiered.store.file_system
    whole = fs.open

    def lossy(path: str, mode: str = "rb", **more: Any) -> object:
        file = whole(path, mode, **more)
        if path.endswith(".index") and mode == "wb":
            file.write = lambda data: len(data)
        return file

    with monkeypatch.context() as patch:
        patch.setattr(fs, "open", lossy)
        with pytest.raises(RemoteStorageError, match="but the store has 0"):
            tiered.tier()
    assert stored_names(tiered.store) == []
    assert tiered.tier().copied == 1
    assert values(tiered.log) == expected(6)
    tiered.log.close()


@pytest.mark.parametrize("first_segment_is_lost", [False, True])
def test_a_log_that_continues_elsewhere_begins_at_its_end_after_a_crash_before_the_checkpoint(
    tmp_path: Path, first_segment_is_lost: bool
) -> None:
    """A new replica begins where its leader's log does. It has no journal yet, and misses none."""
    tiered = Tiered(tmp_path)
    tiered.log.truncation.restart_at(20)
    append(tiered.log, records(2))
    if first_segment_is_lost:
        tiered.log.close(seal=False)
        for path in tiered.log.directory.glob("*.arrow"):
            path.unlink()
        log = tiered.open(clean=False)
    else:
        log = tiered.crash()
    end = 20 if first_segment_is_lost else 22
    assert (log.log_start_offset, log.log_end_offset) == (20, end)
    log.truncation.truncate_to(10)  # below its beginning
    log = tiered.crash()
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    tiered.checkpoint()
    log.truncation.forget(log.truncation.count)
    assert tiered.reopen().log_start_offset == 10
    tiered.log.close()
