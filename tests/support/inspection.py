"""Directories of brokers to be verified, and ways to damage them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from sparklog.environment.files import RealFiles
from sparklog.format.segment import decode_seal
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.tools.verify import verify
from sparklog.types import TopicPartition
from tests.support.logs import SCHEMAS, append, batch

SETTINGS = {"segment.bytes": 16_384, "index.interval.bytes": 1}
E0, E1 = TopicPartition("events", 0), TopicPartition("events", 1)


def specs() -> list[PartitionSpec]:
    config = LogConfig.from_settings(SETTINGS)
    return [PartitionSpec(LogOwner("events", "e" * 32, p, "timestamp"), config, SCHEMAS.__getitem__) for p in range(2)]


class QuickFiles(RealFiles):
    """Without fsync: these tests end no machine."""

    def sync_directory(self, path: Path) -> None:
        pass


def started(data_dir: Path) -> LogManager:
    manager = LogManager(data_dir, files=QuickFiles())
    manager.load("c1", specs())
    for log in manager.table.logs.values():
        log.raise_high_watermark(log.log_end_offset)
    return manager


def fill(manager: LogManager, count: int = 30) -> None:
    for i in range(count):
        for log in manager.table.logs.values():
            append(log, batch([100 * ((i * 7) % 13), 100 * i], value=b"x" * 700))


def segments(data_dir: Path, partition: int = 0) -> list[Path]:
    return sorted((data_dir / f"events-{partition}").glob("*.arrow"))


def found(path: Path) -> list[tuple[str, int, str]]:
    """(file name, position, kind) of all damage."""
    return [(Path(f.path).name, f.position, f.kind) for f in verify([path]).damage]


def flip(path: Path, position: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(data)


def cut(path: Path, size_bytes: int) -> None:
    os.truncate(path, size_bytes)


def blocks(path: Path) -> list[int]:
    """Return the positions of a sealed segment's batches."""
    with path.open("rb") as file:
        seal = decode_seal(lambda p, n: os.pread(file.fileno(), n, p), path.stat().st_size)
    assert seal is not None
    return [*seal.positions.tolist(), seal.data_end]


def stopped_directory(path: Path) -> Path:
    """Two partitions of several segments, cleanly stopped."""
    manager = started(path)
    fill(manager)
    assert manager.close()
    assert len(segments(path)) > 3
    return path


def points(data_dir: Path, change: Callable[[dict[str, int]], None], name: str = "events-1") -> None:
    path = data_dir / "recovery-points.json"
    content = json.loads(path.read_bytes())
    change(content["partitions"][name])
    path.write_text(json.dumps(content, indent=2))
