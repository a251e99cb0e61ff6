"""A checksum of rows that does not depend on their order, nor on their division into batches.

Every value gets a 64-bit hash: strings, bytes and lists a polynomial of their items, evaluated at an odd number modulo
2^64; values of fixed width their 8-byte words, mixed. A row's hash mixes the hashes of its columns with the finalizer
of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). The checksum is the sum of the
rows' hashes. It distinguishes rows that differ by accident; an attacker can find different rows with the same sum.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

_PLACE = 0x9E3779B97F4A7C15
_PLACE_INVERSE = pow(_PLACE, -1, 1 << 64)
_NULL = np.uint64(0xD1B54A32D192ED03)
_BYTES_PER_STEP = 1 << 18
"""Number of bytes hashed in one step; a step takes eight times as much memory."""


def row_checksum(batch: pa.RecordBatch) -> int:
    """Return the sum of the rows' hashes, modulo 2^64."""
    hashes = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        hashes = _mix(hashes ^ _hashes(column))
    return int(hashes.sum(dtype=np.uint64))


def _hashes(values: pa.Array) -> np.ndarray:
    """Return one hash for each value, u64."""
    kind = values.type
    if isinstance(kind, pa.ExtensionType):
        return _hashes(values.storage)
    if pa.types.is_dictionary(kind):
        return _hashes(values.dictionary_decode())
    if pa.types.is_null(kind):
        return np.full(len(values), _NULL)
    if pa.types.is_struct(kind):
        hashes = np.zeros(len(values), np.uint64)
        for child in values.flatten():
            hashes = _mix(hashes ^ _hashes(child))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        hashes = _of_lists(values)
    elif pa.types.is_fixed_size_list(kind):
        hashes = _of_lists(values.cast(pa.list_(kind.value_type)))
    elif _is_bytes(kind):
        hashes = _of_bytes(values.cast(pa.large_binary()))
    else:
        hashes = _of_fixed_width(values)
    if values.null_count:
        hashes[values.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _is_bytes(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind))


def _of_fixed_width(values: pa.Array) -> np.ndarray:
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    width = values.type.bit_width // 8
    data = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * width : (values.offset + len(values)) * width]
    hashes = np.zeros(len(values), np.uint64)
    rows = data.reshape(len(values), width)
    for first in range(0, width, 8):
        word = np.zeros((len(values), 8), np.uint8)
        part = rows[:, first : first + 8]
        word[:, : part.shape[1]] = part
        hashes = _mix(hashes ^ word.reshape(-1).view(np.uint64))
    return hashes


def _of_bytes(values: pa.LargeBinaryArray) -> np.ndarray:
    _, offsets_buffer, data_buffer = values.buffers()
    ends = np.frombuffer(offsets_buffer, np.int64, len(values) + 1, values.offset * 8)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return _of_ranges(data, ends)


def _of_lists(values: pa.Array) -> np.ndarray:
    if pa.types.is_map(values.type):
        items = _mix(_hashes(values.keys)) ^ _hashes(values.items)
    else:
        items = _hashes(values.values)
    ends = values.offsets.to_numpy().astype(np.int64)
    return _of_ranges(items, ends)


def _of_ranges(items: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the hash of each range [ends[i], ends[i + 1]) of `items` (u8 or u64): the polynomial of its items, mixed
    with its length."""
    sums = np.zeros(max(len(ends) - 1, 0), np.uint64)
    first, last = int(ends[0]), int(ends[-1])
    powers, inverses = _powers()
    for start in range(first, last, _BYTES_PER_STEP):
        stop = min(start + _BYTES_PER_STEP, last)
        upto = np.zeros(stop - start + 1, np.uint64)
        np.cumsum((items[start:stop].astype(np.uint64) + np.uint64(1)) * powers[: stop - start], out=upto[1:])
        low = int(np.searchsorted(ends, start, side="right")) - 1
        high = int(np.searchsorted(ends, stop, side="left"))
        here = np.clip(ends[low : high + 1], start, stop)
        begin = here[:-1] - start
        part = (upto[here[1:] - start] - upto[begin]) * inverses[begin]
        if ends[low] < start:  # the range began in an earlier step: its places continue
            part[:1] *= np.uint64(pow(_PLACE, start - int(ends[low]), 1 << 64))
        sums[low:high] += part
    return _mix(sums ^ np.diff(ends).astype(np.uint64))


@cache
def _powers() -> tuple[np.ndarray, np.ndarray]:
    """Return the powers 0 to _BYTES_PER_STEP of _PLACE and of its inverse, modulo 2^64."""
    return _powers_of(_PLACE), _powers_of(_PLACE_INVERSE)


def _powers_of(base: int) -> np.ndarray:
    powers = np.full(_BYTES_PER_STEP + 1, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)


def _mix(hashes: np.ndarray) -> np.ndarray:
    """Return the output of splitmix64 for each state in `hashes`."""
    h = hashes + np.uint64(_PLACE)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(h ^ (h >> np.uint64(31)), np.uint64)
