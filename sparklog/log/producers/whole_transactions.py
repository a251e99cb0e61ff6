"""Ends of partitions that lie inside no transaction: pure rules over the headers of batches.

An open transaction holds back the last stable offset of its partitions. A committed transaction can have records after
that offset in one partition, and records below the last stable offset in another one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from sparklog.format.batch import ATTRIBUTE_COMMIT, ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BatchHeader

P = TypeVar("P", bound=Hashable)
"""A partition: its number, or topic and number."""

SHARED_EPOCH = 0
"""Epoch of every participant of a shared transaction."""
SHARED = -1
"""Producer id in the identity of a shared transaction."""


class Commit(NamedTuple):
    """The records of one committed transaction in one partition."""

    transaction: tuple[int, int]
    """Identity of the transaction; see `transaction_identity`."""
    first_offset: int
    """Offset of its first record."""
    last_offset: int
    """Offset of its last record."""
    started_ms: int
    """Time at which the transaction began, by the coordinator's clock."""


class AtomicEnds(NamedTuple, Generic[P]):
    """Ends that lie inside no known transaction."""

    ends: dict[P, int]
    """End of the offsets by partition (exclusive)."""
    started_ms: int | None
    """Earliest start of the transactions above the ends; None: no such transaction. The ends are right only if all
    commits since this time were given to `atomic_ends`."""


def transaction_identity(marker: BatchHeader, epoch: int) -> tuple[int, int]:
    """Return the identity of the transaction that a marker ends.

    A producer has another epoch in each of its transactions, unless its client keeps the epoch: then the marker has the
    epoch of the batches. The participants of a shared transaction have different producer ids, all with epoch 0. The
    markers of these two kinds have the time at which the transaction began, which is above every epoch. Transactions of
    the same millisecond count as one: an end can then be lower than necessary, but lies inside no transaction.

    The result: the producer id, or SHARED for a shared transaction; and the epoch, or the start in ms for the two kinds
    above."""
    if epoch == SHARED_EPOCH:
        return SHARED, marker.min_timestamp_ms
    return marker.producer_id, marker.min_timestamp_ms if marker.producer_epoch == epoch else epoch


class _OpenTransaction(NamedTuple):
    epoch: int
    first_offset: int
    last_offset: int


class CommitScan:
    """Collector of one partition's committed transactions, from the headers of its batches."""

    def __init__(self) -> None:
        self._open: dict[int, _OpenTransaction] = {}
        self._commits: dict[tuple[int, int], Commit] = {}

    @property
    def commits(self) -> list[Commit]:
        """The committed transactions in the headers so far. All participants of a shared transaction count as one."""
        return list(self._commits.values())

    def note(self, header: BatchHeader) -> None:
        """Take the next header."""
        if not header.attributes & ATTRIBUTE_TRANSACTIONAL:
            return
        opened = self._open.get(header.producer_id)
        if not header.attributes & ATTRIBUTE_CONTROL:
            last = header.base_offset + header.last_offset_delta
            first = header.base_offset if opened is None else opened.first_offset
            self._open[header.producer_id] = _OpenTransaction(header.producer_epoch, first, last)
        elif opened is not None:
            del self._open[header.producer_id]
            if header.attributes & ATTRIBUTE_COMMIT:
                identity = transaction_identity(header, opened.epoch)
                first, last, started_ms = opened.first_offset, opened.last_offset, header.min_timestamp_ms
                other = self._commits.get(identity)
                if other is not None:
                    first, last = min(first, other.first_offset), max(last, other.last_offset)
                    started_ms = min(started_ms, other.started_ms)
                self._commits[identity] = Commit(identity, first, last, started_ms)


def atomic_ends(ends: Mapping[P, int], commits: Mapping[P, Iterable[Commit]]) -> AtomicEnds[P]:
    """Lower `ends` until each transaction lies wholly below or wholly above them, in all partitions. `commits`: the
    committed transactions with records around the ends, by partition. Returns the largest ends that are not above the
    given ones and lie inside no transaction."""
    lowered = dict(ends)
    by_last = {p: sorted(ordered, key=lambda c: c.last_offset) for p, ordered in commits.items() if p in lowered}
    parts: dict[tuple[int, int], list[tuple[P, Commit]]] = {}
    for p, ordered in by_last.items():
        for commit in ordered:
            parts.setdefault(commit.transaction, []).append((p, commit))
    behind: set[tuple[int, int]] = set()
    started_ms: int | None = None
    pending = list(by_last)
    while pending:
        p = pending.pop()
        ordered = by_last[p]
        while ordered and ordered[-1].last_offset >= lowered[p]:
            transaction = ordered.pop().transaction
            if transaction in behind:
                continue
            behind.add(transaction)
            for other, commit in parts[transaction]:
                started_ms = commit.started_ms if started_ms is None else min(started_ms, commit.started_ms)
                if commit.first_offset < lowered[other]:
                    lowered[other] = commit.first_offset
                    pending.append(other)
    return AtomicEnds(lowered, started_ms)
