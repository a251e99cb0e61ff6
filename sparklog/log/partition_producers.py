"""The producers and transactions of one log together: what they make of every batch and marker that is in it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from sparklog.errors import LogCorruptError
from sparklog.format.batch import ATTRIBUTE_CONTROL, BatchHeader
from sparklog.log.model import ProducerInfo
from sparklog.log.producers import ALL_SAFEGUARDS, ProducerState, ProducerStates, Safeguards
from sparklog.log.segment import LogSegment
from sparklog.log.transactions import AbortedEntry, AbortedTransactions, OpenTransactions

logger = logging.getLogger(__name__)


def encode_states(states: Iterable[ProducerState]) -> bytes:
    """MessagePack: arrays in the order of the fields."""
    return msgspec.msgpack.encode(list(states))


def decode_states(data: bytes) -> list[ProducerState]:
    """The states in `data`; empty bytes: none. Raises LogCorruptError."""
    try:
        return msgspec.msgpack.decode(data, type=list[ProducerState]) if data else []
    except msgspec.DecodeError as e:
        raise LogCorruptError(f"the states of producers cannot be read: {e}") from e


class PartitionProducers:
    """Changed under the log's write lock; `open.first_unstable_offset` and `aborted.between` may be asked at any time."""

    def __init__(self, safeguards: Safeguards = ALL_SAFEGUARDS) -> None:
        self.safeguards = safeguards
        self.states = ProducerStates((), safeguards)
        self.open = OpenTransactions()
        self.aborted = AbortedTransactions()

    def apply(self, headers: Iterable[BatchHeader], high_watermark: int) -> None:
        """Enters batches and markers that are in the log, in its order; the high watermark is not above them yet, unless
        they are replayed."""
        for header in headers:
            if header.producer_id >= 0:
                self._apply(header, high_watermark)

    def _apply(self, header: BatchHeader, high_watermark: int) -> None:
        ended = self.states.apply(header)
        if ended is not None:
            stable = self.open.end(ended, replicated=ended.last_offset < high_watermark)
            if not ended.committed:
                self.aborted.append(AbortedEntry(ended.producer_id, ended.first_offset, ended.last_offset, stable))
        elif not header.attributes & ATTRIBUTE_CONTROL:
            state = self.states.get(header.producer_id)
            if state is not None and state.transaction_first_offset == header.base_offset:
                self.open.begin(header.producer_id, header.base_offset)

    @classmethod
    def replayed(
        cls,
        segments: Sequence[LogSegment],
        high_watermark: int,
        safeguards: Safeguards = ALL_SAFEGUARDS,
        *,
        states: Sequence[ProducerState] = (),
        aborted: Iterable[AbortedEntry] = (),
    ) -> PartitionProducers:
        """What the headers of all batches say, except those behind damage in a segment: what is missing there can keep a
        transaction open, never end one. `states` and `aborted` are known of what lies before. Raises StorageError."""
        producers = cls(safeguards)
        producers.states = ProducerStates(states, safeguards)
        producers.aborted = AbortedTransactions(aborted)
        for first_offset, producer_id in sorted((s.transaction_first_offset, s.producer_id) for s in states):
            if first_offset >= 0:
                producers.open.begin(producer_id, first_offset)
        for segment in segments:
            try:
                producers.apply((header for _, header in segment.headers_from(None)), high_watermark)
            except LogCorruptError as e:
                logger.warning("producers of the batches behind it are not known: %s", e)
        return producers

    def infos(self) -> list[ProducerInfo]:
        """By producer id."""
        return sorted(
            ProducerInfo(
                s.producer_id,
                s.epoch,
                s.last_sequence,
                s.last_time_ms,
                s.coordinator_epoch,
                s.transaction_first_offset,
            )
            for s in self.states
        )
