"""Producers and transactions of a tiered log compared with a replay of everything that was ever in it, over clean
stops, kills, power cuts, truncations, retention and deletions: a log's knowledge of a producer is true, or empty."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from sparklog.format.batch import BatchHeader
from sparklog.log.model.log_config import ProducerInfo
from tests.property.producer_truth import (
    IDEMPOTENT,
    SIZES,
    TRANSACTIONAL,
    check_committed,
    check_known,
    info_of,
    new_headers,
)
from tests.property.tiering_machine import TieringModel
from tests.support.producers import produced


class TieredProducers(TieringModel):
    """`headers`: of every batch and marker of the log, from offset 0 on."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: list[BatchHeader] = []

    def enter(self) -> None:
        """Enter the last appended batch."""
        found = new_headers(self.log, len(self.model))
        self.headers += found
        self.model += [b""] * (found[-1].next_offset - len(self.model))
        self.log.raise_high_watermark(self.log.log_end_offset)

    def info(self, producer_id: int) -> ProducerInfo:
        return info_of(self.headers, producer_id)

    @rule(producer_id=IDEMPOTENT, rows=st.integers(1, 3), size=SIZES)
    def produce(self, producer_id: int, rows: int, size: int) -> None:
        sequence = self.info(producer_id).last_sequence + 1
        payload = produced(producer_id, sequence, rows=rows, value=b"." * size)
        assert not self.log.appender.append(payload).duplicate
        self.enter()

    @rule(producer_id=TRANSACTIONAL, size=SIZES)
    def produce_in_transaction(self, producer_id: int, size: int) -> None:
        info = self.info(producer_id)
        guard = self.log.appender.begin_verification(producer_id, info.producer_epoch)
        sequence = info.last_sequence + 1 if info.last_sequence >= 0 else 0
        payload = produced(producer_id, sequence, epoch=info.producer_epoch, transactional=True, value=b"." * size)
        assert not self.log.appender.append(payload, guard=guard).duplicate
        self.enter()

    @rule(producer_id=TRANSACTIONAL, commit=st.booleans())
    def end_transaction(self, producer_id: int, commit: bool) -> None:
        info = self.info(producer_id)
        if info.transaction_first_offset >= 0:
            self.log.appender.append_marker(producer_id, info.producer_epoch + 1, 0, commit=commit)
            self.enter()

    def append(self, count: int, size: int) -> None:
        self.log.appender.append(produced(-1, -1, epoch=-1, rows=count, value=b"." * size))
        self.enter()

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        """Truncate, but not into the part that is only in the store: producers are unknown there then."""
        least = max(self.log.local_log_start_offset, self.log.tier.state.copied_to)
        end = self.log.truncation.truncate_to(least + int(share * (len(self.model) - least)))
        self.model = self.model[:end]
        self.start = self.log.log_start_offset
        self.log.raise_high_watermark(end)

    def may_lose_power(self, cut_in: int | None, job: Any) -> None:
        """The batches in the active segment may go; more would need a repair, after which a part is not known."""
        self.log.flusher.flush(active=job != self.round)
        super().may_lose_power(cut_in, job)

    @rule()
    def kill(self) -> None:
        self.files.kill()
        self.open(clean=False)
        assert self.log.log_end_offset == len(self.model)
        self.start = self.log.log_start_offset

    def is_open(self) -> bool:
        """Return True if the run has begun. Lost entries are forgotten."""
        if not hasattr(self, "log"):
            return False
        self.headers = [h for h in self.headers if h.next_offset <= len(self.model)]
        return True

    @invariant()
    def what_is_kept_is_there_once(self) -> None:
        """Offsets alone: values are looked at elsewhere."""
        if self.is_open():
            assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, len(self.model))

    @invariant()
    def what_is_known_of_producers_is_true(self) -> None:
        if self.is_open():
            check_known(self.log, self.headers)
            check_committed(self.log, self.headers)


TieredProducers.TestCase.settings = settings(
    settings(), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestTieredProducers = TieredProducers.TestCase
