"""Memory of connections: reservations, receive buffers, the queue of answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sparklog_broker.network.out_queue import GATHERED_BYTES_MAX, OutQueue, ShortFileError
from sparklog_broker.network.receive_buffers import BUFFER_BYTES_MIN, ReceiveBuffers, SharedBuffers
from sparklog_broker.network.transport import PlainTransport

from sparklog.environment.memory_budget import SMALL_BYTES, MemoryBudget
from sparklog.settings import MIB
from tests.support.connections import FileRange

KIB = 1024


def never() -> None:
    raise AssertionError("must not be woken")


def test_reservations_fit_until_the_limit() -> None:
    budget = MemoryBudget(100 * KIB)
    assert budget.reserve("a", 60 * KIB, never)
    assert budget.reserve("b", 40 * KIB, never)
    assert budget.used_bytes == 100 * KIB
    budget.release("a", 60 * KIB)
    assert budget.used_bytes == 40 * KIB


def test_one_owner_may_exceed_the_limit_to_guarantee_progress() -> None:
    budget = MemoryBudget(100 * KIB)
    woken: list[str] = []
    assert budget.reserve("a", 50 * KIB, never)
    assert budget.reserve("b", 50 * KIB, never)
    assert budget.reserve("a", 50 * KIB, never), "all memory is in half-read frames: the first may finish"
    assert budget.reserve("a", 50 * KIB, never)
    assert not budget.reserve("b", 50 * KIB, lambda: woken.append("b"))
    assert not budget.reserve("c", 50 * KIB, lambda: woken.append("c"))
    assert woken == []
    budget.release("a", 150 * KIB)
    assert woken == ["b", "c"]
    assert budget.waiting_count == 0


def test_small_reservations_are_never_held_up() -> None:
    budget = MemoryBudget(KIB)
    assert budget.reserve("big", 50 * KIB, never)
    assert budget.reserve("small", SMALL_BYTES, never)
    assert not budget.reserve("large", SMALL_BYTES + 1, lambda: None)


def test_a_cancelled_waiter_is_not_woken() -> None:
    budget = MemoryBudget(KIB)
    assert budget.reserve("a", 50 * KIB, never)
    assert not budget.reserve("b", 50 * KIB, never)
    budget.forget("b")
    budget.release("a", 50 * KIB)
    assert budget.used_bytes == 0


def test_a_woken_waiter_that_does_not_fit_keeps_its_place() -> None:
    budget = MemoryBudget(100 * KIB)
    woken: list[str] = []

    def retry(name: str) -> None:
        woken.append(name)
        budget.reserve(name, 90 * KIB, lambda: retry(name))

    assert budget.reserve("x", 60 * KIB, never)
    assert budget.reserve("a", 60 * KIB, never)  # exempt
    for name in ("b", "c", "d"):
        assert not budget.reserve(name, 90 * KIB, lambda name=name: retry(name))  # type: ignore[misc]
    budget.release("a", 60 * KIB)
    assert woken == ["b", "c", "d"]  # b is exempt now, the others wait on
    assert budget.waiting_count == 2
    budget.release("b", 90 * KIB)
    assert woken == ["b", "c", "d", "c", "d"]


# Receive buffers are used again only when nobody refers to them any more


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


def test_a_shared_buffer_is_taken_again_when_its_last_view_is_gone() -> None:
    buffers = SharedBuffers(8 * MIB)
    first = buffers.take(MIB + 1)
    view = first.data[:10]
    address = first.ctypes.data
    del first
    assert buffers.take(MIB).ctypes.data != address, "the view is in use"
    part = view[5:]
    del view
    assert buffers.take(2 * MIB).ctypes.data != address, "a slice of it is in use"
    del part
    assert buffers.take(2 * MIB).ctypes.data == address
    assert len(buffers.take(BUFFER_BYTES_MIN - 1)) == BUFFER_BYTES_MIN - 1


def test_shared_buffers_have_a_limit_and_make_room_for_larger_ones() -> None:
    buffers = SharedBuffers(4 * MIB)
    held = [buffers.take(MIB) for _ in range(6)]
    assert buffers.kept_bytes == 4 * MIB
    del held
    large = buffers.take(3 * MIB)
    assert buffers.kept_bytes == 4 * MIB
    address = large.ctypes.data
    assert len(buffers.take(5 * MIB)) == 5 * MIB and buffers.kept_bytes == 3 * MIB
    del large
    assert buffers.take(MIB).ctypes.data == address, "the smallest free one that is large enough"


def test_small_buffers_and_too_many_are_not_kept() -> None:
    buffers = ReceiveBuffers(3 * BUFFER_BYTES_MIN)
    buffers.give_back(memory(BUFFER_BYTES_MIN - 1))
    assert buffers.kept_bytes == 0
    for _ in range(5):
        buffers.give_back(memory(BUFFER_BYTES_MIN))
    assert buffers.kept_bytes == 3 * BUFFER_BYTES_MIN


# The unsent bytes of a connection, over sockets that keep the limits of their buffers


def write(queue: OutQueue, sock: socket.socket) -> int:
    no_loop: Any = None  # for events, which are not watched here
    return PlainTransport(sock, no_loop).write(queue)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Each send is received on its own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


def test_an_answer_with_little_data_is_sent_at_once(
    sockets: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    slices = [FileRange(tmp_path / "f", 2, 3), FileRange(tmp_path / "f", 8, 2)]
    queue = OutQueue()
    queue.extend([b"head", *slices])
    assert [s.released for s in slices] == [1, 1]
    assert write(queue, sockets[0]) == 9
    assert not queue
    assert sockets[1].recv(100) == b"head23489"
    with pytest.raises(BlockingIOError):
        sockets[1].recv(100)


def test_gathered_bytes_have_a_limit(sockets: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(GATHERED_BYTES_MAX))
    fits, too_much = FileRange(tmp_path / "f", 0, GATHERED_BYTES_MAX - 4), FileRange(tmp_path / "f", 0, 1)
    queue = OutQueue()
    queue.extend([b"head", fits, too_much])
    assert write(queue, sockets[0]) == GATHERED_BYTES_MAX + 1
    assert len(sockets[1].recv(2 * GATHERED_BYTES_MAX)) == GATHERED_BYTES_MAX
    assert len(sockets[1].recv(2 * GATHERED_BYTES_MAX)) == 1


def test_a_large_slice_stays_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(2 * GATHERED_BYTES_MAX))
    large = FileRange(tmp_path / "f", 0, GATHERED_BYTES_MAX + 1)
    queue = OutQueue()
    queue.extend([b"head", large])
    assert large.released == 0
    queue.clear()
    assert large.released == 1


def test_a_short_file_is_noticed_at_its_turn(sockets: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    short = FileRange(tmp_path / "f", 5, 10)
    queue = OutQueue()
    queue.extend([b"head", short])
    with pytest.raises(ShortFileError):
        write(queue, sockets[0])
    assert short.released == 0
    queue.clear()
    assert short.released == 1
