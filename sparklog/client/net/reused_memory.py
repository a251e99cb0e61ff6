"""Memory for large answers and batches, used again after its last reference is gone.

Memory fresh from the operating system costs a page fault per 4 KiB, more than writing into it. A buffer that has been
handed out is free again when everything made of it (views, Arrow data) is gone: then its array has no reference besides
the list. That is checked only when the next buffer is requested, so users need not return buffers.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import pyarrow as pa

KEPT_BYTES_MAX = 96 * 1024 * 1024
REUSED_BYTES_MIN = 256 * 1024
"""Smallest size in bytes of reused memory. Smaller blocks come from the allocator, which is quick for them."""
_SIZE_STEPS = 8
"""Number of steps between two powers of two. A size is rounded up to the next step, so that the buffer also fits
slightly larger requests."""
_REFERENCES_WHEN_FREE = 3
"""References to the array of a free buffer: the list, the loop's variable, and the argument of `getrefcount`."""


class ReusedMemory:
    """Buffers that are used again. If their sizes exceed `kept_bytes_max` together, the oldest buffer leaves the list
    even if it is in use; its memory is freed after its last use, not used again. So `kept_bytes_max` has to be at least
    the size that is in use at the same time; otherwise no buffer is ever reused."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._buffers: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> pa.Buffer:
        """Return a writable buffer of exactly `size_bytes`, with any content."""
        if size_bytes < REUSED_BYTES_MIN:
            return pa.allocate_buffer(size_bytes)
        with self._lock:
            for array in self._buffers:
                if array.nbytes >= size_bytes and sys.getrefcount(array) == _REFERENCES_WHEN_FREE:
                    return pa.py_buffer(array.data[:size_bytes])
            step = (1 << (size_bytes - 1).bit_length()) // 2 // _SIZE_STEPS
            array = np.empty(-(-size_bytes // step) * step, np.uint8)
            self._buffers.append(array)
            while len(self._buffers) > 1 and sum(a.nbytes for a in self._buffers) > self._kept_bytes_max:
                del self._buffers[0]
            return pa.py_buffer(array.data[:size_bytes])
