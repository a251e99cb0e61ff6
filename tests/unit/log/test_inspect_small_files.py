"""`log verify` and the small files of a data directory: checkpoints, identities, leftovers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.tools.verify import partition_directories, verify
from tests.support.inspection import (
    found,
    points,
    stopped_directory,
)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return stopped_directory(tmp_path / "data")


@pytest.mark.parametrize("field", ["recovery_point", "high_watermark", "log_start_offset"])
def test_a_checkpoint_beyond_the_end(data_dir: Path, field: str) -> None:
    points(data_dir, lambda p: p.update({field: 61}))
    (place,) = found(data_dir)
    assert place == (
        "recovery-points.json",
        (data_dir / "recovery-points.json").read_bytes().index(b'"events-1"'),
        "checkpoint",
    )
    assert found(data_dir / "events-1") == [place], "also when only the partition is looked at"
    assert found(data_dir / "events-0") == []


def test_a_checkpoint_of_an_earlier_topic_does_not_count(data_dir: Path) -> None:
    points(data_dir, lambda p: p.update({"recovery_point": 61, "topic_id": "a" * 32}))  # type: ignore[dict-item]
    assert found(data_dir) == []


def test_a_partition_that_is_gone(data_dir: Path) -> None:
    import shutil

    shutil.rmtree(data_dir / "events-1")
    (damage,) = verify([data_dir]).damage
    assert damage.message == "partition events-1 has no directory here; the checkpoint has offsets up to 60"
    (data_dir / "clean-shutdown").unlink()
    report = verify([data_dir])
    assert (report.damage, len(report.notes)) == ([], 1), "a crash may have come between deleting and checkpoint"


@pytest.mark.parametrize("name", ["recovery-points.json", "clean-shutdown", "meta.json", "events-0/partition.json"])
def test_a_small_file_that_cannot_be_read(data_dir: Path, name: str) -> None:
    (data_dir / name).write_bytes(b"{")
    places = found(data_dir)
    assert [place[:2] for place in places] == [(Path(name).name, 0)]
    assert len(verify([data_dir]).damage) == 1


@pytest.mark.parametrize(
    ("old", "new"), [(b'"partition": 0', b'"partition": 1'), (b'"events"', b'"others"'), (b"e" * 32, b"f" * 32)]
)
def test_a_wrong_partition_json(data_dir: Path, old: bytes, new: bytes) -> None:
    path = data_dir / "events-0" / "partition.json"
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    damage = verify([data_dir]).damage
    assert damage
    assert any("partition.json" in f.path or "partition.json says" in f.message for f in damage)
    path.unlink()
    assert ("partition.json", 0, "partition.json") in found(data_dir)


def test_a_partition_in_two_directories(data_dir: Path, tmp_path: Path) -> None:
    import shutil

    manager = LogManager(tmp_path / "second")
    manager.load("c1", [])
    manager.close()
    shutil.copytree(data_dir / "events-0", tmp_path / "second" / "events-0")
    (damage,) = verify([data_dir, tmp_path / "second"]).damage
    assert damage.path == str(tmp_path / "second" / "events-0" / "partition.json")
    assert f"the same partition is also in {data_dir}/events-0" in damage.message


def test_the_cache_of_the_object_store_is_no_partition(data_dir: Path) -> None:
    cache = data_dir / "remote-log-cache"
    cache.mkdir()
    (cache / "00000000000000000000.arrow").write_bytes(b"pieces")
    assert verify([data_dir]).damage == []
    assert cache not in partition_directories(data_dir)


def test_files_of_compaction_and_truncation_are_no_leftovers(data_dir: Path) -> None:
    for name in ("cleaner-point.json", "truncation.json"):
        (data_dir / "events-0" / name).write_text("{}")
    assert not [n for n in verify([data_dir]).notes if n.kind == "file"]


def test_leftovers_are_notes(data_dir: Path) -> None:
    directory = data_dir / "events-0"
    (directory / "partition.json.tmp").write_bytes(b"")
    (directory / "00000000000000009999.index").write_bytes(b"")
    (data_dir / f"old-0.{'0' * 32}-delete").mkdir()
    report = verify([data_dir])
    assert report.damage == []
    assert sorted(Path(n.path).name for n in report.notes) == ["00000000000000009999.index", "partition.json.tmp"]


def test_a_leader_epoch_checkpoint_that_lies(data_dir: Path) -> None:
    from sparklog.format.epoch_checkpoint import EpochEntry, encode_epochs

    path = data_dir / "events-0" / "leader-epochs.json"
    path.write_bytes(encode_epochs([EpochEntry(0, 0), EpochEntry(3, 40)]))
    assert found(data_dir) == [], "epochs without records are allowed"
    path.write_bytes(encode_epochs([EpochEntry(3, 0)]))
    ((name, _, kind),) = found(data_dir)
    assert (name, kind) == ("leader-epochs.json", "leader epochs")
    path.write_bytes(path.read_bytes()[:-20])
    assert found(data_dir) == [("leader-epochs.json", 0, "leader epochs")]
