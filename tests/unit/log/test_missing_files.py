"""Missing files are noticed: a log never returns shorter in silence, and a foreign file never counts."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.environment.files import FileSystem, RealFiles
from sparklog.errors import LogCorruptError
from sparklog.format.checkpoint import RECOVERY_POINTS_FILE
from sparklog.format.segment import segment_name
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.tools.repair import repair
from sparklog.testing._sim_files import SimFiles
from sparklog.types import TopicPartition
from tests.support.log_managers import kill
from tests.support.logs import SCHEMAS, append, records, values

TOPIC_ID = "0" * 32
E0 = TopicPartition("events", 0)


def spec(*, was_created: bool = True, partition: int = 0, topic_id: str = TOPIC_ID) -> PartitionSpec:
    owner = LogOwner("events", topic_id, partition, "timestamp")
    return PartitionSpec(owner, LogConfig.from_settings({}), SCHEMAS.__getitem__, was_created=was_created)


def started(
    data: Path, *, was_created: bool = True, files: FileSystem | None = None, deleted: tuple[str, ...] = ()
) -> LogManager:
    manager = LogManager(data, files=files)
    manager.load("c1", [spec(was_created=was_created)], deleted)
    for log in manager.table.logs.values():
        log.raise_high_watermark(log.log_end_offset)
    return manager


def filled(data: Path, *, segments: int, files: FileSystem | None = None) -> LogManager:
    """`segments` of three records each, the last one active; nothing has been fsynced or checkpointed."""
    manager = started(data, was_created=False, files=files)
    log = manager.table.get(E0)
    for i in range(segments):
        if i:
            log.appender.roll()
        append(log, records(3))
    return manager


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_the_last_segment_file_is_missed_after_a_kill(tmp_path: Path, segments: int) -> None:
    kill(filled(tmp_path, segments=segments))
    path = tmp_path / "events-0" / segment_name(3 * (segments - 1))
    content = path.read_bytes()
    path.unlink()
    for _ in range(2):  # looking changes nothing
        manager = started(tmp_path)
        assert isinstance(manager.table.offline[E0], LogCorruptError)
        assert "missing" in str(manager.table.offline[E0])
        assert f"sparklog log repair {tmp_path / 'events-0'}" in str(manager.table.offline[E0])
        kill(manager)
    path.write_bytes(content)
    manager = started(tmp_path)
    assert len(values(manager.table.get(E0))) == 3 * segments
    assert manager.close()


@pytest.mark.parametrize("segments", [1, 2])
def test_a_repair_accepts_the_loss_and_assigns_no_offset_twice(tmp_path: Path, segments: int) -> None:
    kill(filled(tmp_path, segments=segments))
    directory = tmp_path / "events-0"
    base, end = 3 * (segments - 1), 3 * segments
    (directory / segment_name(base)).unlink()
    report = repair(directory, RealFiles(), dry_run=True)
    assert report.gaps == [(base, end)]
    assert started_offline(tmp_path), "a dry run changes nothing"
    repair(directory, RealFiles(), dry_run=False)
    for _ in range(2):
        manager = started(tmp_path)
        log = manager.table.get(E0)
        assert log.log_end_offset == end
        assert [o for o, _ in values(log)] == list(range(base))
        kill(manager)
    manager = started(tmp_path)
    assert append(manager.table.get(E0), records(1)) == end
    assert manager.close()
    assert not started_offline(tmp_path)


def started_offline(data: Path) -> bool:
    manager = started(data)
    offline = bool(manager.table.offline)
    kill(manager)
    return offline


def test_the_tail_that_is_cut_off_is_missed_when_the_machine_has_not_stopped(tmp_path: Path) -> None:
    manager = filled(tmp_path, segments=1)
    manager.checkpoints.write()
    kill(manager)
    path = tmp_path / "events-0" / segment_name(0)
    cut = path.read_bytes()[:-5]
    path.write_bytes(cut)
    assert started_offline(tmp_path)
    assert path.read_bytes() == cut, "nothing is touched"


def test_after_a_clean_stop_the_last_file_is_missed_without_a_checkpoint(tmp_path: Path) -> None:
    manager = filled(tmp_path, segments=2)
    assert manager.close()
    (tmp_path / RECOVERY_POINTS_FILE).unlink()
    (tmp_path / "events-0" / segment_name(3)).unlink()
    assert started_offline(tmp_path)


def test_after_a_clean_stop_the_first_files_are_missed(tmp_path: Path) -> None:
    manager = filled(tmp_path, segments=3)
    manager.table.get(E0).retention.delete_records(1)
    assert manager.close()
    directory = tmp_path / "events-0"
    content = (directory / segment_name(0)).read_bytes()
    (directory / segment_name(0)).unlink()
    manager = started(tmp_path)
    assert "begins at offset 3, but it began at 1 when it was closed" in str(manager.table.offline[E0])
    kill(manager)
    (directory / segment_name(0)).write_bytes(content)
    manager = started(tmp_path)
    assert not manager.table.offline, "and nothing has changed"
    assert manager.close()

    (directory / segment_name(0)).unlink()
    assert repair(directory, RealFiles(), dry_run=True).gaps == [(1, 3)]
    repair(directory, RealFiles(), dry_run=False)
    for _ in range(3):
        manager = started(tmp_path)
        log = manager.table.get(E0)
        assert (log.log_start_offset, log.log_end_offset, log.gaps) == (3, 9, ((1, 3),))
        assert manager.close()
    assert not repair(directory, RealFiles(), dry_run=True).changed


def test_deleted_segments_of_retention_are_not_missed(tmp_path: Path) -> None:
    manager = filled(tmp_path, segments=3)
    log = manager.table.get(E0)
    log.retention.delete_records(7)
    assert log.retention.drop_below_log_start() == 2
    for segment in (0, 3):
        (tmp_path / "events-0" / segment_name(segment)).unlink(missing_ok=True)
    assert manager.close()
    for _ in range(2):
        manager = started(tmp_path)
        assert manager.table.get(E0).log_start_offset == 7
        assert manager.close()
    (tmp_path / RECOVERY_POINTS_FILE).unlink()  # where it begins is not known then
    manager = started(tmp_path)
    assert manager.table.get(E0).log_start_offset == 6
    assert manager.close()


def test_losses_of_a_power_cut_are_no_damage() -> None:
    for seed in range(30):
        files = SimFiles()
        data = Path("/data")
        manager = filled(data, segments=1, files=files)
        manager.checkpoints.write()
        files.power_cut(random.Random(seed))
        for _ in range(2):  # the second start is of the same boot, the checkpoint was from before the power cut
            manager = started(data, files=files, was_created=False)
            assert not manager.table.offline, manager.table.offline
            kill(manager)
            files.kill()


def _all(data: Path) -> None:
    shutil.rmtree(data / "events-0")


def _all_and_checkpoint(data: Path) -> None:
    _all(data)
    (data / RECOVERY_POINTS_FILE).unlink()


def _emptied(data: Path) -> None:
    _all_and_checkpoint(data)
    (data / "events-0").mkdir()


@pytest.mark.parametrize("lose", [_all, _all_and_checkpoint, _emptied])
@pytest.mark.parametrize("clean", [True, False])
def test_a_created_directory_is_missed(tmp_path: Path, lose: Callable[[Path], None], clean: bool) -> None:
    manager = filled(tmp_path, segments=1)
    manager.checkpoints.write()
    manager.close() if clean else kill(manager)
    lose(tmp_path)
    for _ in range(2):
        manager = started(tmp_path)
        assert isinstance(manager.table.offline[E0], LogCorruptError)
        assert "sparklog log repair" in str(manager.table.offline[E0])
        kill(manager)
    directory = tmp_path / "events-0"
    report = repair(directory, RealFiles(), dry_run=True)
    assert report.changed
    assert started_offline(tmp_path), "a dry run changes nothing"
    repair(directory, RealFiles(), dry_run=False)
    manager = started(tmp_path)
    end = 3 if lose is _all else 0
    assert append(manager.table.get(E0), records(2)) == end
    assert manager.close()
    assert not started_offline(tmp_path)


def test_a_directory_that_was_never_created_is_created(tmp_path: Path) -> None:
    """A crash between the topic's entry in the store and its directories."""
    manager = started(tmp_path, was_created=False)
    assert append(manager.table.get(E0), records(1)) == 0
    assert manager.close()


def test_exactly_the_leftovers_of_a_deleted_topic_go(tmp_path: Path) -> None:
    old, other = "a" * 32, "b" * 32
    manager = LogManager(tmp_path)
    manager.load("c1", [spec(was_created=False, topic_id=old), spec(was_created=False, partition=1, topic_id=other)])
    for log in manager.table.logs.values():
        append(log, records(1))
    kill(manager)
    (tmp_path / ".probe").write_bytes(b"")
    (tmp_path / "recovery-points.json.tmp").write_bytes(b"half")
    (tmp_path / ("events-7." + "c" * 32 + "-delete")).mkdir()
    manager = LogManager(tmp_path)
    manager.load("c1", [spec(was_created=False)], [old])
    assert manager.has_all_directories
    manager.removal.purge()
    assert append(manager.table.get(E0), records(1)) == 0, "another topic of the same name has the name to itself"
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["events-0", "events-1"]
    assert (tmp_path / "events-1" / segment_name(0)).exists(), "nobody has said that it is deleted"
    assert not (tmp_path / ".probe").exists()
    manager.close()
    assert not list(tmp_path.glob("*.tmp"))


SWAPS = {
    "of another partition": lambda: LogOwner("events", TOPIC_ID, 1, "timestamp"),
    "of another topic": lambda: LogOwner("other", "1" * 32, 0, "timestamp"),
}


@pytest.mark.parametrize("suffix", [".swap", ".cleaned"])
@pytest.mark.parametrize("name", SWAPS)
def test_a_misplaced_swap_file_removes_no_segment(
    tmp_path: Path, name: str, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    manager = filled(data, segments=3)
    assert manager.close()
    owner = SWAPS[name]()
    stranger = LogManager(tmp_path / "stranger")
    stranger.load("c1", [PartitionSpec(owner, LogConfig.from_settings({}), SCHEMAS.__getitem__)])
    append(stranger.table.get(owner.topic_partition), records(9))
    assert stranger.close()
    misplaced = data / "events-0" / (segment_name(0) + suffix)
    shutil.copy2(tmp_path / "stranger" / owner.directory_name / segment_name(0), misplaced)
    manager = started(data)
    assert len(values(manager.table.get(E0))) == 9
    assert misplaced.with_name(misplaced.name + ".misplaced").exists()
    assert f"it is the segment of {owner.topic_partition}" in caplog.text
    assert manager.close()


def test_a_swap_file_that_does_not_fit_between_the_segments_removes_none(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    manager = filled(data, segments=3)
    assert manager.close()
    longer = started(other, was_created=False)
    append(longer.table.get(E0), records(4))
    assert longer.close()
    misplaced = data / "events-0" / (segment_name(0) + ".swap")
    shutil.copy2(other / "events-0" / segment_name(0), misplaced)
    manager = started(data)
    assert len(values(manager.table.get(E0))) == 9
    assert misplaced.with_name(misplaced.name + ".misplaced").exists()
    assert manager.close()
