"""Cold ranges are read before they are sent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest
from sparklog_broker import page_cache
from sparklog_broker.io_threads import IoThreads

SIZE = 3 * 1024 * 1024 + 17


class Range:
    def __init__(self, path: Path, position: int, length_bytes: int) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self.position, self.length_bytes = position, length_bytes

    def fileno(self) -> int:
        return self._fd

    def release(self) -> None:
        os.close(self._fd)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(SIZE))
    return path


def test_what_was_just_written_is_resident(file: Path) -> None:
    r = Range(file, 5, SIZE - 5)
    assert page_cache.is_resident(cast(Any, r))
    r.release()


def test_an_empty_or_short_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    r = Range(tmp_path / "f", 100, 10)
    assert page_cache.is_resident(cast(Any, r))
    r.release()


def test_cold_slices_are_read_through_even_when_released_meanwhile(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    original = os.preadv

    def preadv(fd: int, buffers: list[Any], position: int, *flags: int) -> int:
        count = original(fd, buffers, position, *flags)
        if not flags:
            read.append((position, count))
        return count

    monkeypatch.setattr(page_cache, "is_resident", lambda s: False)
    monkeypatch.setattr(os, "preadv", preadv)

    async def scenario() -> None:
        io = IoThreads(asyncio.get_running_loop(), 1)
        r = Range(file, 10, SIZE - 10)
        warming = asyncio.ensure_future(page_cache.warm([cast(Any, r)], io))
        await asyncio.sleep(0)
        r.release()
        await warming
        await asyncio.to_thread(io.stop)

    before = len(list(Path("/proc/self/fd").iterdir()))
    asyncio.run(scenario())
    assert sum(count for _, count in read) == SIZE - 10
    assert read[0][0] == 10
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "its own descriptor is closed"
