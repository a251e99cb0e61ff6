"""Encoding and decoding of many of Kafka's varints at once. They are zigzag numbers of seven bits per byte, lowest bits
first."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparklog.errors import CorruptBatchError

VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10

Array = np.ndarray[Any, Any]


def read_varints(data: Array, positions: Array, bytes_max: int = VARINT_BYTES_MAX) -> tuple[Array, Array]:
    """Return two int64 arrays: the numbers at `positions` of `data`, and the positions after them.

    A position behind the end of `data` reads the last byte, so the caller must check the end position of each record.
    Raises CorruptBatchError for a number of more than `bytes_max` bytes.
    """
    last = len(data) - 1
    first = data[np.minimum(positions, last)]
    value = (first & 0x7F).astype(np.uint64)
    behind = positions + 1
    active = np.flatnonzero(first >= 0x80)
    shift = 7
    while len(active):
        if shift >= 7 * bytes_max:
            raise CorruptBatchError(f"a number of more than {bytes_max} bytes in a record")
        byte = data[np.minimum(behind[active], last)]
        value[active] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[active] += 1
        active = active[byte >= 0x80]
        shift += 7
    one = np.uint64(1)
    return (value >> one).view(np.int64) ^ -(value & one).view(np.int64), behind


def zigzag(values: Array) -> Array:
    """Return the zigzag form of signed numbers, as unsigned numbers for `VarintColumns.add`."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def varint_sizes(unsigned: Array) -> Array:
    """Return the size in bytes of each number as a varint."""
    sizes = np.ones(len(unsigned), np.int64)
    bound = np.uint64(128)
    top = unsigned.max(initial=0)
    while top >= bound:
        sizes += unsigned >= bound
        if bound >= np.uint64(1 << 63):
            break
        bound = bound << np.uint64(7) if bound < np.uint64(1 << 56) else np.uint64(1 << 63)
    return sizes


class VarintColumns:
    """Builder of byte strings, one per row. All rows have the same sequence of varints and constant bytes, which are
    added column by column."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._columns: list[Array] = []
        self._masks: list[Array | None] = []
        self.sizes = np.zeros(rows, np.int64)
        """Size in bytes of each row."""

    def constant(self, byte: int) -> None:
        """Add a byte that is equal in all rows."""
        self._columns.append(np.full(self._rows, byte, np.uint8))
        self._masks.append(None)
        self.sizes += 1

    def add(self, unsigned: Array, sizes: Array | None = None) -> None:
        """Add a column of varints. `sizes`: their `varint_sizes`; None: computed here."""
        sizes = varint_sizes(unsigned) if sizes is None else sizes
        width = int(sizes.max(initial=1))
        rest = unsigned
        for i in range(width):
            byte = (rest & np.uint64(0x7F)).astype(np.uint8)
            if i + 1 < width:
                byte |= (sizes > i + 1).astype(np.uint8) << 7
                rest = rest >> np.uint64(7)
            self._columns.append(byte)
            self._masks.append(sizes > i if i else None)
        self.sizes += sizes

    def data(self) -> Array:
        """Return the bytes of all rows, one row after the other."""
        matrix = np.empty((self._rows, len(self._columns)), np.uint8)
        for i, column in enumerate(self._columns):
            matrix[:, i] = column
        if all(mask is None or mask.all() for mask in self._masks):
            return matrix.reshape(-1)
        kept = np.ones(matrix.shape, np.bool_)
        for i, mask in enumerate(self._masks):
            if mask is not None:
                kept[:, i] = mask
        return matrix[kept]
