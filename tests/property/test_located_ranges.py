"""File ranges that a reader has got keep their bytes, for any later change of the log.

No file becomes shorter than the part that may be mapped (its reader would die of SIGBUS), nothing in it is overwritten,
and no range goes beyond the high watermark.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from sparklog.format.batch import iterate_batches
from sparklog.log.model.log_config import LogConfig
from sparklog.log.partition_log import PartitionLog
from tests.support.logs import OWNER, SCHEMAS, LimitedFiles, ManualClock, batch

HELD_MAX = 60
STEPS = 80
STEPS_BY_WEIGHT = (
    ["append"] * 4 + ["commit"] * 4 + ["locate"] * 4 + ["cut"] * 3 + ["restart"] * 2 + ["delete", "start_again"]
)


class Replica:
    """It leads and follows in turn. `held`: an open file, where a range of it begins and ends, and the range's
    bytes."""

    log: PartitionLog

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory = directory
        self.chance = chance
        settings = {"segment.bytes": chance.choice([4096, 16_384]), "file.delete.delay.ms": 0}
        self.config = LogConfig.from_settings(settings)
        self.held: list[tuple[int, int, int, bytes]] = []
        self.cuts = 0
        self.written = 0
        self.epoch = 0
        self.open_it(True, 0, 0)

    def open_it(self, clean: bool, log_start: int, high_watermark: int) -> None:
        self.log = PartitionLog.open(
            self.directory / OWNER.directory_name,
            OWNER,
            self.config,
            SCHEMAS.__getitem__,
            files=LimitedFiles(),
            clock=ManualClock(),
            clean=clean,
            log_start_offset=log_start,
            high_watermark=high_watermark,
        )

    def append(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            self.written += 1
            value = b"%06d" % self.written * self.chance.choice([1, 100])
            rows = batch(range(self.chance.randint(1, 4)), value=value)
            self.log.appender.append(rows, leader_epoch=self.epoch)

    def commit(self) -> None:
        self.log.raise_high_watermark(self.chance.randint(self.log.high_watermark, self.log.log_end_offset))

    def cut(self) -> None:
        """Another leads, and has less: also below the high watermark, as after an unclean election."""
        self.epoch += 1
        self.cuts += 1
        least = max(self.log.log_start_offset, self.log.log_end_offset - 10)
        self.log.truncation.truncate_to(self.chance.randint(least, self.log.log_end_offset))

    def start_again(self) -> None:
        self.log.truncation.restart_at(self.log.log_end_offset + self.chance.randint(0, 20))

    def delete(self) -> None:
        self.log.retention.follow_log_start(self.chance.randint(self.log.log_start_offset, self.log.high_watermark))

    def restart(self) -> None:
        """The next process knows a high watermark that lags, and appends above it."""
        clean, log = self.chance.random() < 0.5, self.log
        known = self.chance.randint(log.log_start_offset, log.high_watermark)
        if clean:
            log.close()
        self.open_it(clean, log.log_start_offset, known)

    def locate(self) -> None:
        log = self.log
        if len(self.held) >= HELD_MAX or log.log_start_offset >= log.high_watermark:
            return
        for found in log.reader.locate(log.log_start_offset, log.log_end_offset):
            file = os.open(found.path, os.O_RDONLY)
            data = os.pread(file, found.end_position - found.start_position, found.start_position)
            self.held.append((file, found.start_position, found.end_position, data))
            assert all(h.next_offset <= log.high_watermark for _, h in iterate_batches(memoryview(data)))

    def check(self) -> None:
        """Check that the returned ranges still exist."""
        for file, start, end, data in self.held:
            assert os.fstat(file).st_size >= end, "a mapped page is gone: SIGBUS"
            assert os.pread(file, end - start, start) == data

    def close(self) -> None:
        for file, *_ in self.held:
            os.close(file)
        self.log.close()


@pytest.mark.parametrize("seed", range(25))
def test_located_ranges_stay_valid_for_their_reader(tmp_path: Path, seed: int) -> None:
    replica = Replica(tmp_path, random.Random(seed))
    try:
        for _ in range(STEPS):
            getattr(replica, replica.chance.choice(STEPS_BY_WEIGHT))()
            replica.check()
        assert replica.cuts
    finally:
        replica.close()
