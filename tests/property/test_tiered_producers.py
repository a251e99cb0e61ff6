"""Producers and transactions of a tiered log against a replay of everything that was ever in it, over clean stops,
kills, power cuts, truncations, retention and deletions: what a log knows of a producer is true, or nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from sparklog.format.batch import ATTRIBUTE_CONTROL, BatchHeader
from sparklog.log.model import ProducerInfo
from sparklog.log.producers.partition_producers import PartitionProducers
from sparklog.log.producers.transactions import AbortedRanges, AbortedTransaction
from tests.property.tiering_machine import TieringModel
from tests.unit.log.producer_support import produced

IDEMPOTENT = st.integers(1, 3)
TRANSACTIONAL = st.integers(11, 13)
SIZES = st.sampled_from([1, 1, 600, 1_800])


class TieredProducers(TieringModel):
    """`headers`: of every batch and marker of the log, from offset 0 on."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: list[BatchHeader] = []

    def enter(self) -> None:
        """What has been appended last."""
        end = len(self.model)
        active = self.log.local_segments[-1]
        found = [h for _, h in active.headers_from(None) if h.base_offset >= end]
        self.headers += found
        self.model += [b""] * (found[-1].next_offset - end)
        self.log.raise_high_watermark(self.log.log_end_offset)

    def truth(self, start_offset: int = 0) -> PartitionProducers:
        """What the batches from `start_offset` on say."""
        producers = PartitionProducers()
        producers.apply((h for h in self.headers if h.base_offset >= start_offset), len(self.model))
        producers.open.on_high_watermark(len(self.model))
        return producers

    def info(self, producer_id: int) -> ProducerInfo:
        known = {i.producer_id: i for i in self.truth().infos()}
        return known.get(producer_id, ProducerInfo(producer_id, 0, -1, -1, -1, -1))

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
        """Not into what is only in the store: producers are not known there then."""
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
        """Whether the run has begun. What the log has lost is forgotten."""
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
        if not self.is_open():
            return
        true = {i.producer_id: i for i in self.truth().infos()}
        kept = {i.producer_id: i for i in self.truth(self.start).infos()}
        known = {i.producer_id: i for i in self.log.producers()}
        assert kept.keys() <= known.keys() <= true.keys(), (kept, known, true)
        for producer_id, info in known.items():
            sure = kept.get(producer_id)
            assert info.producer_epoch == true[producer_id].producer_epoch
            assert info.last_sequence in (true[producer_id].last_sequence, sure.last_sequence if sure else None)
            first, least = info.transaction_first_offset, true[producer_id].transaction_first_offset
            if first != least:  # what it began with had been deleted when this was read from the log
                latest = sure.transaction_first_offset if sure else -1
                mine = {h.base_offset for h in self.headers if h.producer_id == producer_id and h.base_offset > least}
                assert least >= 0 and (first == latest or (first in mine and (latest < 0 or first < latest)))

    @invariant()
    def readers_of_committed_records_see_what_is_decided(self) -> None:
        if not self.is_open():
            return
        ends = [t.open.first_unstable_offset for t in (self.truth(), self.truth(self.start))]
        low, high = (len(self.model) if end is None else max(end, self.start) for end in ends)
        assert low <= self.log.last_stable_offset <= high
        told = AbortedRanges(self.log.aborted_transactions(self.start, len(self.model)))
        true = AbortedRanges(AbortedTransaction(*entry[:3]) for entry in self.truth().aborted.entries())
        for header in self.headers:
            if header.base_offset >= self.start and not header.attributes & ATTRIBUTE_CONTROL:
                assert told.covers(header) == true.covers(header), header


TieredProducers.TestCase.settings = settings(
    settings(), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestTieredProducers = TieredProducers.TestCase
