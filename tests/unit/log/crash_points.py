"""A file system that keeps a copy of a directory as a crash would leave it, at every call that changes something."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from sparklog.environment.files import File, RealFiles

T = TypeVar("T")


class CrashPoints(RealFiles, Generic[T]):
    """Copies of `watched` before every changing call, in the middle of every write, and at the end (`stop`).

    `points`: the copies, each with the operation and the value of `state` at that moment.
    """

    def __init__(self, watched: Path, copies: Path, state: Callable[[], T]) -> None:
        self._watched, self._copies, self._state = watched, copies, state
        self.points: list[tuple[Path, str, T]] = []
        self.recording = False

    def note(self, what: str) -> None:
        if self.recording:
            copy = self._copies / f"{len(self.points):03}"
            shutil.copytree(self._watched, copy)
            self.points.append((copy, what, self._state()))

    def stop(self) -> None:
        self.note("the end")
        self.recording = False

    def open(self, path: Path, *, create: bool = False) -> File:
        if create and not path.exists():
            self.note(f"create {path.name}")
        return _WatchedFile(super().open(path, create=create), path, self)  # type: ignore[return-value]

    def rename(self, source: Path, target: Path) -> None:
        self.note(f"rename {source.name} to {target.name}")
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        if path.exists():
            self.note(f"remove {path.name}")
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        """Not done: a crash of the process loses nothing that was written."""


class _WatchedFile:
    def __init__(self, inner: File, path: Path, points: CrashPoints[T]) -> None:
        self._inner, self._path, self._points = inner, path, points

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._points.note(f"write {self._path.name}")
        half = len(data) // 2
        self._inner.write(position, memoryview(data)[:half])
        self._points.note(f"half of write {self._path.name}")
        self._inner.write(position + half, memoryview(data)[half:])

    def truncate(self, size_bytes: int) -> None:
        if self._inner.size() != size_bytes:
            self._points.note(f"truncate {self._path.name}")
        self._inner.truncate(size_bytes)

    def sync(self) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)
