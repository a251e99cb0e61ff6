"""Receive buffers are used again only when nobody refers to them any more."""

from __future__ import annotations

import numpy as np
from sparklog_broker.network.receive_buffers import BUFFER_BYTES_MIN, ReceiveBuffers

from sparklog.settings import MIB


def memory(size_bytes: int) -> np.ndarray:
    return np.empty(size_bytes, np.uint8)


def test_the_smallest_that_fits_is_taken() -> None:
    buffers = ReceiveBuffers(10 * BUFFER_BYTES_MIN)
    for factor in (4, 1, 2):
        buffers.give_back(memory(factor * BUFFER_BYTES_MIN))
    assert buffers.kept_bytes == 7 * BUFFER_BYTES_MIN
    taken = buffers.take(BUFFER_BYTES_MIN + 1)
    assert len(taken) == 2 * BUFFER_BYTES_MIN
    assert buffers.kept_bytes == 5 * BUFFER_BYTES_MIN
    assert len(buffers.take(5 * BUFFER_BYTES_MIN)) == 5 * BUFFER_BYTES_MIN, "a new one"
    assert buffers.kept_bytes == 5 * BUFFER_BYTES_MIN
    assert len(buffers.take(MIB + 1)) == 2 * MIB


def test_a_buffer_in_use_is_not_kept() -> None:
    buffers = ReceiveBuffers(10 * BUFFER_BYTES_MIN)
    buffer = memory(BUFFER_BYTES_MIN)
    view = memoryview(buffer)[10:20]  # type: ignore[arg-type]
    buffers.give_back(buffer)
    assert buffers.kept_bytes == 0
    view.release()
    buffers.give_back(buffer)
    assert buffers.kept_bytes == BUFFER_BYTES_MIN


def test_small_buffers_and_too_many_are_not_kept() -> None:
    buffers = ReceiveBuffers(3 * BUFFER_BYTES_MIN)
    buffers.give_back(memory(BUFFER_BYTES_MIN - 1))
    assert buffers.kept_bytes == 0
    for _ in range(5):
        buffers.give_back(memory(BUFFER_BYTES_MIN))
    assert buffers.kept_bytes == 3 * BUFFER_BYTES_MIN
