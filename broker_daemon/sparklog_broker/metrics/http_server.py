"""A small HTTP server for a few read-only pages: GET and HEAD, one request per connection.

Limits on clients: a head of HEAD_BYTES_MAX, which must arrive within HEAD_S; CONNECTIONS_MAX connections (further
connections are closed unread); and ANSWER_S to read the answer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus

from msgspec import Struct

from sparklog_broker.metrics.http_request import METHODS, Refusal, Request, parse

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 8 * 1024
HEAD_S = 5.0
ANSWER_S = 60.0
CONNECTIONS_MAX = 32
LINGER_S = 1.0
"""Time, in s, for which later bytes of the client are discarded: otherwise a reset would overtake the answer."""
PIECE_BYTES = 64 * 1024
PLAIN = "text/plain; charset=utf-8"


class Page(Struct):
    """The answer to a request."""

    body: bytes
    content_type: str = PLAIN
    status: int = 200


Answer = Callable[[Request], Awaitable[Page]]
"""Returns the page for a request. Raises Refusal."""


class HttpServer:
    """Serves on `sock`, which must be bound, and which the server then owns. Event-loop thread only."""

    def __init__(self, sock: socket.socket, answer: Answer, *, head_s: float = HEAD_S) -> None:
        self._sock = sock
        self._answer = answer
        self._head_s = head_s
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._sock.getsockname()[:2]
        return str(host), int(port)

    async def start(self) -> None:
        """Begin to accept connections."""
        self._server = await asyncio.start_server(self._accept, sock=self._sock, limit=HEAD_BYTES_MAX)

    async def stop(self) -> None:
        """Close all connections, even with answers in progress."""
        if self._server is None:
            self._sock.close()
            return
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request, page = await self._page(reader)
            async with asyncio.timeout(ANSWER_S):
                await _write(writer, page, with_body=request is None or not request.is_head)
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    while await reader.read(PIECE_BYTES):
                        pass
        except (OSError, EOFError, TimeoutError) as e:  # caused by the client
            log.debug("a request for metrics failed: %s", e)
        finally:
            writer.transport.abort()

    async def _page(self, reader: asyncio.StreamReader) -> tuple[Request | None, Page]:
        """Return the request and its page; None for a request that cannot be parsed. Raises EOFError, OSError if the
        client has disconnected.
        """
        request = None
        try:
            async with asyncio.timeout(self._head_s):
                head = await reader.readuntil(b"\r\n\r\n")
            request = parse(head)
            return request, await self._answer(request)
        except Refusal as e:
            return request, Page(f"{e}\n".encode(), status=e.status)
        except TimeoutError:
            return request, Page(b"the request took too long\n", status=408)
        except asyncio.LimitOverrunError:
            return request, Page(b"the request's head is too long\n", status=431)
        except (OSError, EOFError):
            raise
        except Exception:
            log.exception("the page could not be produced")
            return request, Page(b"the page could not be produced; see the broker's log\n", status=500)


async def _write(writer: asyncio.StreamWriter, page: Page, *, with_body: bool) -> None:
    allow = f"Allow: {', '.join(METHODS)}\r\n" if page.status == HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {page.status} {HTTPStatus(page.status).phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        f"Cache-Control: no-store\r\n"
        f"X-Content-Type-Options: nosniff\r\n"
        f"Content-Security-Policy: default-src 'none'\r\n"
        f"{allow}Connection: close\r\n\r\n"
    )
    writer.write(head.encode("ascii"))
    if with_body:
        view = memoryview(page.body)
        for position in range(0, len(view), PIECE_BYTES):
            writer.write(view[position : position + PIECE_BYTES])
            await writer.drain()
    await writer.drain()
    with suppress(OSError):
        writer.write_eof()
