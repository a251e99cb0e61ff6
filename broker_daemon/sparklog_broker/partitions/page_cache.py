"""Reads of cold file ranges on I/O threads before `sendfile`, so that the event loop does not wait for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from sparklog.errors import StorageError
from sparklog.log.segments.slices import FileSlice
from sparklog_broker.partitions.io_threads import IoThreads

READ_BYTES = 1024 * 1024


async def warm(slices: Sequence[FileSlice], io: IoThreads) -> dict[FileSlice, StorageError]:
    """Read cold slices into the page cache. A slice counts as cold if its first or last page is. Returns the slices
    that cannot be read, with their errors.
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
    """Read a slice on an I/O thread. The slice is a duplicate, because the original can be released earlier."""
    try:
        position, end = file_slice.position, file_slice.position + file_slice.length_bytes
        file_slice.read_ahead()
        while position < end:
            count = len(file_slice.read_part(position, min(READ_BYTES, end - position)))
            if count == 0:  # the file is too short: `sendfile` will fail, which closes the connection
                return
            position += count
    finally:
        file_slice.release()
