"""A typed topic's schema changes while producers and readers run: client, command line and a real broker process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

import sparklog
from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.net.cluster import Cluster, cluster, forget
from sparklog.client.reading.range_reader import read_range
from sparklog.errors import (
    InvalidRequestError,
    InvalidTopicError,
    SchemaMismatchError,
    UnknownSchemaError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.batch import encode_batch
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import (
    AlterSchemaRequest,
    AlterSchemaResponse,
    CreateTopicRequest,
    CreateTopicResponse,
)
from tests.support.cli import Result, run_here
from tests.support.waiting import until
from tests.system.broker_process import PATIENCE_S, BrokerProcess, fetch, produce

if TYPE_CHECKING:
    from sparklog.client.local import LocalBroker

V1 = pa.schema([("id", pa.int32()), ("n", pa.int32()), ("text", pa.string())])
V2 = pa.schema([("id", pa.int32()), ("n", pa.int64()), ("text", pa.string()), ("extra", pa.list_(pa.int32()))])
STORED_V2 = pa.schema([*list(V2)[:3], ("extra", pa.list_(pa.field("element", pa.int32())))])
BIG = 1 << 40


@pytest.fixture
def typed(admin: Admin, topic: str) -> str:
    admin.create_topic(topic, partitions=1, schema=V1, key_columns=["id"])
    return topic


def widen(admin: Admin, topic: str) -> None:
    """From V1 to V2."""
    before = admin.describe_topic(topic).schema_id
    described = admin.alter_schema(
        topic, add_columns={"extra": pa.list_(pa.int32())}, widen_columns=pa.schema([("n", pa.int64())])
    )
    assert (described.schema_id > before, described.schema) == (True, STORED_V2)


def old_rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i, "n": -i, "text": f"row {i}"} for i in range(first, first + count)]


def new_rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": i, "n": BIG + i, "text": f"row {i}", "extra": [i]} for i in range(first, first + count)]


def as_new(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"extra": None, **row} for row in rows]


def segment_schemas(broker: LocalBroker, topic: str) -> list[int]:
    """Columns per segment file, in offset order."""
    paths = sorted(Path(broker.data_dir, f"{topic}-0").glob("*.arrow"))
    return [len(pa.ipc.open_stream(pa.OSFile(str(p)).read(1 << 16)[8:]).schema) for p in paths]


@pytest.mark.parametrize(("local", "compression"), [("auto", "zstd"), ("off", "none")])
def test_one_scan_over_old_and_new_rows_has_the_newest_schema(
    broker: LocalBroker, admin: Admin, typed: str, local: str, compression: str
) -> None:
    with Producer(broker.bootstrap_servers, compression=compression) as producer:
        producer.send_batch(typed, old_rows(0, 5)).result(PATIENCE_S)
        widen(admin, typed)
        producer.send_batch(typed, new_rows(5, 5)).result(PATIENCE_S)
    assert segment_schemas(broker, typed) == [3, 4]
    expected = as_new(old_rows(0, 5)) + new_rows(5, 5)
    found = sparklog.read_table(broker.bootstrap_servers, typed, local=local)
    assert found.schema == STORED_V2
    assert sorted(found.to_pylist(), key=lambda r: r["id"]) == [{n: r[n] for n in STORED_V2.names} for r in expected]
    some = sparklog.read_table(broker.bootstrap_servers, typed, columns=["extra", "n"], local=local)
    assert some.schema == pa.schema([STORED_V2.field("extra"), STORED_V2.field("n")])
    assert some.to_pylist() == [{"extra": r["extra"], "n": r["n"]} for r in expected]
    only_new = sparklog.read_table(broker.bootstrap_servers, typed, columns=["extra"], local=local, end=5)
    assert only_new.to_pylist() == [{"extra": None}] * 5
    meta = sparklog.read_table(broker.bootstrap_servers, typed, columns=["n"], include_metadata=True, local=local)
    assert meta.column("_offset").to_pylist() == list(range(10))


def test_a_running_consumer_goes_over_to_the_new_schema(broker: LocalBroker, admin: Admin, typed: str) -> None:
    tp = TopicPartition(typed, 0)
    other = Cluster(broker.bootstrap_servers)  # another process's metadata: this one learns by the batches alone
    with (
        closing(other),
        Producer(broker.bootstrap_servers) as producer,
        Consumer(broker.bootstrap_servers, auto_offset_reset="earliest") as consumer,
    ):
        consumer._cluster = consumer._fetcher.first._cluster = other
        consumer.assign([tp])
        producer.send_batch(typed, old_rows(0, 3)).result(PATIENCE_S)
        before = []
        until(lambda: bool(before.extend(consumer.poll_batches(100)) or before), "rows of the first schema")
        assert [b.data.schema for b in before] == [V1] * len(before)
        widen(admin, typed)
        producer.send_batch(typed, new_rows(3, 3)).result(PATIENCE_S)
        after = []
        until(lambda: bool(after.extend(consumer.poll_batches(100)) or after), "rows of the second schema")
        assert [b.data.schema for b in after] == [STORED_V2] * len(after)
        assert [r for b in after for r in b.data.to_pylist()] == [{n: r[n] for n in V2.names} for r in new_rows(3, 3)]
        consumer.seek(tp, 0)
        again = []
        until(
            lambda: bool(again.extend(consumer.poll(100)) or len(again) == 6),
            "all rows again, now in the second schema",
        )
        assert [r.value["extra"] for r in again] == [None, None, None, [3], [4], [5]]


def test_a_new_consumer_gets_old_rows_in_the_newest_schema(broker: LocalBroker, admin: Admin, typed: str) -> None:
    with Producer(broker.bootstrap_servers) as producer:
        producer.send_batch(typed, old_rows(0, 3)).result(PATIENCE_S)
    shared = cluster(broker.bootstrap_servers)
    known = shared.topic(typed)
    widen(admin, typed)
    shared.remember(known)  # as if another process had made the change
    with Consumer(broker.bootstrap_servers, auto_offset_reset="earliest", columns=["n", "extra"]) as consumer:
        consumer.assign([TopicPartition(typed, 0)])
        batches = []
        until(lambda: bool(batches.extend(consumer.poll_batches(100)) or batches), "the rows")
        assert batches[0].data.schema == pa.schema([STORED_V2.field("n"), STORED_V2.field("extra")])


def test_a_scan_keeps_the_layout_it_was_planned_with(broker: LocalBroker, admin: Admin, typed: str) -> None:
    with Producer(broker.bootstrap_servers) as producer:
        producer.send_batch(typed, old_rows(0, 2)).result(PATIENCE_S)
        widen(admin, typed)
        producer.send_batch(typed, new_rows(2, 2)).result(PATIENCE_S)
    shared, tp = cluster(broker.bootstrap_servers), TopicPartition(typed, 0)
    for local in ("auto", "off"):
        left_out = list(read_range(shared, tp, 0, 4, columns=["text", "id"], layout=V1, local=local))
        assert {b.data.schema for b in left_out} == {pa.schema([V1.field("text"), V1.field("id")])}
        planned = read_range(shared, tp, 0, 4, columns=["n"], layout=V1, local=local)
        assert next(planned).data.column("n").to_pylist() == [0, -1]
        with pytest.raises(SchemaMismatchError, match=r"'n' is int64 now, it was int32 .*restart the read"):
            list(planned)


def test_a_producer_with_old_metadata_goes_on_and_then_follows(broker: LocalBroker, admin: Admin, typed: str) -> None:
    shared = cluster(broker.bootstrap_servers)
    with Producer(broker.bootstrap_servers) as producer:
        producer.send_batch(typed, old_rows(0, 1)).result(PATIENCE_S)
        known = shared.topic(typed)
        widen(admin, typed)
        shared.remember(known)  # as if another process had made the change
        producer.send_batch(typed, old_rows(1, 1)).result(PATIENCE_S)  # with the old schema, into the old segment
        assert segment_schemas(broker, typed) == [3]
        producer.send_batch(typed, old_rows(2, 1)).result(PATIENCE_S)  # the last answer told it
        assert segment_schemas(broker, typed) == [3, 4]
    table = sparklog.read_table(broker.bootstrap_servers, typed)
    assert table.column("id").to_pylist() == [0, 1, 2]
    assert table.schema == STORED_V2


def test_a_producer_that_is_behind_reads_the_metadata_when_data_do_not_fit(
    broker: LocalBroker, admin: Admin, typed: str
) -> None:
    shared = cluster(broker.bootstrap_servers)
    rows = pa.Table.from_pylist(new_rows(0, 4), schema=V2)
    with Producer(broker.bootstrap_servers) as producer:
        producer.send_batch(typed, old_rows(9, 1)).result(PATIENCE_S)
        known = shared.topic(typed)
        widen(admin, typed)
        # a stream that can be read only once is not lost in the first attempt
        for data in (rows.to_reader(), pl.from_arrow(rows), rows.to_pylist(), rows.to_pandas()):
            shared.remember(known)
            assert sum(m.record_count for m in producer.send_batch(typed, data).result(PATIENCE_S)) == 4  # type: ignore[attr-defined]
        with pytest.raises(SchemaMismatchError, match="unknown column 'nothing'"):
            producer.send_batch(typed, [{"id": 1, "nothing": 2}])
    table = sparklog.read_table(broker.bootstrap_servers, typed, columns=["n", "extra"], start=1)
    assert table.to_pylist() == [{"n": BIG + i, "extra": [i]} for i in range(4)] * 4


def test_old_and_new_producers_at_the_same_time(tmp_path: Path) -> None:
    """Through the socket, without the client: batches of both schemas in turn, and a restart."""
    old = pa.record_batch([[1], [2], ["x"]], schema=V1)
    new = pa.record_batch([[3], [BIG], ["y"], [[7]]], schema=STORED_V2)

    def encoded(rows: pa.RecordBatch, schema_id: int) -> bytes:
        return bytes(encode_batch(rows, schema_id=schema_id, min_timestamp_ms=0, max_timestamp_ms=0))

    broker = BrokerProcess(tmp_path / "data", work_dir=tmp_path)
    try:
        with broker.connect() as client:
            create = CreateTopicRequest("t", 1, V1.serialize().to_pybytes(), ["id"])
            first = client.request(Api.CREATE_TOPIC, create, CreateTopicResponse).topic.schemas[-1].schema_id
            stale = encoded(old, first)
            assert produce(client, [("t", 0, encoded(new, first + 1))])[0].error_code == UnknownSchemaError.code
            assert produce(client, [("t", 0, stale)])[0].newest_schema_id == first
            request = AlterSchemaRequest("t", arrow_schema=STORED_V2.serialize().to_pybytes())
            state = client.request(Api.ALTER_SCHEMA, request, AlterSchemaResponse).topic
            second = state.schemas[-1].schema_id
            assert [s.schema_id for s in state.schemas] == [first, second]
            fresh = encoded(new, second)
            for data in (stale, fresh, stale, fresh):
                result = produce(client, [("t", 0, data)])[0]
                assert (result.error_code, result.newest_schema_id) == (0, second)
        broker.stop()
        broker = BrokerProcess(tmp_path / "data", work_dir=tmp_path)
        with broker.connect() as client:
            assert produce(client, [("t", 0, fresh + stale)])[0].base_offset == 5
            assert fetch(client, "t", 4)[0].error_code == 0
        table = sparklog.read_table(broker.address, "t")
        assert table.schema == STORED_V2
        assert table.column("n").to_pylist() == [2, 2, BIG, 2, BIG, BIG, 2]
        assert table.column("extra").to_pylist() == [None, None, [7], None, [7], [7], None]
        forget(broker.address)
        assert broker.stop() == 0
        for path in (tmp_path / "data" / "t-0").glob("*.arrow"):
            pa.ipc.open_file(str(path)).read_all().validate(full=True)
    finally:
        broker.stop()


def test_refusals_reach_the_caller_without_a_change(admin: Admin, typed: str, topic_name: Callable[[], str]) -> None:
    for wrong, reason in [
        ({"widen_columns": {"text": pa.int64()}}, "'text' is string and cannot become int64"),
        ({"widen_columns": {"id": pa.int64()}}, "'id' is a key column"),
        ({"schema": pa.schema(list(V1)[:2])}, "'text' .* is missing"),
        ({"add_columns": {"n": pa.string()}}, "'n' cannot be added"),
    ]:
        with pytest.raises(InvalidTopicError, match=reason):
            admin.alter_schema(typed, **wrong)
    with pytest.raises(InvalidRequestError):
        admin.alter_schema(typed)
    with pytest.raises(InvalidRequestError):
        admin.alter_schema(typed, schema=V2, add_columns={"x": pa.int8()})
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.alter_schema(topic_name(), add_columns={"x": pa.int8()})
    envelope = topic_name()
    admin.create_topic(envelope)
    with pytest.raises(InvalidTopicError, match="envelope topic"):
        admin.alter_schema(envelope, add_columns={"x": pa.int8()})
    described = admin.describe_topic(typed)
    assert described.schema == V1
    assert admin.alter_schema(typed, schema=V1).schema_id == described.schema_id  # asked for again: nothing new


def cli(broker: LocalBroker, *arguments: str) -> Result:
    return run_here(*arguments, environment={"SPARKLOG_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "NO_COLOR": "1"})
