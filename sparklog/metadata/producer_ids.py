"""Producer ids: no id is issued twice, and the ids of one source ascend.

Ids are taken from the metadata store in blocks. A block is stored as taken before its first id is issued; a broker that
dies leaves the rest of its block unused. An id below the end of the taken blocks was issued unless it is left in a
block or reserved, so no list of issued ids is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import ref

from sparklog.security.owned_ids import number_of
from sparklog.types import PRODUCER_ID_END

BLOCK_IDS = 100_000
"""Size of a block. It lasts for some minutes of a busy Spark application, during which the store can be unavailable. A
broker holds one or two blocks and loses them when it dies; there are 2^62 ids.
"""
SMALL_BLOCK_IDS = 1_000
"""Size of a block of a broker with a local store, and of a block of fencing tokens: a run of an application needs only
one token."""


class ProducerIds:
    """Issues ids one at a time; thread-safe.

    `take_block(count, at_least)` takes `count` consecutive ids from the store, none of them below `at_least`, and
    returns the first. All ids below `end` were taken earlier. The store can be unavailable for long, so the next block
    is taken before the present block is used up (`take_ahead`). A caller waits for the store only when both blocks are
    used up.
    """

    def __init__(self, take_block: Callable[[int, int], int], end: int = 0, *, block_ids: int = BLOCK_IDS) -> None:
        self._take_block = take_block
        self._block_ids = block_ids
        self._lock = threading.Lock()
        self._filling = threading.Lock()
        self._next = self._end = end
        self._ahead: range | None = None
        self._at_least = 0
        self._taken = [end]
        """One element, which all sources share: the end of the blocks that any source of this broker has taken."""
        self._sources = [ref(self)]
        """The sources that share `_taken` and are in use. Each load of the transactions' states creates a source."""
        self._reserved: set[int] = set()

    def successor(self, block_ids: int) -> ProducerIds:
        """Return another source of ids from the same store. Each of its ids is larger than any id that a client has
        received from any broker so far.
        """
        successor = ProducerIds(self._take_block, block_ids=block_ids)
        successor._taken, successor._sources = self._taken, self._sources
        self._sources[:] = [ref(source) for source in (*self._in_use(), successor)]
        with self._lock:
            successor._at_least = self._at_least
        return successor

    def _in_use(self) -> list[ProducerIds]:
        return [source for reference in list(self._sources) if (source := reference()) is not None]

    @property
    def remaining(self) -> int:
        """Number of ids that can be issued without the store."""
        with self._lock:
            return self._end - self._next + len(self._ahead or ())

    @property
    def wants_block(self) -> bool:
        """True if the next block has not been taken yet: call `take_ahead`."""
        return self._ahead is None

    def take_ahead(self) -> None:
        """Take the next block from the store, unless it is taken already. Blocks. Raises StorageError,
        StorageFullError."""
        with self._filling:
            if self._ahead is None:
                first = self._take_block(self._block_ids, max(self._next, self._at_least))
                with self._lock:
                    self._ahead = range(self._usable(first), first + self._block_ids) or None
                    self._note_taken(first + self._block_ids)

    def _usable(self, first: int) -> int:
        """Return the first id of a new block that is above all ids found in use; the block's end if no id is left."""
        return min(max(first, self._at_least), first + self._block_ids)

    def _note_taken(self, end: int) -> None:
        self._taken[0] = max(self._taken[0], end)

    def next(self) -> int:
        """Return a new id. If no id is left, first take a block from the store, and wait for it. Raises StorageError,
        StorageFullError."""
        return self._take(reserve=False)

    def at_hand(self, *, reserve: bool = False) -> int | None:
        """Return a new id as `next` does, or with `reserve` as `reserve` does, without waiting. Returns None if a block
        must be taken from the store first."""
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
                if self._next < self._end or self._ahead is not None:  # an earlier caller has taken a block
                    return
                least = max(self._next, self._at_least)
            first = self._take_block(self._block_ids, least)
            with self._lock:
                self._next = max(self._usable(first), self._next)
                self._end = max(first + self._block_ids, self._end)
                self._note_taken(self._end)

    def reserve(self) -> int:
        """Return a new id that does not count as issued until `hand_out`. Waits and raises as `next` does."""
        return self._take(reserve=True)

    def hand_out(self, producer_id: int) -> None:
        """Count the reserved id as issued."""
        self._reserved.discard(producer_id)

    def is_issued(self, producer_id: int) -> bool:
        """Return True if a client can have received this id, or the owned id with this number (`owned_ids`): the number
        is below the end of this broker's blocks, and neither left in a block nor reserved.
        """
        number = number_of(producer_id)
        return 0 <= number < self._taken[0] and not any(source._owns(number) for source in self._in_use())

    def _owns(self, number: int) -> bool:
        with self._lock:
            return (
                self._next <= number < self._end
                or (self._ahead is not None and number in self._ahead)
                or number in self._reserved
            )

    def note_used(self, producer_id: int) -> None:
        """Note an id that is in use, so that no source issues the id again. A store restored from an older copy does
        not know such an id, and can have given this broker a block that contains it.

        Owned ids are ignored: a client could invent an owned id with any number, and a number that is issued twice
        gives the same owned id only to the same principal.
        """
        for source in self._in_use():
            source._leave_out(producer_id)

    def _leave_out(self, producer_id: int) -> None:
        with self._lock:
            if self._next <= producer_id < self._end:
                self._next = producer_id + 1
            elif self._ahead is not None and producer_id in self._ahead:
                self._ahead = range(producer_id + 1, self._ahead.stop) or None
            elif self._end <= producer_id < PRODUCER_ID_END:
                self._at_least = max(self._at_least, producer_id + 1)
                self._note_taken(producer_id + 1)
