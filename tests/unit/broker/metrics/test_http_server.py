"""The HTTP server against peers that are slow, rude, many, or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sparklog_broker.metrics import http_server
from sparklog_broker.metrics.http_request import Refusal, Request
from sparklog_broker.metrics.http_server import CONNECTIONS_MAX, HEAD_BYTES_MAX, HttpServer, Page
from sparklog_broker.network.listening import bind

Ask = Callable[[bytes], Awaitable[bytes]]
BIG = b"x" * 3_000_000


async def answer(request: Request) -> Page:
    match request.path:
        case "/ok":
            return Page(b"fine\n")
        case "/big":
            return Page(BIG)
        case "/defect":
            raise KeyError("secret")
    raise Refusal(404, "no such page")


def run(
    scenario: Callable[[Ask, HttpServer], Awaitable[None]],
    *,
    head_s: float = 20.0,
    page: http_server.Answer = answer,
) -> None:
    async def main() -> None:
        server = HttpServer(bind("127.0.0.1", 0), page, head_s=head_s)
        await server.start()

        async def ask(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(data)
            try:
                return await reader.read(-1)
            finally:
                writer.close()

        try:
            await scenario(ask, server)
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_page() -> None:
    async def scenario(ask: Ask, _: HttpServer) -> None:
        head, body = (await ask(b"GET /ok HTTP/1.1\r\nHost: h\r\n\r\n")).split(b"\r\n\r\n", 1)
        assert body == b"fine\n"
        lines = head.split(b"\r\n")
        assert lines[0] == b"HTTP/1.1 200 OK"
        assert {b"Content-Length: 5", b"Connection: close", b"X-Content-Type-Options: nosniff"} <= set(lines)

    run(scenario)


def test_head_has_the_length_and_no_body() -> None:
    async def scenario(ask: Ask, _: HttpServer) -> None:
        answered = await ask(b"HEAD /big HTTP/1.1\r\n\r\n")
        assert b"Content-Length: 3000000\r\n" in answered
        assert answered.endswith(b"\r\n\r\n")

    run(scenario)


def test_a_large_page_arrives_whole() -> None:
    async def scenario(ask: Ask, _: HttpServer) -> None:
        assert (await ask(b"GET /big HTTP/1.1\r\n\r\n")).partition(b"\r\n\r\n")[2] == BIG

    run(scenario)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /no HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /ok HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405 Method Not Allowed"),
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"GET /ok HTTP/1.1\r\nx: " + b"y" * HEAD_BYTES_MAX * 3, b"431 Request Header Fields Too Large"),
        (b"GET /defect HTTP/1.1\r\n\r\n", b"500 Internal Server Error"),
    ],
)
def test_refusals_are_answered(data: bytes, status: bytes) -> None:
    async def scenario(ask: Ask, _: HttpServer) -> None:
        answered = await ask(data)
        assert answered.startswith(b"HTTP/1.1 " + status + b"\r\n")
        assert b"secret" not in answered

    run(scenario)


def test_a_second_request_on_the_connection_is_not_read() -> None:
    async def scenario(ask: Ask, _: HttpServer) -> None:
        assert (await ask(b"GET /ok HTTP/1.1\r\n\r\n" * 20)).count(b"HTTP/1.1") == 1

    run(scenario)


def test_an_unfinished_request_gets_an_error() -> None:
    async def scenario(ask: Ask, _: HttpServer) -> None:
        assert (await ask(b"GET /ok HTTP/1.1\r\n")).startswith(b"HTTP/1.1 408 ")

    run(scenario, head_s=0.05)


def test_too_many_connections_are_closed_unread() -> None:
    async def scenario(ask: Ask, server: HttpServer) -> None:
        held = [await asyncio.open_connection(*server.address) for _ in range(CONNECTIONS_MAX)]
        while len(server._tasks) < CONNECTIONS_MAX:
            await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            if await ask(b"GET /ok HTTP/1.1\r\n\r\n") == b"":
                raise ConnectionResetError
        for _, writer in held:
            writer.close()
        while server._tasks:
            await asyncio.sleep(0)
        assert (await ask(b"GET /ok HTTP/1.1\r\n\r\n")).endswith(b"fine\n")

    run(scenario)


def test_a_stop_waits_for_no_client() -> None:
    asked = asyncio.Event()

    async def hangs(request: Request) -> Page:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario(ask: Ask, server: HttpServer) -> None:
        asking = asyncio.ensure_future(ask(b"GET /ok HTTP/1.1\r\n\r\n"))
        await asked.wait()
        await server.stop()
        outcome = (await asyncio.gather(asking, return_exceptions=True))[0]
        assert outcome == b"" or isinstance(outcome, ConnectionError)

    run(scenario, page=hangs)
