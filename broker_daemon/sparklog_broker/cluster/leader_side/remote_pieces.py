"""Pieces of a follower's records that are only in the object store. Threads that are allowed to block read the pieces,
one for each partition at a time. A piece is kept until the follower's session takes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from sparklog.errors import SparklogError
from sparklog.log.partition_log import PartitionLog
from sparklog.log.segments.slices import FileSlice
from sparklog.types import TopicPartition

Outcome = FileSlice | SparklogError | None


class RemotePieces:
    """The pieces of one session. Event-loop thread only."""

    def __init__(self, executor: Executor | None, on_read: Callable[[TopicPartition], None]) -> None:
        """`executor`: threads that wait for the object store; None for the loop's executor. `on_read` is called with
        the partition when its piece has been read."""
        self._executor = executor
        self._on_read = on_read
        self._offsets: dict[TopicPartition, int] = {}
        """By partition: the offset of its piece, while it is being read and until it is taken."""
        self._reading: set[TopicPartition] = set()
        self._pieces: dict[TopicPartition, Outcome] = {}

    def is_reading(self, key: TopicPartition) -> bool:
        """True while the piece is being read."""
        return key in self._reading

    def take(self, key: TopicPartition) -> FileSlice | None:
        """Return the piece that has been read, which the caller must release; None if no piece was read, or nothing was
        found at its offset. Raises the error of the read."""
        self._offsets.pop(key, None)
        piece = self._pieces.pop(key, None)
        if isinstance(piece, SparklogError):
            raise piece
        return piece

    def read(self, key: TopicPartition, log: PartitionLog, offset: int, max_bytes: int) -> None:
        """Begin to read a piece of up to `max_bytes` from `offset` on: whole batches, at least one, up to the log end
        (not only to the high watermark)."""
        self._offsets[key] = offset
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
        piece: Outcome = error if isinstance(error, SparklogError) else reading.result()
        if self._offsets.get(key) == offset:
            self._pieces[key] = piece
        elif isinstance(piece, FileSlice):
            piece.release()
        self._on_read(key)

    def drop(self, key: TopicPartition) -> None:
        """Discard the piece, because the follower needs no piece or a different piece."""
        self._offsets.pop(key, None)
        piece = self._pieces.pop(key, None)
        if isinstance(piece, FileSlice):
            piece.release()

    def close(self) -> None:
        for key in list(self._offsets):
            self.drop(key)
