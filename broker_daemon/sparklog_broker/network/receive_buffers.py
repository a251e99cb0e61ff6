"""Buffers of completed requests, for use by later requests.

New memory must be filled with zeros and costs a page fault per 4 KiB, about as much as receiving into it.
"""

from __future__ import annotations

import sys

import numpy as np

from sparklog.settings import MIB

BUFFER_BYTES_MIN = 64 * 1024
"""Smallest buffer, in bytes, that is kept."""
_REFERENCES_OF_THE_LAST_OWNER = 3
"""References to a buffer without another owner: the caller's variable, the parameter, and the argument of
`getrefcount`."""


class ReceiveBuffers:
    """Keeps unused buffers, at most `kept_bytes_max`. Event-loop thread only."""

    def __init__(self, kept_bytes_max: int) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._free: list[np.ndarray] = []
        self.kept_bytes = 0

    def take(self, size_bytes: int) -> np.ndarray:
        """Return a buffer of at least `size_bytes` with undefined content: the smallest kept buffer that is large
        enough, or a new buffer. The system gives memory to a new buffer only where bytes are written. Raises
        MemoryError."""
        if size_bytes < BUFFER_BYTES_MIN:
            return np.empty(size_bytes, np.uint8)
        fitting = [b for b in self._free if len(b) >= size_bytes]
        if not fitting:
            rounded = (
                size_bytes if size_bytes < MIB else -(-size_bytes // MIB) * MIB
            )  # so that it fits the next one, too
            try:
                return np.empty(rounded, np.uint8)
            except MemoryError:
                self._free, self.kept_bytes = [], 0  # the kept buffers may hold the missing memory
                return np.empty(rounded, np.uint8)
        buffer = min(fitting, key=len)
        self._free = [b for b in self._free if b is not buffer]
        self.kept_bytes -= len(buffer)
        return buffer

    def give_back(self, buffer: np.ndarray) -> None:
        """Keep `buffer` for later requests, unless it is small, enough are kept, or a view or reference is left."""
        size_bytes = len(buffer)
        if (
            BUFFER_BYTES_MIN <= size_bytes <= self._kept_bytes_max - self.kept_bytes
            and sys.getrefcount(buffer) <= _REFERENCES_OF_THE_LAST_OWNER
        ):
            self._free.append(buffer)
            self.kept_bytes += size_bytes


_REFERENCES_OF_A_FREE_BUFFER = 2
"""References to a buffer without views: the list, and the argument of `getrefcount`."""


class SharedBuffers:
    """Buffers that are used again when no view of them is left, at most `kept_bytes_max` in all. Any thread can hold
    views; one thread takes buffers."""

    def __init__(self, kept_bytes_max: int) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._buffers: list[np.ndarray] = []

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self._buffers))

    def take(self, size_bytes: int) -> np.ndarray:
        """Return a buffer of at least `size_bytes` with undefined content: the smallest free one that is large enough,
        or a new buffer. Raises MemoryError."""
        if size_bytes < BUFFER_BYTES_MIN:
            return np.empty(size_bytes, np.uint8)
        kept = self._buffers
        free = [i for i in range(len(kept)) if sys.getrefcount(kept[i]) <= _REFERENCES_OF_A_FREE_BUFFER]
        fitting = [i for i in free if len(kept[i]) >= size_bytes]
        if fitting:
            return kept[min(fitting, key=lambda i: len(kept[i]))]
        buffer = np.empty(-(-size_bytes // MIB) * MIB, np.uint8)
        for i in reversed(free):  # smaller ones
            if self.kept_bytes + len(buffer) > self._kept_bytes_max:
                del kept[i]
        if self.kept_bytes + len(buffer) <= self._kept_bytes_max:
            kept.append(buffer)
        return buffer
