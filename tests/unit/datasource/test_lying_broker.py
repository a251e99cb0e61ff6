"""A broker that lies to Spark's source and sink: the query fails, and loses no row without an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.options.options import parse_sink_options, parse_source_options
from pyspark_sparklog.schemas import TopicShape, full_schema
from pyspark_sparklog.sink.publication import Publisher, stream_publisher
from pyspark_sparklog.sink.sink_task import SinkTask
from pyspark_sparklog.source.catalog import Catalog
from pyspark_sparklog.source.reader import RangePartition, RangeRead

from sparklog.client.net.cluster import forget
from sparklog.errors import DataLossError, InvalidRequestError, SparklogError
from sparklog.format.schema import ENVELOPE_SCHEMA, KIND_ENVELOPE
from sparklog.protocol import topic_messages as topics
from sparklog.protocol.apis import Api
from sparklog.types import TopicPartition
from tests.support.cases import for_each
from tests.support.clients import fill
from tests.support.expired_batches import expire_after_a_failure
from tests.unit.client.lying_broker import LyingBroker, other_partition

TP = TopicPartition("events", 0)
ROWS = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())})


@pytest.fixture
def lying() -> Iterator[LyingBroker]:
    broker = LyingBroker()
    yield broker
    broker.close()
    forget(broker.address)


def changed(**fields: Any) -> Callable[[Any], Any]:
    """Return a lie: the answer with other values of these fields."""
    return lambda answer: msgspec.structs.replace(answer, **fields)


def of_results(**fields: Any) -> Callable[[Any], Any]:
    """Return a lie about each partition of an answer."""

    def lie(answer: Any) -> Any:
        return msgspec.structs.replace(
            answer, results=[msgspec.structs.replace(result, **fields) for result in answer.results]
        )

    return lie


def sink_task(lying: LyingBroker) -> SinkTask:
    given = {"sparklog.bootstrap.servers": lying.address, "topic": "events"}
    publisher = Publisher(ClusterAddress(lying.address), 1_000, 5_000, 1, "run", "nightly", 7)
    return SinkTask(parse_sink_options(given, streaming=False), True, False, publisher, 1)


@for_each(
    "api, lie, reason",
    [
        (Api.JOIN_SHARED_TXN, changed(producer_id=-1), "producer id -1"),
        (Api.JOIN_SHARED_TXN, changed(producer_epoch=-1), "epoch -1"),
        (Api.JOIN_SHARED_TXN, changed(committed=True), "is committed, and that version -1"),
        (Api.PRODUCE, other_partition, "has not answered for the partitions"),
    ],
)
def test_a_task_whose_rows_are_not_in_the_transaction_fails(
    monkeypatch: pytest.MonkeyPatch, api: Api, lie: Any, reason: str
) -> None:
    expire_after_a_failure(monkeypatch)
    broker = LyingBroker()
    try:
        task = sink_task(broker)
        broker.lies[api] = lie
        with pytest.raises(SparklogError, match=reason):
            task.write(iter([ROWS]))
    finally:
        broker.close()
        forget(broker.address)


def test_a_token_that_is_none_does_not_switch_transactions_off(lying: LyingBroker) -> None:
    lying.lies[Api.INIT_PRODUCER_ID] = changed(producer_id=-1)
    options = parse_sink_options({"sparklog.bootstrap.servers": lying.address}, streaming=True)
    with pytest.raises(InvalidRequestError, match="fencing token -1"):
        stream_publisher(options)


def test_a_commit_that_did_not_happen_is_not_believed(lying: LyingBroker) -> None:
    """The answer says that the version is committed, but names an earlier one as the newest commit."""
    task = sink_task(lying)
    message = task.write(iter([ROWS]))
    lying.lies[Api.END_SHARED_TXN] = changed(committed=True, last_committed_version=-1)
    with pytest.raises(SparklogError, match="is committed, and that version -1"):
        task.publisher.commit([message])


def read(lying: LyingBroker, end: int = 42) -> list[int]:
    """Return the offsets that a task of the source reads."""
    given = {"sparklog.bootstrap.servers": lying.address, "subscribe": "events", "sparklog.broker.wait.ms": "5000"}
    options = parse_source_options(given, streaming=True)
    schema = full_schema(TopicShape(KIND_ENVELOPE, ENVELOPE_SCHEMA), include_headers=False, include_metadata=False)
    task = RangePartition("events", 0, 0, end, "id-events")
    return [n for batch in RangeRead(options, schema).read(task) for n in batch.column("offset").to_pylist()]


def _with_another_id(answer: topics.MetadataResponse) -> topics.MetadataResponse:
    return changed(topics=[msgspec.structs.replace(t, topic_id="other") for t in answer.topics])(answer)


@for_each(
    "api, lie, error, reason",
    [
        (Api.METADATA, _with_another_id, DataLossError, "deleted and created again"),
        (Api.FETCH, of_results(length_bytes=1), SparklogError, "announced length"),
        (Api.FETCH, changed(results=[]), SparklogError, "announced length"),
        (Api.FETCH, of_results(error_code=1), DataLossError, "gone"),
        (Api.FETCH, of_results(error_code=32_000), SparklogError, "no name for"),
    ],
)
def test_a_task_of_the_source_fails(api: Api, lie: Any, error: type[Exception], reason: str) -> None:
    broker = LyingBroker()
    try:
        fill(broker, 1, rows=42)
        assert read(broker) == list(range(42))
        broker.lies[api] = lie
        with pytest.raises(error, match=reason):
            read(broker)
    finally:
        broker.close()
        forget(broker.address)


def test_offsets_of_a_partition_are_never_negative(lying: LyingBroker) -> None:
    """They would go into the checkpoint."""
    fill(lying, 1, rows=42)
    lying.lies[Api.LIST_OFFSETS] = of_results(offset=-5)
    with pytest.raises(InvalidRequestError, match="offset -5"):
        Catalog(ClusterAddress(lying.address), 0).extents([TP])
