"""The choice of a record's partition: the explicit one, else by the hash of its key, else the sticky partition.

Envelope topics: Kafka's murmur2 of the key's bytes, `toPositive(murmur2(key)) % partitions`, so a key lands in the
partition Kafka's Java client would choose. A null key is no key: the record goes to the sticky partition.

Typed topics with `kafka.key.format`: the same of the key's bytes in this form (`row_keys.py`).

Typed topics without this setting: the value of each key column becomes bytes (see the table), as Kafka's serializer
writes it if there is one for the type. The murmur2 hashes of the columns are folded with `h = 31 * h + h_i` (32 bits);
a null hashes as 0. A topic with a single string key column therefore chooses the partition that an envelope topic
chooses for the same text as its key.

========================================  ==================================================
column                                    bytes
========================================  ==================================================
string                                    UTF-8
binary                                    as they are
boolean                                   1 byte, 0 or 1
int8, int16, int32, int64                 big-endian, of the type's width
date                                      big-endian int32, days since 1970
timestamp, duration                       big-endian int64, microseconds
float, double                             big-endian IEEE 754 bits (-0.0 as 0.0, one NaN)
decimal                                   big-endian 16 bytes, the unscaled value
========================================  ==================================================
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.errors import SchemaMismatchError
from sparklog.format.key_equality import canonical_numbers

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_U32 = 0xFFFFFFFF
_WORDS = [struct.Struct(f"<{n}I") for n in range(33)]

VECTOR_KEY_BYTES_MAX = 1024
"""Longest key in bytes of the vectorised hash. Longer keys are hashed one by one, because a single long key would make
every row pay for its length."""


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of `data`, unsigned."""
    length = len(data)
    h = (_SEED ^ length) & _U32
    words = length >> 2
    if words:
        for k in _WORDS[words].unpack_from(data) if words < len(_WORDS) else struct.unpack_from(f"<{words}I", data):
            k = (k * _M) & _U32
            h = ((h * _M) ^ ((k ^ (k >> _R)) * _M)) & _U32
    rest = length & 3
    if rest:
        h ^= int.from_bytes(data[length - rest :], "little")
        h = (h * _M) & _U32
    h = ((h ^ (h >> 13)) * _M) & _U32
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of an envelope key among `partitions`."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2_array(keys: Any) -> np.ndarray:
    """Return murmur2 of every element of a binary or string array, u32; nulls hash as 0."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    n = len(keys)
    large = pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type)
    offset_type = np.int64 if large else np.int32
    if n == 0:
        return np.zeros(0, np.uint32)
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, offset_type, n + 1, keys.offset * np.dtype(offset_type).itemsize)
    data = (
        np.frombuffer(data_buffer, np.uint8) if data_buffer is not None and data_buffer.size else np.zeros(0, np.uint8)
    )
    hashes = _murmur2_rows(data, offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64))
    if keys.null_count:
        hashes[_null_mask(keys)] = 0
    return hashes


def _murmur2_rows(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return murmur2 of the byte ranges [start, start + length) of `data` (u8)."""
    long_rows = np.flatnonzero(lengths > VECTOR_KEY_BYTES_MAX)
    if len(long_rows):
        hashes = np.zeros(len(lengths), np.uint32)
        short_rows = np.flatnonzero(lengths <= VECTOR_KEY_BYTES_MAX)
        hashes[short_rows] = _murmur2_rows(data, starts[short_rows], lengths[short_rows])
        for i in long_rows.tolist():
            hashes[i] = murmur2(data[starts[i] : starts[i] + lengths[i]].tobytes())
        return hashes
    m = np.uint32(_M)
    h = (np.uint32(_SEED) ^ lengths.astype(np.uint32)).astype(np.uint32)
    words = lengths >> 2
    most = int(words.max(initial=0))
    if most:
        # every unaligned 4-byte window of the data, as a view
        windows = np.ndarray((len(data) - 3,), "<u4", data, 0, (1,))
        uniform = int(words.min()) == most
        # rows in order of falling length: those that still have a word are always a prefix
        order = None if uniform else np.argsort(-words, kind="stable")
        ordered_h = h if order is None else h[order]
        positions = starts if order is None else starts[order]
        ordered_words = words if order is None else words[order]
        for i in range(most):
            count = len(h) if uniform else int(np.searchsorted(-ordered_words, -i, side="left"))
            k = windows[positions[:count] + 4 * i] * m
            k = (k ^ (k >> np.uint32(_R))) * m
            ordered_h[:count] = (ordered_h[:count] * m) ^ k
        if order is not None:
            h[order] = ordered_h
    rest = lengths & 3
    tails = starts + (words << 2)
    for i in (2, 1, 0):
        rows = np.flatnonzero(rest > i)
        if len(rows):
            h[rows] ^= data[tails[rows] + i].astype(np.uint32) << np.uint32(8 * i)
    rows = np.flatnonzero(rest)
    h[rows] *= m
    h = (h ^ (h >> np.uint32(13))) * m
    return np.asarray(h ^ (h >> np.uint32(15)), np.uint32)


def partitions_for_keys(keys: Any, partitions: int) -> np.ndarray:
    """Return the partition of every element of a binary array, i32; -1 for nulls."""
    chosen = positive_modulo(murmur2_array(keys), partitions)
    if keys.null_count:
        chosen[_null_mask(keys)] = -1
    return chosen


def partitions_for_columns(columns: Sequence[Any], partitions: int) -> np.ndarray:
    """Return the partition of every row by its key columns (at least one), i32."""
    h = np.zeros(len(columns[0]), np.uint32)
    for column in columns:
        h = h * np.uint32(31) + _hash_column(column)
    return positive_modulo(h, partitions)


def partitions_for_slices(slices: Iterable[Any], partitions: int) -> np.ndarray:
    """Return the partition of every key, i32. `slices`: arrays of keys, one after the other; nulls hash as 0."""
    hashes = [murmur2_array(keys) for keys in slices]
    return positive_modulo(np.concatenate(hashes) if hashes else np.zeros(0, np.uint32), partitions)


def positive_modulo(hashes: np.ndarray, partitions: int) -> np.ndarray:
    """Return the partition for each hash (u32), i32."""
    return ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)


def _hash_column(column: Any) -> np.ndarray:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    t = column.type
    if pa.types.is_string(t) or pa.types.is_binary(t) or pa.types.is_large_string(t) or pa.types.is_large_binary(t):
        return murmur2_array(column)
    raw = _big_endian(column)
    width = raw.shape[1]
    starts = np.arange(len(column), dtype=np.int64) * width
    hashes = _murmur2_rows(raw.reshape(-1), starts, np.full(len(column), width, np.int64))
    if column.null_count:
        hashes[_null_mask(column)] = 0
    return hashes


def _big_endian(column: Any) -> np.ndarray:
    """Return the values of a fixed-width column as rows of big-endian bytes; nulls are zero."""
    t, n = column.type, len(column)
    if pa.types.is_decimal(t):
        _, buffer = column.cast(pa.decimal128(38, t.scale)).buffers()
        rows = np.frombuffer(buffer, np.uint8, n * 16, column.offset * 16).reshape(n, 16)
        return np.ascontiguousarray(rows[:, ::-1])
    if pa.types.is_boolean(t):
        values = column.cast(pa.int8())
    elif pa.types.is_date32(t):
        values = column.cast(pa.int32())
    elif pa.types.is_timestamp(t) or pa.types.is_duration(t):
        values = column.cast(pa.int64())
    else:
        values = column
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise SchemaMismatchError(f"a key column of type {t} cannot be hashed")
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    numbers = canonical_numbers(numbers)
    return (
        np.ascontiguousarray(numbers)
        .astype(numbers.dtype.newbyteorder(">"))
        .view(np.uint8)
        .reshape(n, numbers.dtype.itemsize)
    )


def _null_mask(column: Any) -> np.ndarray:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


class StickyPartition:
    """The partition of records without a key: it stays the same until a batch is full, and then moves on to the next
    one."""

    def __init__(self, partitions: int, *, start: int | None = None) -> None:
        self.partitions = partitions
        self.current = random.randrange(partitions) if start is None else start
        self._bytes = 0

    def advance(self) -> None:
        self.current = (self.current + 1) % self.partitions
        self._bytes = 0

    def take(self, size_bytes: int, batch_size_bytes: int) -> int:
        """Return the partition for the next `size_bytes`. Once `batch_size_bytes` have gone to a partition, the next
        call returns the following one."""
        chosen = self.current
        self._bytes += size_bytes
        if self._bytes >= batch_size_bytes:
            self.advance()
        return chosen

    def take_rows(self, rows: int, row_bytes: int, batch_size_bytes: int) -> np.ndarray:
        """Return the partition (i32) for each of `rows` rows without a key, of about `row_bytes` each, in a table where
        other rows have a key.

        The partition changes after about `batch_size_bytes`, as with `take`.
        """
        per_partition = max(1, -(-batch_size_bytes // row_bytes))
        before = self._bytes // row_bytes
        turns = (before + np.arange(rows)) // per_partition
        chosen = ((self.current + turns) % self.partitions).astype(np.int32)
        turns_done, rest = divmod(before + rows, per_partition)
        self.current = (self.current + turns_done) % self.partitions
        self._bytes = rest * row_bytes
        return chosen
