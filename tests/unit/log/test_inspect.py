"""Verification: every kind of damage is found and placed, and nothing is found where nothing is wrong."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from sparklog.errors import StorageError
from sparklog.format import offset_index, time_index
from sparklog.format.batch import decode_header, stamp_batch
from sparklog.format.segment import decode_head
from sparklog.log.housekeeping.flush_run import flush_logs
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.tools.verify import bytes_to_check, verify
from tests.support.inspection import (
    E0,
    E1,
    blocks,
    cut,
    fill,
    flip,
    found,
    points,
    segments,
    specs,
    started,
    stopped_directory,
)
from tests.support.log_managers import kill
from tests.support.logs import SCHEMAS, append, records, values


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return stopped_directory(tmp_path / "data")


# --- sound ---


def test_a_stopped_directory_is_sound(data_dir: Path) -> None:
    told: list[int] = []
    report = verify([data_dir], told.append)
    assert (report.damage, report.notes) == ([], [])
    assert (report.directories, report.partitions, report.records) == (1, 2, 120)
    assert report.segments == len(segments(data_dir)) + len(segments(data_dir, 1))
    assert report.batches == 60
    assert report.size_bytes == bytes_to_check([data_dir])
    assert 0.9 * report.size_bytes < sum(told) < 1.1 * report.size_bytes


def test_snapshots_that_a_broker_replaces_meanwhile_are_passed_over(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    glob = Path.glob

    def with_one_gone(directory: Path, pattern: str) -> list[Path]:
        gone = [directory / f"{7:020}{pattern[1:]}"] if pattern in ("*.snapshot", "*.txnindex") else []
        return [*glob(directory, pattern), *gone]

    monkeypatch.setattr(Path, "glob", with_one_gone)
    assert verify([data_dir]).damage == []


def test_a_partition_and_a_segment_alone(data_dir: Path) -> None:
    report = verify([data_dir / "events-0"])
    assert (report.damage, report.notes, report.partitions, report.records) == ([], [], 1, 60)
    report = verify(segments(data_dir))
    assert (report.damage, report.notes, report.partitions, report.records) == ([], [], 0, 60)


def test_a_running_broker_s_directory_is_sound(data_dir: Path) -> None:
    manager = started(data_dir)
    fill(manager, 3)
    assert verify([data_dir]).damage == []
    manager.checkpoints.write()
    report = verify([data_dir])
    assert (report.damage, report.records) == ([], 132)
    kill(manager)
    assert verify([data_dir]).damage == []


def test_no_file_is_written_and_no_lock_is_taken(data_dir: Path) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in data_dir.rglob("*")}

    before = state()
    verify([data_dir])
    assert state() == before
    manager = started(data_dir)
    verify([data_dir])
    manager.close()


def test_while_a_broker_appends_rolls_and_restarts(data_dir: Path) -> None:
    """At every moment: a healthy log is never called damaged."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                manager = started(data_dir)
                for _ in range(3):
                    fill(manager, 6)
                    flush_logs(manager.table.logs)
                    manager.checkpoints.write()
                manager.creation.create_partition(spec := other_spec())
                append(manager.table.get(spec.owner.topic_partition), records(3))
                manager.removal.delete_partition(spec.owner.topic_partition)
                manager.removal.purge()
                manager.close()
        except BaseException as e:  # noqa: BLE001  (told in the test)
            errors.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(25):
            assert verify([data_dir]).damage == []
    finally:
        stop.set()
        thread.join()
    assert not errors


def other_spec() -> PartitionSpec:
    owner = LogOwner("other", "0" * 32, 0, "timestamp")
    return PartitionSpec(owner, LogConfig.from_settings({}), SCHEMAS.__getitem__)


def test_an_empty_directory_of_a_broker(tmp_path: Path) -> None:
    manager = LogManager(tmp_path)
    manager.load("c1", specs())
    manager.close()
    report = verify([tmp_path])
    assert (report.damage, report.partitions, report.segments) == ([], 2, 0)


def test_directories_that_are_no_log(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"x does not exist; name a log directory"):
        verify([tmp_path / "x"])
    with pytest.raises(StorageError, match="neither a log directory nor a partition"):
        verify([tmp_path])
    with pytest.raises(StorageError, match="neither"):
        bytes_to_check([tmp_path])


# --- damaged segments ---


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_flipped_byte_in_a_batch(data_dir: Path, which: int) -> None:
    path = segments(data_dir)[which]
    starts = blocks(path)
    for i in (0, len(starts) // 2, len(starts) - 2):
        flip(path, starts[i + 1] - 5)
        assert found(data_dir) == [(path.name, starts[i], "batch")]
        assert found(path) == [(path.name, starts[i], "batch")]
        assert "checksum" in verify([data_dir]).damage[0].message
        flip(path, starts[i + 1] - 5)
    assert found(data_dir) == []


def test_every_damaged_batch_is_listed(data_dir: Path) -> None:
    path = segments(data_dir)[0]
    starts = blocks(path)
    for i in (0, 2, 3):
        flip(path, starts[i] + 700)
    assert found(data_dir) == [(path.name, starts[i], "batch") for i in (0, 2, 3)]


def test_a_batch_of_a_crashed_broker(data_dir: Path) -> None:
    """In the middle of an unsealed segment it is damage; at its end it is the remains of a crash."""
    manager = started(data_dir)
    fill(manager, 2)
    kill(manager)
    path = segments(data_dir)[-1]
    size = path.stat().st_size
    flip(path, size - 5)
    report = verify([data_dir])
    assert report.damage == []
    assert [(n.kind, "not a whole batch" in n.message) for n in report.notes if n.path == str(path)] == [
        ("batch", True)
    ]
    flip(path, 1000)
    assert ("batch" in {kind for _, _, kind in found(data_dir)}) or found(data_dir)[0][2] == "head"


@pytest.mark.parametrize("field", ["base_offset", "leader_epoch"])
def test_a_changed_stamp_which_no_checksum_covers(data_dir: Path, field: str) -> None:
    path = segments(data_dir)[0]
    start = blocks(path)[3]
    data = bytearray(path.read_bytes())
    header = decode_header(data, start)
    stamp = {"base_offset": 6, "leader_epoch": 0, "append_time_ms": header.append_time_ms}
    stamp_batch(data, start, header, **{**stamp, field: stamp[field] + 1})
    path.write_bytes(data)
    places = found(data_dir)
    assert places, "noticed"
    if field == "base_offset":
        assert (path.name, start, "offsets") in places


def test_a_flipped_byte_in_the_head(data_dir: Path) -> None:
    path = segments(data_dir)[1]
    with path.open("rb") as file:
        size = decode_head(lambda p, n: os.pread(file.fileno(), n, p)).data_position
    position = path.read_bytes().index(b'"topic": "events"') + 11
    assert position < size
    flip(path, position)
    assert (path.name, 0, "head") in found(data_dir)
    flip(path, position)
    flip(path, 2)
    assert found(data_dir)[0] == (path.name, 0, "head")


def test_every_byte_of_a_head_and_a_footer(data_dir: Path) -> None:
    """Never an unexpected exception; and a changed meaning is always found."""
    path = segments(data_dir)[0]
    end = blocks(path)[-1]
    original = path.read_bytes()
    unnoticed = []
    for position in [*range(0, 400, 3), *range(end, len(original), 3)]:
        flip(path, position, 0x10)
        report = verify([path])
        if not report.damage and not report.notes:
            unnoticed.append(position)
        path.write_bytes(original)
    assert unnoticed == []


def test_a_flipped_byte_in_a_footer(data_dir: Path) -> None:
    for path in (segments(data_dir)[0], segments(data_dir)[-1]):
        original = path.read_bytes()
        end = blocks(path)[-1]
        # the position of a batch in the block list; the name of a column; the footer's length
        listed = original.index(np.int64(blocks(path)[1]).tobytes(), end)
        column = original.index(b"value", end)
        for position in (listed, column, len(original) - 9):
            flip(path, position)
            (damage,) = [f for f in verify([data_dir]).damage if f.kind == "footer"]
            assert Path(damage.path) == path
            assert damage.position in (position, end)
            path.write_bytes(original)


def test_a_truncated_file(data_dir: Path) -> None:
    for which in (0, -1):
        path = segments(data_dir)[which]
        original = path.read_bytes()
        starts = blocks(path)
        for size in (len(original) - 1, starts[-1], starts[-1] - 8, starts[1] + 100, 100, 0):
            cut(path, size)
            damage = verify([data_dir]).damage
            assert {Path(f.path).name for f in damage} == {path.name}, (which, size)
            assert all(0 <= f.position <= max(size, 0) for f in damage)
            path.write_bytes(original)
        assert found(data_dir) == []


def test_a_missing_segment(data_dir: Path) -> None:
    paths = segments(data_dir)
    for index in (".index", ".timeindex"):
        paths[1].with_suffix(index).unlink()
    paths[1].unlink()
    (damage,) = verify([data_dir]).damage
    assert (Path(damage.path), damage.kind) == (paths[1], "offsets")
    base, following = int(paths[1].stem), int(paths[2].stem)
    assert damage.message == (
        f"missing file: offsets {base} to {following - 1} are in no segment; {paths[2].name} is next"
    )


def test_a_missing_first_segment(data_dir: Path) -> None:
    first, second = segments(data_dir)[:2]
    first.unlink()
    (damage,) = verify([data_dir]).damage
    assert (Path(damage.path), damage.kind) == (first, "offsets")
    assert damage.message == (
        f"missing file: offsets 0 to {int(second.stem) - 1} are in no segment; {second.name} is the first"
    )
    points(data_dir, lambda p: p.update({"log_start_offset": int(second.stem)}), "events-0")
    assert found(data_dir) == []


def test_a_missing_last_segment(data_dir: Path) -> None:
    segments(data_dir)[-1].unlink()
    (damage,) = verify([data_dir]).damage
    assert (Path(damage.path).name, damage.kind) == ("recovery-points.json", "checkpoint")
    assert damage.position == (data_dir / "recovery-points.json").read_bytes().index(b'"events-0"')
    assert "of events-0 is 60, its log ends at" in damage.message


def test_segments_that_overlap(data_dir: Path) -> None:
    paths = segments(data_dir)
    base = int(paths[1].stem)
    copy = paths[1].with_name(f"{base + 2:020d}.arrow")
    copy.write_bytes(paths[1].read_bytes())
    assert {(name, kind) for name, _, kind in found(data_dir)} >= {(copy.name, "head"), (copy.name, "offsets")}


def test_a_segment_of_another_partition(data_dir: Path) -> None:
    mine, theirs = segments(data_dir)[0], segments(data_dir, 1)[0]
    mine.write_bytes(theirs.read_bytes())
    assert (mine.name, 0, "head") in found(data_dir)


# --- indexes ---


def test_a_flipped_byte_in_an_index(data_dir: Path) -> None:
    path = segments(data_dir)[0]
    for suffix, size, trailer_bytes in ((offset_index.SUFFIX, 8, 4), (time_index.SUFFIX, 12, 8)):
        index = path.with_suffix(suffix)
        for position in range(0, index.stat().st_size, 5):  # in each entry another byte
            flip(index, position)
            (place,) = found(data_dir)
            assert place[0] == index.name
            if position < index.stat().st_size - trailer_bytes:
                assert place[1] // size in (position // size, position // size + 1), (
                    "this entry, or the one it now follows"
                )
            else:
                assert place[1] == index.stat().st_size - trailer_bytes
            assert place[2] == "index"
            flip(index, position)


def test_an_index_that_is_cut_or_too_long(data_dir: Path) -> None:
    index = segments(data_dir)[0].with_suffix(time_index.SUFFIX)
    original = index.read_bytes()
    assert len(original) > 32
    index.write_bytes(original + b"abc")
    assert found(data_dir) == [(index.name, len(original) - 8, "index")]
    assert "checksum" in verify([data_dir]).damage[0].message
    index.write_bytes(original[:-12])
    assert found(data_dir) == [(index.name, len(original) - 20, "index")]
    assert "stale" in verify([data_dir]).damage[0].message
    index.write_bytes(original[:-8])  # as it was before there were checksums
    assert found(data_dir) == [(index.name, len(original) - 20, "index")]
    index.write_bytes(b"")
    assert found(data_dir) == [(index.name, 0, "index")]


@pytest.mark.parametrize("cut", ["end", "middle"])
def test_missing_entries_of_an_offset_index_are_noted(data_dir: Path, cut: str) -> None:
    index = segments(data_dir)[0].with_suffix(offset_index.SUFFIX)
    entries = np.frombuffer(index.read_bytes()[: -offset_index.TRAILER_BYTES], offset_index.ENTRY)
    assert len(entries) > 5
    left = (entries[:-2] if cut == "end" else np.delete(entries, 2)).tobytes()
    index.write_bytes(left + offset_index.trailer(0, left))
    report = verify([data_dir])
    assert report.damage == []
    assert [(Path(n.path).name, n.kind) for n in report.notes] == [(index.name, "index")]
    assert f"before entry {len(entries) - 2 if cut == 'end' else 2}:" in report.notes[0].message


def test_a_segment_that_was_written_to_after_a_restart_lacks_no_entry(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    for _ in range(4):
        manager = started(data_dir)
        fill(manager, 3)
        assert manager.close()
    report = verify([data_dir])
    assert (report.damage, report.notes) == ([], [])


def test_an_index_of_another_segment(data_dir: Path) -> None:
    first, second = segments(data_dir)[:2]
    for suffix in (".index", ".timeindex"):
        first.with_suffix(suffix).write_bytes(second.with_suffix(suffix).read_bytes())
    assert {name for name, _, _ in found(data_dir)} & {first.with_suffix(".timeindex").name}


def test_missing_indexes_are_rebuilt_and_no_damage(data_dir: Path) -> None:
    path = segments(data_dir)[0].with_suffix(".index")
    path.unlink()
    report = verify([data_dir])
    assert report.damage == []
    assert [(n.path, n.kind) for n in report.notes] == [(str(path), "index")]


def test_the_verified_records_are_the_read_ones(data_dir: Path) -> None:
    """The sound directory really is one: a broker starts with it and reads everything."""
    assert verify([data_dir]).damage == []
    manager = started(data_dir)
    assert [len(values(manager.table.get(tp))) for tp in (E0, E1)] == [60, 60]
    manager.close()
