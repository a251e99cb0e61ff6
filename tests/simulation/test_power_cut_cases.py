"""Cases of power cuts that the campaign has found, one by one."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest

from sparklog.errors import StorageError, StorageFullError
from sparklog.testing._sim_files import SimFile, SimFiles
from tests.support.compaction import append_rows, compact, last_values, open_keyed, stored
from tests.support.logs import append, open_log, records

ROOT = Path("/disk")
SETTINGS: dict[str, Any] = {"segment.bytes": 4096}


def test_a_flushed_value_stays_until_the_one_that_replaces_it_is_on_the_disk() -> None:
    lost = 0
    for seed in range(40):
        files = SimFiles()
        log = open_keyed(ROOT, SETTINGS, files=files)
        append_rows(log, [(b"k", b"old"), (b"filler", b"x" * 2500)])
        log.flusher.flush()
        log.appender.begin_segment()
        append_rows(log, [(b"k", b"new"), (b"other", b"y" * 2500)])
        result = compact(log)
        assert result is not None and result.rows_removed == 1
        end = log.log_end_offset
        files.power_cut(random.Random(seed))
        log = open_keyed(ROOT, SETTINGS, files=files, clean=False)
        assert last_values(stored(log)).get(b"k") in (b"old", b"new"), seed
        lost += log.log_end_offset < end
    assert lost == 0, "all that was compacted is on the disk"


def test_a_failed_append_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The append had begun new segments, whose removal has to reach the disk."""
    write, large = SimFile.write, 0

    def failing(file: SimFile, position: int, data: bytes | bytearray | memoryview) -> None:
        nonlocal large
        large += len(data) > 3000
        if large == 4:
            raise StorageFullError("the disk is full")
        write(file, position, data)
        file.sync()

    monkeypatch.setattr(SimFile, "write", failing)
    for seed in range(40):
        large, files = 0, SimFiles()
        log = open_log(ROOT, SETTINGS, files=files)
        append(log, records(2, value=b"1" * 1600))
        log.flusher.flush()
        with pytest.raises(StorageFullError):
            append(log, *(records(2, value=b"2" * 1600) for _ in range(3)))
        large = 5
        assert log.log_end_offset == 2
        files.power_cut(random.Random(seed))
        assert open_log(ROOT, SETTINGS, files=files, clean=False).log_end_offset == 2, seed


def test_bytes_of_a_failed_fsync_reach_the_disk_after_a_restart() -> None:
    """The kernel counts the pages of a failed fsync as written, so the recovery has to write them again."""
    for seed in range(10):
        files = SimFiles()
        log = open_log(ROOT, SETTINGS, files=files)
        append(log, records(2))
        log.flusher.flush()
        append(log, records(3))
        files.fault = lambda operation, path: errno.EIO if operation == "sync" else 0
        with pytest.raises(StorageError):
            log.flusher.flush()
        files.fault = lambda operation, path: 0
        files.kill()
        log = open_log(ROOT, SETTINGS, files=files, clean=False)
        assert log.log_end_offset == 5
        append(log, records(1))
        log.flusher.flush()
        files.power_cut(random.Random(seed))
        assert open_log(ROOT, SETTINGS, files=files, clean=False).log_end_offset == 6, seed
