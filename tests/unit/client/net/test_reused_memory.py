"""Memory is used again only when nobody looks at it any more."""

from __future__ import annotations

import pyarrow as pa

from sparklog.client.net.reused_memory import KEPT_BYTES_MAX, REUSED_BYTES_MIN, ReusedMemory

MIB = 1024 * 1024


def test_memory_is_used_again_when_the_buffer_is_gone() -> None:
    memory = ReusedMemory()
    first = memory.take(3 * MIB)
    assert (first.size, first.is_mutable) == (3 * MIB, True)
    address = first.address
    second = memory.take(2 * MIB)
    assert second.address != address
    del first
    third = memory.take(MIB)
    assert (third.address, third.size) == (address, MIB)


def test_arrow_data_built_on_it_keep_it() -> None:
    memory = ReusedMemory()
    buffer = memory.take(MIB)
    memoryview(buffer).cast("B")[:8] = b"\x07" * 8
    column = pa.Array.from_buffers(pa.int64(), 1, [None, buffer.slice(0, 8)])
    address = buffer.address
    del buffer
    other = memory.take(MIB)
    memoryview(other).cast("B")[:] = bytes(MIB)
    assert other.address != address
    assert column[0].as_py() == 0x0707070707070707
    view = column.to_numpy()
    del column
    again = memory.take(MIB)
    assert again.address != address
    assert view[0] == 0x0707070707070707


def test_kept_memory_is_bounded() -> None:
    memory = ReusedMemory()
    held = [memory.take(40 * MIB) for _ in range(5)]
    assert len({b.address for b in held}) == 5
    assert sum(a.nbytes for a in memory._buffers) <= KEPT_BYTES_MAX


def test_as_many_as_are_in_use_at_the_same_time_are_used_again() -> None:
    size = MIB + 200_000
    memory = ReusedMemory(int(1.25 * 100 * size))
    addresses = {b.address for b in [memory.take(size) for _ in range(100)]}
    assert {b.address for b in [memory.take(size) for _ in range(100)]} == addresses


def test_a_little_more_fits_into_a_kept_buffer() -> None:
    memory = ReusedMemory()
    address = memory.take(9 * MIB + 1).address
    assert memory.take(10 * MIB).address == address


def test_a_small_one_and_one_larger_than_the_limit() -> None:
    memory = ReusedMemory()
    assert memory.take(REUSED_BYTES_MIN - 1).size == REUSED_BYTES_MIN - 1
    assert memory.take(0).size == 0
    assert memory._buffers == []
    assert memory.take(KEPT_BYTES_MAX + 1).size == KEPT_BYTES_MAX + 1
