"""Producer ids: never given out twice, each larger than those before.

They are taken from the metadata store in blocks, durably before the first of a block is given out: a broker that dies
leaves the rest of its block unused. Whether an id has been given to anybody is known without a list of them: it is
below the next one, and does not wait in a reserve.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from sparklog.types import PRODUCER_ID_END

BLOCK_IDS = 1_000


class ProducerIds:
    """Gives out ids, one at a time; thread-safe. `take_block(count, at_least)` reserves as many, from `at_least` on,
    and returns the first; `end`: all below have been reserved before."""

    def __init__(self, take_block: Callable[[int, int], int], end: int = 0) -> None:
        self._take_block = take_block
        self._lock = threading.Lock()
        self._next = self._end = end
        self._reserved: set[int] = set()

    @property
    def left(self) -> int:
        """How many can be given out before the store is needed."""
        return self._end - self._next

    def next(self) -> int:
        """A new id. Writes to the disk once per block. Raises StorageError, StorageFullError."""
        with self._lock:
            return self._take()

    def _take(self) -> int:
        if self._next == self._end:
            first = self._take_block(BLOCK_IDS, self._next)
            self._next, self._end = first, first + BLOCK_IDS
        self._next += 1
        return self._next - 1

    def reserve(self) -> int:
        """As `next`, but the id does not count as issued until `hand_out`."""
        with self._lock:
            taken = self._take()
            self._reserved.add(taken)
            return taken

    def hand_out(self, producer_id: int) -> None:
        """Somebody is given the id that was reserved."""
        self._reserved.discard(producer_id)

    def is_issued(self, producer_id: int) -> bool:
        """Whether somebody has been given this id."""
        return 0 <= producer_id < self._next and producer_id not in self._reserved

    def found(self, producer_id: int) -> None:
        """The id is in use: a store that was restored from an older copy does not know that, and must not give it out
        again."""
        with self._lock:
            if self._end <= producer_id < PRODUCER_ID_END:
                self._next = self._end = producer_id + 1
