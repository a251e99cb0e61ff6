"""Two gateways that change one schema registry at once, without sockets."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparklog.errors import BrokerNotAvailableError, CoordinatorNotAvailableError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.backend.topics import Topics
from sparklog.gateway.gateway import Gateway
from sparklog.gateway.rest import http_session
from sparklog.gateway.rest.http_session import HttpSession
from sparklog.gateway.rest.service import SchemaService
from sparklog.gateway.rest.subject_topics import SubjectTopics
from sparklog.gateway.schemas.registry_log import RegistryLog
from sparklog.protocol.apis import Api
from sparklog.protocol.schema_messages import SchemaRecordsRequest, SchemaRecordsResponse, SubjectTopic
from sparklog.protocol.security_messages import SaslAuthenticateResponse, SaslHandshakeResponse
from sparklog.security.listeners import Listener, SecurityProtocol


class Log:
    """A broker's log of the registry, as connections see it."""

    closed = False
    broker = SimpleNamespace(cluster_id="c")

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.held = 0
        self.errors: list[Exception] = []
        """Errors of the next requests."""

    async def ask(self, api: object, request: SchemaRecordsRequest, response: object) -> SchemaRecordsResponse:
        assert not self.held, "the memory of the last answer is held"
        await asyncio.sleep(0)  # the other gateway's request comes between
        if self.errors:
            raise self.errors.pop()
        is_appended = bool(request.records) and request.expected_end == len(self.records)
        if is_appended:
            self.records += request.records
        end, results = len(self.records), [SubjectTopic() for _ in request.topics]
        if request.from_offset > end:
            return SchemaRecordsResponse(end, end, [], results=results)
        piece = self.records[request.from_offset : request.from_offset + 3]
        return SchemaRecordsResponse(request.from_offset + len(piece), end, piece, is_appended, results)

    def release(self) -> None:
        """As of a connection: the memory of the answer is free."""
        self.held = 0

    async def register(self, service: SchemaService, subject: str, text: str) -> int:
        answer = await self.request(service, "POST", f"/subjects/{subject}/versions", {"schema": text})
        assert answer.status == 200, answer
        schema_id: int = answer.body["id"]
        return schema_id

    async def request(self, service: SchemaService, method: str, path: str, body: Any = None) -> Any:
        return await service.answer(cast(BrokerConnection, self), method, path, json.dumps(body or {}).encode())


def service_of() -> SchemaService:
    """A service for subjects that name no topics."""
    return SchemaService(RegistryLog(), SubjectTopics(Topics(time.monotonic), changes_topics=False))


def test_two_gateways_at_once_issue_distinct_ids() -> None:
    async def scenario() -> None:
        log, services = Log(), [service_of(), service_of()]
        names = [f"s{i}" for i in range(10)]
        texts = [json.dumps({"type": "fixed", "name": f"F{i}", "size": i}) for i in range(10)]
        work = [log.register(services[i % 2], names[i], texts[i]) for i in range(10)]
        assert sorted(await asyncio.gather(*work)) == list(range(1, 11))
        same = await asyncio.gather(*(log.register(service, "same", '"int"') for service in services))
        assert same == [11, 11]
        for service in services:
            assert (await log.request(service, "GET", "/subjects")).body == sorted([*names, "same"])
            service._log.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_log_that_has_lost_records_is_read_again() -> None:
    async def scenario() -> None:
        log, service = Log(), service_of()
        await log.register(service, "a", '"int"')
        await log.register(service, "b", '"long"')
        del log.records[3:]
        assert (await log.request(service, "GET", "/subjects")).body == ["a"]
        assert await log.register(service, "c", '"string"') == 2
        service._log.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_reads_are_repeated_and_failed_changes_are_reported() -> None:
    async def scenario() -> None:
        log, service = Log(), service_of()
        log.errors = [CoordinatorNotAvailableError("no leader"), CoordinatorNotAvailableError("no leader")]
        assert (await log.request(service, "GET", "/subjects")).body == []
        log.errors = [BrokerNotAvailableError("gone")]
        log.closed = True
        answer = await log.request(service, "GET", "/subjects")
        assert (answer.status, answer.body["error_code"]) == (500, 50001)
        service._log.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


class SecureLog(Log):
    """A log behind a login, with sessions of 100 s."""

    async def ask(self, api: object, request: Any, response: object) -> Any:
        if api is Api.SASL_HANDSHAKE:
            return SaslHandshakeResponse(0, [])
        if api is Api.SASL_AUTHENTICATE:
            return SaslAuthenticateResponse(0, session_lifetime_ms=100_000, principal="User:alice")
        return await super().ask(api, request, response)

    def close(self) -> None:
        self.closed = True


class Client(SimpleNamespace):
    """The client's end of an HTTP connection, as a session sees it."""

    def __init__(self) -> None:
        super().__init__(sent=b"", transport=SimpleNamespace(abort=lambda: None))

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return None if name == "ssl_object" else ("127.0.0.1", 1)

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        pass


def serving(client: Client, service: SchemaService, connect: Any, protocol: SecurityProtocol) -> Any:
    """Return the reader of a session's requests, and the task that serves them."""
    reader, writer = asyncio.StreamReader(), cast(asyncio.StreamWriter, client)
    gateway = cast(Gateway, SimpleNamespace(connect=connect))
    listener = Listener("L", "127.0.0.1", 1, protocol)
    session = HttpSession(gateway, service, listener, asyncio.Semaphore(), reader, writer)
    return reader, asyncio.create_task(session.run())


async def exchange(client: Client, reader: asyncio.StreamReader) -> bytes:
    """Return the answer to a request for the subjects."""
    client.sent = b""
    reader.feed_data(b"GET /subjects HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer t\r\n\r\n")
    while not client.sent:
        await asyncio.sleep(0)
    return bytes(client.sent)


def test_a_session_at_the_broker_is_renewed_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(s=1_000.0)
    monkeypatch.setattr(http_session, "time", SimpleNamespace(monotonic=lambda: now.s))

    async def scenario() -> None:
        logs: list[SecureLog] = []

        async def connect(*_: object) -> SecureLog:
            logs.append(SecureLog())
            return logs[-1]

        client, service = Client(), service_of()
        reader, task = serving(client, service, connect, SecurityProtocol.SASL_SSL)
        for now.s, connections in ((1_000.0, 1), (1_079.0, 1), (1_096.0, 2), (1_170.0, 2), (1_192.0, 3)):
            assert (await exchange(client, reader)).startswith(b"HTTP/1.1 200 ")
            assert (len(logs), [log.closed for log in logs].count(False)) == (connections, 1)
        reader.feed_eof()
        await task
        assert all(log.closed for log in logs)
        service._log.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_defect_is_an_answer_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        log, client, service = SecureLog(), Client(), service_of()

        async def connect(*_: object) -> SecureLog:
            return log

        reader, task = serving(client, service, connect, SecurityProtocol.PLAINTEXT)
        log.errors = [ZeroDivisionError("a defect")]
        answer = await exchange(client, reader)
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"the gateway's log has the reason" in answer
        assert (await exchange(client, reader)).startswith(b"HTTP/1.1 200 ")
        reader.feed_eof()
        await task
        service._log.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert "ZeroDivisionError: a defect" in caplog.text
