"""`sparklog group` against a real broker."""

from __future__ import annotations

import json
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


def test_list_and_describe(run: Run, read: str) -> None:
    listed = {cells(line)[0]: cells(line)[1:] for line in run("group", "list").stdout.splitlines() if "│" in line}
    assert listed[read] == ["Empty", "offsets", "0"]
    assert read not in run("group", "list", "--state", "stable").stdout
    table = [cells(line)[:5] for line in run("group", "describe", read).stdout.splitlines() if "│" in line]
    assert table == [[read, "0", "4", "10", "6"], [read, "1", "10", "10", "0"]]
    told = json.loads(run("group", "describe", read, "--format", "json").stdout)
    assert [(p["partition"], p["committed"], p["end"], p["lag"]) for p in told["partitions"]] == [
        (0, 4, 10, 6),
        (1, 10, 10, 0),
    ]
    assert "GROUP_ID_NOT_FOUND" in run("group", "describe", "nobody", code=1).stderr


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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--topic", "{}", "--to-earliest"], {0: 0, 1: 0}),
        (["--topic", "{}", "--to-latest"], {0: 10, 1: 10}),
        (["--topic", "{}:0", "--to-offset", "7"], {0: 7, 1: 10}),
        (["--topic", "{}:0,1", "--to-offset", "99"], {0: 10, 1: 10}),
        (["--all-topics", "--shift-by", "-3"], {0: 1, 1: 7}),
        (["--all-topics", "--shift-by", "-30"], {0: 0, 1: 0}),
        (["--topic", "{}", "--to-datetime", "2023-11-14T22:13:25Z"], {0: 3, 1: 2}),
        (["--topic", "{}", "--to-datetime", "2030-01-01"], {0: 10, 1: 10}),
    ],
)
def test_reset_offsets(run: Run, admin: Admin, read: str, options: list[str], expected: dict[int, int]) -> None:
    command = ["group", "reset-offsets", read, *(o.format(read) for o in options)]
    dry = run(*command)
    assert "nothing has changed" in dry.stderr
    assert committed(admin, read) == {0: 4, 1: 10}
    run(*command, "--execute")
    assert committed(admin, read) == expected


def test_reset_offsets_needs_clear_arguments(run: Run, read: str) -> None:
    for wrong in (
        ["--topic", read],
        ["--topic", read, "--to-earliest", "--to-latest"],
        ["--to-earliest"],
        ["--topic", read, "--all-topics", "--to-earliest"],
        ["--topic", f"{read}:7", "--to-earliest"],
        ["--topic", f"{read}:x", "--to-earliest"],
        ["--topic", read, "--to-datetime", "yesteryear"],
        ["--topic", read, "--to", "yesteryear"],
        ["--topic", read, "--to", "-1h", "--to-earliest"],
    ):
        run("group", "reset-offsets", read, *wrong, code=2)
    misspelt, hint = read.replace("reset", "rest"), f"(did you mean {read!r}?)"
    for arguments in (
        ["reset-offsets", misspelt, "--all-topics", "--to-earliest"],
        ["describe", misspelt],
        ["delete", misspelt, "--yes"],
    ):
        assert hint in run("group", *arguments, code=1).stderr.replace("\n", " ")
    shown = run("group", "reset-offsets", misspelt, "--topic", read, "--to-earliest").stderr
    assert hint in shown
    assert "--execute creates it" in shown
    assert hint not in run("group", "reset-offsets", read, "--topic", read, "--to-earliest").stderr


def test_delete(run: Run, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 1)
    admin.alter_group_offsets(topic, {TopicPartition(topic, 0): 0})
    assert "1 committed offset\n" in run("group", "delete", topic, "--yes").stdout
    assert committed(admin, topic) == {}
    assert "GROUP_ID_NOT_FOUND" in run("group", "delete", topic, "--yes", code=1).stderr


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
