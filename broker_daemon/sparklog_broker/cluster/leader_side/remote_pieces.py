"""What a follower is to copy and only the object store has: read on threads that may wait, one piece of a partition at
a time, kept until the follower's session takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from sparklog.errors import SparklogError
from sparklog.log.partition_log import PartitionLog
from sparklog.log.segments.slices import FileSlice
from sparklog.types import TopicPartition

Found = FileSlice | SparklogError | None


class RemotePieces:
    """Of one session. Event-loop thread only."""

    def __init__(self, executor: Executor | None, on_read: Callable[[TopicPartition], None]) -> None:
        """`executor`: where the object store is waited for; None: the loop's. `on_read` is told what can be taken."""
        self._executor = executor
        self._on_read = on_read
        self._wanted: dict[TopicPartition, int] = {}
        """The offset that is read, or has been."""
        self._reading: set[TopicPartition] = set()
        self._found: dict[TopicPartition, Found] = {}

    def is_reading(self, key: TopicPartition) -> bool:
        """Whether the store is waited for."""
        return key in self._reading

    def take(self, key: TopicPartition) -> FileSlice | None:
        """What was read; it is the caller's now. None: nothing was. Raises what reading did."""
        self._wanted.pop(key, None)
        found = self._found.pop(key, None)
        if isinstance(found, SparklogError):
            raise found
        return found

    def read(self, key: TopicPartition, log: PartitionLog, offset: int, max_bytes: int) -> None:
        """Begins to read a piece: whole batches, one at least, up to the log end."""
        self._wanted[key] = offset
        self._reading.add(key)
        job = partial(log.reader.read, offset, max_bytes, to_log_end=True)
        reading = asyncio.get_running_loop().run_in_executor(self._executor, job)
        reading.add_done_callback(partial(self._done, key, offset))

    def _done(self, key: TopicPartition, offset: int, reading: asyncio.Future[FileSlice | None]) -> None:
        self._reading.discard(key)
        if reading.cancelled():
            return
        error = reading.exception()
        if error is not None and not isinstance(error, SparklogError):
            raise error
        found: Found = error if isinstance(error, SparklogError) else reading.result()
        if self._wanted.get(key) == offset:
            self._found[key] = found
        elif isinstance(found, FileSlice):
            found.release()
        self._on_read(key)

    def drop(self, key: TopicPartition) -> None:
        """The follower does not want it any more, or something else."""
        self._wanted.pop(key, None)
        found = self._found.pop(key, None)
        if isinstance(found, FileSlice):
            found.release()

    def close(self) -> None:
        for key in list(self._wanted):
            self.drop(key)
