"""128-bit hashes of keys, a whole Arrow array at a time.

Two independent 64-bit hashes over the key's bytes in words of 8. Keys with the same hash would count as the same key,
and one of them would be lost. So every run draws new seeds: colliding keys cannot be prepared, and two among a billion
keys collide with a probability of about 10^-21.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import InvalidTopicError
from sparklog.format.key_equality import canonical_numbers

LONG_KEY_BYTES = 1024
"""Length in bytes above which a key is hashed by a call of its own; a batch has room for few such keys."""
_U64 = np.uint64
_FIRST = (_U64(0x9E3779B97F4A7C15), _U64(0xC2B2AE3D27D4EB4F))
_SECOND = (_U64(0xFF51AFD7ED558CCD), _U64(0xC4CEB9FE1A85EC53))
_NULL_WORD = _U64(0xA0761D6478BD642F)


class HashSeeds(NamedTuple):
    """Random seeds and multipliers that make the hashes of one run unpredictable; the multipliers are odd."""

    first: int
    second: int
    first_multiplier: int
    second_multiplier: int

    @classmethod
    def draw(cls) -> HashSeeds:
        drawn = np.frombuffer(os.urandom(32), np.uint64).tolist()
        return cls(drawn[0], drawn[1], drawn[2] | 1, drawn[3] | 1)


class KeyHashes(NamedTuple):
    """The hashes of the keys of some rows. `first`, `second`: one u64 per row. `null`: a mask of the rows whose key is
    null in every key column; None if no row has such a key."""

    first: np.ndarray
    second: np.ndarray
    null: np.ndarray | None

    def since(self, row: int) -> KeyHashes:
        """Return the hashes of the rows from number `row` on."""
        null = None if self.null is None else self.null[row:]
        return KeyHashes(self.first[row:], self.second[row:], null)


def hash_keys(columns: Sequence[Any], seeds: HashSeeds) -> KeyHashes:
    """Return the hashes of the rows' keys; a key consists of all `columns` (at least one). Raises InvalidTopicError for
    a column type that cannot be hashed, such as a nested one."""
    rows = len(columns[0])
    state = _State(rows, seeds)
    null: np.ndarray | None = None
    for i, column in enumerate(columns):
        missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False)) if column.null_count else None
        if i == 0:
            null = missing
        elif null is not None:
            null = null & missing if missing is not None else None
        if _is_bytes(column.type):
            _mix_bytes(state, column)
        else:
            for word in _fixed_words(column):
                state.mix(word)
        if len(columns) > 1:  # in every batch, with nulls or without: equal keys must have equal hashes
            state.mix(_U64(0) if missing is None else np.where(missing, _NULL_WORD, _U64(0)))
    first, second = state.finish()
    return KeyHashes(first, second, null if null is not None and null.any() else None)


class _State:
    """Two running hashes per row."""

    def __init__(self, rows: int, seeds: HashSeeds) -> None:
        self.first = np.full(rows, seeds.first, _U64)
        self.second = np.full(rows, seeds.second, _U64)
        self._multipliers = _U64(seeds.first_multiplier), _U64(seeds.second_multiplier)

    def mix(self, word: Any, rows: slice | np.ndarray = slice(None)) -> None:
        """Mix one more u64 into the hashes of `rows`."""
        for hashes, multiplier, shift in (
            (self.first, self._multipliers[0], _U64(29)),
            (self.second, self._multipliers[1], _U64(32)),
        ):
            mixed = (hashes[rows] ^ word) * multiplier
            mixed ^= mixed >> shift
            hashes[rows] = mixed

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        return _avalanche(self.first, _FIRST), _avalanche(self.second, _SECOND)


def _avalanche(hashes: np.ndarray, multipliers: tuple[np.uint64, np.uint64]) -> np.ndarray:
    for multiplier in multipliers:
        hashes = (hashes ^ (hashes >> _U64(31))) * multiplier
    return np.asarray(hashes ^ (hashes >> _U64(33)), _U64)


def _is_bytes(t: Any) -> bool:
    return bool(pa.types.is_binary(t) or pa.types.is_string(t))


def _mix_bytes(state: _State, column: Any) -> None:
    """Hash binary and string columns: the length, then the bytes."""
    n = len(column)
    if not n:
        return
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, n + 1, column.offset * 4).astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    data = (
        np.frombuffer(data_buffer, np.uint8) if data_buffer is not None and data_buffer.size else np.zeros(0, np.uint8)
    )
    if len(data) < 8:
        data = np.concatenate([data, np.zeros(8 - len(data), np.uint8)])
    state.mix(lengths.astype(_U64))
    long_rows = np.flatnonzero(lengths > LONG_KEY_BYTES)
    if len(long_rows):
        _mix_long(state, data, starts, lengths, long_rows)
        lengths = np.where(lengths > LONG_KEY_BYTES, 0, lengths)
    # every unaligned word of the data, as a view
    windows = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    words = (lengths + 7) >> 3
    most = int(words.max())
    if int(words.min()) == most:
        for i in range(most):
            state.mix(_word(windows, starts, lengths, i))
        return
    # rows in order of falling length: those that still have a word are always a prefix
    order = np.argsort(-words, kind="stable")
    starts, lengths, falling = starts[order], lengths[order], -words[order]
    for i in range(most):
        count = int(np.searchsorted(falling, -i, side="left"))
        state.mix(_word(windows, starts[:count], lengths[:count], i), order[:count])


def _word(windows: np.ndarray, starts: np.ndarray, lengths: np.ndarray, i: int) -> np.ndarray:
    """Return bytes [8 i, 8 i + 8) of every row's key as a u64; bytes after the key's end are zero."""
    at = starts + 8 * i
    last = len(windows) - 1
    held = np.minimum(at, last)  # near the end of the data an earlier word is read, and shifted
    word = windows[held] >> ((at - held).astype(_U64) << _U64(3))
    missing = np.maximum(8 - (lengths - 8 * i), 0).astype(_U64) << _U64(3)
    return np.asarray(word & (_U64(0xFFFFFFFFFFFFFFFF) >> missing))


def _mix_long(state: _State, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, rows: np.ndarray) -> None:
    for row in rows.tolist():
        digest = blake2b(data[starts[row] : starts[row] + lengths[row]].tobytes(), digest_size=16).digest()
        for word in np.frombuffer(digest, "<u8"):
            state.mix(word, np.array([row]))


def _fixed_words(column: Any) -> list[np.ndarray]:
    """Return the values of a fixed-width column as u64 words (a decimal has two); nulls are zero."""
    t, n = column.type, len(column)
    if pa.types.is_decimal(t):
        _, buffer = column.buffers()
        pairs = np.frombuffer(buffer, "<u8", 2 * n, column.offset * 16).reshape(n, 2)
        if column.null_count:
            pairs = np.where(np.asarray(column.is_null().to_numpy(zero_copy_only=False))[:, None], _U64(0), pairs)
        return [pairs[:, 0], pairs[:, 1]]
    if pa.types.is_floating(t):
        numbers = column.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
        return [canonical_numbers(numbers).view(_U64)]
    if pa.types.is_boolean(t):
        column = column.cast(pa.int8())
    elif pa.types.is_date32(t):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(t) or pa.types.is_duration(t):
        column = column.view(pa.int64())
    if not pa.types.is_integer(column.type):
        raise InvalidTopicError(f"a key column of type {t} cannot be hashed")
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return [np.ascontiguousarray(numbers).view(_U64)]
