"""A data directory of few partitions: started, and ended as kill -9 does."""

from __future__ import annotations

from pathlib import Path

from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.types import TopicPartition
from tests.support.logs import SCHEMAS, LimitedFiles

IDS = {"events": "e" * 32, "other": "f" * 32}


def spec(topic: str = "events", partition: int = 0, topic_id: str | None = None) -> PartitionSpec:
    owner = LogOwner(topic, topic_id or IDS.get(topic, "a" * 32), partition, "timestamp")
    return PartitionSpec(owner, LogConfig.from_settings({}), SCHEMAS.__getitem__)


def started(data_dir: Path, *specs: PartitionSpec, files: LimitedFiles | None = None) -> LogManager:
    manager = LogManager(data_dir, files=files)
    manager.load("c1", specs or [spec(), spec(partition=1)])
    for log in manager.table.logs.values():
        log.raise_high_watermark(log.log_end_offset)
    return manager


def kill(manager: LogManager) -> None:
    """Ends it as kill -9 does: nothing is written, the lock is gone."""
    manager.directories.unlock()


E0, E1 = TopicPartition("events", 0), TopicPartition("events", 1)
