"""`sparklog group` against a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.local import LocalBroker
from tests.support.cli import Run, cells
from tests.support.waiting import until


@pytest.fixture
def read(broker: LocalBroker, admin: Admin, topic: str) -> Iterator[str]:
    """A topic with 10 records in each of two partitions, of which the group of the same name has committed 4 and 10."""
    admin.create_topic(topic, 2)
    with Producer(broker.bootstrap_servers) as producer:
        for i in range(20):
            producer.send(topic, value=b"x", partition=i % 2, timestamp_ms=1_700_000_000_000 + i * 1000)
    admin.alter_group_offsets(topic, {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 10})
    yield topic
    admin.delete_group(topic)


def committed(admin: Admin, group: str) -> dict[int, int]:
    return {tp.partition: o.offset for tp, o in admin.list_group_offsets(group).items()}


def test_describe_shows_the_readers(run: Run, broker: LocalBroker, read: str) -> None:
    with Consumer(broker.bootstrap_servers, group_id=read, client_id="tool") as consumer:
        consumer.subscribe([read])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "assigned")
        member = consumer.group_metadata().member_id
        lines = [cells(line) for line in run("group", "describe", read).stdout.splitlines() if "│" in line]
        assert [line[5:] for line in lines] == [[member, "tool", "127.0.0.1"]] * 2
        (row,) = [cells(x) for x in run("group", "describe", read, "--members").stdout.splitlines() if member in x]
        assert row == [member, "-", "tool", "127.0.0.1", "1", read, f"{read}: 0, 1", "the same"]
        refused = run("group", "reset-offsets", read, "--topic", read, "--to-latest", "--execute", code=1)
        assert "NON_EMPTY_GROUP" in refused.stderr
        assert "NON_EMPTY_GROUP" in run("group", "delete", read, "--yes", code=1).stderr


def test_lag_is_0_when_only_markers_follow(broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 1)
    tp = TopicPartition(topic, 0)

    def lag() -> int | None:
        return admin.describe_group(topic).partitions[0].lag

    with Producer(broker.bootstrap_servers, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, value=b"x")
        admin.alter_group_offsets(topic, {tp: 1})
        assert admin.list_offsets({tp: "latest"})[tp].offset == 2, "the marker"
        assert lag() == 0
        producer.begin_transaction()
        producer.send(topic, value=b"y")
        producer.flush()
        assert lag() == 0, "what is not decided is not behind"
        producer.abort_transaction()
        assert lag() == 0, "what is aborted is not, either"
        with producer.transaction():
            producer.send(topic, value=b"z")
        assert lag() == 5, "offsets are counted: marker, y, marker, z, marker"
    with Consumer(broker.bootstrap_servers, group_id=topic, isolation_level="read_committed") as consumer:
        consumer.subscribe([topic])
        until(lambda: [r.value for r in consumer.poll(50)] == [b"z"], "read")
    assert lag() == 0
