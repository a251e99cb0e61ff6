"""`sparklog checkpoint move`: the ids, the records that a copy must have, and the checkpoints that are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark_sparklog.sink.spark_checkpoint import input_digest
from typer.testing import CliRunner

import sparklog
from sparklog.cli.app import app
from sparklog.client.admin.checkpoint_move import MovedCheckpoint, move_checkpoint
from sparklog.client.local import LocalBroker
from sparklog.client.net.cluster import cluster
from sparklog.errors import DataLossError, InvalidConfigError
from sparklog.format.source_offsets import IDS, hidden_state, offset_text
from sparklog.mirror.worker.worker import MirrorWorker
from tests.support.waiting import START_S

QUERY = "3f375daa-e900-4398-b64f-712799e76389"


@pytest.fixture(scope="module")
def source() -> Iterator[LocalBroker]:
    with sparklog.start_local(timeout_s=START_S) as local:
        yield local


def send(local: LocalBroker, topic: str, count: int) -> None:
    with sparklog.Producer(local.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)


def copy(source: LocalBroker, target: LocalBroker, topic: str, count: int = 10) -> str:
    """Create a topic with records and its copy; returns the topic's id at the source."""
    with sparklog.Admin(source.bootstrap_servers) as there, sparklog.Admin(target.bootstrap_servers) as here:
        topic_id: str = there.create_topic(topic, 2).topic_id
        send(source, topic, count)
        here.create_mirror(topic, source=f"sparklog://{source.bootstrap_servers}", topics=topic)
    catch_up(target, topic)
    return topic_id


def catch_up(target: LocalBroker, mirror: str) -> None:
    worker = MirrorWorker(target.bootstrap_servers)
    assert worker.run_once([mirror]) == {}
    worker.close()


class Checkpoint:
    """A checkpoint as Spark writes it: a micro-batch for each end, the last `planned` ones without a commit."""

    def __init__(self, path: Path, topic: str, topic_id: str, ends: list[int], planned: int = 0) -> None:
        self.path = path
        for name in ("offsets", "commits", "state/0/0"):
            (path / name).mkdir(parents=True)
        (path / "metadata").write_text(json.dumps({"id": QUERY}))
        (path / "state/0/0/1.delta").write_bytes(b"\0state")
        for number, end in enumerate(ends):
            line = offset_text({topic: {"0": end, "1": 0}}, {IDS: {topic: topic_id}})
            (path / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}')
            (path / "offsets" / f".{number}.crc").write_bytes(b"crc\0")
            if number < len(ends) - planned:
                (path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def move(self, target: LocalBroker, name: str = "moved", **more: Any) -> MovedCheckpoint:
        there = cluster(target.bootstrap_servers)
        return move_checkpoint(there, str(self.path), str(self.path.with_name(name)), timeout_ms=60_000, **more)


def ids(path: Path, number: int) -> Any:
    line = (path / "offsets" / str(number)).read_text().split("\n")[2]
    state = hidden_state(line, json.loads(line))
    assert state is not None
    return state[IDS]


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def test_the_command_writes_a_copy_with_the_ids_of_the_copies(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, tmp_path: Path
) -> None:
    old, new = copy(source, target, "orders"), admin.describe_topic("orders").topic_id
    checkpoint = Checkpoint(tmp_path / "checkpoint", "orders", old, [4, 10])
    before = contents(checkpoint.path)
    command = ["checkpoint", "move", str(checkpoint.path), str(tmp_path / "moved"), "-b", target.bootstrap_servers]
    shown = CliRunner().invoke(app, [*command, "--dry-run"])
    assert shown.exit_code == 0 and "2 files of offsets would change; nothing was written" in shown.stdout
    assert not (tmp_path / "moved").exists()
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert f"query   {QUERY}, batch 1\ntopic   orders: id {old} -> {new}\n" in result.stdout
    assert contents(checkpoint.path) == before
    moved = contents(tmp_path / "moved")
    same = {name for name in before if not name.startswith("offsets/")}
    assert {name: moved[name] for name in same} == {name: before[name] for name in same}
    assert moved.keys() - same == {"offsets/0", "offsets/1", "sparklog-moved-offsets/0", "sparklog-moved-offsets/1"}
    assert [ids(tmp_path / "moved", n) for n in (0, 1)] == [{"orders": new}] * 2
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1 and "exists" in str(again.exception)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "moved"]


def test_a_promoted_copy_is_recognised_and_records_after_the_promotion_are_not_taken_for_copies(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, tmp_path: Path
) -> None:
    old = copy(source, target, "promoted")
    ahead = Checkpoint(tmp_path / "ahead", "promoted", old, [4, 13])
    with pytest.raises(
        DataLossError, match=r"lack 3 offsets: promoted-0 ends at 10, the query has read up to 13\. Wait"
    ):
        ahead.move(target)
    admin.promote_mirror("promoted")
    with pytest.raises(DataLossError, match=r"lack 3 offsets.*up to 13\. start the query with a new checkpoint"):
        ahead.move(target)
    send(target, "promoted", 5)
    with pytest.raises(DataLossError, match="promoted-0: the record before offset 13 was written after the promotion"):
        ahead.move(target)
    behind = Checkpoint(tmp_path / "behind", "promoted", old, [4, 10])
    moved = behind.move(target)
    assert moved.topics == {"promoted": (old, admin.describe_topic("promoted").topic_id)}
    assert not (tmp_path / "elsewhere").exists()
    assert Checkpoint(tmp_path / "unread", "promoted", old, [0]).move(target, "second").batch == 0


def test_a_planned_batch_needs_its_records_and_keeps_its_input(
    source: LocalBroker, target: LocalBroker, tmp_path: Path
) -> None:
    old = copy(source, target, "planned")
    send(source, "planned", 5)
    checkpoint = Checkpoint(tmp_path / "checkpoint", "planned", old, [4, 15], planned=1)
    with pytest.raises(DataLossError, match=r"lack 5 offsets: planned-0 ends at 10, the query has planned up to 15"):
        checkpoint.move(target)
    catch_up(target, "planned")
    moved = checkpoint.move(target)
    assert moved.is_planned and "batch 1 has no commit" in moved.remarks[-1]
    digests = [input_digest(str(path), QUERY, 1) for path in (checkpoint.path, Path(moved.target))]
    assert digests[0] and len(set(digests)) == 1


def test_a_checkpoint_moves_on_to_a_copy_of_the_copy(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, tmp_path: Path
) -> None:
    old = copy(source, target, "chain")
    first = Checkpoint(tmp_path / "checkpoint", "chain", old, [4, 10], planned=1)
    second = Path(first.move(target).target)
    admin.promote_mirror("chain")
    with sparklog.start_local(timeout_s=START_S, settings={"mirror.worker.enable": False}) as third:
        with sparklog.Admin(third.bootstrap_servers) as there:
            there.create_mirror("chain", source=f"sparklog://{target.bootstrap_servers}", topics="chain")
            newest = there.describe_topic("chain").topic_id
        catch_up(third, "chain")
        with pytest.raises(InvalidConfigError, match="is a copy of the topic with the id"):
            first.move(third, "wrong")
        moved = move_checkpoint(cluster(third.bootstrap_servers), str(second), f"{second}-2", timeout_ms=60_000)
    assert ids(Path(moved.target), 1) == {"chain": newest}
    assert input_digest(moved.target, QUERY, 1) == input_digest(str(first.path), QUERY, 1)


def test_a_checkpoint_without_ids_is_copied_with_a_word(
    source: LocalBroker, target: LocalBroker, tmp_path: Path
) -> None:
    copy(source, target, "kafkas")
    checkpoint = Checkpoint(tmp_path / "checkpoint", "kafkas", "0" * 32, [4])
    offsets = checkpoint.path / "offsets" / "0"
    offsets.write_text('v1\n{}\n{"kafkas":{"0":4,"1":0}}')
    moved = checkpoint.move(target)
    assert contents(Path(moved.target)) == contents(checkpoint.path)
    assert moved.topics == {} and "can also go on with the checkpoint itself" in moved.remarks[-1]
    offsets.write_text('v1\n{}\n{"kafkas":{"0":14,"1":0}}')
    with pytest.raises(DataLossError, match="lack 4 offsets"):
        checkpoint.move(target, "second")


def test_a_partition_that_the_copy_does_not_have_is_counted(
    source: LocalBroker, target: LocalBroker, tmp_path: Path
) -> None:
    old = copy(source, target, "grown")
    checkpoint = Checkpoint(tmp_path / "checkpoint", "grown", old, [4])
    line = offset_text({"grown": {"0": 4, "2": 6}}, {IDS: {"grown": old}})
    (checkpoint.path / "offsets" / "0").write_text(f"v1\n{{}}\n{line}")
    with pytest.raises(DataLossError, match=r"lack 6 offsets: grown-2 ends at 0, the query has read up to 6"):
        checkpoint.move(target)


def test_a_running_query_and_damaged_checkpoints_are_refused_and_leave_no_file(
    source: LocalBroker, target: LocalBroker, tmp_path: Path
) -> None:
    old = copy(source, target, "running")
    checkpoint = Checkpoint(tmp_path / "checkpoint", "running", old, [4, 10])

    def run() -> None:
        (checkpoint.path / "offsets" / "2").write_text("v1\n{}\n-")

    with pytest.raises(InvalidConfigError, match="a query runs with the checkpoint"):
        checkpoint.move(target, while_copied=run)
    (checkpoint.path / "offsets" / "2").write_text("v2\n{}\n-")
    with pytest.raises(InvalidConfigError, match="only offset logs of version 'v1'"):
        checkpoint.move(target)
    (checkpoint.path / "offsets" / "2").unlink()
    (checkpoint.path / "commits" / "7").write_text("v1\n{}")
    with pytest.raises(InvalidConfigError, match="commits has batch 7, offsets has 1"):
        checkpoint.move(target)
    (checkpoint.path / "metadata").write_text("[]")
    with pytest.raises(InvalidConfigError, match="no id of a query"):
        checkpoint.move(target)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_places_that_are_refused(target: LocalBroker, tmp_path: Path) -> None:
    Checkpoint(tmp_path / "checkpoint", "t", "0" * 32, [4])
    for checkpoint, place, words in (
        ("missing", "moved", "is no checkpoint of a Spark query"),
        ("s3a://bucket/checkpoint", "moved", "hadoop fs -get"),
        ("checkpoint", "s3a://bucket/moved", "hadoop fs -get"),
        ("checkpoint", "checkpoint", "exists"),
        ("checkpoint", "checkpoint/inside", "outside of it"),
        ("checkpoint", "no/directory", "create it first"),
        ("", "moved", "an empty path"),
    ):
        paths = [p if ":" in p or not p else str(tmp_path / p) for p in (checkpoint, place)]
        with pytest.raises(InvalidConfigError, match=words):
            move_checkpoint(cluster(target.bootstrap_servers), *paths, timeout_ms=60_000)
