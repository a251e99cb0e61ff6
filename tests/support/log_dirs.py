"""Four partitions in several log directories, and a disk that is full."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparklog.environment.files import RealFiles
from sparklog.errors import StorageFullError
from sparklog.log.housekeeping.log_manager import LogManager
from tests.support.log_managers import spec

FOUR = [spec(partition=p) for p in range(4)]
TPS = [s.owner.topic_partition for s in FOUR]


def started(root: Path, names: str = "ab", specs: list[object] | None = None, **more: Any) -> LogManager:
    manager = LogManager(root / "data", log_dirs=[root / n for n in names], **more)
    manager.load("c1", FOUR if specs is None else specs)  # type: ignore[arg-type]
    for log in manager.table.logs.values():
        log.raise_high_watermark(log.log_end_offset)
    return manager


def places(root: Path) -> dict[str, list[str]]:
    """Partition directories by log directory."""
    return {
        d.name: sorted(p.name for p in d.iterdir() if p.is_dir())
        for d in sorted(root.iterdir())
        if d.is_dir() and d.name != "data"
    }


class FullFiles(RealFiles):
    """A full disk below `full`."""

    full: Path | None = None

    def write_atomic(self, path: Path, data: bytes) -> None:
        if self.full is not None and self.full in path.parents:
            raise StorageFullError(f"the disk is full: cannot write {path}")
        super().write_atomic(path, data)

    def make_directories(self, directories: Mapping[Path, Mapping[str, bytes]]) -> None:
        if self.full is not None and any(self.full in path.parents for path in directories):
            first = next(iter(directories))
            super().make_directories({first: directories[first]})
            raise StorageFullError(f"the disk is full: cannot write {first}")
        super().make_directories(directories)
