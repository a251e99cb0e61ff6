"""A log's state of its producers and transactions, compared with a replay of everything that was ever in it: it is
true, or empty, and complete for the part that is still in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from sparklog.format.batch import ATTRIBUTE_CONTROL, BatchHeader
from sparklog.log.model.log_config import ProducerInfo
from sparklog.log.partition_log import PartitionLog
from sparklog.log.producers.partition_producers import PartitionProducers
from sparklog.log.producers.transactions import AbortedRanges, AbortedTransaction

IDEMPOTENT = st.integers(1, 3)
"""Producer ids."""
TRANSACTIONAL = st.integers(11, 13)
SIZES = st.sampled_from([1, 1, 600, 1_800])


def replayed(headers: Iterable[BatchHeader], high_watermark: int) -> PartitionProducers:
    producers = PartitionProducers()
    producers.apply(headers, high_watermark)
    return producers


def info_of(headers: Iterable[BatchHeader], producer_id: int) -> ProducerInfo:
    known = {i.producer_id: i for i in replayed(headers, 0).infos()}
    return known.get(producer_id, ProducerInfo(producer_id, 0, -1, -1, -1, -1))


def new_headers(log: PartitionLog, end: int) -> list[BatchHeader]:
    """Return the headers appended at `end` and behind it, to local segments."""
    return [
        h for s in log.local_segments if s.next_offset > end for _, h in s.headers_from(None) if h.base_offset >= end
    ]


def check_known(log: PartitionLog, headers: Sequence[BatchHeader]) -> None:
    """`headers`: of all batches and markers that are in the log, and that were in it before they were deleted."""
    start = log.log_start_offset
    true = {i.producer_id: i for i in replayed(headers, 0).infos()}
    kept = {i.producer_id: i for i in replayed((h for h in headers if h.base_offset >= start), 0).infos()}
    known = {i.producer_id: i for i in log.producers()}
    assert kept.keys() <= known.keys() <= true.keys(), (kept, known, true)
    for producer_id, info in known.items():
        sure = kept.get(producer_id)
        assert info.producer_epoch == true[producer_id].producer_epoch
        assert info.last_sequence in (true[producer_id].last_sequence, sure.last_sequence if sure else None)
        first, least = info.transaction_first_offset, true[producer_id].transaction_first_offset
        if first != least:  # what it began with had been deleted when this was read from the log
            latest = sure.transaction_first_offset if sure else -1
            mine = {h.base_offset for h in headers if h.producer_id == producer_id and h.base_offset > least}
            assert least >= 0 and (first == latest or (first in mine and (latest < 0 or first < latest)))


def check_committed(log: PartitionLog, headers: Sequence[BatchHeader]) -> None:
    """Readers of committed records are told where undecided ones begin, and which are aborted."""
    start, high_watermark = log.log_start_offset, log.high_watermark
    all_of_them = replayed(headers, high_watermark)
    # A log that was restarted may have known of a higher high watermark before.
    decided = replayed((h for h in headers if h.base_offset >= start), log.log_end_offset)
    low, high = (_stable(p.open.first_unstable_offset, start, high_watermark) for p in (all_of_them, decided))
    assert low <= log.last_stable_offset <= high
    told = AbortedRanges(log.reader.aborted_transactions(start, log.last_stable_offset))
    true = AbortedRanges(AbortedTransaction(*entry[:3]) for entry in all_of_them.aborted.entries())
    for header in headers:
        if start <= header.base_offset < log.last_stable_offset and not header.attributes & ATTRIBUTE_CONTROL:
            assert told.covers(header) == true.covers(header), header


def _stable(unstable: int | None, start: int, high_watermark: int) -> int:
    if unstable is None or unstable >= high_watermark:
        return high_watermark
    return max(unstable, min(start, high_watermark))
