"""The client and a real broker process, end to end."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import sparklog
from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.local import LocalBroker
from sparklog.client.net.cluster import cluster
from sparklog.client.producer.partitioner import partition_for_key
from sparklog.client.reading.range_reader import read_range
from sparklog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    SparklogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

RICH = pa.schema(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("id", pa.int64()),
        ("ratio", pa.float64()),
        ("text", pa.large_string()),
        ("raw", pa.binary()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("ns", "Europe/Berlin")),
        ("local", pa.timestamp("ms")),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
        ("attrs", pa.map_(pa.string(), pa.int32())),
    ]
)


def rich_rows(count: int) -> list[dict[str, Any]]:
    at = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    rows: list[dict[str, Any]] = []
    for i in range(count):
        row = {
            "flag": i % 2 == 0,
            "tiny": i % 100,
            "id": i,
            "ratio": i / 7,
            "text": f"row {i}",
            "raw": b"%d" % i,
            "price": Decimal(i) / 4,
            "day": dt.date(2024, 5, 1) + dt.timedelta(days=i),
            "at": at + dt.timedelta(milliseconds=i),
            "local": dt.datetime(2024, 5, 1, 0, 0, i % 60),
            "tags": ["a"] * (i % 3),
            "point": {"x": i, "y": -i},
            "attrs": [("k", i)],
        }
        rows.append({k: None if (i + n) % 11 == 0 else v for n, (k, v) in enumerate(row.items())} | {"id": i})
    return rows


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_typed_topics_round_trip_every_type(broker: LocalBroker, admin: Admin, topic: str, compression: str) -> None:
    described = admin.create_topic(topic, partitions=2, schema=RICH, key_columns=["id"], timestamp_column="at")
    assert described.kind == "typed" and described.schema.field("text").type == pa.string()
    sent = pa.Table.from_pylist(rich_rows(100), schema=RICH)
    with Producer(broker.bootstrap_servers, compression=compression) as producer:
        producer.send_batch(topic, sent)
    for local in ("auto", "off"):
        read = sparklog.read_table(broker.bootstrap_servers, topic, local=local)
        assert read.schema.equals(described.schema)
        assert read.sort_by("id").to_pylist() == sent.cast(described.schema).to_pylist()
        some = sparklog.read_table(broker.bootstrap_servers, topic, columns=["text", "id"], local=local)
        assert some.column_names == ["text", "id"] and some.num_rows == 100


def test_envelope_records_arrive_as_sent(broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=4)
    with Producer(broker.bootstrap_servers) as producer:
        for i in range(1000):
            producer.send(topic, b"%d" % i, key=b"k%d" % (i % 20), headers=[("n", b"%d" % i)], timestamp_ms=5000 + i)
    with Consumer(broker.bootstrap_servers, max_poll_records=64) as consumer:
        consumer.assign([TopicPartition(topic, p) for p in range(4)])
        records: list[Any] = []
        while len(records) < 1000:
            more = consumer.poll(10_000)
            assert more
            records += more
    assert sorted(int(r.value) for r in records) == list(range(1000))
    for r in records:
        n = int(r.value)
        assert r.key == b"k%d" % (n % 20) and r.headers == [("n", b"%d" % n)] and r.timestamp_ms == 5000 + n
        assert r.partition == partition_for_key(r.key, 4)
    for p in range(4):
        mine = [int(r.value) for r in records if r.partition == p]
        assert mine == sorted(mine)
    offsets = admin.list_offsets({TopicPartition(topic, p): "latest" for p in range(4)})
    assert sum(o.offset for o in offsets.values()) == 1000


def test_a_waiting_consumer_gets_new_records(broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with Consumer(broker.bootstrap_servers) as consumer, Producer(broker.bootstrap_servers, linger_ms=0) as producer:
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.poll(50) == []
        for i in range(20):
            producer.send(topic, b"%d" % i)
            assert [r.value for r in consumer.poll(10_000)] == [b"%d" % i]


def test_read_table_bounds_and_metadata(broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    with Producer(broker.bootstrap_servers) as producer:
        for p in range(2):
            producer.send_batch(topic, {"value": [b"%d" % i for i in range(10)]}, partition=p)

    def read(**how: Any) -> pa.Table:
        return sparklog.read_table(broker.bootstrap_servers, topic, include_metadata=True, columns=["value"], **how)

    assert read().schema.names == ["value", "_topic", "_partition", "_offset", "_timestamp"]
    assert read(start=4, end=6).column("value").to_pylist() == [b"4", b"5"] * 2
    only_one = read(start={1: 8})
    assert only_one.select(["_partition", "_offset"]).to_pylist() == [
        {"_partition": 1, "_offset": 8},
        {"_partition": 1, "_offset": 9},
    ]
    assert read(start="latest").num_rows == 0 and read(start="earliest", end=100).num_rows == 20
    with pytest.raises(InvalidPartitionsError):
        read(start={7: 0})
    with pytest.raises(SchemaMismatchError, match="did you mean 'value'"):
        sparklog.read_table(broker.bootstrap_servers, topic, columns=["valu"])


def test_segments_that_roll_read_the_same_by_map_and_socket(broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, configs={"segment.bytes": 20_000})
    with Producer(broker.bootstrap_servers, batch_size_bytes=3000) as producer:
        for start in range(0, 2000, 100):
            producer.send_batch(topic, {"value": [b"%06d" % i + bytes(50) for i in range(start, start + 100)]})
    shared, tp = cluster(broker.bootstrap_servers), TopicPartition(topic, 0)
    assert len(list(broker.data_dir.glob(f"{topic}-0/*.arrow"))) > 3
    for start, end in ((0, 2000), (1, 1999), (777, 778), (95, 1203)):
        expected = list(range(start, end))
        for local in ("auto", "off"):
            batches = list(read_range(shared, tp, start, end, local=local))
            assert np.concatenate([b.offsets() for b in batches]).tolist() == expected
            values = [int(v[:6]) for b in batches for v in b.data.column("value").to_pylist()]
            assert values == expected, local


def test_files_are_really_mapped(
    broker: LocalBroker, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic(topic)
    with Producer(broker.bootstrap_servers) as producer:
        producer.send_batch(topic, {"value": [b"x"] * 10})

    def no_socket(*_: Any, **__: Any) -> Any:
        raise AssertionError("the socket was used")

    monkeypatch.setattr("sparklog.client.reading.range_reader._RangeReader._request", no_socket)
    assert sparklog.read_table(broker.bootstrap_servers, topic).num_rows == 10
    with pytest.raises(AssertionError, match="socket"):
        sparklog.read_table(broker.bootstrap_servers, topic, local="off")


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_a_consumer_behind_reads_the_same_from_files_and_socket(
    broker: LocalBroker, admin: Admin, topic: str, level: str, compression: str
) -> None:
    admin.create_topic(topic, partitions=2, configs={"segment.bytes": 20_000})
    servers, tps = broker.bootstrap_servers, [TopicPartition(topic, p) for p in range(2)]
    with Producer(servers, batch_size_bytes=3000, compression=compression) as producer:
        for start in range(0, 1000, 100):
            producer.send_batch(topic, {"value": [b"%06d" % i + bytes(50) for i in range(start, start + 100)]})
    with Producer(servers, batch_size_bytes=3000, transactional_id=f"{topic}-{level}-{compression}") as producer:
        producer.init_transactions()
        for start in range(1000, 2000, 100):
            producer.begin_transaction()
            producer.send_batch(topic, {"value": [b"%06d" % i + bytes(50) for i in range(start, start + 100)]})
            producer.flush()  # an abort drops what has not been sent
            producer.abort_transaction() if start % 200 else producer.commit_transaction()
    seen: dict[str, list[tuple[int, int, bytes]]] = {}
    for local in ("auto", "off"):
        settings: dict[str, Any] = {"local_read": local, "isolation_level": level, "max_partition_fetch_bytes": 4096}
        with Consumer(servers, **settings, columns=["value"]) as consumer:
            consumer.assign(tps)
            rows = seen[local] = []
            while len(rows) < (1500 if level == "read_committed" else 2000):
                more = consumer.poll(10_000)
                assert more
                rows += [(r.partition, r.offset, r.value) for r in more]
            while {consumer.position(tp) for tp in tps} != {o.offset for o in admin.list_offsets(ends(tps)).values()}:
                assert consumer.poll(10) == []
            threads = {t.name for t in threading.enumerate()}
            assert ("sparklog-consumer-files" in threads) == (local == "auto")
    assert sorted(seen["auto"]) == sorted(seen["off"])
    for p in range(2):
        assert [o for q, o, _ in seen["auto"] if q == p] == sorted({o for q, o, _ in seen["auto"] if q == p})


def ends(tps: list[TopicPartition]) -> dict[TopicPartition, str]:
    return dict.fromkeys(tps, "latest")


def test_offsets_by_time(broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    tp = TopicPartition(topic, 0)
    assert admin.list_offsets({tp: "earliest"})[tp].offset == admin.list_offsets({tp: "latest"})[tp].offset == 0
    assert admin.list_offsets({tp: 0})[tp] == (-1, -1)
    with Producer(broker.bootstrap_servers) as producer:
        for i in range(10):
            producer.send(topic, b"x", timestamp_ms=1000 * i)
            producer.flush()
    assert admin.list_offsets({tp: 3500})[tp] == (4, 4000)
    assert admin.list_offsets({tp: "max_timestamp"})[tp] == (9, 9000)
    assert admin.list_offsets({tp: 10_000})[tp] == (-1, -1)


def test_bad_requests_are_typed_errors(broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, configs={"max.message.bytes": 2048})
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topic(topic)
    with pytest.raises(InvalidTopicError):
        admin.create_topic("a/b")
    with pytest.raises(InvalidPartitionsError):
        admin.create_topic("x", partitions=0)
    with pytest.raises(InvalidConfigError, match=r"did you mean 'segment.bytes'"):
        admin.create_topic("x", configs={"segment.byte": 1})
    with pytest.raises(InvalidTopicError, match="key column"):
        admin.create_topic("x", schema=pa.schema([("a", pa.int64())]), key_columns=["b"])
    for wrong in (lambda: admin.describe_topic("nope"), lambda: admin.delete_topic("nope")):
        with pytest.raises(UnknownTopicOrPartitionError):
            wrong()
    with Producer(broker.bootstrap_servers) as producer, pytest.raises(MessageTooLargeError):
        producer.send(topic, bytes(4000))
    with Consumer(broker.bootstrap_servers, auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 5)
        with pytest.raises(OffsetOutOfRangeError):
            consumer.poll(10_000)


def test_topics_are_listed_described_and_deleted(broker: LocalBroker, admin: Admin, topic: str) -> None:
    created = admin.create_topic(topic, partitions=3, configs={"segment.bytes": 4096})
    assert admin.describe_topic(topic) == created and topic in admin.list_topics()
    assert created.partitions == 3 and created.configs == {"segment.bytes": 4096}
    with Producer(broker.bootstrap_servers) as producer:
        producer.send(topic, b"x").result(30)
        admin.delete_topic(topic)
        assert topic not in admin.list_topics()
        again = admin.create_topic(topic, partitions=1)
        assert again.topic_id != created.topic_id
        future = producer.send(topic, b"y", partition=0)  # the producer may still believe in the old topic
        assert future.result(30).offset == 0


def test_many_producers_and_threads_lose_and_reorder_no_record(broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    with Producer(broker.bootstrap_servers, batch_size_bytes=5000, linger_ms=1) as producer:

        def work(thread: int) -> None:
            for i in range(500):
                if i % 100 == 99:
                    producer.send_batch(topic, {"value": [b"%d-%d" % (thread, i)]}, partition=thread % 2)
                else:
                    producer.send(topic, b"%d-%d" % (thread, i), partition=thread % 2)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    table = sparklog.read_table(broker.bootstrap_servers, topic, columns=["value"])
    pairs = [tuple(map(int, v.split(b"-"))) for v in table.column("value").to_pylist()]
    assert len(pairs) == 2000
    for n in range(4):
        assert [i for thread, i in pairs if thread == n] == list(range(500))


def test_a_broker_that_is_alone_keeps_one_replica(broker: LocalBroker) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        (only,) = admin.describe_cluster().brokers
        made = admin.create_topic("once", replication_factor=1, replica_assignment=[[only.broker_id]])
        assert made.partition_details[0].replicas == (only.broker_id,)
        with pytest.raises(InvalidReplicationFactorError, match="with 1 brokers"):
            admin.create_topic("twice", replication_factor=2)
        with pytest.raises(InvalidReplicaAssignmentError):
            admin.create_topic("elsewhere", replica_assignment=[[only.broker_id + 1]])
        assert "twice" not in admin.list_topics()


def test_read_table_by_time_filter_and_limit(broker: LocalBroker, admin: Admin, topic: str) -> None:
    """Each hour of two days has one record; partitions have every other one."""
    admin.create_topic(topic, partitions=2)
    now = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0)
    hours = [now - dt.timedelta(hours=47 - i) for i in range(48)]
    with Producer(broker.bootstrap_servers) as producer:
        for i, at in enumerate(hours):
            producer.send(topic, str(i).encode(), timestamp_ms=int(at.timestamp() * 1000), partition=i % 2)

    def read(**how: Any) -> list[int]:
        table = sparklog.read_table(broker.bootstrap_servers, topic, columns=["value"], **how)
        assert table.schema.names == ["value"]
        return sorted(int(v) for v in table.column("value").to_pylist())

    midnight = now.replace(hour=0)
    yesterday = [i for i, at in enumerate(hours) if midnight - dt.timedelta(days=1) <= at < midnight]
    assert read(start="yesterday", end="today") == yesterday
    assert read(start=midnight - dt.timedelta(days=1), end=midnight) == yesterday
    assert read(start=(midnight - dt.timedelta(days=1)).date(), end=midnight.date()) == yesterday
    exact = (pc.field("_timestamp") >= pa.scalar(midnight - dt.timedelta(days=1))) & (
        pc.field("_timestamp") < pa.scalar(midnight)
    )
    assert read(filter=exact) == yesterday
    assert read(start="-5h", end="now") == [i for i, at in enumerate(hours) if at >= now - dt.timedelta(hours=4)]
    assert read(start=-2) == [44, 45, 46, 47]
    assert read(start={0: "-3h", 1: -1}) == [46, 47]
    assert read(start="2999-01-01") == read(end="1960-01-01") == []
    assert read(start="1960-01-01") == read() == list(range(48))
    assert read(filter=(pc.field("_partition") == 1) & (pc.field("_offset") < 2)) == [1, 3]
    assert len(read(limit=30)) == 30
    assert read(limit=0) == read(filter=pc.field("_offset") < 0) == []
    assert len(read(filter=pc.field("_partition") == 1, limit=5)) == 5
    reader = sparklog.read_table(broker.bootstrap_servers, topic, start=-3, include_metadata=True, batches=True)
    assert [batch.num_rows for batch in reader] == [3, 3]
    empty = sparklog.read_table(broker.bootstrap_servers, topic, filter=pc.field("_offset") < 0, batches=True)
    assert empty.read_all().schema.names == ["key", "value", "headers", "timestamp"]
    for wrong, message in (
        ({"start": "tomorow"}, "start='tomorow'.*-1h, yesterday.*dict"),
        ({"end": {0: "x"}}, "end='x'"),
        ({"filter": pc.field("valu") == 1}, "filter=.*columns key, value, headers, timestamp, _topic"),
        ({"filter": "value = 1"}, "filter=value = 1: an Arrow expression"),
        ({"limit": -1}, "limit = -1"),
        ({"batches": 1}, "batches = 1"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            sparklog.read_table(broker.bootstrap_servers, topic, **wrong)


def test_a_reader_of_batches_raises_the_errors_of_reading(broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with Producer(broker.bootstrap_servers) as producer:
        producer.send(topic, b"x").result()
    reader = sparklog.read_table(broker.bootstrap_servers, topic, batches=True)
    admin.delete_topic(topic)
    with pytest.raises(SparklogError):
        reader.read_all()


def test_rows_of_a_typed_topic_one_by_one(broker: LocalBroker, admin: Admin, topic: str) -> None:
    schema = pa.schema([("zone", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int32())])
    admin.create_topic(topic, partitions=3, schema=schema, key_columns=["zone"], timestamp_column="at")
    at = dt.datetime(2026, 11, 27, 12, tzinfo=dt.UTC)
    rows = [{"zone": f"zone {i % 7}", "at": at, "n": i} for i in range(5_000)]
    with Producer(broker.bootstrap_servers, linger_ms=50) as producer:
        futures = [producer.send(topic, row) for row in rows]
        for wrong in ({"n": 2**31}, {"n": "x"}, {"no": 1}):
            with pytest.raises(SchemaMismatchError):
                producer.send(topic, wrong)
        producer.flush()
        assert {f.result().timestamp_ms for f in futures} == {int(at.timestamp() * 1000)}
        table = sparklog.read_table(broker.bootstrap_servers, topic, include_metadata=True)
        assert sorted(table.column("n").to_pylist()) == list(range(5_000))
        stored = {r["n"]: (r["_partition"], r["_offset"]) for r in table.to_pylist()}
        assert all(stored[i] == (f.result().partition, f.result().offset) for i, f in enumerate(futures))
        producer.send_batch(topic, [{"zone": "zone 3", "n": -1}]).result()
        again = sparklog.read_table(broker.bootstrap_servers, topic, filter=pc.field("n") == -1, include_metadata=True)
        assert again.column("_partition").to_pylist() == [stored[3][0]]
        batches = sum(len(admin.describe_batches(TopicPartition(topic, p), 0, batches_max=1000)) for p in range(3))
        assert batches < 60  # not one for each row
        admin.alter_schema(topic, add_columns="more BIGINT")
        assert producer.send(topic, {"zone": "a", "more": 5}).result().offset >= 0
    with Producer(broker.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, {"zone": "t", "n": 9_999})
        producer.abort_transaction()
    assert 9_999 not in sparklog.read_table(broker.bootstrap_servers, topic).column("n").to_pylist()


def test_a_misspelt_topic_is_named_by_every_call(admin: Admin, broker: LocalBroker, topic: str) -> None:
    admin.create_topic(f"{topic}-trips", 1, {"zone": pa.string()})
    wrong = f"{topic}-trps"
    calls: list[Callable[[], object]] = [
        lambda: admin.describe_topic(wrong),
        lambda: admin.delete_topic(wrong),
        lambda: admin.alter_topic(wrong, {"retention.ms": 1}),
        lambda: admin.add_partitions(wrong, 2),
        lambda: admin.alter_schema(wrong, add_columns={"n": pa.int32()}),
        lambda: admin.list_offsets({TopicPartition(wrong, 0): "latest"}),
        lambda: admin.delete_records({TopicPartition(wrong, 0): 0}),
        lambda: sparklog.read_table(broker.bootstrap_servers, wrong),
    ]
    for call in calls:
        with pytest.raises(UnknownTopicOrPartitionError, match=f"did you mean '{topic}-trips'"):
            call()
    with (
        sparklog.Producer(broker.bootstrap_servers) as producer,
        pytest.raises(SchemaMismatchError, match="unknown column 'zoen': did you mean 'zone'"),
    ):
        producer.send(f"{topic}-trips", {"zoen": "x"})
