"""Producer ids: never given out twice, each larger than those before.

They are taken from the metadata store in blocks, durably before the first of a block is given out: a broker that dies
leaves the rest of its block unused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

BLOCK_IDS = 1_000


class ProducerIds:
    """Gives out ids, one at a time; thread-safe. `take_block(count)` reserves as many and returns the first."""

    def __init__(self, take_block: Callable[[int], int]) -> None:
        self._take_block = take_block
        self._lock = threading.Lock()
        self._next = self._end = 0

    @property
    def left(self) -> int:
        """How many can be given out before the store is needed."""
        return self._end - self._next

    def next(self) -> int:
        """A new id. Writes to the disk once per block. Raises StorageError, StorageFullError."""
        with self._lock:
            if self._next == self._end:
                first = self._take_block(BLOCK_IDS)
                self._next, self._end = first, first + BLOCK_IDS
            self._next += 1
            return self._next - 1
