"""Two gateways that change one schema registry at once, without sockets."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any, cast

from sparklog.errors import BrokerNotAvailableError, CoordinatorNotAvailableError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.backend.topics import Topics
from sparklog.gateway.rest.service import SchemaService
from sparklog.gateway.rest.subject_topics import SubjectTopics
from sparklog.gateway.schemas.registry_log import RegistryLog
from sparklog.protocol.schema_messages import SchemaRecordsRequest, SchemaRecordsResponse, SubjectTopic


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
