"""The log of the schema registry on a broker: the one partition of the internal topic `__schemas`.

The gateways have the rules of the registry and its state. The broker that leads the partition appends their records on
a condition: the log ends where the gateway's state does. Of two gateways that change the registry at once, one is
refused, and repeats its request with the new state.
"""

from __future__ import annotations

import asyncio

from msgspec import structs

from sparklog.errors import CoordinatorNotAvailableError, NotLeaderError
from sparklog.protocol.schema_messages import (
    EXCHANGED_BYTES_MAX,
    RECORDS_MAX,
    SchemaRecord,
    SchemaRecordsRequest,
    SchemaRecordsResponse,
)
from sparklog_broker.coordinators.internal_topics import InternalTopic
from sparklog_broker.coordinators.other_brokers import OtherBrokers

PARTITION = 0


class SchemaLog:
    """The log of the schema registry. Event-loop thread only."""

    def __init__(self, topic: InternalTopic, other_brokers: OtherBrokers) -> None:
        self.topic = topic
        self._other_brokers = other_brokers
        self._appending = asyncio.Lock()

    async def exchange(self, request: SchemaRecordsRequest) -> SchemaRecordsResponse:
        """Append and read records at the leader of the log. The permissions have been checked. Raises
        CoordinatorNotAvailableError, NotLeaderError, and the errors of `InternalTopic.append` and `replay`."""
        if request.records:
            await self.topic.ensure()
        if not self.topic.exists:
            return SchemaRecordsResponse(0, 0, [])
        leader = self.topic.leader_of(PARTITION)
        if leader == self._other_brokers.broker_id:
            return await self._exchange_here(request)
        if request.is_forwarded:
            raise NotLeaderError("another broker leads the log of the schema registry now: try again")
        if leader < 0:
            raise CoordinatorNotAvailableError("the log of the schema registry has no leader now: try again")
        forwarded = structs.replace(request, operation="", topics=[], is_on_cluster=False, is_forwarded=True)
        return await self._other_brokers.schema_records(leader, forwarded)

    async def _exchange_here(self, request: SchemaRecordsRequest) -> SchemaRecordsResponse:
        log = self.topic.partition_of(PARTITION).log
        is_appended = False
        if request.records:
            async with self._appending:
                if log.log_end_offset == request.expected_end:
                    await self.topic.append(PARTITION, [(one.key, one.value) for one in request.records])
                    is_appended = True
        end = log.high_watermark
        if request.from_offset > end:
            return SchemaRecordsResponse(end, end, [], is_appended)
        records: list[SchemaRecord] = []
        size = 0
        async for piece in self.topic.replay(PARTITION, request.from_offset):
            for record in piece:
                if size >= EXCHANGED_BYTES_MAX or len(records) == RECORDS_MAX:
                    return SchemaRecordsResponse(record.offset, end, records, is_appended)
                if record.key is not None and record.offset < end:
                    records.append(SchemaRecord(record.key, record.value))
                    size += len(record.key) + len(record.value or b"")
        return SchemaRecordsResponse(end, end, records, is_appended)
