"""The registry's state in one gateway, kept up to date with the log of the cluster, and the thread that parses
schemas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sparklog.errors import SparklogError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.schemas.parsed_schemas import ParsedSchemas
from sparklog.gateway.schemas.state import RegistryState
from sparklog.protocol.apis import Api
from sparklog.protocol.schema_messages import SchemaRecordsRequest, SchemaRecordsResponse

PAUSE_S = 0.05

T = TypeVar("T")


class RegistryLog:
    """The state and the parsed schemas. Event-loop thread only; one job at a time uses the parsed schemas, on a
    thread."""

    def __init__(self) -> None:
        self.state = RegistryState()
        self.schemas = ParsedSchemas()
        self._parsing = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schemas")

    async def run(self, work: Callable[[], T]) -> T:
        """Call `work`, which uses the parsed schemas, on the thread. Raises its errors."""
        async with self._parsing:
            job = asyncio.get_running_loop().run_in_executor(self._thread, work)
            try:
                return await asyncio.shield(job)
            except asyncio.CancelledError:
                await asyncio.wait([job])  # the next request waits for the end of this work
                raise

    async def exchange(self, broker: BrokerConnection, request: SchemaRecordsRequest) -> SchemaRecordsResponse:
        """Send a request, and read the log to its end. Returns the first answer. Raises the broker's errors."""
        first = answer = await self._ask(broker, request)
        while True:
            try:
                self._apply(request.from_offset, answer)
            finally:
                broker.release()  # a large answer holds memory of the gateway
            if self.state.offset >= answer.end_offset:
                return first
            request = SchemaRecordsRequest(self.state.offset)
            answer = await self._ask(broker, request)

    async def refresh(self, broker: BrokerConnection) -> RegistryState:
        """Return the newest state. Raises the broker's errors."""
        await self.exchange(broker, SchemaRecordsRequest(self.state.offset))
        return self.state

    async def _ask(self, broker: BrokerConnection, request: SchemaRecordsRequest) -> SchemaRecordsResponse:
        """Send a request, and repeat it while its error passes. A repeated append takes effect once, because the first
        one moves the log's end."""
        while True:
            try:
                return await broker.ask(Api.SCHEMA_RECORDS, request, SchemaRecordsResponse)
            except SparklogError as e:
                if not e.retriable or broker.closed or request.records:
                    raise
            await asyncio.sleep(PAUSE_S)

    def _apply(self, from_offset: int, answer: SchemaRecordsResponse) -> None:
        """Apply the records of an answer, unless those of another answer came first."""
        if answer.next_offset < from_offset:  # the log has lost records that the state has
            self.state = RegistryState()
        elif from_offset == self.state.offset:
            records = [(one.key, one.value) for one in answer.records]
            self.state = self.state.replay(records, answer.next_offset)

    def close(self) -> None:
        """Stop the thread after its present work."""
        self._thread.shutdown(wait=False, cancel_futures=True)
