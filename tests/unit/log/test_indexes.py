"""The two index formats: bytes, lookups, sanity."""

from __future__ import annotations

import numpy as np
import pytest

from sparklog.format.offset_index import OffsetIndex, decode_offset_index
from sparklog.format.time_index import TimeIndex, decode_time_index

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
    assert offset_index().encode().hex() == "0a00000088130000" + "19000000b0360000"
    assert offset_index().size_bytes == 16


def test_time_index_bytes_are_pinned() -> None:
    assert time_index().encode().hex() == (
        "fbffffffffffffff00000000" + "2c010000000000000a000000" + "000000000001000019000000"
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


def test_round_trip() -> None:
    offsets = decode_offset_index(offset_index().encode(), batch_positions=POSITIONS, relative_offset_end=30)
    times = decode_time_index(time_index().encode(), relative_offset_end=30)
    assert offsets is not None
    assert times is not None
    assert offsets.encode() == offset_index().encode()
    assert times.encode() == time_index().encode()
    offsets.append(28, 20000)
    assert offsets.last() == (28, 20000)
    assert decode_offset_index(b"", batch_positions=POSITIONS, relative_offset_end=30) is not None


@pytest.mark.parametrize(
    "data",
    [
        offset_index().encode()[:-1],
        offset_index().encode()[8:] + offset_index().encode()[:8],
        offset_index().encode() + offset_index().encode()[8:],
        np.array([10, 5001], "<u4").tobytes(),
        np.array([30, 5000], "<u4").tobytes(),
        np.array([10, 5000, 11, 5000], "<u4").tobytes(),
        bytes(16),
    ],
)
def test_insane_offset_indexes(data: bytes) -> None:
    assert decode_offset_index(data, batch_positions=POSITIONS, relative_offset_end=30) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        time_index().encode()[:-1],
        time_index().encode()[12:] + time_index().encode()[:12],
        time_index().encode() + time_index().encode()[24:],
        bytes(24),
        (7).to_bytes(8, "little") + (30).to_bytes(4, "little"),  # beyond the segment
    ],
)
def test_insane_time_indexes(data: bytes) -> None:
    assert decode_time_index(data, relative_offset_end=30) is None


def test_the_time_index_of_an_empty_segment_is_empty() -> None:
    assert decode_time_index(b"", relative_offset_end=0) is not None
    assert decode_time_index(time_index().encode(), relative_offset_end=0) is None
