"""The cache of topics: a stale entry refuses no record, and refused records cost few look-ups."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sparklog.environment.time_slices import LoopTimeSlices
from sparklog.errors import InvalidRequestError
from sparklog.gateway.backend import topics as topics_module
from sparklog.gateway.backend.read_epochs import ReadEpochs
from sparklog.gateway.backend.topics import Topics
from sparklog.gateway.gateway import Conversions
from sparklog.gateway.handlers.produce import produce
from sparklog.gateway.limits import Limits
from sparklog.gateway.memory import GatewayMemory
from sparklog.gateway.refusals import Refusals
from sparklog.kafka.wire.errors import Kafka
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProduceResponse, ProduceResult
from sparklog.protocol.refused_messages import StoreRefusedResponse
from sparklog.protocol.topic_messages import MetadataResponse, PartitionState, SchemaVersion, TopicState
from tests.support.kafka_wire import batch_of_values, produce_body
from tests.unit.gateway.registry_schemas import FixedSchemas

REFUSED = 20


class Broker:
    """A broker with a topic `t` of `columns` columns c0, c1, …"""

    def __init__(self) -> None:
        self.columns = 1
        self.look_ups = 0
        self.configs: dict[str, Any] = {}
        self.error_code = 0

    async def ask(self, api: Api, message: Any, response: type) -> Any:
        if api is Api.STORE_REFUSED:
            return StoreRefusedResponse(1)
        assert api is Api.METADATA
        self.look_ups += 1
        schema = pa.schema([(f"c{n}", pa.int64()) for n in range(self.columns)])
        schemas = [SchemaVersion(self.columns, schema.serialize().to_pybytes())]
        partitions = [PartitionState(0, 0, 0, [0], [0])]
        state = TopicState(0, "t", "id", "typed", partitions, schemas, configs=dict(self.configs))
        return MetadataResponse("c", 0, [], [state])

    def send(self, api: Api, message: Any, response: type, payload: Any) -> Any:
        answer: Any = asyncio.get_running_loop().create_future()
        results = [ProduceResult(p.topic, p.partition, self.error_code, 0, 0, 0) for p in message.partitions]
        answer.set_result((ProduceResponse(results), memoryview(b"")))
        return answer

    async def drain(self) -> None:
        pass


def session_of(broker: Broker) -> Any:
    """A session of a gateway at `broker`."""

    async def connection() -> Broker:
        return broker

    async def refusals(*_: Any) -> dict[str, Any]:
        return {}

    limits = Limits()
    gateway = SimpleNamespace(
        topics=Topics(time.monotonic),
        conversions=Conversions(GatewayMemory(limits)),
        limits=limits,
        schemas=FixedSchemas(),
        addresses=lambda *_: {},
        time_slices=LoopTimeSlices(asyncio.get_running_loop(), clock=time.monotonic),
        refusals=Refusals(time.monotonic),
    )
    return SimpleNamespace(
        read_epochs=ReadEpochs(),
        gateway=gateway,
        broker=connection,
        order=asyncio.Lock(),
        listener=None,
        local=("h", 1),
        peer_host="h",
        client_id="c",
        write_permissions=SimpleNamespace(refusals=refusals),
    )


async def code_after(session: Any, value: bytes) -> int:
    body: Any = produce_body("t", b"")
    body["topic_data"][0]["partition_data"][0]["records"] = memoryview(batch_of_values([value]))
    answer = await produce(session, body, 9)
    assert answer is not None
    return answer["responses"][0]["partition_responses"][0]["error_code"]


def test_a_record_of_a_newer_schema_is_converted_by_the_newer_schema() -> None:
    async def go() -> None:
        broker = Broker()
        session = session_of(broker)
        assert await code_after(session, b'{"c0":1}') is Kafka.NONE
        broker.columns = 2
        assert await code_after(session, b'{"c0":1,"c1":2}') is Kafka.NONE
        assert await code_after(session, b'{"c0":1,"c2":2}') is Kafka.INVALID_RECORD

    asyncio.run(go())


def test_refused_records_of_many_clients_share_their_look_ups() -> None:
    async def go() -> None:
        broker = Broker()
        session = session_of(broker)
        others = [SimpleNamespace(**{**vars(session), "order": asyncio.Lock()}) for _ in range(REFUSED)]
        codes = await asyncio.gather(*(code_after(one, b"{") for one in others))
        assert set(codes) == {Kafka.INVALID_RECORD}
        assert broker.look_ups <= REFUSED + 1, "each client looks the topic up once, before it is cached"
        before = broker.look_ups
        await asyncio.gather(*(code_after(one, b"{") for one in others))
        assert broker.look_ups - before <= 2

    asyncio.run(go())


def test_records_for_a_refused_topic_wait_for_no_look_up_of_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "RENEWAL_S", 1_000.0)

    async def go() -> None:
        broker = Broker()
        broker.configs = {"kafka.refused.records": "topic"}
        session = session_of(broker)
        for count in range(1, 4):
            assert await code_after(session, b"{") is Kafka.NONE
            assert broker.look_ups == 1 + count, "each request asks for the present columns"
        assert session.gateway.refusals.records == 3
        broker.columns = 2
        assert await code_after(session, b'{"c1":1}') is Kafka.NONE
        assert session.gateway.refusals.records == 3

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.parametrize(("changes", "code"), [(True, Kafka.NOT_LEADER_OR_FOLLOWER), (False, Kafka.INVALID_REQUEST)])
def test_a_batch_that_was_converted_for_former_settings_is_sent_again(changes: bool, code: Kafka) -> None:
    async def go() -> None:
        broker = Broker()
        session = session_of(broker)
        assert await code_after(session, b'{"c0":1}') is Kafka.NONE
        broker.error_code = InvalidRequestError.code
        if changes:
            broker.configs = {"message.timestamp.type": "LogAppendTime"}
        assert await code_after(session, b'{"c0":1}') is code

    asyncio.run(go())
