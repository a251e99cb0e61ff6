"""Common parts of the tiering tests: a store in memory, one that fails, and a log with tiny segments."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparklog.environment.files import FileSystem
from sparklog.errors import RemoteStorageError
from sparklog.log.housekeeping.retention_run import run_retention
from sparklog.log.housekeeping.tier_run import Role, TierResult, tier_log
from sparklog.log.model.log_config import LogConfig
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.log.tiering.read_cache import ReadCache
from sparklog.log.tiering.remote_segment import RemoteAccess
from sparklog.log.tiering.state import ObjectInfo
from tests.support.logs import OWNER, SCHEMAS, LimitedFiles, ManualClock, append, records

SETTINGS: dict[str, Any] = {
    "segment.bytes": 1 << 20,
    "index.interval.bytes": 1,
    "retention.ms": -1,
    "remote.storage.enable": True,
    "local.retention.bytes": 0,
    "file.delete.delay.ms": 0,
}


def memory_store() -> ObjectStore:
    """A store of its own in this process's memory."""
    return ObjectStore(f"memory://tier-{uuid.uuid4().hex}")


def stored_names(store: ObjectStore) -> list[str]:
    """Paths of all objects below the store's root."""
    found = store.file_system.find(store.path(""))
    return sorted(str(p).removeprefix(store.path("")) for p in found)


class FailingStore(ObjectStore):
    """A store that fails or tears the operations that `fails` picks; `flips` changes a byte of the read data."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.fails: Callable[[str, str], bool] = lambda what, key: False
        self.tears: Callable[[str], bool] = lambda key: False
        self.flips: Callable[[str], bool] = lambda key: False
        self.calls: list[tuple[str, str]] = []
        self.read_bytes = 0

    @contextmanager
    def failing_after(self, calls: int) -> Iterator[None]:
        """Let this number of calls succeed, and the later ones fail; the error is caught."""
        left, before = calls, self.fails

        def fails(what: str, key: str) -> bool:
            nonlocal left
            left -= 1
            return left < 0

        self.fails = fails
        try:
            yield
        except RemoteStorageError:
            pass
        finally:
            self.fails = before

    def _check(self, what: str, key: str) -> None:
        self.calls.append((what, key))
        if self.fails(what, key):
            raise RemoteStorageError(f"{what} {key}: told to fail")

    def write(self, key: str, parts: Iterable[bytes]) -> ObjectInfo:
        self._check("write", key)
        if self.tears(key):
            data = b"".join(parts)
            super().write(key, [data[: len(data) // 2]])
            raise RemoteStorageError(f"write {key}: torn")
        return super().write(key, parts)

    def read(self, key: str, info: ObjectInfo) -> bytes:
        self._check("read", key)
        return super().read(key, info)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self._check("read_ranges", key)
        parts = super().read_ranges(key, ranges)
        self.read_bytes += sum(map(len, parts))
        return [flipped(p) for p in parts] if self.flips(key) else parts

    def remove(self, prefix: str, names: Iterable[str]) -> None:
        names = list(names)
        for name in names:
            self._check("remove", f"{prefix}/{name}")
            super().remove(prefix, [name])


def flipped(data: bytes) -> bytes:
    """`data` with one bit changed in its middle."""
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 4
    return bytes(changed)


class Tiered:
    """A log with tiny segments, its store and its read cache; can be opened again."""

    def __init__(
        self,
        directory: Path,
        store: ObjectStore | None = None,
        *,
        settings: dict[str, Any] | None = None,
        cache_bytes: int = 1 << 30,
        files: FileSystem | None = None,
    ) -> None:
        self.directory = directory
        self.store = store or memory_store()
        self.clock = ManualClock()
        self.settings = SETTINGS | (settings or {})
        self.files = files or LimitedFiles()
        self.cache = ReadCache(directory / "cache", cache_bytes)
        self.points: dict[str, Any] = {}
        self.log = self.open()

    def open(self, *, clean: bool = True) -> PartitionLog:
        self.log = PartitionLog.open(
            self.directory / OWNER.directory_name,
            OWNER,
            LogConfig.from_settings(self.settings),
            SCHEMAS.__getitem__,
            files=self.files,
            clock=self.clock,
            clean=clean,
            remote=RemoteAccess(self.store, self.cache),
            **self.points,
        )
        self.log.raise_high_watermark(self.log.log_end_offset)
        return self.log

    def checkpoint(self) -> None:
        self.points = {
            "log_start_offset": self.log.log_start_offset,
            "high_watermark": self.log.high_watermark,
            "recovery_point": self.log.recovery_point,
        }

    def reopen(self) -> PartitionLog:
        """After a clean stop."""
        self.log.close()
        self.checkpoint()
        return self.open()

    def crash(self) -> PartitionLog:
        """As a killed process leaves it: nothing is sealed or closed in order."""
        self.log.close(seal=False)
        return self.open(clean=False)

    def fill(self, segments: int, *, per_segment: int = 5) -> None:
        """`segments` sealed ones, each with a batch per record, and one record in the active one."""
        for _ in range(segments):
            for _ in range(per_segment):
                append(self.log, records(1, first_ms=self.log.log_end_offset, value=b"%d" % self.log.log_end_offset))
            self.log.appender.roll()
        append(self.log, records(1, first_ms=self.log.log_end_offset, value=b"%d" % self.log.log_end_offset))
        self.log.flusher.flush()

    def tier(self) -> TierResult:
        result = tier_log(self.log, self.store, self.clock, Role.LEADER)
        self.log.retention.remove_dropped()
        return result

    def retain(self) -> None:
        run_retention({OWNER.topic_partition: self.log}, self.checkpoint)
        self.clock.time_ms += 1
        self.log.retention.remove_dropped()

    def local_files(self) -> list[str]:
        return sorted(p.name for p in self.log.directory.glob("*.arrow"))
