"""Followers' log starts are written down before anybody hears of them, many with one write."""

from __future__ import annotations

import asyncio

from sparklog_broker.cluster.written_starts import WrittenStarts

from sparklog.errors import SparklogError, StorageError
from sparklog.types import TopicPartition

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Disk:
    """Writes that end when the test says so."""

    def __init__(self) -> None:
        self.writes: list[asyncio.Future[None]] = []
        self.starts = WrittenStarts(self._write)
        self.told: list[tuple[str, SparklogError | None]] = []

    def _write(self) -> asyncio.Future[None]:
        self.writes.append(asyncio.get_running_loop().create_future())
        return self.writes[-1]

    def when_written(self, name: str) -> None:
        self.starts.when_written(lambda error: self.told.append((name, error)))

    async def end(self, error: SparklogError | None = None) -> None:
        write = self.writes[-1]
        write.set_result(None) if error is None else write.set_exception(error)
        await asyncio.sleep(0)


def test_what_is_raised_while_a_write_runs_is_written_by_the_next_one() -> None:
    async def run() -> None:
        disk = Disk()
        disk.starts.raised(ONE)
        disk.when_written("one")
        for _ in range(3):
            disk.starts.raised(OTHER)
            disk.when_written("other")
        assert len(disk.writes) == 1
        assert not disk.starts.is_written(ONE)
        await disk.end()
        assert disk.told == [("one", None)]
        assert disk.starts.is_written(ONE)
        assert not disk.starts.is_written(OTHER)
        assert len(disk.writes) == 2
        await disk.end()
        assert disk.told == [("one", None), *[("other", None)] * 3]
        assert disk.starts.is_written(OTHER)
        assert len(disk.writes) == 2

    asyncio.run(run())


def test_what_could_not_be_written_is_not_taken_for_written() -> None:
    async def run() -> None:
        disk = Disk()
        disk.starts.raised(ONE)
        disk.when_written("one")
        error = StorageError("the disk is gone")
        await disk.end(error)
        assert disk.told == [("one", error)]
        assert not disk.starts.is_written(ONE)
        disk.when_written("again")
        await disk.end()
        assert disk.told[1:] == [("again", None)]
        assert disk.starts.is_written(ONE)

    asyncio.run(run())
