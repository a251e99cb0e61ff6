"""A topic's partitions are created together: their places, and obstacles there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import StorageFullError
from sparklog.format.epoch_checkpoint import LEADER_EPOCHS_FILE
from sparklog.types import TopicPartition
from tests.support.log_dirs import FOUR, TPS, FullFiles, places, started
from tests.support.log_managers import kill, spec
from tests.support.logs import append, records


def test_partitions_created_together_are_spread(tmp_path: Path) -> None:
    manager = started(tmp_path, specs=[spec("other")])
    manager.create_partitions(FOUR)
    assert {name: len(found) for name, found in places(tmp_path).items()} == {"a": 3, "b": 2}
    assert all(manager.get(tp).log_end_offset == 0 for tp in TPS)
    logs = manager.logs
    manager.create_partitions(FOUR)
    assert manager.logs == logs
    kill(manager)
    again = started(tmp_path)
    assert set(TPS) <= set(again.logs)
    assert again.close()


def test_partitions_created_together_go_to_disks_with_room(tmp_path: Path) -> None:
    files = FullFiles()
    manager = started(tmp_path, specs=[], files=files)
    files.full = tmp_path / "a"
    manager.create_partitions(FOUR)
    assert {name: len(found) for name, found in places(tmp_path).items()} == {"a": 0, "b": 4}
    files.full = tmp_path
    with pytest.raises(StorageFullError, match="disk is full"):
        manager.create_partitions([spec("other", p) for p in range(4)])
    assert {name: len(found) for name, found in places(tmp_path).items()} == {"a": 0, "b": 4}
    files.full = None
    assert manager.close()


def test_a_leftover_of_another_topic_is_moved_aside_when_partitions_are_created_together(tmp_path: Path) -> None:
    manager = started(tmp_path, specs=[spec("other", p) for p in range(2)])
    append(manager.get(TopicPartition("other", 0)), records(3))
    manager.close()
    manager = started(tmp_path, specs=[])
    manager.create_partitions([spec("other", p, topic_id="9" * 32) for p in range(4)])
    assert [manager.get(TopicPartition("other", p)).log_end_offset for p in range(4)] == [0] * 4
    assert sum(name.endswith("-stray") for found in places(tmp_path).values() for name in found) == 2
    assert manager.close()


def test_the_first_append_to_partitions_created_together_writes_no_epoch(tmp_path: Path) -> None:
    specs = [spec("other", p) for p in range(3)]
    manager = started(tmp_path, specs=[])
    manager.create_partitions(specs)
    paths = {p: next(tmp_path.glob(f"*/other-{p}")) / LEADER_EPOCHS_FILE for p in range(3)}
    before = {p: path.stat().st_ino for p, path in paths.items()}  # replaced, the file would be another one
    for partition, epoch in enumerate((0, 0, 4)):
        manager.get(TopicPartition("other", partition)).appender.append(records(3), leader_epoch=epoch)
    assert [paths[p].stat().st_ino == before[p] for p in range(3)] == [True, True, False]
    manager.get(TopicPartition("other", 1)).appender.append(records(3), leader_epoch=5)
    kill(manager)
    again = started(tmp_path, specs=specs)  # type: ignore[arg-type]
    found = [again.get(TopicPartition("other", p)) for p in range(3)]
    assert [log.end_offset_for(log.leader_epoch) for log in found] == [(0, 3), (5, 6), (4, 3)]
    assert found[1].end_offset_for(0) == (0, 3)
    assert again.close()
