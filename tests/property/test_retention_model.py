"""Retention and delete-records compared with a list: no retained record is lost, all of them are readable, no offset is
used twice, over clean stops, crashes and lost checkpoints."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sparklog.errors import OffsetOutOfRangeError
from sparklog.log.housekeeping.retention_run import run_retention
from sparklog.log.model.log_config import LogConfig
from sparklog.log.partition_log import PartitionLog
from sparklog.types import TopicPartition
from tests.support.logs import LimitedFiles, ManualClock, batch, open_log, segment_files, values

TP = TopicPartition("events", 0)
START_MS = 1_000_000
POLICY = st.fixed_dictionaries(
    {
        "retention.ms": st.sampled_from([-1, -1, 0, 500, 2_000]),
        "retention.bytes": st.sampled_from([-1, -1, 0, 3_000, 9_000]),
        "cleanup.policy": st.sampled_from(["delete", "delete", "compact,delete"]),
        "file.delete.delay.ms": st.sampled_from([0, 300]),
        "segment.bytes": st.sampled_from([4096, 1 << 20]),
    }
)


class RetentionModel(RuleBasedStateMachine):
    """`model`: (timestamp, value) per offset, from 0; `start`: the log start; `written`: the one of the checkpoint."""

    log: PartitionLog

    @initialize(policy=POLICY)
    def begin(self, policy: dict[str, Any]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="retention-model-"))
        self.policy = policy
        self.model: list[tuple[int, bytes]] = []
        self.start = self.written = 0
        self.files, self.clock = LimitedFiles(), ManualClock(START_MS)
        self.open(clean=True)

    def open(self, *, clean: bool, checkpoint: bool = True) -> None:
        offsets: dict[str, Any] = (
            {"log_start_offset": self.written, "high_watermark": self.written} if checkpoint else {}
        )
        self.log = open_log(self.directory, self.policy, files=self.files, clock=self.clock, clean=clean, **offsets)

    def write_checkpoint(self) -> None:
        self.written = self.log.log_start_offset

    @rule(ages=st.lists(st.integers(-100, 3_000), min_size=1, max_size=4), size=st.integers(0, 2_000))
    def append(self, ages: list[int], size: int) -> None:
        times = [self.clock.time_ms - age for age in ages]
        value = b"%d." % len(self.model) + b"." * size
        info = self.log.appender.append(batch(times, value=value))
        assert info.base_offset == len(self.model)
        self.model += [(t, value) for t in times]
        self.log.raise_high_watermark(self.log.log_end_offset)

    @rule()
    def roll(self) -> None:
        self.log.appender.roll()

    @rule(step_ms=st.sampled_from([1, 250, 1_000]))
    def time_passes(self, step_ms: int) -> None:
        self.clock.time_ms += step_ms

    @rule(policy=POLICY)
    def alter(self, policy: dict[str, Any]) -> None:
        self.policy = policy
        self.log.reconfigure(LogConfig.from_settings(policy))

    @rule(share=st.floats(0, 1), written=st.booleans())
    def delete_records(self, share: float, written: bool) -> None:
        offset = int(share * len(self.model))
        self.start = max(self.start, offset)
        assert self.log.retention.delete_records(offset) == self.start
        if written:
            self.write_checkpoint()

    @rule()
    def retain(self) -> None:
        run_retention({TP: self.log}, self.write_checkpoint)
        start, found = self.log.log_start_offset, self.log.size_bytes
        gone = self.model[self.start : start]
        retention_ms, retention_bytes = self.policy["retention.ms"], self.policy["retention.bytes"]
        assert isinstance(retention_ms, int)
        assert isinstance(retention_bytes, int)
        too_old = retention_ms >= 0 and all(self.clock.time_ms - t > retention_ms for t, _ in gone)
        too_much = 0 <= retention_bytes <= found
        assert not gone or too_old or too_much or (retention_ms >= 0 and retention_bytes >= 0)
        assert self.written == start or not gone
        self.start = start

    @rule(checkpoint=st.booleans())
    def restart(self, checkpoint: bool) -> None:
        """The checkpoint of a clean stop may be lost afterwards: then the log starts with its first file."""
        self.log.close()
        assert all(p.read_bytes().endswith(b"ARROW1") for p in segment_files(self.directory))
        self.write_checkpoint()
        self.open(clean=True, checkpoint=checkpoint)
        assert self.log.log_start_offset == self.start or not checkpoint
        self.settle()

    @rule(checkpoint=st.booleans())
    def crash(self, checkpoint: bool) -> None:
        before = self.written
        self.open(clean=False, checkpoint=checkpoint)
        assert self.log.log_start_offset >= before or not checkpoint
        self.settle()

    def settle(self) -> None:
        assert self.log.log_start_offset <= self.start, "nothing is lost by a start"
        self.start = self.log.log_start_offset
        self.write_checkpoint()

    @invariant()
    def what_is_kept_is_there(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, len(self.model))
        found = [(o, v) for o, v in values(self.log) if o >= self.start]
        assert found == [(o, self.model[o][1]) for o in range(self.start, len(self.model))]
        if self.start:
            try:
                self.log.reader.read(self.start - 1, 1 << 20)
            except OffsetOutOfRangeError:
                pass
            else:
                raise AssertionError("a deleted record was read")

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.directory)


RetentionModel.TestCase.settings = settings(
    settings(), stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestRetentionModel = RetentionModel.TestCase
