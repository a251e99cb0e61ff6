"""Commands with several changes check all of them first, or their error lists the completed ones."""

from __future__ import annotations

import pytest

from sparklog import Admin, Producer, TopicPartition
from sparklog.client.local import LocalBroker
from sparklog.errors import UnknownTopicOrPartitionError
from tests.support.cli import Run


def test_delete_records_with_a_shorter_partition(run: Run, broker: LocalBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 2)
    with Producer(broker.bootstrap_servers) as producer:
        for partition in (0, 0, 0, 1):
            producer.send(topic, value=b"x", partition=partition)
    refused = run("delete-records", topic, "--before", "2", code=1).stderr
    assert f"{topic}-1 ends at 1" in refused
    assert "Nothing was deleted" in refused
    assert [p.log_start_offset for p in admin.describe_topic(topic).partition_details] == [0, 0]
    assert "2 records deleted" in run("delete-records", topic, "--before", "2", "--partition", "0").stdout


def test_settings_stay_when_the_columns_are_refused(run: Run, admin: Admin, topic: str) -> None:
    run("topic", "create", topic, "--schema", "id BIGINT, n INT")
    setting = ("--config", "retention.ms=5000")
    for change in (["--add-column", "m NOTYPE"], ["--widen", "n SMALLINT"], ["--widen", "nn BIGINT"]):
        refused = run("topic", "alter", topic, *setting, *change, code=1)
        assert "retention.ms" not in refused.stdout
        assert admin.describe_topic(topic).configs == {}
    admin.create_topic(f"{topic}-e")
    assert "envelope topic" in run("topic", "alter", f"{topic}-e", *setting, "--add-column", "m INT", code=1).stderr
    assert admin.describe_topic(f"{topic}-e").configs == {}
    done = run("topic", "alter", topic, *setting, "--widen", "n BIGINT", "--add-column", "m INT")
    assert "retention.ms = 5000" in done.stdout
    assert '.withColumn("n", col("n").cast("INT"))' in done.stderr
    assert "mergeSchema" in done.stderr
    assert admin.describe_topic(topic).schema.names == ["id", "n", "m"]


def test_offsets_that_are_committed_beside_one_that_is_not(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 2)
    there, gone = TopicPartition(topic, 1), TopicPartition(topic, 2)
    with pytest.raises(UnknownTopicOrPartitionError, match=f"1 of 2 partitions failed: {gone}; committed: {there}"):
        admin.alter_group_offsets(topic, {gone: 0, there: 0})
    assert set(admin.list_group_offsets(topic)) == {there}
    admin.delete_group(topic)
