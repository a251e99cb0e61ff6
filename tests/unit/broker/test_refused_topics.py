"""Refused records at the broker: the refused topic is created when it is needed, and gateways alone write to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs
from sparklog_broker.broker import Broker
from sparklog_broker.controller_requests import ControllerRequests
from sparklog_broker.handlers.refused_records import store_refused
from sparklog_broker.registry import HANDLERS
from sparklog_broker.request_context import RequestContext

from sparklog.errors import (
    InvalidConfigError,
    InvalidRequestError,
    NotLeaderError,
    PolicyViolationError,
    SparklogError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.batch import encode_batch
from sparklog.format.key_format import REFUSED_SETTING
from sparklog.metadata.refused_topics import REFUSED_SCHEMA, refused_topic_settings
from sparklog.metadata.store import TopicSpec
from sparklog.protocol.refused_messages import STORED_BYTES_MAX, StoreRefusedRequest, StoreRefusedResponse
from sparklog.settings import MIB
from sparklog.types import TopicPartition
from tests.support.brokers import run

EMPTY = memoryview(b"")
SCHEMA = pa.schema([("id", pa.int64())])


def batch(schema_id: int, producer_id: int = -1) -> bytes:
    rows = pa.RecordBatch.from_pylist([{"partition": 0, "offset": 7, "value": b"x", "reason": "no"}], REFUSED_SCHEMA)
    epoch = -1 if producer_id < 0 else 0
    fields: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": epoch}
    return bytes(encode_batch(rows, schema_id=schema_id, min_timestamp_ms=1, max_timestamp_ms=1, **fields))


def asking_itself(context: RequestContext) -> RequestContext:
    return structs.replace(context, ask_controller=ControllerRequests(context.broker, HANDLERS).ask_as_peer)


async def ask(request: StoreRefusedRequest, context: RequestContext) -> StoreRefusedResponse:
    message = (await store_refused(request, EMPTY, context)).message
    assert isinstance(message, StoreRefusedResponse)
    return message


async def typed(broker: Broker, name: str = "typed", **configs: Any) -> None:
    await broker.topics.create(TopicSpec(name, 3, SCHEMA, configs={REFUSED_SETTING: "topic", **configs}))


def test_a_refused_topic_is_created_and_gets_rows(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await typed(broker, "typed", **{"max.message.bytes": 4_096})
        assert refused_topic_settings({"max.message.bytes": 8 * MIB})["max.message.bytes"] == 16 * MIB
        context = asking_itself(context)
        form = await ask(StoreRefusedRequest("typed", 2), context)
        topic = broker.partitions.topics["typed.refused"]
        assert topic.partitions == 3 and topic.schemas[form.schema_id] == REFUSED_SCHEMA
        assert topic.configs["max.message.bytes"] == STORED_BYTES_MAX and topic.configs["retention.ms"] == -1
        assert await ask(StoreRefusedRequest("typed", 2, batch(form.schema_id)), context) == form
        logs = [broker.partitions.find(TopicPartition("typed.refused", n)) for n in range(3)]
        assert [log.log.log_end_offset for log in logs if log is not None] == [0, 0, 1]

    run(tmp_path, scenario)


def test_partitions_that_were_added_share_those_of_the_refused_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await broker.topics.create(TopicSpec("typed.refused", 2, REFUSED_SCHEMA))
        await typed(broker)
        form = await ask(StoreRefusedRequest("typed", 2), context)
        await ask(StoreRefusedRequest("typed", 2, batch(form.schema_id)), context)
        assert broker.partitions.get("typed.refused", 0).log.log_end_offset == 1

    run(tmp_path, scenario)


def test_gateways_and_brokers_alone_store_refused_records(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await typed(broker)
        client = structs.replace(asking_itself(context), may=lambda *_: False)
        gateway = structs.replace(client, is_gateway=True)
        with pytest.raises(InvalidRequestError, match="only gateways and brokers"):
            await ask(StoreRefusedRequest("typed", 0), client)
        with pytest.raises(InvalidRequestError, match="only gateways and brokers"):
            await ask(StoreRefusedRequest("typed", 0, is_forwarded=True), gateway)
        assert "typed.refused" not in broker.partitions.topics
        assert (await ask(StoreRefusedRequest("typed", 0), gateway)).schema_id >= 0

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("name", "error"),
    [("t", InvalidRequestError), ("missing", UnknownTopicOrPartitionError), ("strict", InvalidRequestError),
     ("taken", InvalidConfigError), ("copied", PolicyViolationError)],
)  # fmt: skip
def test_other_topics_have_no_refused_records(tmp_path: Path, name: str, error: type[SparklogError]) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await typed(broker, "strict", **{REFUSED_SETTING: "refuse"})
        await typed(broker, "taken")
        await broker.topics.create(TopicSpec("taken.refused", 1, SCHEMA))
        await typed(broker, "copied")
        mirrored = {"mirror.name": "m", "mirror.source": "kafka://h:9092", "mirror.refused.of": "copied"}
        await broker.topics.create(TopicSpec("copied.refused", 1, REFUSED_SCHEMA, configs=mirrored))
        with pytest.raises(error):
            await ask(StoreRefusedRequest(name, 0), asking_itself(context))

    run(tmp_path, scenario)


def test_a_producer_and_a_second_forwarding_are_refused(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await typed(broker)
        form = await ask(StoreRefusedRequest("typed", 0), asking_itself(context))
        with pytest.raises(InvalidRequestError, match="have no producer"):
            await ask(StoreRefusedRequest("typed", 0, batch(form.schema_id, producer_id=0)), context)
        broker.other_brokers.broker_id = 7  # as on a broker that does not lead the partition
        with pytest.raises(NotLeaderError):
            await ask(StoreRefusedRequest("typed", 0, batch(form.schema_id), is_forwarded=True), context)

    run(tmp_path, scenario)
