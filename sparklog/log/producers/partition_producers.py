"""The producers and transactions of one log: their state after all batches and markers of the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from sparklog.errors import LogCorruptError
from sparklog.format.batch import ATTRIBUTE_CONTROL, BatchHeader
from sparklog.format.decoders import msgpack_decoder
from sparklog.format.producer_snapshot import ProducerSnapshot, ProducerState
from sparklog.format.txn_index import AbortedEntry
from sparklog.log.model.log_config import ProducerInfo
from sparklog.log.producers.states import ALL_SAFEGUARDS, PRODUCERS_MAX, ProducerStates, Safeguards
from sparklog.log.producers.transactions import AbortedTransactions, OpenTransactions
from sparklog.log.segments.segment import LogSegment

logger = logging.getLogger(__name__)


def encode_states(states: Iterable[ProducerState]) -> bytes:
    """Encode the states as MessagePack: arrays in the order of the fields."""
    return msgspec.msgpack.encode(list(states))


def decode_states(data: bytes) -> list[ProducerState]:
    """Return the states in `data`; an empty list for empty bytes. Raises LogCorruptError."""
    try:
        return msgpack_decoder(list[ProducerState]).decode(data) if data else []
    except msgspec.DecodeError as e:
        raise LogCorruptError(f"the states of producers cannot be read: {e}") from e


class PartitionProducers:
    """The producers and transactions of one log. They are changed under the log's write lock;
    `open.first_unstable_offset` and `aborted.between` can be read without it."""

    def __init__(self, safeguards: Safeguards = ALL_SAFEGUARDS, limit: int = PRODUCERS_MAX) -> None:
        self.safeguards = safeguards
        self.states = ProducerStates((), safeguards, limit)
        self.open = OpenTransactions()
        self.aborted = AbortedTransactions()
        self.last_commit_offset = -1
        """Offset of the newest commit marker, or an upper bound for it; -1: no commit."""

    @classmethod
    def resumed(
        cls,
        snapshot: ProducerSnapshot,
        aborted: Iterable[AbortedEntry],
        safeguards: Safeguards = ALL_SAFEGUARDS,
        limit: int = PRODUCERS_MAX,
    ) -> PartitionProducers:
        """Return the producers at `snapshot.offset`. `aborted`: the aborted transactions with markers below this
        offset, in the order of the markers."""
        producers = cls(safeguards, limit)
        producers.states = ProducerStates(snapshot.producers, safeguards, limit)
        producers.open.resume(snapshot.producers, snapshot.waiting)
        producers.aborted = AbortedTransactions(aborted)
        if producers.open.first_unstable_offset is not None:
            producers.last_commit_offset = snapshot.offset  # a commit after an open transaction is not in the snapshot
        return producers

    def apply(self, headers: Iterable[BatchHeader], high_watermark: int) -> None:
        """Enter batches and markers that are in the log, in log order. New batches are entered before the high
        watermark can pass them; only replayed batches lie below it."""
        for header in headers:
            if header.producer_id >= 0:
                self._apply(header, high_watermark)

    def _apply(self, header: BatchHeader, high_watermark: int) -> None:
        ended = self.states.apply(header)
        if ended is not None:
            stable = self.open.end(ended, replicated=ended.last_offset < high_watermark)
            if ended.committed:
                self.last_commit_offset = ended.last_offset
            else:
                self.aborted.append(AbortedEntry(ended.producer_id, ended.first_offset, ended.last_offset, stable))
        elif not header.attributes & ATTRIBUTE_CONTROL:
            state = self.states.get(header.producer_id)
            if state is not None and state.transaction_first_offset == header.base_offset:
                self.open.begin(header.producer_id, header.base_offset)

    def replay(self, segments: Sequence[LogSegment], start_offset: int, high_watermark: int) -> None:
        """Enter the headers of all batches from `start_offset` on. If a segment is damaged, the rest of this segment is
        left out: missing batches can keep a transaction open, but never end one. Raises StorageError."""
        for segment in segments:
            if segment.next_offset <= start_offset or not segment.data_bytes:
                continue
            try:
                position = segment.find(start_offset).position if start_offset > segment.base_offset else None
                self.apply((header for _, header in segment.headers_from(position)), high_watermark)
            except LogCorruptError as e:
                logger.warning("producers of the batches behind the damage are not known: %s", e)

    def last_offsets(self) -> frozenset[int]:
        """Return the base offset of every producer's last batch, or of its marker if no batch of its epoch is known.
        From these batches and markers alone, all sequence numbers and epochs can be derived again."""
        return frozenset(s.batches[-1].base_offset if s.batches else s.marker_offset for s in self.states)

    def infos(self) -> list[ProducerInfo]:
        """Return the producers, by producer id."""
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
