"""Real files: short writes, full disks, atomic replacement, locks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sparklog.environment.files import RealFile, RealFiles, read_whole, write_whole
from sparklog.errors import StorageError, StorageFullError

FILES = RealFiles()


def test_short_writes_and_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 4), at))
    file = FILES.open(tmp_path / "f", create=True)
    file.write(5, bytearray(b"0123456789"))
    assert file.size() == 15
    assert file.read(0, 100) == b"\0" * 5 + b"0123456789"
    assert file.read(15, 10) == b""
    assert file.read(7, 2) == b"23"
    file.close()
    file.close()


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, StorageFullError), (errno.EDQUOT, StorageFullError), (errno.EIO, StorageError)],
)
def test_a_failed_write_names_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    pwrite = os.pwrite
    calls = []

    def failing(fd: int, data: bytes, at: int) -> int:
        calls.append(at)
        if len(calls) == 1:
            return pwrite(fd, bytes(data)[:3], at)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", failing)
    file = FILES.open(tmp_path / "f", create=True)
    with pytest.raises(error, match=str(tmp_path / "f")):
        file.write(0, b"0123456789")
    assert file.size() == 3
    file.close()


def test_a_full_device() -> None:
    device = Path("/dev/full")
    if not device.exists():
        pytest.skip("this system has no /dev/full")
    file = RealFile(os.open(device, os.O_RDWR), device)
    with pytest.raises(StorageFullError, match="/dev/full"):
        file.write(0, b"x")
    file.close()


def test_missing_paths_raise_storage_errors(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    FILES.remove(missing)
    assert read_whole(FILES, missing) is None
    for act in (
        lambda: FILES.open(missing),
        lambda: FILES.list_directory(missing),
        lambda: FILES.rename(missing, tmp_path / "x"),
        lambda: FILES.remove_tree(missing),
        lambda: FILES.sync_directory(missing),
        lambda: FILES.open(missing / "deeper", create=True),
    ):
        with pytest.raises(StorageError, match="missing"):
            act()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="create directory"):
        FILES.make_directory(tmp_path / "file")


def test_atomic_write_replaces_or_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "points.json"
    FILES.write_atomic(path, b"old, and longer")
    FILES.write_atomic(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["points.json"]
    assert path.read_bytes() == b"new"

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(StorageError):
        FILES.write_atomic(path, b"newer")
    assert path.read_bytes() == b"new"


def test_write_whole_shortens(tmp_path: Path) -> None:
    write_whole(FILES, tmp_path / "f", b"long content")
    write_whole(FILES, tmp_path / "f", b"short")
    assert (tmp_path / "f").read_bytes() == b"short"


def test_a_lock_is_exclusive_until_closed(tmp_path: Path) -> None:
    lock = FILES.lock(tmp_path / ".lock")
    assert lock is not None
    assert FILES.lock(tmp_path / ".lock") is None
    lock.close()
    again = FILES.lock(tmp_path / ".lock")
    assert again is not None
    again.close()


def test_directories_created_together(tmp_path: Path) -> None:
    wanted = {tmp_path / f"d{i}": {"meta": b"%d" % i, "empty": b""} for i in range(20)}
    FILES.make_directories(wanted)
    assert {p: {f.name: f.read_bytes() for f in p.iterdir()} for p in tmp_path.iterdir()} == wanted
    with pytest.raises(StorageError, match="d7"):
        FILES.make_directories({tmp_path / "d7": {}})
    with pytest.raises(StorageError, match="absent"):
        FILES.make_directories({tmp_path / "absent" / "d": {}})
