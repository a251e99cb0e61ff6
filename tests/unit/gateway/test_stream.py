"""The socket of a client: what was sent is read, however the network cuts it, and the ends of connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.gateway.stream import AHEAD_BYTES, ClientStream


class Transport(asyncio.Transport):
    """Hands bytes to the stream as an event loop does; it has no socket."""

    def __init__(self, stream: ClientStream) -> None:
        super().__init__()
        self._stream = stream
        self.paused = False
        stream.connection_made(self)

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def receive(self, data: bytes) -> int:
        """Hand over as much as the stream has room for; returns the number of bytes."""
        room = self._stream.get_buffer(-1)
        assert len(room), "an event loop must not ask for room of no bytes"
        size = min(len(room), len(data))
        room[:size] = data[:size]
        self._stream.buffer_updated(size)
        return size


@settings(max_examples=15, deadline=None)
@given(
    reads=st.lists(st.one_of(st.integers(1, 40), st.integers(AHEAD_BYTES - 2, 3 * AHEAD_BYTES)), max_size=12),
    pieces=st.lists(st.one_of(st.integers(1, 50), st.integers(1, 2 * AHEAD_BYTES)), min_size=1, max_size=6),
)
def test_bytes_are_read_in_their_order_however_they_come(reads: list[int], pieces: list[int]) -> None:
    sent = (bytes(range(251)) * (sum(reads) // 251 + 1))[: sum(reads)]

    async def main() -> None:
        stream = ClientStream(lambda _: None)
        transport = Transport(stream)

        async def send() -> None:
            position = turn = 0
            while position < len(sent):
                if transport.paused:
                    await asyncio.sleep(0)
                    continue
                position += transport.receive(sent[position : position + pieces[turn % len(pieces)]])
                turn += 1
                if turn % 3:
                    await asyncio.sleep(0)

        async def read() -> bytes:
            found = b""
            for size in reads:
                view = memoryview(bytearray(size))
                await stream.read_into(view)
                found += view
            return found

        _, found = await asyncio.gather(send(), read())
        assert found == sent
        assert not transport.paused

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_connection_that_ends_ends_its_reader_and_its_writer() -> None:
    async def main() -> None:
        for end in ("eof", "lost"):
            stream = ClientStream(lambda _: None)
            transport: Any = Transport(stream)
            transport.receive(b"12")
            reading = asyncio.ensure_future(stream.read_into(memoryview(bytearray(3))))
            await asyncio.sleep(0)
            if end == "eof":
                assert stream.eof_received(), "the client may still read answers"
                await stream.drain()
            else:
                stream.pause_writing()
                draining = asyncio.ensure_future(stream.drain())
                await asyncio.sleep(0)
                stream.connection_lost(OSError("reset"))
                with pytest.raises(ConnectionResetError):
                    await draining
            with pytest.raises((asyncio.IncompleteReadError, OSError)):
                await reading
            with pytest.raises((asyncio.IncompleteReadError, OSError)):
                await stream.read_into(memoryview(bytearray(9)))

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_client_that_sends_ahead_is_held_back() -> None:
    async def main() -> None:
        stream = ClientStream(lambda _: None)
        transport = Transport(stream)
        assert transport.receive(bytes(2 * AHEAD_BYTES)) == AHEAD_BYTES
        assert transport.paused
        await stream.read_into(memoryview(bytearray(10)))
        assert transport.paused, "bytes are there still"
        await stream.read_into(memoryview(bytearray(AHEAD_BYTES - 10)))
        assert not transport.paused

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_closed_stream_closes_its_transport_once_and_sends_no_more() -> None:
    class Closing(Transport):
        closed = written = 0

        def close(self) -> None:
            self.closed += 1

        def write(self, data: Any) -> None:
            self.written += 1

    async def main() -> None:
        stream, ended = ClientStream(lambda _: None), []
        transport = Closing(stream)
        stream.on_ended = lambda: ended.append(True)
        reader = asyncio.create_task(stream.read_into(memoryview(bytearray(1))))
        await asyncio.sleep(0)
        stream.close()
        stream.close()
        with pytest.raises(ConnectionAbortedError):
            await reader
        with pytest.raises(ConnectionAbortedError):
            stream.write(b"late")
        assert (transport.closed, transport.written, ended) == (1, 0, [True])

    asyncio.run(main())
