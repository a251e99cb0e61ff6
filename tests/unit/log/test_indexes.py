"""The two index formats: bytes, lookups, sanity."""

from __future__ import annotations

import numpy as np

from sparklog.format import offset_index as offset_format
from sparklog.format import time_index as time_format
from sparklog.format.offset_index import OffsetIndex, decode_offset_index
from sparklog.format.time_index import LAST_ENTRY_BYTES, TimeEntry, TimeIndex, decode_last_entry, decode_time_index
from tests.support.cases import for_each

BASE = 1000
POSITIONS = np.array([600, 5000, 9000, 14000], np.int64)


def offset_index() -> OffsetIndex:
    index = OffsetIndex()
    index.append(10, 5000)
    index.append(25, 14000)
    return index


def time_index() -> TimeIndex:
    index = TimeIndex()
    index.append_if_later(-5, 0)
    index.append_if_later(300, 10)
    index.append_if_later(300, 20)
    index.append_if_later(2**40, 25)
    return index


def test_offset_index_bytes_are_pinned() -> None:
    assert offset_index().encode(BASE).hex() == "0a00000088130000" + "19000000b0360000" + "a7d59f9e"
    assert offset_index().size_bytes == 16


def test_time_index_bytes_are_pinned() -> None:
    assert time_index().encode(BASE).hex() == (
        "fbffffffffffffff00000000" + "2c010000000000000a000000" + "000000000001000019000000" + "24c34ea0" + "2699dec3"
    )


def test_offset_lookups() -> None:
    index = offset_index()
    assert [index.floor(o) for o in (0, 9, 10, 24, 25, 2**32)] == [
        None, None, (10, 5000), (10, 5000), (25, 14000), (25, 14000)
    ]  # fmt: skip
    assert [index.floor_position(p) for p in (4999, 5000, 13999, 2**33)] == [
        None, (10, 5000), (10, 5000), (25, 14000)
    ]  # fmt: skip
    assert index.last() == (25, 14000)
    index.truncate(25)
    assert (len(index), index.last()) == (1, (10, 5000))
    index.truncate(0)
    assert index.last() is None


def test_time_lookups() -> None:
    index = time_index()
    assert len(index) == 3
    assert [index.ceiling(t) for t in (-9, 0, 300, 301)] == [(-5, 0), (300, 10), (300, 10), (2**40, 25)]
    assert index.ceiling(2**41) is None
    index.truncate(10)
    assert index.last() == (-5, 0)


def offsets_in(data: bytes, base_offset: int = BASE) -> OffsetIndex | None:
    return decode_offset_index(data, base_offset=base_offset, batch_positions=POSITIONS, relative_offset_end=30)


def times_in(data: bytes, base_offset: int = BASE) -> TimeIndex | None:
    return decode_time_index(data, base_offset=base_offset, relative_offset_end=30)


def last_in(data: bytes, base_offset: int = BASE) -> TimeEntry | None:
    return decode_last_entry(data[-LAST_ENTRY_BYTES:], base_offset=base_offset, relative_offset_end=30)


def test_round_trip() -> None:
    offsets, times = offsets_in(offset_index().encode(BASE)), times_in(time_index().encode(BASE))
    assert offsets is not None
    assert times is not None
    assert offsets.encode(BASE) == offset_index().encode(BASE)
    assert times.encode(BASE) == time_index().encode(BASE)
    assert last_in(times.encode(BASE)) == times.last()
    offsets.append(28, 20000)
    assert offsets.last() == (28, 20000)
    assert offsets_in(OffsetIndex().encode(BASE)) is not None


def test_every_flipped_bit_is_noticed_and_every_cut() -> None:
    for data, decode in ((offset_index().encode(BASE), offsets_in), (time_index().encode(BASE), times_in)):
        for bit in range(8 * len(data)):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            assert decode(bytes(flipped)) is None, bit
        assert all(decode(data[:size]) is None for size in range(len(data)))
        assert decode(data + bytes(4)) is None
        assert decode(data, BASE + 1) is None, "of another segment"


def test_the_last_time_entry_is_checked_alone() -> None:
    data = time_index().encode(BASE)
    for bit in range(8 * LAST_ENTRY_BYTES):
        end = bytearray(data[-LAST_ENTRY_BYTES:])
        end[bit // 8] ^= 1 << bit % 8
        assert last_in(bytes(end)) == (None if bit < 8 * (LAST_ENTRY_BYTES - 4) else (2**40, 25)), bit
    assert last_in(data, BASE + 1) is None
    assert last_in(data[:-8]) is None
    assert last_in(TimeIndex().encode(BASE)) is None


def test_files_from_before_the_checksums_count_as_missing() -> None:
    assert offsets_in(offset_index().encode(BASE)[:-4]) is None
    assert times_in(time_index().encode(BASE)[:-8]) is None
    assert offsets_in(b"") is None
    assert times_in(b"") is None


OFFSET_ENTRIES, TIME_ENTRIES = offset_index().encode(BASE)[:-4], time_index().encode(BASE)[:-8]


@for_each(
    "entries",
    [
        OFFSET_ENTRIES[:-1],
        OFFSET_ENTRIES[8:] + OFFSET_ENTRIES[:8],
        OFFSET_ENTRIES + OFFSET_ENTRIES[8:],
        np.array([10, 5001], "<u4").tobytes(),
        np.array([30, 5000], "<u4").tobytes(),
        np.array([10, 5000, 11, 5000], "<u4").tobytes(),
        np.array([10, 5000, 10, 9000], "<u4").tobytes(),
        bytes(16),
    ],
)
def test_insane_offset_indexes(entries: bytes) -> None:
    assert offsets_in(entries + offset_format.trailer(BASE, entries)) is None


@for_each(
    "entries",
    [
        b"",
        TIME_ENTRIES[:-1],
        TIME_ENTRIES[12:] + TIME_ENTRIES[:12],
        TIME_ENTRIES + TIME_ENTRIES[24:],
        bytes(24),
        (7).to_bytes(8, "little") + (30).to_bytes(4, "little"),  # beyond the segment
    ],
)
def test_insane_time_indexes(entries: bytes) -> None:
    assert times_in(entries + time_format.trailer(BASE, entries)) is None


def test_the_time_index_of_an_empty_segment_is_empty() -> None:
    for index, is_sane in ((TimeIndex(), True), (time_index(), False)):
        found = decode_time_index(index.encode(BASE), base_offset=BASE, relative_offset_end=0)
        assert (found is not None) == is_sane
