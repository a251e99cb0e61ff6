"""A replica's log as replication sees it: records with epochs, the part on the disk, and marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparklog.log.state.leader_epochs import LeaderEpochs


class SimRecord(NamedTuple):
    """A record. `value` is unique in a run."""

    epoch: int
    value: int


class SimLog:
    """A log that keeps its flushed records in a crash. `flush_each` is `flush.mode=group`."""

    def __init__(self, *, flush_each: bool) -> None:
        self._flush_each = flush_each
        self.records: list[SimRecord] = []
        self.log_start_offset = 0
        self.epochs = LeaderEpochs()
        self.high_watermark = 0
        self.checkpointed_high_watermark = 0
        self.flushed_end = 0

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Return no gaps: nothing is damaged or repaired."""
        return ()

    @property
    def durable_end_offset(self) -> int:
        return self.flushed_end if self._flush_each else self.log_end_offset

    def read(self, offset: int, end: int) -> list[SimRecord]:
        return self.records[offset - self.log_start_offset : end - self.log_start_offset]

    def at(self, offset: int) -> SimRecord | None:
        i = offset - self.log_start_offset
        return self.records[i] if 0 <= i < len(self.records) else None

    def append(self, records: Sequence[SimRecord]) -> None:
        for record in records:
            self.epochs.assign(record.epoch, self.log_end_offset)
            self.records.append(record)

    def flush(self) -> None:
        self.flushed_end = self.log_end_offset

    def truncate_to(self, offset: int) -> None:
        del self.records[max(0, offset - self.log_start_offset) :]
        self.epochs.truncate_from_end(offset)
        self.flushed_end = min(self.flushed_end, self.log_end_offset)

    def restart_at(self, offset: int) -> None:
        self.records.clear()
        self.log_start_offset = self.flushed_end = offset
        self.epochs = LeaderEpochs()

    def checkpoint(self) -> None:
        self.checkpointed_high_watermark = self.high_watermark

    def crash(self, choose: Callable[[int], int], *, loses: bool) -> None:
        """Lose a random part of the unflushed records if `loses`, and always the marks after the last checkpoint."""
        unflushed = self.log_end_offset - self.flushed_end
        if loses and unflushed:
            self.truncate_to(self.flushed_end + choose(unflushed + 1))
        self.high_watermark = min(self.checkpointed_high_watermark, self.log_end_offset)
