"""Memory is used again only when nobody looks at it any more."""

from __future__ import annotations

import socket
import threading
import time

import pyarrow as pa

from sparklog.client.net.connection import Connection
from sparklog.client.net.read_ahead import READ_AHEAD_BYTES, READ_AHEAD_BYTES_MAX, ReadAhead
from sparklog.client.net.reused_memory import KEPT_BYTES_MAX, REUSED_BYTES_MIN, ReusedMemory
from sparklog.protocol.apis import Api
from sparklog.protocol.exchange import Exchange, PendingRequest
from sparklog.protocol.frames import encode_response
from tests.support.waiting import until

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


# Taking the received part of an answer, without waiting for the rest


def test_an_answer_is_complete_with_its_last_byte() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection.__new__(Connection)
    connection._socket, connection._tls = ours, None
    connection._ahead, connection._memory = ReadAhead(), ReusedMemory()
    connection._timeouts_s, connection._liveness = {socket.SO_RCVTIMEO: 0.0}, None
    connection._exchange = Exchange("the broker")
    connection._exchange.pending.append(PendingRequest(1, Api.FETCH, None))  # type: ignore[arg-type]
    answer = encode_response(Api.FETCH, 0, 1, b"header", 7) + b"1234567"
    with ours, theirs:
        assert not connection.read_ahead()
        for cut in (len(answer), 2, len(answer) - 1):
            theirs.send(answer[:cut])
            assert connection.read_ahead() is (cut == len(answer))
            theirs.send(answer[cut:])
            assert connection.read_ahead() or cut == len(answer)
            header, payload = connection._receive_frame(time.monotonic() + 30)
            assert (header, payload.to_pybytes()) == (b"header", b"1234567")
        for size in (READ_AHEAD_BYTES, READ_AHEAD_BYTES_MAX - 22, READ_AHEAD_BYTES_MAX - 21):
            rest = bytes(range(256)) * 1024
            theirs.send(encode_response(Api.FETCH, 0, 1, b"header", size))
            assert not connection.read_ahead()
            sender = threading.Thread(target=theirs.sendall, args=(rest[:size],))  # more than the socket holds
            sender.start()
            is_large = size > READ_AHEAD_BYTES_MAX - 22
            until(lambda is_large=is_large: connection.read_ahead() or is_large)  # type: ignore[misc]
            assert connection.is_answer_large is is_large
            assert connection._receive_frame(time.monotonic() + 30)[1].to_pybytes() == rest[:size]
            sender.join()
        theirs.shutdown(socket.SHUT_RDWR)
        assert connection.read_ahead()  # `receive` says that it is broken
