"""Facts about a data directory."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sparklog.cli.doctor.directory_facts import data_dir_facts, directory_facts, holder_of, metadata_problem, mounted_at
from tests.support.inspection import fill, flip, segments, started

MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
tmpfs /data tmpfs rw 0 0
/dev/sdb1 /data xfs rw 0 0
server:/x /data/with\\040blank nfs4 rw 0 0
broken
"""
LOCKS = """\
1: FLOCK  ADVISORY  WRITE 2542 fe:00:9995221 0 EOF
2: POSIX  ADVISORY  WRITE 77 fe:00:42 0 EOF
3: FLOCK  ADVISORY  WRITE 13239 fe:0a:42 0 EOF
4: FLOCK  ADVISORY  WRITE 0 fe:00:43 0 EOF
4: -> FLOCK  ADVISORY  WRITE 99 fe:00:43 0 EOF
"""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Of a log manager alone: there is no metadata.db."""
    manager = started(tmp_path / "data")
    fill(manager, 20)
    assert manager.close()
    (tmp_path / "data" / "metadata.db").write_bytes(b"")
    with sqlite3.connect(tmp_path / "data" / "metadata.db") as store:
        store.execute("CREATE TABLE t (a TEXT)")
    store.close()
    return tmp_path / "data"


def test_a_sound_directory(data_dir: Path) -> None:
    found = data_dir_facts(data_dir)
    (only,) = found.log_dirs
    assert (found.problem, found.absent, found.metadata_problem, found.holder) == ("", (), "", None)
    assert (only.path, only.problem, only.partitions, only.stopped_clean, only.damage) == (
        str(data_dir),
        "",
        2,
        True,
        (),
    )
    assert (only.foreign, only.set_aside, only.others_files) == ((), (), ())
    assert only.identity is not None
    assert only.disk is not None
    assert only.disk.size_bytes > 0
    assert only.disk.kind


def test_a_member_of_a_cluster_needs_no_metadata_db(data_dir: Path) -> None:
    (data_dir / "metadata.db").unlink()
    assert "metadata.db is missing" in data_dir_facts(data_dir).metadata_problem
    (data_dir / "cluster-image.bin").write_bytes(b"")
    stray = f"old-0.{'0' * 32}-stray"
    (data_dir / stray).mkdir()
    found = data_dir_facts(data_dir)
    assert found.metadata_problem == ""
    assert found.log_dirs[0].set_aside == (stray,)


def test_foreign_files_and_files_that_were_set_aside(data_dir: Path) -> None:
    (data_dir / "notes-1").mkdir()
    (data_dir / "core.123").write_bytes(b"x")
    (data_dir / "lost+found").mkdir()
    (data_dir / f"old-0.{'0' * 32}-delete").mkdir()
    (data_dir / f"old-0.{'0' * 32}-stray").mkdir()
    partitions = directory_facts(data_dir, deep=False).partitions
    shutil.copytree(segments(data_dir)[0].parent, data_dir / f"gone-0.{'0' * 32}-delete")
    (data_dir / "meta.json.tmp").write_bytes(b"")
    partition = segments(data_dir)[0].parent
    (partition / "00000000000000000000.arrow.8.corrupt").write_bytes(b"")
    (data_dir / "clean-shutdown").unlink()
    found = directory_facts(data_dir, deep=False)
    assert found.foreign == ("core.123", "notes-1")
    assert found.partitions == partitions, "deleted partitions are none"
    assert found.set_aside == (f"old-0.{'0' * 32}-stray", f"{partition.name}/00000000000000000000.arrow.8.corrupt")
    assert not found.stopped_clean


def test_damage_is_reported_by_partition(data_dir: Path) -> None:
    paths = segments(data_dir)
    for path in paths:
        flip(path, path.stat().st_size // 2)
    found = directory_facts(data_dir, deep=None)
    assert found.damage is not None
    assert [place for place, _ in found.damage] == sorted({str(path.parent) for path in paths})
    assert all("position" in message for _, message in found.damage)


def test_large_directories_are_read_by_option(data_dir: Path) -> None:
    found = directory_facts(data_dir, deep=None, verified_bytes_max=10)
    assert found.damage is None
    assert found.size_bytes > 10
    assert directory_facts(data_dir, deep=True).damage == ()


def test_directories_without_data(tmp_path: Path) -> None:
    assert "does not exist" in data_dir_facts(tmp_path / "none").problem
    (tmp_path / "file").write_text("x")
    assert "no directory" in data_dir_facts(tmp_path / "file").problem
    (tmp_path / "photos").mkdir()
    assert "not a data directory" in data_dir_facts(tmp_path / "photos").problem


def test_log_directories_that_are_away(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "log-dirs.json").write_text(f'{{"directories":{{"a":"{data_dir}","b":"{tmp_path / "away"}"}}}}')
    assert data_dir_facts(data_dir).absent == (str(tmp_path / "away"),)
    (tmp_path / "away").mkdir()
    assert data_dir_facts(data_dir).absent == (str(tmp_path / "away"),), "an empty directory, as without its mount"
    shutil.copy(data_dir / "meta.json", tmp_path / "away")
    found = data_dir_facts(data_dir)
    assert found.absent == ()
    assert len(found.log_dirs) == 2
    assert [d.path for d in data_dir_facts(data_dir, [data_dir]).log_dirs] == [str(data_dir)], "as it is configured"


def test_metadata_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    assert "is missing" in metadata_problem(path, is_running=False)
    path.write_bytes(b"not a database at all")
    assert "does not begin" in metadata_problem(path, is_running=True)
    path.unlink()
    with sqlite3.connect(path) as store:
        store.execute("CREATE TABLE t (a TEXT)")
        store.executemany("INSERT INTO t VALUES (?)", [("x" * 1000,)] * 100)
    store.close()
    assert metadata_problem(path, is_running=False) == ""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)
    assert "is damaged" in metadata_problem(path, is_running=False)
    assert metadata_problem(path, is_running=True) == "", "nobody else opens a running broker's"


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/home/x", ("/", "ext4")), ("/data/x", ("/data", "xfs")), ("/database", ("/", "ext4")), ("/data", ("/data", "xfs")),
     ("/data/with blank/x", ("/data/with blank", "nfs4"))],
)  # fmt: skip
def test_the_file_system_of_a_path(path: str, expected: tuple[str, str]) -> None:
    assert mounted_at(Path(path), MOUNTS) == expected
    assert mounted_at(Path(path), "") == ("", "")


def test_the_holder_of_a_lock() -> None:
    assert holder_of((0xFE, 0, 9995221), LOCKS) == 2542
    assert holder_of((0xFE, 10, 42), LOCKS) == 13239
    assert holder_of((0xFE, 0, 42), LOCKS) is None, "a lock of another kind"
    assert holder_of((0xFE, 0, 43), LOCKS) is None, "who holds it cannot be seen from here"


def test_the_process_that_holds_the_lock(data_dir: Path) -> None:
    code = f"import fcntl,sys; f=open({str(data_dir / '.lock')!r}, 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        holder = data_dir_facts(data_dir).holder
        assert holder is not None
        assert holder.pid == process.pid
        assert "flock" in holder.command
        assert holder.state in "SRD"
        assert 0 < holder.open_files < holder.open_files_max
        process.kill()
    assert data_dir_facts(data_dir).holder is None


def test_files_of_another_owner(data_dir: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(data_dir / "meta.json", 54_321, -1)
    found = directory_facts(data_dir, deep=False)
    assert found.others_files == ("meta.json",)
    assert found.owner == "root"
