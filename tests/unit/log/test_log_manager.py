"""A data directory: lock, identity, start after clean and unclean stops, offline partitions, deletion."""

from __future__ import annotations

import itertools
import json
import logging
import random
import shutil
from pathlib import Path

import pytest

from sparklog.errors import (
    DataDirLockedError,
    LogCorruptError,
    NotLeaderError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from sparklog.log.directories.log_directory import STRAY_ENDING
from sparklog.log.housekeeping.flush_run import flush_logs
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.testing._sim_files import PowerCut, SimFiles
from sparklog.types import TopicPartition
from tests.support.log_managers import E0, E1, IDS, kill, spec, started
from tests.support.logs import LimitedFiles, append, records, values


def test_clean_stop_and_start(tmp_path: Path) -> None:
    manager = started(tmp_path / "new" / "data")
    assert not manager.started_clean
    append(manager.table.get(E0), records(5))
    identity = manager.directories.all[0].data_dir_id
    assert manager.close()
    points = json.loads((manager.data_dir / "recovery-points.json").read_bytes())
    assert points["partitions"]["events-0"] == {
        "topic_id": IDS["events"],
        "log_start_offset": 0,
        "recovery_point": 5,
        "high_watermark": 5,
    }
    manager = LogManager(tmp_path / "new" / "data")
    manager.load("c1", [spec(), spec(partition=1)])
    assert manager.started_clean
    assert (
        manager.directories.all[0].data_dir_id
        == identity
        == json.loads((manager.data_dir / "meta.json").read_bytes())["data_dir_id"]
    )
    assert not (manager.data_dir / "clean-shutdown").exists()
    assert (manager.table.get(E0).high_watermark, manager.table.get(E0).recovery_point) == (5, 5)
    assert len(values(manager.table.get(E0))) == 5
    manager.close()


def test_acknowledged_records_survive_a_kill(tmp_path: Path) -> None:
    manager = started(tmp_path)
    for _ in range(10):
        append(manager.table.get(E1), records(5))
    kill(manager)
    manager = started(tmp_path)
    assert not manager.started_clean
    assert len(values(manager.table.get(E1))) == 50
    manager.close()


def test_a_kill_while_loading_counts_as_unclean(tmp_path: Path) -> None:
    manager = started(tmp_path)
    manager.close()
    kill(started(tmp_path))
    manager = started(tmp_path)
    assert not manager.started_clean
    manager.close()


def test_a_second_broker_gets_the_remedy(tmp_path: Path) -> None:
    manager = LogManager(tmp_path)
    with pytest.raises(DataDirLockedError, match=f"{tmp_path} is in use by another broker; stop that broker or choose"):
        LogManager(tmp_path)
    assert manager.close()
    assert not (tmp_path / "clean-shutdown").exists()  # nothing was loaded
    LogManager(tmp_path).close()


def test_a_path_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file cannot be used: .*; choose another one"):
        LogManager(tmp_path / "file")
    with pytest.raises(StorageError, match="cannot be used"):
        LogManager(tmp_path / "file" / "below")


def test_directories_of_other_brokers_clusters_and_versions_are_refused(tmp_path: Path) -> None:
    started(tmp_path).close()
    for broker_id, cluster_id in ((1, "c1"), (0, "c2")):
        manager = LogManager(tmp_path, broker_id=broker_id)
        with pytest.raises(StorageError, match="belongs to broker 0 of cluster c1"):
            manager.load(cluster_id, [])
        manager.close()
    meta = tmp_path / "meta.json"
    content = meta.read_bytes()
    for bad, message in ((b"{", "cannot be read"), (content.replace(b'"format": 1', b'"format": 2'), "newer")):
        meta.write_bytes(bad)
        manager = LogManager(tmp_path)
        with pytest.raises(StorageError, match=message):
            manager.load("c1", [])
        manager.close()
    assert (tmp_path / "clean-shutdown").exists()  # a refused start changes nothing


def test_a_corrupt_partition_is_offline_the_others_go_on(tmp_path: Path) -> None:
    manager = started(tmp_path)
    for tp in (E0, E1):
        append(manager.table.get(tp), records(5))
        append(manager.table.get(tp), records(5))
    manager.checkpoints.write()
    kill(manager)
    path = tmp_path / "events-0" / "00000000000000000000.arrow"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    for _ in range(3):  # a clean stop in between must not make it look sound
        manager = started(tmp_path)
        assert list(manager.table.offline) == [E0]
        with pytest.raises(LogCorruptError, match=r"events-0/00000000000000000000\.arrow"):
            manager.table.get(E0)
        append(manager.table.get(E1), records(1))
        assert not manager.close()
        assert path.read_bytes() == data
    points = json.loads((tmp_path / "recovery-points.json").read_bytes())
    assert points["partitions"]["events-0"]["high_watermark"] == 10
    data[1000] ^= 1
    path.write_bytes(data)
    manager = started(tmp_path)
    assert len(values(manager.table.get(E0))) == 10
    assert manager.close()


def test_a_log_that_cannot_be_sealed_is_scanned_at_the_next_start(tmp_path: Path) -> None:
    files = LimitedFiles()
    manager = started(tmp_path, files=files)
    append(manager.table.get(E0), records(5))
    append(manager.table.get(E1), records(5))
    files.fail_sync = True
    assert not manager.close()
    assert not (tmp_path / "clean-shutdown").exists()
    manager = started(tmp_path)
    assert len(values(manager.table.get(E0))) == 5
    manager.close()


def test_unreadable_checkpoints_cost_time_not_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = started(tmp_path)
    append(manager.table.get(E0), records(5))
    manager.close()
    (tmp_path / "recovery-points.json").write_bytes(b"\xff{")
    (tmp_path / "clean-shutdown").write_bytes(b"")
    manager = started(tmp_path)
    assert not manager.started_clean
    assert "recovery-points.json cannot be read" in caplog.text
    assert len(values(manager.table.get(E0))) == 5
    manager.close()


def test_create_and_delete(tmp_path: Path) -> None:
    manager = started(tmp_path)
    with pytest.raises(UnknownTopicOrPartitionError, match="other-0"):
        manager.table.get(TopicPartition("other", 0))
    log = manager.creation.create_partition(spec("other"))
    assert manager.creation.create_partition(spec("other")) is log
    append(log, records(3))
    piece = log.reader.read(0, 1 << 20)
    assert piece is not None
    manager.removal.delete_partition(TopicPartition("other", 0))
    manager.removal.delete_partition(TopicPartition("other", 0))
    assert not (tmp_path / "other-0").exists()
    again = manager.creation.create_partition(spec("other", topic_id="b" * 32))
    assert again.log_end_offset == 0
    assert manager.removal.purge() == 1
    assert manager.removal.purge() == 0
    assert len(piece.read()) == piece.length_bytes
    piece.release()
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"events-0", "events-1", "other-0"}
    manager.close()


def test_the_longest_topic_name_can_be_deleted(tmp_path: Path) -> None:
    name = "n" * 249
    manager = started(tmp_path, spec(name, 9999))
    append(manager.table.get(TopicPartition(name, 9999)), records(1))
    manager.removal.delete_partition(TopicPartition(name, 9999))
    assert manager.removal.purge() == 1
    manager.close()


def test_a_deletion_cut_short_is_finished_after_the_start(tmp_path: Path) -> None:
    manager = started(tmp_path, spec("other"))
    manager.removal.delete_partition(TopicPartition("other", 0))
    kill(manager)
    manager = started(tmp_path)
    assert manager.removal.purge() == 1
    manager.close()


def test_directories_without_a_topic_stay_or_are_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = started(tmp_path, spec("other"))
    append(manager.table.get(TopicPartition("other", 0)), records(3))
    manager.close()
    caplog.set_level(logging.WARNING)
    manager = started(tmp_path, spec())
    assert "other-0 belongs to no topic and is left unchanged" in caplog.text
    assert (tmp_path / "other-0" / "00000000000000000000.arrow").exists()
    log = manager.creation.create_partition(spec("other", topic_id="b" * 32))
    assert log.log_end_offset == 0
    (stray,) = tmp_path.glob("other-0.*-stray")
    assert (stray / "00000000000000000000.arrow").exists()
    assert manager.removal.purge() == 0
    manager.close()


def test_flush_goes_on_past_a_failing_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = LimitedFiles()
    manager = started(tmp_path, files=files)
    for tp in (E0, E1):
        append(manager.table.get(tp), records(5))
        manager.table.get(tp).appender.roll()
    files.fail_sync = True
    flush_logs(manager.table.logs)
    assert caplog.text.count("cannot be flushed") == 2
    kill(manager)


def test_data_dir_id_is_set_after_load(tmp_path: Path) -> None:
    manager = LogManager(tmp_path)
    with pytest.raises(StorageError, match="not loaded"):
        _ = manager.directories.all[0].data_dir_id
    manager.close()


def test_a_power_cut_while_partitions_are_created_keeps_directories_loadable() -> None:
    specs = [spec("events", p) for p in range(3)]
    data_dir = Path("/data")
    for cut_at in itertools.count():
        files = SimFiles(cut_at=cut_at)
        try:
            manager = LogManager(data_dir, files=files)
            manager.load("c1", [])
            manager.creation.create_partitions(specs)
        except PowerCut:
            files.power_cut(random.Random(cut_at))
            after = LogManager(data_dir, files=files)
            after.load("c1", specs)
            assert sorted(after.table.logs) == [s.owner.topic_partition for s in specs]
            assert not after.table.offline
        else:
            break
    assert cut_at > 20
    files.power_cut(random.Random(cut_at))
    made = [f"{s.owner.directory_name}/partition.json" for s in specs]
    assert all(files.exists(data_dir / path) for path in made), "durable on return"


@pytest.mark.parametrize("then", ["nothing", "purged", "made again", "purged and made again", "made again in a start"])
def test_a_replica_that_was_taken_away_and_comes_back_is_empty_not_damaged(tmp_path: Path, then: str) -> None:
    """The checkpoint that tells of the one before is not believed."""
    manager = started(tmp_path)
    append(manager.table.get(E0), records(5))
    append(manager.table.get(E1), records(5))
    manager.table.get(E0).flusher.flush()
    manager.table.get(E1).flusher.flush()
    manager.checkpoints.write()
    manager.removal.remove_replica(spec().owner, NotLeaderError("it is elsewhere"))
    if "purged" in then:
        assert manager.removal.purge() == 1
    if then == "made again in a start":
        kill(manager)
        manager = started(tmp_path)
        assert values(manager.table.get(E0)) == []
    elif "made again" in then:
        manager.creation.create_partitions([spec()])
    for _ in range(2):
        kill(manager)
        manager = started(tmp_path)
        assert manager.table.offline == {}
        assert values(manager.table.get(E0)) == []
        assert len(values(manager.table.get(E1))) == 5
    manager.close()


@pytest.mark.parametrize("how", ["while running", "in a start", "left alone"])
@pytest.mark.parametrize("crash", ["none", "put aside", "taken back", "both"])
def test_a_log_that_was_put_aside_begins_where_it_began(tmp_path: Path, how: str, crash: str) -> None:
    """Deleted records do not come back with it, neither after a crash on the way."""
    others = [spec(partition=1)]
    mine, gone = spec("t" * 249), UnknownTopicOrPartitionError("not in the metadata")
    tp = mine.owner.topic_partition
    manager = started(tmp_path, mine, *others)
    append(manager.table.get(tp), records(5))
    append(manager.table.get(tp), records(5))
    manager.table.get(tp).raise_high_watermark(10)
    manager.table.get(tp).flusher.flush()
    manager.table.get(tp).retention.delete_records(7)
    manager.checkpoints.write()
    if how == "while running":
        manager.removal.remove_replica(mine.owner, gone, STRAY_ENDING)
        assert [d.count_strays() for d in manager.directories.live] == [1]
    if how == "in a start":
        kill(manager)
        manager = LogManager(tmp_path)
        manager.load("c1", [spec("t" * 249, topic_id="b" * 32), *others], puts_aside=True)
        manager.removal.delete_partition(tp)
    if how != "while running" or crash in ("put aside", "both"):
        kill(manager) if crash in ("put aside", "both") else manager.close()
        manager = started(tmp_path, *others)
    manager.creation.create_partitions([mine], take_back=True)
    if crash in ("taken back", "both"):
        kill(manager)
        manager = started(tmp_path, mine, *others)
    log = manager.table.get(tp)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (7, 10, 10)
    manager.close()
    manager = started(tmp_path, mine, *others)
    assert (manager.table.get(tp).log_start_offset, manager.table.offline) == (7, {})
    manager.close()


def test_a_checkpoint_forgets_a_stray_that_is_gone(tmp_path: Path) -> None:
    manager = started(tmp_path)
    append(manager.table.get(E0), records(5))
    manager.removal.remove_replica(spec().owner, UnknownTopicOrPartitionError("gone"), STRAY_ENDING)
    manager.checkpoints.write()
    written = json.loads((tmp_path / "recovery-points.json").read_bytes())["partitions"]
    (stray,) = [name for name in written if name.endswith("-stray")]
    assert "events-0" not in written
    manager.close()
    shutil.rmtree(tmp_path / stray)
    manager = started(tmp_path, spec(partition=1))
    manager.close()
    assert list(json.loads((tmp_path / "recovery-points.json").read_bytes())["partitions"]) == ["events-1"]
