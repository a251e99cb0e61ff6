"""One connection over a socket pair: framing byte by byte, order, limits, slices, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from sparklog_broker.network.connection import READ_AHEAD_BYTES, Connection, ConnectionLimits, State
from sparklog_broker.network.out_queue import OutQueue
from sparklog_broker.network.receive_buffers import ReceiveBuffers
from sparklog_broker.network.reply import Reply

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.environment.send_backlog import SendBacklog
from sparklog.errors import ERRORS, FrameTooLargeError, InvalidRequestError, TooManyConnectionsError
from sparklog.kafka.wire.codec import decoder
from sparklog.protocol.codec import decode_error
from sparklog.protocol.frames import (
    PREFIX_BYTES,
    RequestPrefix,
    encode_request,
    encode_response,
)
from tests.support.cases import for_each
from tests.support.connections import MIB, PATIENCE_S, FileRange, echo, peer, request, run


async def echo_later(prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply:
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    return await echo(prefix, body, connection)


@pytest.mark.parametrize("answer", [echo, echo_later])
def test_frames_that_arrive_byte_by_byte(answer: Any) -> None:
    async def scenario() -> None:
        async with peer(answer) as p:
            for correlation_id in (1, 2):
                for byte in request(correlation_id):
                    await p.send(bytes([byte]))
                    await asyncio.sleep(0)
                assert await p.response() == (0, correlation_id, b"head", b"payload")

    run(scenario)


@pytest.mark.parametrize("answer", [echo, echo_later])
def test_many_frames_in_one_piece_are_answered_in_order(answer: Any) -> None:
    async def scenario() -> None:
        async with peer(answer) as p:
            frames = [request(i, b"h" * (i % 5), b"p" * (i % 7)) for i in range(100)]
            await p.send(b"".join(frames))
            for i in range(100):
                assert await p.response() == (0, i, b"h" * (i % 5), b"p" * (i % 7))

    run(scenario)


@for_each("size", [1, READ_AHEAD_BYTES - 5, READ_AHEAD_BYTES, READ_AHEAD_BYTES + 1, 5 * MIB])
def test_large_frames_arrive_whole(size: int) -> None:
    async def scenario() -> None:
        async with peer(echo) as p:
            payload = os.urandom(size)
            sending = asyncio.ensure_future(p.send(request(9, b"head", payload)))
            assert await p.response() == (0, 9, b"head", payload)
            await sending

    run(scenario)


def test_one_request_at_a_time_and_one_frame_read_ahead() -> None:
    async def scenario() -> None:
        gate, started = asyncio.Event(), []

        async def gated(prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply:
            started.append(prefix.correlation_id)
            await gate.wait()
            return await echo(prefix, body, connection)

        async with peer(gated) as p:
            await p.send(request(1))
            await p.until(lambda: started == [1])
            await p.send(request(2) + request(3))
            for _ in range(20):
                await asyncio.sleep(0)
            assert started == [1]
            assert p.budget.used_bytes <= 2 * len(request(1)), "the third frame is left in the socket"
            gate.set()
            assert [(await p.response())[1] for _ in range(3)] == [1, 2, 3]

    run(scenario)


def test_announcing_a_large_frame_takes_no_memory() -> None:
    async def scenario() -> None:
        async with peer(echo, budget_bytes=64 * MIB) as p:
            await p.send(encode_request(3, 0, 1, b"", 8 * MIB - 100))
            for _ in range(20):
                await asyncio.sleep(0)
            assert p.budget.used_bytes <= READ_AHEAD_BYTES
            await p.send(b"x" * 1000)
            for _ in range(20):
                await asyncio.sleep(0)
            assert p.budget.used_bytes <= READ_AHEAD_BYTES

    run(scenario)


def test_without_memory_reading_stops_until_some_is_freed() -> None:
    async def scenario() -> None:
        async with peer(echo, budget_bytes=MIB) as p:
            assert p.budget.reserve("other", 2 * MIB, lambda: None)  # the one that may exceed the limit
            payload = b"x" * 100_000
            sending = asyncio.ensure_future(p.send(request(1, b"", payload)))
            await p.until(lambda: p.budget.waiting_count == 1)
            assert not p.connection.busy
            p.connection.check_deadlines(p.loop.time() + 3600)
            assert p.connection.state is State.OPEN, "that we do not read is not the peer's fault"
            p.budget.release("other", 2 * MIB)
            assert (await p.response())[3] == payload
            await sending

    run(scenario)


KAFKA_API_VERSIONS = bytes.fromhex("00000022001200030000000100077264626b61666b610008") + b"librdkafka\x00"
"""The first request of librdkafka: ApiVersions, version 3."""
KAFKA_METADATA = bytes.fromhex("00000016000300010000000100047465737400000000ffffffff")
"""A first request of old clients of Kafka: Metadata, version 1."""


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (bytes.fromhex("1603010200010001fc0303") + b"x" * 40, InvalidRequestError),
        (KAFKA_METADATA, InvalidRequestError),
        (b"\xff" * 16, FrameTooLargeError),
        (b"\0" * 16, InvalidRequestError),
        (b"\x0c\0\0\0" + b"\0" * 8 + b"\xff\xff\xff\xff", InvalidRequestError),
    ],
)
def test_garbage_gets_a_typed_error_and_the_end(
    data: bytes, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with peer(echo) as p:
            await p.send(data)
            code, _, header, payload = await p.response()
            assert ERRORS[code] is error
            assert decode_error(header) and payload == b""
            assert await p.at_end()
            await p.send(b"more of it" * 1000)  # thrown away, not answered with a reset
            p.sock.shutdown(socket.SHUT_WR)
            await p.until(lambda: p.connection.state is State.CLOSED)

    with caplog.at_level(logging.INFO):
        run(scenario)
    assert len([r for r in caplog.records if r.name == "sparklog_broker.network.connection"]) == 1


def test_the_log_names_the_protocol_of_a_peer_that_has_the_wrong_port(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(data: bytes) -> None:
        async with peer(echo) as p:
            await p.send(data)
            await p.receive(1)

    for data, said in (
        (b"POST /v1 HTTP/1.1\r\nHost: x\r\n\r\n", "speaks HTTP"),
        (KAFKA_API_VERSIONS, "speaks Kafka's protocol, and this is the port of sparklog's own: start the gateway"),
        (bytes.fromhex("1603010200010001fc0303") + b"x" * 40, "speaks TLS, but this listener does not encrypt"),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            run(lambda data=data: scenario(data))  # type: ignore[misc]
        assert said in caplog.text


def test_a_client_of_kafka_learns_at_once_that_the_broker_is_none() -> None:
    """The connection stays open: a client that sees its end takes it for a lost one, and tries again for minutes."""

    async def scenario() -> None:
        async with peer(echo) as p:
            await p.send(KAFKA_API_VERSIONS)
            length = int.from_bytes(await p.receive(4), "big")
            answer = decoder("response", "ApiVersions", 3)(memoryview(await p.receive(length))[4:])
            assert (answer["error_code"], len(answer["api_keys"])) == (0, 1)
            assert (answer["api_keys"][0]["api_key"], answer["api_keys"][0]["max_version"]) == (18, 3)
            await p.until(lambda: p.connection.state is State.LINGERING)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(p.at_end(), 0.05)
            p.connection.check_deadlines(p.loop.time() + 2)
            assert p.connection.state is State.CLOSED

    run(scenario)


def test_a_client_of_http_reads_the_reason() -> None:
    async def scenario() -> None:
        async with peer(echo) as p:
            await p.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await p.receive(24)).startswith(b"HTTP/1.1 400 Bad Request")

    run(scenario)


def test_garbage_behind_a_good_request_comes_after_its_answer() -> None:
    async def scenario() -> None:
        async with peer(echo_later) as p:
            await p.send(request(1) + b"\xff" * 16)
            assert await p.response() == (0, 1, b"head", b"payload")
            assert ERRORS[(await p.response())[0]] is FrameTooLargeError
            assert await p.at_end()

    run(scenario)


def test_a_peer_that_does_not_close_after_an_error_is_closed() -> None:
    async def scenario() -> None:
        async with peer(echo) as p:
            await p.send(b"\xff" * 16)
            await p.response()
            await p.until(lambda: p.connection.state is State.LINGERING)
            p.connection.check_deadlines(p.loop.time() + 0.5)
            assert p.connection.state is State.LINGERING
            p.connection.check_deadlines(p.loop.time() + 2)
            assert p.connection.state is State.CLOSED

    run(scenario)


def test_a_refused_connection_gets_the_reason_on_its_first_request() -> None:
    async def scenario() -> None:
        async with peer(echo) as p:
            p.connection.refuse(TooManyConnectionsError("full"))
            await p.send(request(77))
            code, correlation_id, header, _ = await p.response()
            assert (ERRORS[code], correlation_id, decode_error(header)) == (TooManyConnectionsError, 77, "full")
            assert await p.at_end()

    run(scenario)


def test_a_peer_that_goes_away_cancels_its_waiting_request() -> None:
    async def scenario() -> None:
        cancelled = asyncio.Event()

        async def wait_for_ever(*_: Any) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with peer(wait_for_ever) as p:
            await p.send(request(1))
            await p.until(lambda: p.connection.busy)
            p.sock.close()
            await asyncio.wait_for(cancelled.wait(), PATIENCE_S)
            assert p.connection.state is State.CLOSED

    run(scenario)


def test_complete_requests_of_a_peer_that_has_closed_are_processed() -> None:
    """A producer with acks=0 sends and closes: nothing it has sent whole may be dropped."""

    async def scenario() -> None:
        seen: list[int] = []

        async def silent(prefix: RequestPrefix, body: memoryview, _: Connection) -> None:
            seen.append(prefix.correlation_id)

        async with peer(silent) as p:
            await p.send(b"".join(request(i) for i in range(50)))
            p.sock.close()
            await p.until(lambda: p.connection.state is State.CLOSED)
        assert seen == list(range(50))

    run(scenario)


@for_each("sent", [1, 15, 16, 18])
def test_a_stall_in_the_middle_of_a_frame_ends_it(sent: int) -> None:
    async def scenario() -> None:
        async with peer(
            echo, limits=ConnectionLimits(MIB, read_timeout_s=0.2, idle_timeout_s=60, write_timeout_s=60)
        ) as p:
            p.connection.check_deadlines(p.loop.time() + 5)
            assert p.connection.state is State.OPEN, "nothing has begun: that is idle, not stalled"
            await p.send(request(1)[:sent])
            for _ in range(10):
                await asyncio.sleep(0)
            p.connection.check_deadlines(p.loop.time() + 0.1)
            assert p.connection.state is State.OPEN
            p.connection.check_deadlines(p.loop.time() + 0.3)
            assert p.connection.state is State.CLOSED

    run(scenario)


def test_a_byte_now_and_then_is_a_stall_too() -> None:
    async def scenario() -> None:
        async with peer(
            echo, limits=ConnectionLimits(MIB, read_timeout_s=0.05, idle_timeout_s=60, write_timeout_s=60)
        ) as p:
            await p.send(encode_request(3, 0, 1, b"", 100_000))
            with contextlib.suppress(ConnectionError):
                for _ in range(2000):
                    await p.send(b"x")
                    await asyncio.sleep(0.001)
                    p.connection.check_deadlines(p.loop.time())
                    if p.connection.state is State.CLOSED:
                        break
            assert p.connection.state is State.CLOSED

    run(scenario)


def test_idle_connections_are_closed_and_waiting_ones_are_not() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def gated(prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply:
            await gate.wait()
            return await echo(prefix, body, connection)

        async with peer(gated, limits=ConnectionLimits(MIB, 60, idle_timeout_s=5, write_timeout_s=60)) as p:
            await p.send(request(1))
            await p.until(lambda: p.connection.busy)
            p.connection.check_deadlines(p.loop.time() + 100)
            assert p.connection.state is State.OPEN
            gate.set()
            await p.response()
            p.connection.check_deadlines(p.loop.time() + 4)
            assert p.connection.state is State.OPEN
            p.connection.check_deadlines(p.loop.time() + 6)
            assert p.connection.state is State.CLOSED

    run(scenario)


def test_slices_are_sent_by_the_file_and_released(tmp_path: Path) -> None:
    content = os.urandom(3 * MIB)
    (tmp_path / "f").write_bytes(content)

    async def scenario() -> None:
        slices = [FileRange(tmp_path / "f", 10, 2 * MIB), FileRange(tmp_path / "f", 2 * MIB, MIB)]

        async def sends(prefix: RequestPrefix, *_: Any) -> Reply:
            head = encode_response(3, 0, prefix.correlation_id, b"h", sum(s.length_bytes for s in slices))
            return Reply([head, *slices])

        async with peer(sends) as p:
            await p.send(request(5))
            _, _, header, payload = await p.response()
            assert header == b"h"
            assert payload == content[10 : 10 + 2 * MIB] + content[2 * MIB :]
            await p.until(lambda: not p.connection.busy)
        assert [s.released for s in slices] == [1, 1]

    run(scenario)


def test_a_file_shorter_than_announced_ends_the_connection(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 1000)

    async def scenario() -> None:
        slices = [FileRange(tmp_path / "f", 0, 2000), FileRange(tmp_path / "f", 0, 10)]

        async def sends(prefix: RequestPrefix, *_: Any) -> Reply:
            return Reply([encode_response(3, 0, 1, b"", 2010), *slices])

        async with peer(sends) as p:
            await p.send(request(1))
            with pytest.raises(EOFError, match="1000 of 2010"):
                await p.response()
            assert p.connection.state is State.CLOSED
        assert [s.released for s in slices] == [1, 1]

    run(scenario)


def test_slices_are_released_when_the_peer_does_not_take_them(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 8 * MIB)

    async def scenario() -> None:
        slices = [FileRange(tmp_path / "f", 0, 8 * MIB), FileRange(tmp_path / "f", 0, MIB)]

        async def sends(prefix: RequestPrefix, *_: Any) -> Reply:
            return Reply([encode_response(3, 0, 1, b"", 9 * MIB), *slices])

        async with peer(sends, limits=ConnectionLimits(MIB, 60, idle_timeout_s=5, write_timeout_s=60)) as p:
            await p.send(request(1))
            await p.receive(PREFIX_BYTES)
            p.connection.check_deadlines(p.loop.time() + 6)
            assert p.connection.state is State.CLOSED
        assert [s.released for s in slices] == [1, 1]

    run(scenario)


def test_slices_of_an_answer_that_comes_too_late_are_released(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 10)

    async def scenario() -> None:
        file_range = FileRange(tmp_path / "f", 0, 10)

        async def stubborn(*_: Any) -> Reply:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
            return Reply([b"", file_range])

        async with peer(stubborn) as p:
            await p.send(request(1))
            await p.until(lambda: p.connection.busy)
            p.connection.close()
            await p.until(lambda: file_range.released == 1)

    run(scenario)


def test_stop_finishes_the_running_request() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def gated(prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply:
            await gate.wait()
            return await echo(prefix, body, connection)

        async with peer(gated) as p:
            await p.send(request(1))
            await p.until(lambda: p.connection.busy)
            p.connection.stop()
            gate.set()
            assert (await p.response())[1] == 1
            assert await p.at_end()
        async with peer(gated) as p:
            p.connection.stop()
            assert p.connection.state is State.CLOSED

    run(scenario)


def test_a_defect_in_the_handler_closes_only_this_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async def at_once(*_: Any) -> Reply:
            raise ZeroDivisionError("at once")

        async def later(*_: Any) -> Reply:
            await asyncio.sleep(0)
            raise ZeroDivisionError("later")

        for answer in (at_once, later):
            async with peer(answer) as p:
                await p.send(request(1))
                assert await p.at_end()

    run(scenario)
    assert "at once" in caplog.text and "later" in caplog.text


def test_a_handler_runs_in_a_task_of_its_own() -> None:
    async def scenario() -> None:
        tasks: list[asyncio.Task[Any] | None] = []

        async def impatient(prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply:
            tasks.append(asyncio.current_task())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    await asyncio.get_running_loop().create_future()
            return await echo(prefix, body, connection)

        async with peer(impatient) as p:
            for correlation_id in (1, 2):
                await p.send(request(correlation_id))
                assert (await p.response())[1] == correlation_id
        assert len(set(tasks)) == 2 and None not in tasks

    run(scenario)


class NoMemory(ReceiveBuffers):
    """Has none for a frame of more than a few bytes."""

    def take(self, size_bytes: int) -> Any:
        if size_bytes > 100:
            raise MemoryError
        return super().take(size_bytes)


def test_without_memory_for_a_frame_its_rest_is_no_request(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        asked: list[int] = []

        async def answer(prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply:
            asked.append(prefix.correlation_id)
            return await echo(prefix, body, connection)

        async with peer(answer, buffers=NoMemory(MIB)) as p, peer(answer) as other:
            await p.send(request(1) + request(2, payload=request(3) * 100))
            assert (await p.response())[1] == 1
            with contextlib.suppress(ConnectionResetError):  # what it has not read
                assert await p.at_end()
            await other.send(request(4))
            assert (await other.response())[1] == 4
        assert asked == [1, 4], "what lies in the frame is none"

    run(scenario)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == [
        "unknown peer: out of memory; disconnecting"
    ]


@pytest.mark.parametrize("where", ["extend", "write"])
def test_any_failure_of_sending_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    async def scenario() -> None:
        async with peer(echo_later) as p:
            monkeypatch.setattr(OutQueue, where, fails)
            await p.send(request(1) + request(2))
            assert await p.at_end()
            monkeypatch.undo()

    run(scenario)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == [
        "unknown peer: out of memory; disconnecting"
    ]


def test_an_answer_that_is_not_read_in_time() -> None:
    async def scenario() -> None:
        async def sends(prefix: RequestPrefix, body: memoryview, _: Connection) -> Reply:
            return Reply([encode_response(prefix.api, 0, 1, bytes(8 * MIB))])

        limits = ConnectionLimits(MIB, 60, idle_timeout_s=60, write_timeout_s=5)
        async with peer(sends, limits=limits) as p:
            await p.send(request(1))
            await p.until(lambda: len(p.unread) == 1)
            started = p.loop.time()
            p.connection.check_deadlines(started + 4)
            assert p.connection.state is State.OPEN
            while p.unread.held_bytes == len(p.unread) * (8 * MIB + PREFIX_BYTES) and p.connection.state is State.OPEN:
                # a few bytes at a time are no progress
                await p.receive(100)
                p.connection.check_deadlines(started + 6)
            assert p.connection.state is State.CLOSED
            assert p.unread.held_bytes == 0

    run(scenario)


def test_the_slowest_reader_is_cut() -> None:
    async def scenario() -> None:
        async def sends(prefix: RequestPrefix, body: memoryview, _: Connection) -> Reply:
            return Reply([encode_response(prefix.api, 0, 1, bytes(6 * MIB))])

        budget = MemoryBudget(16 * MIB)
        unread = SendBacklog(budget, 100, asyncio.get_running_loop().time)
        async with (
            peer(sends, budget=budget, unread=unread) as silent,
            peer(sends, budget=budget, unread=unread) as late,
        ):
            await silent.send(request(1))
            await silent.until(lambda: len(unread) == 1)
            await late.send(request(1))
            await late.until(lambda: silent.connection.state is State.CLOSED)
            assert late.connection.state is State.OPEN
            assert len((await late.response())[2]) == 6 * MIB

    run(scenario)


def test_an_answer_that_waits_does_not_keep_its_request() -> None:
    async def scenario() -> None:
        async def sends(prefix: RequestPrefix, body: memoryview, _: Connection) -> Reply:
            return Reply([encode_response(prefix.api, 0, 1, bytes(6 * MIB))])

        async with peer(sends) as p:
            await p.send(request(1, payload=bytes(2 * MIB)))
            await p.until(lambda: len(p.unread) == 1)
            assert p.budget.used_bytes == p.unread.held_bytes
            await p.response()

    run(scenario)


async def _muting(prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply:
    """Answers with the body; its first byte says for how many minutes, then the second for how many ms."""
    connection.mute(body[0] * 60_000 + body[1])
    return Reply([encode_response(prefix.api, 0, prefix.correlation_id, b"", 2), bytes(body)])


def test_a_muted_connection_is_answered_at_once_and_not_read_and_others_do_not_notice() -> None:
    async def main() -> None:
        served: list[int] = []

        async def answer(prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply:
            served.append(prefix.correlation_id)
            return await _muting(prefix, body, connection)

        async with peer(answer) as muted, peer(answer) as other:
            await muted.send(encode_request(4, 0, 1, b"", 2) + b"\x0a\x00")
            await muted.send((encode_request(4, 0, 2, b"", 2) + b"\x00\x00") * 10_000)
            assert (await muted.response())[3] == b"\x0a\x00", "answered at once"
            for i in range(100, 200):
                await other.send(encode_request(4, 0, i, b"", 2) + b"\x00\x00")
                assert (await other.response())[1] == i
            assert served == [1, *range(100, 200)]
            assert muted.budget.used_bytes <= READ_AHEAD_BYTES
            assert muted.connection.state is State.OPEN
            muted.connection.check_deadlines(asyncio.get_running_loop().time() + 300)
            assert muted.connection.state is State.OPEN, "it is not idle: it may not"

    asyncio.run(main())


def test_when_the_time_is_over_requests_go_on_in_their_order() -> None:
    async def main() -> None:
        began: list[float] = []

        async def answer(prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply:
            began.append(asyncio.get_running_loop().time())
            return await _muting(prefix, body, connection)

        async with peer(answer) as p:
            await p.send(encode_request(4, 0, 1, b"", 2) + b"\x00\x28" + encode_request(4, 0, 2, b"", 2) + b"\x00\x00")
            await p.send(encode_request(4, 0, 3, b"", 2) + b"\x00\x00")
            assert [(await p.response())[1] for _ in range(3)] == [1, 2, 3]
            assert began[1] - began[0] >= 0.039

    asyncio.run(main())
