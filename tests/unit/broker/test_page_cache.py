"""Cold ranges are read before they are sent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest
from sparklog_broker.partitions import page_cache
from sparklog_broker.partitions.io_threads import IoThreads

from sparklog.environment.executors import ThreadExecutors
from sparklog.environment.files import RealFiles
from sparklog.errors import StorageError
from sparklog.log.segments.slices import FileSlice, SharedFile

SIZE = 3 * 1024 * 1024 + 17


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(SIZE))
    return path


def test_recent_writes_are_cached(file: Path) -> None:
    r = FileSlice(SharedFile(RealFiles().open(file)), 5, SIZE - 5, 0, 1, is_tail=False)
    assert r.is_cached
    r.release()


def test_an_empty_or_short_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    r = FileSlice(SharedFile(RealFiles().open(tmp_path / "f")), 100, 10, 0, 1, is_tail=False)
    assert r.is_cached
    r.release()


class MetricSources:
    """A file that is not cached, whose reads are noted, or fail."""

    def __init__(self, path: Path, error: StorageError | None = None) -> None:
        self._file = RealFiles().open(path)
        self._error = error
        self.reads: list[tuple[int, int]] = []
        self.closed = 0

    def read(self, position: int, size_bytes: int) -> bytes:
        if self._error is not None:
            raise self._error
        data = self._file.read(position, size_bytes)
        self.reads.append((position, len(data)))
        return data

    def is_cached(self, position: int, size_bytes: int) -> bool:
        return False

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self.closed += 1
        self._file.close()


def file_slice(watched: MetricSources, position: int, length_bytes: int) -> FileSlice:
    return FileSlice(SharedFile(cast(Any, watched)), position, length_bytes, 0, 1, is_tail=False)


def test_cold_slices_are_read_through_even_when_released_meanwhile(file: Path) -> None:
    watched = MetricSources(file)

    async def scenario() -> None:
        io = IoThreads(asyncio.get_running_loop(), ThreadExecutors(), 1)
        r = file_slice(watched, 10, SIZE - 10)
        warming = asyncio.ensure_future(page_cache.warm([r], io))
        await asyncio.sleep(0)
        r.release()
        assert await warming == {}
        await asyncio.to_thread(io.stop)

    asyncio.run(scenario())
    assert sum(count for _, count in watched.reads) == SIZE - 10
    assert watched.reads[0][0] == 10
    assert watched.closed == 1


def test_unreadable_ranges_are_reported(file: Path) -> None:
    error = StorageError("cannot read")

    async def scenario() -> None:
        io = IoThreads(asyncio.get_running_loop(), ThreadExecutors(), 1)
        good, bad = file_slice(MetricSources(file), 0, 10), file_slice(MetricSources(file, error), 0, 10)
        assert await page_cache.warm([good, bad], io) == {bad: error}
        assert len(good.read()) == 10
        good.release()
        bad.release()
        await asyncio.to_thread(io.stop)

    asyncio.run(scenario())
