"""After a crash only the part behind the recovery point is read; the remains of a power cut there are distinguished
from damage."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.environment.files import File, RealFiles
from sparklog.errors import LogCorruptError
from sparklog.log.partition_log import PartitionLog
from tests.support.logs import append, open_log, records, segment_files, values

SMALL = {"segment.bytes": 4096}


class CountedFile:
    def __init__(self, inner: File, path: Path, counts: dict[str, int]) -> None:
        self._inner, self._path, self._counts = inner, path, counts

    def read(self, position: int, size_bytes: int) -> bytes:
        data = self._inner.read(position, size_bytes)
        self._counts[self._path.name] = self._counts.get(self._path.name, 0) + len(data)
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class CountingFiles(RealFiles):
    """Counts the bytes read of each file."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def open(self, path: Path, *, create: bool = False) -> File:
        return CountedFile(super().open(path, create=create), path, self.counts)  # type: ignore[return-value]


def crashed(tmp_path: Path, batches: int = 6, size: int = 100_000) -> PartitionLog:
    """Segments of 200 kB or so with two batches each, not closed."""
    log = open_log(tmp_path, {"segment.bytes": 250_000})
    for _ in range(batches):
        append(log, records(1, value=b"x" * size))
    return log


def test_records_below_the_recovery_point_are_not_read(tmp_path: Path) -> None:
    crashed(tmp_path)
    paths = segment_files(tmp_path)
    assert len(paths) == 3
    for point, scanned in ((0, 3), (2, 2), (4, 1), (5, 1)):
        files = CountingFiles()
        log = open_log(tmp_path, files=files, clean=False, recovery_point=point)
        assert (log.log_end_offset, log.recovery_point) == (6, point)
        read = [files.counts[p.name] for p in paths]
        # what lies behind is read twice: to be checked, and to be written again
        assert sum(count > 300_000 for count in read) == (scanned if point < 5 else 0), read
        assert all(count < 60_000 for count in read[: 3 - scanned]), read  # headers only
    assert 200_000 < read[-1] < 230_000  # the batch behind the recovery point, twice, and not the one before it


def test_a_sealed_last_segment_on_the_disk_is_not_read(tmp_path: Path) -> None:
    crashed(tmp_path).close()
    files = CountingFiles()
    log = open_log(tmp_path, files=files, clean=False, recovery_point=6)
    assert log.log_end_offset == 6
    assert max(files.counts.values()) < 30_000
    files = CountingFiles()
    open_log(tmp_path, files=files, clean=True)
    assert max(files.counts.values()) < 30_000


def test_only_data_that_may_not_be_on_the_disk_are_fsynced_again(tmp_path: Path) -> None:
    crashed(tmp_path)
    log = open_log(tmp_path, clean=False, recovery_point=4)
    assert [s.base_offset for s in log._state.writer.dirty.segments] == [4]
    log = open_log(tmp_path, clean=False, recovery_point=1)
    assert [s.base_offset for s in log._state.writer.dirty.segments] == [0, 2, 4]
    log.flusher.flush()
    assert (log.recovery_point, log._state.writer.dirty.segments) == (6, [])


def several(tmp_path: Path) -> list[Path]:
    """Segments from 0, 3 and 6 on with a batch each."""
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, records(3))
        log.appender.roll()
    log = open_log(tmp_path, clean=False)
    return segment_files(tmp_path)


@pytest.mark.parametrize("left", ["nothing", "zeros", "head", "garbage"])
def test_segments_emptied_by_a_power_cut_behind_a_torn_one_go(tmp_path: Path, left: str) -> None:
    paths = several(tmp_path)
    whole = paths[2].read_bytes()
    contents = {"nothing": b"", "zeros": bytes(4096), "head": whole[:1000], "garbage": whole[:1000] + b"\x11" * 999}
    paths[1].write_bytes(paths[1].read_bytes()[:1100])  # torn inside its batch
    paths[2].write_bytes(contents[left])
    saved = tmp_path / "saved"
    shutil.copytree(paths[0].parent, saved)
    for point in (4, 7):
        with pytest.raises(LogCorruptError):  # this cannot have happened
            open_log(tmp_path, clean=False, recovery_point=point)
        assert [p.read_bytes() for p in segment_files(tmp_path)] == [
            p.read_bytes() for p in sorted(saved.glob("*.arrow"))
        ]
    log = open_log(tmp_path, clean=False, recovery_point=3)
    assert (log.log_end_offset, segment_files(tmp_path)) == (3, paths[:2])
    assert append(log, records(1)) == 3
    assert len(values(log)) == 4


def test_a_torn_segment_with_batches_behind_it_is_damage(tmp_path: Path) -> None:
    paths = several(tmp_path)
    torn = paths[1].read_bytes()[:1100]
    paths[1].write_bytes(torn)
    with pytest.raises(LogCorruptError, match=r"the next segment begins at 6 .*sparklog log repair"):
        open_log(tmp_path, clean=False)
    assert paths[1].read_bytes() == torn
    assert segment_files(tmp_path) == paths


def test_a_missing_segment_behind_the_recovery_point_is_damage_only_with_batches_behind_it(tmp_path: Path) -> None:
    paths = several(tmp_path)
    paths[1].unlink()
    with pytest.raises(LogCorruptError, match="leaves a gap before 00000000000000000006"):
        open_log(tmp_path, clean=False)
    paths[2].write_bytes(paths[2].read_bytes()[:1000])
    assert open_log(tmp_path, clean=False).log_end_offset == 3
    assert segment_files(tmp_path) == paths[:1]


def test_a_footer_of_which_half_was_written_is_written_again(tmp_path: Path) -> None:
    paths = several(tmp_path)
    sealed = [p.read_bytes() for p in paths]
    for i in (1, 2):
        for lost in (100, 300, 500):
            damaged = bytearray(sealed[i])
            damaged[-lost : -lost + 64] = bytes(64)
            paths[i].write_bytes(damaged)
            log = open_log(tmp_path, clean=False)
            assert log.log_end_offset == 9
            log.close()
            assert [p.read_bytes() for p in paths] == sealed
            assert pa.ipc.open_file(pa.memory_map(str(paths[i]))).num_record_batches == 1


def test_index_files_behind_the_recovery_point_are_written_again(tmp_path: Path) -> None:
    log = open_log(tmp_path, {"segment.bytes": 8192, "index.interval.bytes": 1})
    for i in range(20):
        append(log, records(1, first_ms=i * 10, value=b"x" * 500))
    for path in segment_files(tmp_path)[:-1]:
        for ending in (".index", ".timeindex"):
            other = path.with_suffix(ending)
            other.write_bytes(other.read_bytes()[: 2 * (8 if ending == ".index" else 12)])  # sane, but not whole
    log = open_log(tmp_path, {"index.interval.bytes": 1}, clean=False)
    assert [log.reader.offset_for_timestamp(t * 10).offset for t in range(20)] == list(range(20))


def test_a_damaged_footer_does_not_stop_appends(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(2), records(3))
    log.close()
    (path,) = segment_files(tmp_path)
    data = path.read_bytes()
    log = open_log(tmp_path)
    path.write_bytes(data[:-200] + bytes(100) + data[-100:])
    assert append(log, records(1)) == 5
    assert len(values(log)) == 6
    log.close()
    assert pa.ipc.open_file(pa.memory_map(str(path))).num_record_batches == 3


def test_a_log_emptied_by_a_power_cut_begins_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, records(3))
    segment_files(tmp_path)[0].unlink()
    log = open_log(tmp_path, clean=False, high_watermark=3)
    assert (log.log_end_offset, log.high_watermark, log.leader_epoch) == (0, 0, -1)
    assert append(log, records(3)) == 0


def test_a_small_segment_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *wanted: asked.append(wanted))
    log = open_log(tmp_path)
    append(log, records(3))
    (path,) = segment_files(tmp_path)
    asked.clear()
    open_log(tmp_path, clean=False)
    assert asked == [(0, path.stat().st_size, os.POSIX_FADV_WILLNEED)]
    append(log, records(1, value=b"x" * (1 << 20)))
    asked.clear()
    assert open_log(tmp_path, clean=False).log_end_offset == 4
    assert asked == []
