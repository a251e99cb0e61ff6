"""Keys and values as objects, and consumers in a `for` loop."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from sparklog import Consumer, Producer, TopicPartition
from sparklog.errors import ClosedError, DeserializationError, InvalidConfigError, SerializationError
from sparklog.serialization import JsonDeserializer, JsonSerializer, StringDeserializer, StringSerializer
from sparklog.types import Record
from tests.unit.client.fake_broker import FakeBroker

TP = TopicPartition("events", 0)


def reading(fake: FakeBroker, **settings: Any) -> Consumer:
    consumer = Consumer(fake.address, consumer_timeout_ms=60_000, **settings)
    consumer.assign([TopicPartition("events", p) for p in range(len(fake.topics["events"].partitions))])
    return consumer


def send(fake: FakeBroker, *values: bytes | None, partition: int = 0) -> None:
    with Producer(fake.address) as producer:
        for value in values:
            producer.send("events", value, partition=partition)


def test_values_survive_a_round_trip(fake: FakeBroker) -> None:
    with Producer(fake.address, key_serializer=StringSerializer(), value_serializer=JsonSerializer()) as producer:
        producer.send("events", {"a": [1, None, "ü"]}, key="käse", headers=[("h", b"1")], timestamp_ms=7)
        producer.send("events", None, key="käse")
        producer.send("events", "text")
    with reading(fake) as raw:
        assert [(r.key, r.value) for r in islice(raw, 3)] == [
            ("käse".encode(), '{"a":[1,null,"ü"]}'.encode()),
            ("käse".encode(), None),
            (None, b'"text"'),
        ]
    with reading(fake, key_deserializer=StringDeserializer(), value_deserializer=JsonDeserializer()) as consumer:
        records = list(islice(consumer, 3))
    assert records[0] == Record("events", 0, 0, 7, "käse", {"a": [1, None, "ü"]}, [("h", b"1")])
    assert records[0].timestamp == 7
    assert [(r.key, r.value) for r in records[1:]] == [("käse", None), (None, "text")]


def test_plain_callables_as_in_other_clients(fake: FakeBroker) -> None:
    with Producer(
        fake.address, value_serializer=lambda v: json.dumps(v).encode(), key_serializer=str.encode
    ) as producer:
        assert producer.send("events", {"n": 1}, key="k").get(timeout=30).offset == 0
    with reading(fake, value_deserializer=lambda v: json.loads(v), key_deserializer=bytes.decode) as consumer:
        record = next(consumer)
    assert (record.key, record.value) == ("k", {"n": 1})


def test_a_failing_serializer_sends_no_record(fake: FakeBroker) -> None:
    with Producer(fake.address, value_serializer=JsonSerializer(), key_serializer=lambda key: key) as producer:
        with pytest.raises(SerializationError, match=r"value for topic 'events'.*TypeError") as caught:
            producer.send("events", object())
        assert isinstance(caught.value.__cause__, TypeError)
        with pytest.raises(SerializationError, match="result of the key serializer must be bytes"):
            producer.send("events", 1, key=5)
        producer.send("events", 1)
    assert [h.record_count for h in fake.headers()] == [1]


def test_a_poison_record_is_named_and_can_be_passed(fake: FakeBroker) -> None:
    send(fake, b"1", b"2", b"poison", b"4")
    with reading(fake, value_deserializer=JsonDeserializer()) as consumer:
        assert [r.value for r in consumer.poll(10_000)] == [1, 2]
        for _ in range(3):  # again and again, and never past it
            with pytest.raises(DeserializationError, match="events-0: the value at offset 2") as caught:
                consumer.poll(10_000)
            assert consumer.position(TP) == 2
        error = caught.value
        assert (error.partition, error.offset) == (TP, 2)
        assert isinstance(error.record, Record)
        assert error.record.value == b"poison"
        assert isinstance(error.__cause__, ValueError)
        consumer.seek(TP, error.offset + 1)
        assert [r.value for r in consumer.poll(10_000)] == [4]


def test_a_loop_goes_on_behind_a_poison_record(fake: FakeBroker) -> None:
    send(fake, b"1", b"poison", b"3")
    found: list[Any] = []
    with reading(fake, value_deserializer=JsonDeserializer()) as consumer:
        while found[-1:] != [3]:
            try:
                found.append(next(consumer).value)
            except DeserializationError as e:
                found.append(None)
                assert e.partition is not None
                consumer.seek(TopicPartition(*e.partition), e.offset + 1)
    assert found[-2:] == [None, 3]


def test_a_poison_record_holds_up_no_other_partition(fake4: FakeBroker) -> None:
    send(fake4, b"poison", partition=0)
    send(fake4, *[b"%d" % i for i in range(5)], partition=3)
    found: list[Any] = []
    with reading(fake4, value_deserializer=JsonDeserializer()) as consumer:
        while len(found) < 5:
            try:
                found += [r.value for r in consumer.poll(200)]
            except DeserializationError as e:
                assert e.partition == TP
    assert found == list(range(5))


def test_a_loop_commits_no_more_than_it_returned(fake: FakeBroker) -> None:
    send(fake, *[b"%d" % i for i in range(10)])
    with reading(fake) as consumer:
        for record in consumer:
            assert consumer.position(TP) == record.offset + 1
            if record.offset == 4:
                break
        assert [r.offset for r in consumer.poll(10_000)] == [5, 6, 7, 8, 9]


def test_a_loop_ends_with_the_consumer(fake: FakeBroker) -> None:
    send(fake, b"1", b"2")
    consumer = reading(fake)
    for _ in consumer:
        consumer.close()
    with pytest.raises(ClosedError):
        consumer.poll(0)


def test_typed_values_are_dicts_already(fake: FakeBroker) -> None:
    fake.add_topic("typed", 1, pa.schema([("n", pa.int64())]))
    with Producer(fake.address) as producer:
        producer.send_batch("typed", [{"n": 1}]).result(30)
    with Consumer(fake.address, value_deserializer=JsonDeserializer()) as consumer:
        consumer.assign([TopicPartition("typed", 0)])
        assert [r.value for r in consumer.poll(10_000)] == [{"n": 1}]


FAR_DAY = 1 << 30
"""A date that Arrow has, and Python has not."""


@pytest.mark.parametrize("far", [0, 2])
def test_a_value_that_python_has_no_object_for_is_named_and_can_be_read_or_passed(fake: FakeBroker, far: int) -> None:
    fake.add_topic("typed", 1, pa.schema([("n", pa.int64()), ("day", pa.date32())]))
    typed = TopicPartition("typed", 0)
    days = pa.array([FAR_DAY if n == far else n for n in range(4)], pa.int32()).view(pa.date32())
    with Producer(fake.address) as producer:
        producer.send_batch("typed", pa.table({"n": [0, 1, 2, 3], "day": days})).result(30)
    with Consumer(fake.address) as consumer:
        consumer.assign([typed])
        assert [r.value["n"] for r in consumer.poll(10_000)] == [0, 1] if far else True
        for _ in range(2):
            with pytest.raises(
                DeserializationError, match=rf"'day' \(date32\[day\]\) at offset {far} .*poll_batches"
            ) as caught:
                consumer.poll(10_000)
            assert consumer.position(typed) == far
        assert (caught.value.partition, caught.value.offset, caught.value.record) == (typed, far, None)
        consumer.seek(typed, far)
        batches = consumer.poll_batches(10_000)
        assert next(d for b in batches for d in b.data.column("day").view(pa.int32()).to_pylist()) == FAR_DAY
        consumer.seek(typed, far + 1)
        assert [r.value["n"] for r in consumer.poll(10_000)] == list(range(far + 1, 4))


@pytest.mark.parametrize("name", ["key_serializer", "value_serializer"])
def test_objects_that_are_no_serializer(name: str) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        Producer("127.0.0.1:1", **{name: 5})  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match=name.replace("serial", "deserial")):
        Consumer("127.0.0.1:1", **{name.replace("serial", "deserial"): 5})  # type: ignore[arg-type]
