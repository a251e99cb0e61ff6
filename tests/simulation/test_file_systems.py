"""One suite of behaviour for the real file system and the simulated one, and the losses of the simulated one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sparklog.environment.files import FileSystem, RealFiles, read_whole, write_whole
from sparklog.errors import StorageError
from sparklog.testing._sim_files import SECTOR_BYTES, PowerCut, SimFiles


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, Path]:
    if request.param == "real":
        return RealFiles(), tmp_path
    files = SimFiles()
    files.make_directory(Path("/disk"))
    return files, Path("/disk")


Place = tuple[FileSystem, Path]


def test_reading_and_writing_at_positions(place: Place) -> None:
    files, root = place
    file = files.open(root / "f", create=True)
    assert file.size() == 0
    file.write(5, memoryview(b"world"))
    assert (file.size(), file.read(0, 100), file.read(5, 2)) == (10, b"\0\0\0\0\0world", b"wo")
    file.write(0, b"hello")
    file.write(8, bytearray(b"LDS!"))
    assert file.read(0, 100) == b"hellowor" + b"LDS!"
    assert (file.read(12, 5), file.read(50, 5)) == (b"", b"")
    file.truncate(6)
    assert file.read(0, 100) == b"hellow"
    file.truncate(8)
    assert file.read(0, 100) == b"hellow\0\0"
    file.sync()
    file.close()
    file.close()


def test_files_are_opened_created_and_removed(place: Place) -> None:
    files, root = place
    with pytest.raises(StorageError, match=r"cannot open .*absent"):
        files.open(root / "absent")
    assert not files.exists(root / "f")
    write_whole(files, root / "f", b"one")
    assert files.exists(root / "f")
    files.open(root / "f", create=True).close()
    assert read_whole(files, root / "f") == b"one"
    held = files.open(root / "f")
    files.remove(root / "f")
    files.remove(root / "f")
    assert not files.exists(root / "f")
    assert held.read(0, 10) == b"one"
    held.close()
    assert read_whole(files, root / "f") is None
    with pytest.raises(StorageError):
        files.open(root / "no-directory" / "f", create=True)


def test_directories(place: Place) -> None:
    files, root = place
    files.make_directory(root / "a" / "b")
    files.make_directory(root / "a" / "b")
    assert files.is_directory(root / "a")
    assert not files.is_directory(root / "c")
    write_whole(files, root / "a" / "f", b"")
    assert not files.is_directory(root / "a" / "f")
    assert files.list_directory(root / "a") == ["b", "f"]
    for wrong in (root / "absent", root / "a" / "f"):
        with pytest.raises(StorageError):
            files.list_directory(wrong)
    with pytest.raises(StorageError):
        files.make_directory(root / "a" / "f")
    with pytest.raises(StorageError):
        files.remove(root / "a")
    with pytest.raises(StorageError):
        files.open(root / "a")
    files.remove_tree(root / "a")
    assert files.list_directory(root) == []
    with pytest.raises(StorageError):
        files.remove_tree(root / "a")
    with pytest.raises(StorageError):
        files.sync_directory(root / "a")


def test_renames(place: Place) -> None:
    files, root = place
    write_whole(files, root / "f", b"one")
    write_whole(files, root / "g", b"two")
    files.rename(root / "f", root / "g")
    assert (files.list_directory(root), read_whole(files, root / "g")) == (["g"], b"one")
    with pytest.raises(StorageError, match="cannot rename"):
        files.rename(root / "f", root / "h")
    files.make_directory(root / "d")
    files.rename(root / "g", root / "d" / "g")
    assert read_whole(files, root / "d" / "g") == b"one"
    files.rename(root / "d", root / "e")
    assert read_whole(files, root / "e" / "g") == b"one"
    write_whole(files, root / "f", b"")
    with pytest.raises(StorageError):
        files.rename(root / "f", root / "e")


def test_small_files_are_replaced_whole(place: Place) -> None:
    files, root = place
    files.write_atomic(root / "f", b"long content")
    files.write_atomic(root / "f", b"short")
    assert (read_whole(files, root / "f"), files.list_directory(root)) == (b"short", ["f"])


def test_locks(place: Place) -> None:
    files, root = place
    lock = files.lock(root / ".lock")
    assert lock is not None
    assert files.lock(root / ".lock") is None
    lock.close()
    again = files.lock(root / ".lock")
    assert again is not None
    again.close()


# --- what a power cut does ---

DISK = Path("/disk")


def started() -> SimFiles:
    files = SimFiles()
    files.make_directory(DISK)
    return files


def test_synced_bytes_are_never_lost() -> None:
    for seed in range(50):
        files = started()
        file = files.open(DISK / "f", create=True)
        file.write(0, b"a" * 2000)
        file.sync()
        files.sync_directory(DISK)
        file.write(2000, b"b" * 2000)
        files.power_cut(random.Random(seed))
        content = read_whole(files, DISK / "f") or b""
        assert content[:2000] == b"a" * 2000
        assert set(content[2000:]) <= set(b"b\0")


def test_unsynced_bytes_survive_in_every_way() -> None:
    found = set()
    for seed in range(300):
        files = started()
        file = files.open(DISK / "f", create=True)
        files.sync_directory(DISK)
        file.write(0, b"a" * SECTOR_BYTES + b"b" * SECTOR_BYTES)
        file.truncate(SECTOR_BYTES + 1)
        files.power_cut(random.Random(seed))
        found.add(read_whole(files, DISK / "f"))
    whole = b"a" * SECTOR_BYTES + b"b" * SECTOR_BYTES
    assert {b"", whole, whole[: SECTOR_BYTES + 1], bytes(SECTOR_BYTES) + whole[SECTOR_BYTES:]} <= found
    assert any(c and len(c) % SECTOR_BYTES > 1 for c in found), "no write was torn at a byte"


def test_names_are_lost_unless_the_directory_was_synced() -> None:
    found = set()
    for seed in range(100):
        files = started()
        for name in ("f", "g"):
            file = files.open(DISK / name, create=True)
            file.write(0, name.encode())
            file.sync()
        files.sync_directory(DISK)
        files.rename(DISK / "f", DISK / "h")
        files.remove(DISK / "g")
        files.power_cut(random.Random(seed))
        names = files.list_directory(DISK)
        assert ("f" in names) != ("h" in names), "a rename happens or not"
        assert read_whole(files, DISK / ("h" if "h" in names else "f")) == b"f"
        found.add(tuple(names))
    assert found == {("f", "g"), ("h",), ("g", "h"), ("f",)}


def test_an_atomic_write_leaves_the_old_or_the_new_content_and_keeps_the_new() -> None:
    for cut in range(8):
        for seed in range(30):
            files = started()
            files.write_atomic(DISK / "f", b"old")
            files.cut_at = len(files.calls) + cut
            done = True
            try:
                files.write_atomic(DISK / "f", b"new content")
            except PowerCut:
                done = False
            files.power_cut(random.Random(seed))
            assert read_whole(files, DISK / "f") in ((b"new content",) if done else (b"old", b"new content"))


def test_after_the_cut_no_call_continues() -> None:
    files = started()
    file = files.open(DISK / "f", create=True)
    files.cut_at = len(files.calls) + 1
    file.write(0, b"one")
    for use in (lambda: file.write(3, b"two"), lambda: file.read(0, 1), lambda: files.exists(DISK), file.sync):
        with pytest.raises(PowerCut):
            use()
    file.close()
    files.power_cut(random.Random(0))
    assert files.is_directory(DISK)
