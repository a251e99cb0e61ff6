"""The log of the schema registry on a broker: appends on a condition, reads, and permissions."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from sparklog_broker.broker import Broker
from sparklog_broker.handlers.schema_records import schema_records
from sparklog_broker.request_context import RequestContext

from sparklog.errors import InvalidRequestError, NotLeaderError, TopicAuthorizationFailedError
from sparklog.protocol import schema_messages
from sparklog.protocol.schema_messages import SchemaRecord, SchemaRecordsRequest, SchemaRecordsResponse
from sparklog.security.acls import Operation
from sparklog.types import SCHEMAS_TOPIC
from tests.support.brokers import run

EMPTY = memoryview(b"")


def records(*keys: bytes) -> list[SchemaRecord]:
    return [SchemaRecord(key, b"value of " + key) for key in keys]


async def ask(request: SchemaRecordsRequest, context: RequestContext) -> SchemaRecordsResponse:
    message = (await schema_records(request, EMPTY, context)).message
    assert isinstance(message, SchemaRecordsResponse)
    return message


def test_records_are_appended_if_the_log_ends_as_expected(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        assert await ask(SchemaRecordsRequest(0), context) == SchemaRecordsResponse(0, 0, [])
        assert SCHEMAS_TOPIC not in broker.partitions.topics, "a read creates no topic"
        first = await ask(SchemaRecordsRequest(0, expected_end=0, records=records(b"a", b"b")), context)
        assert first == SchemaRecordsResponse(2, 2, records(b"a", b"b"), True)
        late = await ask(SchemaRecordsRequest(0, expected_end=0, records=records(b"c")), context)
        assert late == SchemaRecordsResponse(2, 2, records(b"a", b"b"), False), "the loser gets the winner's records"
        again = await ask(SchemaRecordsRequest(2, expected_end=2, records=[SchemaRecord(b"a", None)]), context)
        assert again == SchemaRecordsResponse(3, 3, [SchemaRecord(b"a", None)], True)
        assert (await ask(SchemaRecordsRequest(9), context)).next_offset == 3, "the state is of another log"

    run(tmp_path, scenario)


def test_long_logs_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog_broker.coordinators.schema_log.RECORDS_MAX", 2)
    assert schema_messages.RECORDS_MAX > 2

    async def scenario(broker: Broker, context: RequestContext) -> None:
        keys = [b"%d" % i for i in range(5)]
        await ask(SchemaRecordsRequest(0, expected_end=0, records=records(*keys)), context)
        offset, values = 0, list[bytes]()
        while offset < 5:
            answer = await ask(SchemaRecordsRequest(offset), context)
            assert answer.end_offset == 5 and len(answer.records) <= 2
            values += [one.key for one in answer.records]
            offset = answer.next_offset
        assert values == keys

    run(tmp_path, scenario)


def test_only_gateways_and_brokers_use_the_log(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        client = structs.replace(context, may=lambda *_: False)
        gateway = structs.replace(client, is_gateway=True)
        append = SchemaRecordsRequest(0, "Write", ["t"], expected_end=0, records=records(b"a"))
        with pytest.raises(InvalidRequestError):
            await ask(append, client)
        with pytest.raises(InvalidRequestError):
            await ask(structs.replace(append, is_forwarded=True), gateway)
        denial = TopicAuthorizationFailedError(f"{Operation.WRITE} on this topic is not allowed")
        denied = await ask(append, structs.replace(gateway, denied={"t": denial}))
        assert [one.error_code for one in denied.results] == [denial.code] and not denied.is_appended
        assert (await ask(append, gateway)).is_appended

    run(tmp_path, scenario)


def test_a_forwarded_request_is_not_forwarded_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await ask(SchemaRecordsRequest(0, expected_end=0, records=records(b"a")), context)
        broker.other_brokers.broker_id = 7  # as on a broker that does not lead the log
        with pytest.raises(NotLeaderError):
            await ask(SchemaRecordsRequest(0, is_forwarded=True), context)

    run(tmp_path, scenario)
