"""The last offset of every key in the dirty part of a log: a hash table in three NumPy arrays, of a fixed size.

A slot has 24 bytes: the key's 128-bit hash and its last offset plus one (0: an empty slot). Collisions are resolved by
double hashing. When `LOAD_MAX` of the slots are in use, the table is full: the run then compacts only the part of the
log whose keys are in the table, and leaves the rest to the next run.
"""

from __future__ import annotations

import numpy as np

from sparklog.log.compaction.key_hash import KeyHashes

SLOT_BYTES = 24
LOAD_MAX = 0.8
_SLOTS_MIN = 64
_FULL_SHARE = 64
"""A map with fewer free entries than its capacity divided by this number counts as full; otherwise `put` would fill the
last entries in ever smaller pieces."""


class OffsetMap:
    """The last offset of each key. Rows must be added in the order of their offsets."""

    def __init__(self, buffer_bytes: int) -> None:
        slots = max(_SLOTS_MIN, 1 << (max(1, buffer_bytes // SLOT_BYTES).bit_length() - 1))
        self.capacity = int(slots * LOAD_MAX)
        self.count = 0
        self.latest_offset = -1
        """The map covers all records up to this offset, inclusive; -1: none."""
        self._mask = np.uint64(slots - 1)
        # zeros are not touched before they are used: a small log takes little of a large buffer
        self._first = np.zeros(slots, np.uint64)
        self._second = np.zeros(slots, np.uint64)
        self._offsets = np.zeros(slots, np.int64)  # plus one, so that 0 is an empty slot

    @property
    def is_full(self) -> bool:
        return self.capacity - self.count < max(1, self.capacity // _FULL_SHARE)

    def put(self, hashes: KeyHashes, offsets: np.ndarray) -> bool:
        """Add rows; `offsets` ascend and are above all offsets added before. Rows with a null key are left out. Returns
        False if the map became full before the last row; `latest_offset` then lies just before the first row that had
        no room."""
        keyed = np.arange(len(offsets)) if hashes.null is None else np.flatnonzero(~hashes.null)
        done = 0
        while done < len(keyed):
            if self.is_full:
                if done:
                    self.latest_offset = int(offsets[keyed[done]]) - 1
                return False
            part = keyed[done : done + self.capacity - self.count]
            self._insert(hashes.first[part], hashes.second[part], offsets[part])
            done += len(part)
            self.latest_offset = int(offsets[part[-1]])
        return True

    def _insert(self, first: np.ndarray, second: np.ndarray, offsets: np.ndarray) -> None:
        pending = np.arange(len(offsets))
        slots = first & self._mask
        while len(pending):
            empty = self._offsets[slots] == 0
            if empty.any():
                claimed, rows = slots[empty], pending[empty]
                # if several rows claim one slot, the last row gets it, in all three arrays
                self._first[claimed] = first[rows]
                self._second[claimed] = second[rows]
                self._offsets[claimed] = rows + 1
                self.count += int(np.count_nonzero(self._offsets[claimed] == rows + 1))
            is_match = (self._first[slots] == first[pending]) & (self._second[slots] == second[pending])
            rows = pending[is_match]
            self._offsets[slots[is_match]] = (
                offsets[rows] + 1
            )  # the last of a key's rows wins: its offset is the largest
            pending = pending[~is_match]
            slots = self._next(slots[~is_match], second[pending])

    def get(self, hashes: KeyHashes) -> np.ndarray:
        """Return the last offset of every row's key as int64; -1 for a key that is not in the map."""
        result = np.full(len(hashes.first), -1, np.int64)
        if not self.count:
            return result
        pending = np.arange(len(result))
        slots = hashes.first & self._mask
        while len(pending):
            offsets = self._offsets[slots]
            is_match = (self._first[slots] == hashes.first[pending]) & (self._second[slots] == hashes.second[pending])
            is_match &= offsets != 0
            result[pending[is_match]] = offsets[is_match] - 1
            is_open = ~is_match & (offsets != 0)
            pending = pending[is_open]
            slots = self._next(slots[is_open], hashes.second[pending])
        return result

    def _next(self, slots: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.asarray((slots + (second | np.uint64(1))) & self._mask)
