"""A wake-up for a thread that waits for sockets: a descriptor that another thread makes readable."""

from __future__ import annotations

import contextlib
import io
import os

_ONE = (1).to_bytes(8, "little")
_READ_BYTES = 4096


class Waker:
    """A wake-up. Register it with a wait for readable descriptors. After `close` it does nothing."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):  # half as much work for the kernel as a pipe or a pair of sockets
            self._read = self._write = io.FileIO(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), "r+")
            return
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self._read, self._write = io.FileIO(read, "r"), io.FileIO(write, "w")

    def fileno(self) -> int:
        return self._read.fileno()

    def wake(self) -> None:
        """Make the descriptor readable; from any thread."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed
            self._write.write(_ONE)

    def clear(self) -> None:
        """Reset the wake-up: its descriptor is no longer readable."""
        with contextlib.suppress(OSError, ValueError):
            self._read.read(_READ_BYTES)

    def close(self) -> None:
        """Close the descriptors. A second call does nothing."""
        self._read.close()
        self._write.close()
