"""Keeps the event loop from waiting for a disk inside `sendfile`: cold file ranges are read on an I/O thread first."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from functools import partial

from sparklog.log.slices import FileSlice
from sparklog_broker.io_threads import IoThreads

READ_BYTES = 1024 * 1024
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


async def warm(slices: Sequence[FileSlice], io: IoThreads) -> None:
    """Returns when the slices are in the page cache, as far as their first and last pages tell."""
    cold = [s for s in slices if not is_resident(s)]
    if cold:
        await asyncio.gather(*(io.run(io.idlest(), _reader_of(s)) for s in cold))


def is_resident(file_slice: FileSlice) -> bool:
    """Whether first and last byte can be read without waiting; True where the file system cannot tell."""
    if not _NOWAIT:
        return True
    fd, last = file_slice.fileno(), file_slice.position + file_slice.length_bytes - 1
    one = bytearray(1)
    try:
        for position in (file_slice.position, last):
            os.preadv(fd, [one], position, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError as e:
        return e.errno in _UNSUPPORTED
    return True


def _reader_of(file_slice: FileSlice) -> Callable[[], None]:
    """A job that reads the slice. It has a descriptor of its own: the slice may be released before it has run."""
    return partial(_read_through, os.dup(file_slice.fileno()), file_slice.position, file_slice.length_bytes)


def _read_through(fd: int, position: int, length_bytes: int) -> None:
    """Runs on an I/O thread; closes `fd`."""
    try:
        os.posix_fadvise(fd, position, length_bytes, os.POSIX_FADV_WILLNEED)
        end = position + length_bytes
        with memoryview(bytearray(min(READ_BYTES, length_bytes))) as view:
            while position < end:
                count = os.preadv(fd, [view[: end - position]], position)
                if count == 0:  # shorter than announced: sendfile finds it too, and the connection is closed
                    return
                position += count
    finally:
        os.close(fd)
