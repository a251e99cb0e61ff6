"""Changes of topics' files survive crashes."""

from __future__ import annotations

import random
from pathlib import Path

from sparklog_broker.partitions.topic_directories import TopicDirectories

from sparklog.log.housekeeping.log_manager import LogManager, PartitionSpec
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.testing._sim_files import SimFiles
from sparklog.types import TopicPartition
from tests.support.logs import SCHEMAS, append, records

E0 = TopicPartition("events", 0)
DATA = Path("/data")


def started(files: SimFiles) -> LogManager:
    owner = LogOwner("events", "0" * 32, 0, "timestamp")
    manager = LogManager(DATA, files=files)
    manager.load("c1", [PartitionSpec(owner, LogConfig.from_settings({}), SCHEMAS.__getitem__)])
    return manager


def test_a_power_cut_after_a_deletion_leaves_a_log_that_begins_where_it_was_said() -> None:
    """Also if the deleted records had not reached the disk: half of their segment would look like damage."""
    for seed in range(40):
        files = SimFiles()
        manager = started(files)
        log = manager.get(E0)
        append(log, records(3))
        log.raise_high_watermark(3)
        assert TopicDirectories(manager).delete_records([(log, -1)]) == [3]
        assert log.durable_log_start_offset == 3
        files.power_cut(random.Random(seed))
        after = started(files)
        assert not after.offline
        assert after.get(E0).log_start_offset == 3
        files.kill()
