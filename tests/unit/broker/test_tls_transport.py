"""A connection over TLS, while a thread receives or sends for it. The test decides when a thread's job runs."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from sparklog_broker.network.connection import Connection, State
from sparklog_broker.network.reply import Reply
from sparklog_broker.network.tls_transport import OFF_LOOP_BYTES, TlsTransport

from sparklog.protocol.frames import PREFIX_BYTES, RequestPrefix, decode_response_prefix
from sparklog.security.tls import client_context, server_context
from tests.campaigns.benchmarks.secure_servers import Certificates, make_certificates
from tests.support.connections import Peer, echo, request, run

LARGE = bytes(range(256)) * 1024  # received in several steps
WAIT_S = 30.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class Jobs(Executor):
    """Runs a job when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.run_count = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run_next(self) -> None:
        future, job = self.waiting.pop(0)
        self.run_count += 1
        try:
            future.set_result(job())
        except OSError as e:
            future.set_exception(e)


class Encrypted:
    """A connection whose handshake is done, and the client's end, whose calls block."""

    def __init__(self, certificates: Certificates, answer: Any) -> None:
        ours, theirs = socket.socketpair()
        context = client_context({"ssl.ca.location": str(certificates.authority)})
        clients: list[ssl.SSLSocket] = []
        thread = threading.Thread(
            target=lambda: clients.append(context.wrap_socket(theirs, server_hostname="127.0.0.1"))
        )
        thread.start()
        server = server_context({"ssl.keystore.location": str(certificates.broker)})
        encrypted = server.wrap_socket(ours, server_side=True)
        thread.join(WAIT_S)
        self.client = clients[0]
        self.client.settimeout(WAIT_S)
        self.jobs = Jobs()
        self.peer = Peer(answer, transport=lambda unused, loop: self._transport(unused, encrypted, loop))

    def _transport(
        self, unused: socket.socket, encrypted: ssl.SSLSocket, loop: asyncio.AbstractEventLoop
    ) -> TlsTransport:
        unused.close()
        return TlsTransport(encrypted, loop, self.jobs)

    async def until_a_job_waits(self) -> None:
        await self.peer.until(lambda: bool(self.jobs.waiting))

    def response(self) -> tuple[int, bytes]:
        """Correlation id and payload."""
        prefix = decode_response_prefix(self._receive(PREFIX_BYTES), 1 << 31)
        return prefix.correlation_id, self._receive(prefix.body_bytes)[prefix.header_bytes :]

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.client.recv(count - len(data))
            assert more, "the connection has ended"
            data += more
        return data

    def close(self) -> None:
        self.client.close()
        self.peer.sock.close()
        self.peer.connection.close()
        while self.jobs.waiting:
            self.jobs.run_next()


def scenario(
    certificates: Certificates, steps: Callable[[Encrypted], Coroutine[Any, Any, None]], answer: Any = echo
) -> None:
    async def whole() -> None:
        encrypted = Encrypted(certificates, answer)
        sending = asyncio.get_running_loop().run_in_executor
        try:
            encrypted.peer.send = lambda data: sending(None, encrypted.client.sendall, data)  # type: ignore[method-assign,assignment,return-value]
            await steps(encrypted)
        finally:
            encrypted.close()
        await encrypted.peer.until(lambda: bool(encrypted.peer.closed))
        assert encrypted.peer.closed == [encrypted.peer.connection]
        assert encrypted.peer.budget.used_bytes == 0, "every byte reserved is given back"

    run(whole)


def test_large_requests_and_answers_pass_a_thread_and_small_ones_do_not(certificates: Certificates) -> None:
    async def steps(e: Encrypted) -> None:
        await e.peer.send(request(1))
        assert await asyncio.to_thread(e.response) == (1, b"payload")
        assert e.jobs.run_count == 0 and not e.jobs.waiting
        # one after the other: OpenSSL works for one thread of the client at a time, too
        for step in (lambda: e.peer.send(request(2, payload=LARGE)), lambda: asyncio.to_thread(e.response)):
            done = asyncio.ensure_future(step())
            while not done.done():
                if e.jobs.waiting:
                    e.jobs.run_next()
                await asyncio.sleep(0.001)
        assert done.result() == (2, LARGE)
        assert e.jobs.run_count >= len((b"received", b"sent"))

    scenario(certificates, steps)


def test_a_connection_that_ends_keeps_its_buffers_until_the_thread_is_back(certificates: Certificates) -> None:
    async def steps(e: Encrypted) -> None:
        sent = asyncio.ensure_future(e.peer.send(request(1, payload=bytes(OFF_LOOP_BYTES))))
        await e.until_a_job_waits()
        await sent
        e.peer.connection.close()
        assert e.peer.connection.state is State.CLOSED
        assert e.peer.budget.used_bytes and not e.peer.closed
        e.jobs.run_next()
        await e.peer.until(lambda: e.peer.budget.used_bytes == 0)

    scenario(certificates, steps)


def test_an_answer_is_sent_before_the_rest_of_the_next_request_is_received(certificates: Certificates) -> None:
    may_answer = asyncio.Event()

    async def answer(prefix: RequestPrefix, body: memoryview, connection: Connection) -> Reply:
        await may_answer.wait()
        return await echo(prefix, body, connection)

    async def steps(e: Encrypted) -> None:
        sent = asyncio.ensure_future(e.peer.send(request(1) + request(2, payload=bytes(16 * OFF_LOOP_BYTES))))
        await e.until_a_job_waits()
        may_answer.set()
        received = asyncio.ensure_future(asyncio.to_thread(e.response))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not received.done(), "a thread uses the socket"
        e.jobs.run_next()
        assert await received == (1, b"payload")
        assert e.jobs.run_count == 1
        e.peer.connection.close()
        e.close()
        await asyncio.gather(sent, return_exceptions=True)

    scenario(certificates, steps, answer)


def test_a_job_that_fails_or_is_cancelled_ends_the_connection(certificates: Certificates) -> None:
    def fail(job: Future[Any]) -> None:
        job.set_exception(ConnectionResetError("gone"))

    def cancel(job: Future[Any]) -> None:
        job.cancel()
        job.set_running_or_notify_cancel()

    for end in (fail, cancel):

        async def steps(e: Encrypted, end: Callable[[Future[Any]], None] = end) -> None:
            sent = asyncio.ensure_future(e.peer.send(request(1, payload=bytes(OFF_LOOP_BYTES))))
            await e.until_a_job_waits()
            await sent
            end(e.jobs.waiting.pop()[0])
            await e.peer.until(lambda: bool(e.peer.closed))

        scenario(certificates, steps)
