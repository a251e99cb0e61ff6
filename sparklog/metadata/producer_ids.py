"""Producer ids: never given out twice, each larger than those before.

They are taken from the metadata store in blocks, durably before the first of a block is given out: a broker that dies
leaves the rest of its block unused. Whether an id has been given to anybody is known without a list of them: it is
below the next one, and does not wait in a reserve.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from sparklog.security.owned_ids import number_of
from sparklog.types import PRODUCER_ID_END

BLOCK_IDS = 1_000
SHARED_BLOCK_IDS = 100_000
"""What the tasks of a busy Spark application draw in some minutes: so long a cluster's store may be away. A broker has
one block or two at hand, and leaves them when it dies; there are 2^62 ids."""


class ProducerIds:
    """Gives out ids, one at a time; thread-safe. `take_block(count, at_least)` reserves as many, from `at_least` on,
    and returns the first; `end`: all below have been reserved before. `shared`: other brokers take blocks of the same
    store, so larger ids than one's own are no sign of a store that has forgotten them; and the store is elsewhere, so
    the next block is there before the one at hand is used up (`take_ahead`).

    The store may be away for long. Only who needs a new block waits for it.
    """

    def __init__(
        self, take_block: Callable[[int, int], int], end: int = 0, *, shared: bool = False, block_ids: int | None = None
    ) -> None:
        self._take_block = take_block
        self._is_shared = shared
        self._block_ids = block_ids or (SHARED_BLOCK_IDS if shared else BLOCK_IDS)
        self._lock = threading.Lock()
        self._filling = threading.Lock()
        self._next = self._end = end
        self._ahead: range | None = None
        self._at_least = 0
        self._reserved: set[int] = set()

    def anew(self, block_ids: int) -> ProducerIds:
        """Another source of the same store's ids: all of them are larger than any that somebody, on whatever broker,
        has been given by now."""
        made = ProducerIds(self._take_block, shared=self._is_shared, block_ids=block_ids)
        with self._lock:
            made._at_least = max(self._at_least, 0 if self._is_shared else self._end)
        return made

    @property
    def left(self) -> int:
        """How many can be given out before the store is needed."""
        with self._lock:
            return self._end - self._next + len(self._ahead or ())

    @property
    def wants_block(self) -> bool:
        """Whether it is time for `take_ahead`."""
        return self._is_shared and self._ahead is None

    def take_ahead(self) -> None:
        """The block after the one at hand is taken from the store, if it has not been. Blocks. Raises StorageError,
        StorageFullError."""
        with self._filling:
            if self._ahead is None:
                first = self._take_block(self._block_ids, max(self._next, self._at_least))
                with self._lock:
                    self._ahead = range(first, first + self._block_ids)

    def next(self) -> int:
        """A new id. Writes to the store once per block. Raises StorageError, StorageFullError."""
        return self._take(reserve=False)

    def at_hand(self, *, reserve: bool = False) -> int | None:
        """As `next`, or `reserve`, but never waits. None: the store is needed for it."""
        with self._lock:
            if self._next >= self._end and self._ahead is not None:
                self._next, self._end, self._ahead = self._ahead.start, self._ahead.stop, None
            if self._next >= self._end:
                return None
            taken = self._next
            self._next += 1
            if reserve:
                self._reserved.add(taken)
            return taken

    def _take(self, *, reserve: bool) -> int:
        while (taken := self.at_hand(reserve=reserve)) is None:
            self._fill()
        return taken

    def _fill(self) -> None:
        with self._filling:
            with self._lock:
                if self._next < self._end or self._ahead is not None:  # who came first has taken a block
                    return
                wanted = max(self._next, self._at_least)
            first = self._take_block(self._block_ids, wanted)
            with self._lock:  # ids of this block may have been found in use meanwhile
                self._next = max(first, self._next)
                self._end = max(first + self._block_ids, self._end)

    def reserve(self) -> int:
        """As `next`, but the id does not count as issued until `hand_out`."""
        return self._take(reserve=True)

    def hand_out(self, producer_id: int) -> None:
        """Somebody is given the id that was reserved."""
        self._reserved.discard(producer_id)

    def is_issued(self, producer_id: int) -> bool:
        """Whether somebody has been given this id, owned or not."""
        number = number_of(producer_id)
        return 0 <= number < self._next and number not in self._reserved

    def found(self, producer_id: int) -> None:
        """The id is in use: a store that was restored from an older copy does not know that, and must not give it out
        again. Owned ids do not count: one that is made up could be any, and the number of one that is given out again
        makes the same id for the same principal only."""
        with self._lock:
            if not self._end <= producer_id < PRODUCER_ID_END:
                return
            if self._is_shared:
                self._at_least = max(self._at_least, producer_id + 1)
            else:
                self._next = self._end = producer_id + 1
