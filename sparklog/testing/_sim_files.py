"""A simulated disk in memory, which can lose unsynced data in a power cut.

`SimFiles` is a `FileSystem`. The content of a file stays in a cache until the file's `sync`; the names in a directory
(new files, renames, removals) stay there until `sync_directory`. `power_cut(rng)` chooses which of the unsynced data
survive, as a real disk and file system might:

- of a file: nothing; everything; a prefix of the operations, the next one torn at a byte; or a random set of its
  512-byte sectors and truncations (lost sectors have their old content, or zeros);
- of a directory: a prefix of the operations (as with a journal), or a random set. A rename inside one directory is
  never split.

Synced data are never lost. `fault` makes calls fail as on a full or broken disk; a failing write writes a part. After a
failed sync, the file's unsynced data never reach the disk, although reads return them until the power cut, and later
syncs succeed (as on Linux). `cut_at` switches the power off before the call with this number. This call and every later
one raise `PowerCut`, until `power_cut`. The same seed and the same calls give the same disk.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from sparklog.environment.files import TEMPORARY_SUFFIX, File, FileIdentity, storage_error, sync_whole, write_whole
from sparklog.errors import StorageError, StorageFullError

SECTOR_BYTES = 512
DISK_BYTES = 1 << 40


class PowerCut(BaseException):
    """The power is off. It is a BaseException, so that code that catches Exception does not survive a power cut."""


class _Write(NamedTuple):
    position: int
    data: bytes


class _Truncate(NamedTuple):
    size_bytes: int


def _apply(content: bytearray, operation: _Write | _Truncate) -> None:
    size = operation.size_bytes if isinstance(operation, _Truncate) else operation.position
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    if isinstance(operation, _Truncate):
        del content[size:]
    else:
        content[size : size + len(operation.data)] = operation.data


class _Inode:
    """A file: its content as programs read it, its content on the disk, and the operations that are not on the disk
    yet."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.unsynced: list[_Write | _Truncate] = []

    def do(self, operation: _Write | _Truncate) -> None:
        _apply(self.content, operation)
        self.unsynced.append(operation)

    def sync(self) -> None:
        for operation in self.unsynced:
            _apply(self.durable, operation)
        self.unsynced = []

    def lose_power(self, rng: random.Random) -> None:
        content = bytearray(self.durable)
        _LOSSES[rng.choice(tuple(_LOSSES))](content, self.unsynced, rng)
        self.content, self.durable, self.unsynced = content, bytearray(content), []


def _lose_all(_content: bytearray, _operations: list[_Write | _Truncate], _rng: random.Random) -> None:
    pass


def _lose_none(content: bytearray, operations: list[_Write | _Truncate], _rng: random.Random) -> None:
    for operation in operations:
        _apply(content, operation)


def _tear(content: bytearray, operations: list[_Write | _Truncate], rng: random.Random) -> None:
    whole = rng.randint(0, len(operations))
    for operation in operations[:whole]:
        _apply(content, operation)
    torn = operations[whole] if whole < len(operations) else None
    if isinstance(torn, _Write):
        _apply(content, _Write(torn.position, torn.data[: rng.randint(0, len(torn.data))]))


def _scatter(content: bytearray, operations: list[_Write | _Truncate], rng: random.Random) -> None:
    share = rng.choice((0.1, 0.5, 0.9))
    for operation in operations:
        if isinstance(operation, _Truncate):
            if rng.random() < share:
                _apply(content, operation)
            continue
        start, end = operation.position, operation.position + len(operation.data)
        while start < end:
            stop = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
            if rng.random() < share:
                piece = operation.data[start - operation.position : stop - operation.position]
                _apply(content, _Write(start, piece))
            start = stop
        if rng.random() < share and len(content) < end:  # the size reached the disk before the data
            _apply(content, _Write(end, b""))


_LOSSES: dict[str, Callable[[bytearray, list[_Write | _Truncate], random.Random], None]] = {
    "all": _lose_all,
    "none": _lose_none,
    "torn": _tear,
    "sectors": _scatter,
}


class _Directory:
    """A directory: its names as programs see them, its names on the disk, and the operations that are not on the disk
    yet. An operation sets names; a name with None is removed."""

    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}
        self.unsynced: list[dict[str, _Inode | _Directory | None]] = []

    def do(self, change: dict[str, _Inode | _Directory | None]) -> None:
        _change(self.entries, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        self.durable, self.unsynced = dict(self.entries), []

    def lose_power(self, rng: random.Random) -> None:
        kept = self.unsynced
        if rng.random() < 0.5:
            kept = kept[: rng.randint(0, len(kept))]
        else:
            share = rng.choice((0.1, 0.5, 0.9))
            kept = [change for change in kept if rng.random() < share]
        for change in kept:
            _change(self.durable, change)
        self.entries, self.unsynced = dict(self.durable), []
        for name in sorted(self.entries):
            self.entries[name].lose_power(rng)


def _change(entries: dict[str, _Inode | _Directory], change: dict[str, _Inode | _Directory | None]) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class SimFile:
    """An open file of `SimFiles`."""

    def __init__(self, files: SimFiles, inode: _Inode, path: Path, on_close: Callable[[], None] | None = None) -> None:
        self._files, self._inode, self._path = files, inode, path
        self._on_close = on_close

    def read(self, position: int, size_bytes: int) -> bytes:
        self._files.called("read", self._path)
        return bytes(self._inode.content[position : position + size_bytes])

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        data = bytes(data)
        try:
            self._files.called("write", self._path)
        except StorageError:
            self._inode.do(_Write(position, data[: self._files.part_of(len(data))]))
            raise
        self._inode.do(_Write(position, data))

    def truncate(self, size_bytes: int) -> None:
        self._files.called("truncate", self._path)
        self._inode.do(_Truncate(size_bytes))

    def sync(self) -> None:
        try:
            self._files.called("sync", self._path)
        except StorageError:
            self._inode.unsynced = []
            raise
        self._inode.sync()

    def size(self) -> int:
        self._files.called("size", self._path)
        return len(self._inode.content)

    def is_cached(self, position: int, size_bytes: int) -> bool:
        return True

    def fileno(self) -> int:
        raise io.UnsupportedOperation(f"{self._path} has no descriptor")

    def identity(self) -> FileIdentity:
        return FileIdentity(0, id(self._inode))

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


class _SimDirectory(SimFile):
    """An open directory."""

    def __init__(self, files: SimFiles, directory: _Directory, path: Path) -> None:
        super().__init__(files, _Inode(), path)
        self._directory = directory

    def sync(self) -> None:
        self._files.called("sync directory", self._path)
        self._directory.sync()

    def identity(self) -> FileIdentity:
        return FileIdentity(0, id(self._directory))


class SimFiles:
    """A file system in memory with power cuts. Only one thread at a time may use it."""

    def __init__(self, *, cut_at: int | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        """Operation and path of each call since the last start. Calls that only read (`_LOOKS`) are not listed."""
        self.cut_at = cut_at
        """Index in `calls` of the call before which the power goes off; None: it stays on."""
        self.is_off = False
        self.fault: Callable[[str, Path], int] = lambda _operation, _path: 0
        """Function that returns the errno with which a call (operation, path) fails; 0: the call succeeds."""
        self.part_of: Callable[[int], int] = lambda size_bytes: size_bytes // 2
        """Function that returns the number of bytes that a failing write of the given size still writes."""
        self.now_s: Callable[[], float] = lambda: 0.0
        self._root = _Directory()
        self._locked: set[Path] = set()
        self._boots = 0

    def called(self, operation: str, path: Path) -> None:
        """Record a call before it is carried out. Raises PowerCut if the power is off or goes off now, and the
        StorageError of a `fault`."""
        if operation not in _LOOKS:
            if self.cut_at is not None and len(self.calls) >= self.cut_at:
                self.is_off = True
            elif not self.is_off:
                self.calls.append((operation, str(path)))
        if self.is_off:
            raise PowerCut(f"before {operation} of {path}")
        number = self.fault(operation, path)
        if number:
            error = OSError(number, os.strerror(number))
            raise storage_error(operation, path, error) from error

    def power_cut(self, rng: random.Random, *, cut_at: int | None = None) -> None:
        """Cut the machine's power and switch it on again. `rng` chooses the unsynced data that survive. `cut_at`: the
        new value of the field; calls are counted from 0 again. Open files must not be used afterwards."""
        self._root.lose_power(rng)
        self.kill()
        self._boots += 1
        self.calls, self.cut_at = [], cut_at

    def stop(self) -> None:
        """Stop the process in the middle of its work. This method and every later call raise PowerCut, until `kill` or
        `power_cut`."""
        self.is_off = True
        raise PowerCut("the process ends here")

    def kill(self) -> None:
        """End the process, but not the machine: locks are released, and no data are lost."""
        self._locked.clear()
        self.is_off = False

    # --- FileSystem ---

    def open(self, path: Path, *, create: bool = False) -> File:
        self.called("create" if create and self._find(path) is None else "open", path)
        node = self._find(path)
        if node is None and create:
            node = _Inode()
            self._parent(path).do({path.name: node})
        if not isinstance(node, _Inode):
            raise StorageError(f"cannot open {path}: the file does not exist")
        return SimFile(self, node, path)

    def list_directory(self, path: Path) -> list[str]:
        self.called("list", path)
        return sorted(self._directory(path).entries)

    def make_directory(self, path: Path) -> None:
        for directory in reversed((path, *path.parents[:-1])):
            node = self._find(directory)
            if isinstance(node, _Inode):
                raise StorageError(f"cannot create directory {path}: {directory} is a file")
            if node is None:
                self.called("make directory", directory)
                self._parent(directory).do({directory.name: _Directory()})
                self.sync_directory(directory.parent)

    def make_directories(self, directories: Mapping[Path, Mapping[str, bytes]]) -> None:
        for path, contents in directories.items():
            self.called("make directory", path)
            self._parent(path).do({path.name: _Directory()})
            for name, data in contents.items():
                write_whole(self, path / name, data)
        for path, contents in directories.items():
            for name in contents:
                sync_whole(self, path / name)
            self.sync_directory(path)
        for parent in {path.parent for path in directories}:
            self.sync_directory(parent)

    def rename(self, source: Path, target: Path) -> None:
        self.called("rename", source)
        node = self._find(source)
        if node is None:
            raise StorageError(f"cannot rename {source} to {target}: the file does not exist")
        replaced = self._find(target)
        if isinstance(replaced, _Directory) and (isinstance(node, _Inode) or replaced.entries):
            raise StorageError(f"cannot rename {source} to {target}: the target is a directory")
        parents = self._parent(source), self._parent(target)
        if parents[0] is parents[1]:
            parents[0].do({source.name: None, target.name: node})
        else:
            parents[1].do({target.name: node})
            parents[0].do({source.name: None})

    def remove(self, path: Path) -> None:
        node = self._find(path)
        if isinstance(node, _Directory):
            raise StorageError(f"cannot remove {path}: it is a directory")
        if node is not None:
            self.called("remove", path)
            self._parent(path).do({path.name: None})

    def remove_tree(self, path: Path) -> None:
        for name, node in list(self._directory(path).entries.items()):
            if isinstance(node, _Directory):
                self.remove_tree(path / name)
            else:
                self.remove(path / name)
        self.called("remove", path)
        self._parent(path).do({path.name: None})

    def exists(self, path: Path) -> bool:
        self.called("exists", path)
        return self._find(path) is not None

    def is_directory(self, path: Path) -> bool:
        self.called("exists", path)
        return isinstance(self._find(path), _Directory)

    def write_atomic(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        file = self.open(temporary, create=True)
        file.truncate(0)
        file.write(0, data)
        file.sync()
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        self.called("sync directory", path)
        self._directory(path).sync()

    def lock(self, path: Path) -> File | None:
        file = self.open(path, create=True)
        if path in self._locked:
            return None
        self._locked.add(path)
        assert isinstance(file, SimFile)
        return SimFile(self, file._inode, path, on_close=lambda: self._locked.discard(path))

    def open_directory(self, path: Path) -> File:
        self.called("open", path)
        return _SimDirectory(self, self._directory(path), path)

    def check_in_place(self, path: Path, identity: FileIdentity) -> None:
        self.called("exists", path)
        node = self._find(path)
        if node is None or FileIdentity(0, id(node)) != identity:
            raise StorageError(f"{path} is missing, or another directory than before")

    def monotonic_s(self) -> float:
        return self.now_s()

    def space(self, path: Path) -> tuple[int, int]:
        self._directory(path)
        try:
            self.called("space", path)
        except StorageFullError:
            return DISK_BYTES, 0
        return DISK_BYTES, DISK_BYTES // 2

    def boot_id(self) -> str:
        return f"boot {self._boots}"

    # --- nodes ---

    def _find(self, path: Path) -> _Inode | _Directory | None:
        node: _Inode | _Directory | None = self._root
        for name in path.parts[1:]:
            if not isinstance(node, _Directory):
                return None
            node = node.entries.get(name)
        return node

    def _directory(self, path: Path) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise StorageError(f"cannot use {path}: the directory does not exist")
        return node

    def _parent(self, path: Path) -> _Directory:
        return self._directory(path.parent)


_LOOKS = frozenset({"read", "size", "list", "exists", "open"})
