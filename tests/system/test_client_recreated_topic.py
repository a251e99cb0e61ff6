"""A topic that another process deletes and makes anew, with other columns, under the feet of clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import CommitFailedError, UnknownSchemaError, UnknownTopicOrPartitionError
from sparklog.types import OffsetAndMetadata
from tests.support.waiting import until

REPLACE = """
import sys, pyarrow as pa, sparklog
with sparklog.Admin(sys.argv[1]) as admin:
    admin.delete_topic("t")
    admin.create_topic("t", partitions=1, schema=pa.schema([("b", pa.int64())]))
"""
FILL = """
with sparklog.Producer(sys.argv[1]) as producer:
    producer.send_batch("t", {"b": [3, 4]}).result(30)
"""


def test_batches_of_the_old_topic_are_refused_not_misread() -> None:
    with sparklog.start_local() as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
        # the same layout under another name: nothing but the schema's id tells the batches apart
        admin.create_topic("t", partitions=1, schema=pa.schema([("a", pa.int64())]))
        with sparklog.Producer(broker.bootstrap_servers) as producer:
            producer.send_batch("t", {"a": [1]}).result(30)
            subprocess.run([sys.executable, "-c", REPLACE, broker.bootstrap_servers], check=True, timeout=60)
            with pytest.raises(UnknownSchemaError, match="schema"):
                producer.send_batch("t", {"a": [2]}).result(30)
            producer.send_batch("t", {"b": [3]}).result(30)
        assert sparklog.read_table(broker.bootstrap_servers, "t").to_pydict() == {"b": [3]}


@pytest.mark.parametrize("local_read", ["auto", "off"])
def test_a_consumer_reports_a_recreated_topic_once_and_begins_at_its_start(local_read: str) -> None:
    with sparklog.start_local() as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("t", partitions=1, schema=pa.schema([("a", pa.int64())]))
        reading: dict[str, Any] = {"auto_offset_reset": "earliest", "local_read": local_read}
        with (
            sparklog.Producer(broker.bootstrap_servers) as producer,
            sparklog.Consumer(broker.bootstrap_servers, **reading) as by_record,
            sparklog.Consumer(broker.bootstrap_servers, **reading) as by_batch,
        ):
            producer.send_batch("t", {"a": [1]}).result(30)
            by_record.assign(sparklog.TopicPartition("t", 0))
            by_batch.assign(sparklog.TopicPartition("t", 0))
            assert [r.value for r in by_record.poll(30_000)] == [{"a": 1}]
            assert [b.data.to_pydict() for b in by_batch.poll_batches(30_000)] == [{"a": [1]}]
            for consumer in (by_record, by_batch):  # neither sees the moment without the topic
                consumer.pause(consumer.assignment())
            code = REPLACE + FILL
            subprocess.run([sys.executable, "-c", code, broker.bootstrap_servers], check=True, timeout=60)
            for consumer in (by_record, by_batch):
                consumer.resume(consumer.assignment())
            with pytest.raises(UnknownTopicOrPartitionError, match=r"created again: .t.; the next poll .*earliest"):
                by_record.poll(30_000)
            assert [r.value for r in by_record.poll(30_000)] == [{"b": 3}, {"b": 4}]
            with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
                by_batch.poll_batches(30_000)
            assert [b.data.to_pydict() for b in by_batch.poll_batches(30_000)] == [{"b": [3, 4]}]


@pytest.mark.parametrize("local_read", ["auto", "off"])
def test_a_new_topic_of_the_same_form_is_read_from_its_beginning(local_read: str) -> None:
    """Nothing but the topic's id and its leader epochs tells the records apart."""
    reading: dict[str, Any] = {"auto_offset_reset": "earliest", "local_read": local_read, "group_id": "g"}
    with (
        sparklog.start_local() as broker,
        sparklog.Admin(broker.bootstrap_servers) as admin,
        sparklog.Consumer(broker.bootstrap_servers, **reading) as consumer,
    ):
        admin.create_topic("t")
        write(broker.bootstrap_servers, b"old", 100)
        consumer.subscribe(["t"])
        assert len(read(consumer, 100)) == 100
        late = {sparklog.TopicPartition("t", 0): OffsetAndMetadata(100, "", 0)}
        consumer.pause(consumer.assignment())  # the consumer does not see the moment without the topic
        admin.delete_topic("t")
        admin.create_topic("t")
        write(broker.bootstrap_servers, b"new", 200)
        with pytest.raises(CommitFailedError, match="deleted and created again"):
            consumer.commit(late)
        consumer.resume(consumer.assignment())
        with pytest.raises(UnknownTopicOrPartitionError, match=r"created again: .t.; the next poll .*earliest"):
            read(consumer, 1)
        assert read(consumer, 200) == [b"new%d" % i for i in range(200)]


def test_commits_of_the_earlier_topic_are_refused_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "data") as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("t")
        admin.delete_topic("t")
        admin.create_topic("t")
    with (
        sparklog.start_local(tmp_path / "data") as broker,
        sparklog.Consumer(broker.bootstrap_servers, group_id="g") as consumer,
    ):
        tp = sparklog.TopicPartition("t", 0)
        with pytest.raises(CommitFailedError, match="epochs begin with 1"):
            consumer.commit({tp: OffsetAndMetadata(100, "", 0)})
        consumer.commit({tp: OffsetAndMetadata(0, "", 1)})


def write(bootstrap_servers: str, prefix: bytes, count: int) -> None:
    with sparklog.Producer(bootstrap_servers) as producer:
        for i in range(count):
            producer.send("t", value=b"%s%d" % (prefix, i))


def read(consumer: sparklog.Consumer, count: int) -> list[Any]:
    """The values of the next `count` records."""
    values: list[Any] = []

    def is_read() -> bool:
        values.extend(r.value for r in consumer.poll(200))
        return len(values) >= count

    until(is_read, f"{count} records")
    return values
