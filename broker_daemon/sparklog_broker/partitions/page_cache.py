"""Keeps the event loop from waiting for a disk inside `sendfile`: cold file ranges are read on an I/O thread first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from sparklog.errors import StorageError
from sparklog.log.segments.slices import FileSlice
from sparklog_broker.partitions.io_threads import IoThreads

READ_BYTES = 1024 * 1024


async def warm(slices: Sequence[FileSlice], io: IoThreads) -> dict[FileSlice, StorageError]:
    """Read cold slices into the page cache, as far as their first and last pages tell. Returns the slices that the disk
    cannot read, with their errors.
    """
    cold = [s for s in slices if not s.is_cached]
    if not cold:
        return {}
    jobs = [io.run(io.idlest(), partial(_read_through, s.duplicate())) for s in cold]
    failed: dict[FileSlice, StorageError] = {}
    for file_slice, outcome in zip(cold, await asyncio.gather(*jobs, return_exceptions=True), strict=True):
        if isinstance(outcome, StorageError):
            failed[file_slice] = outcome
        elif outcome is not None:
            raise outcome
    return failed


def _read_through(file_slice: FileSlice) -> None:
    """Read a slice on an I/O thread. The slice is a duplicate: the original may be released earlier."""
    try:
        position, end = file_slice.position, file_slice.position + file_slice.length_bytes
        file_slice.read_ahead()
        while position < end:
            count = len(file_slice.read_part(position, min(READ_BYTES, end - position)))
            if count == 0:  # shorter than announced: `sendfile` finds it too, and the connection is closed
                return
            position += count
    finally:
        file_slice.release()
