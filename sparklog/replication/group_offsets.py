"""The committed offsets of the groups of one `__consumer_offsets` partition, as a pure state machine.

Of two commits for the same partition, the later record in the log takes effect. The commits of a transaction wait, by
producer id, for its marker (KIP-98). At the marker, a commit takes effect only if no later record for its partition has
taken effect before. Records are numbered in the order of the log, also when the log is replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sparklog.replication import group_records as records
from sparklog.replication.group_membership import Safeguards
from sparklog.replication.group_records import OffsetValue, Record
from sparklog.types import TopicPartition


class Committed(NamedTuple):
    """A committed offset, and the number of its record."""

    value: OffsetValue
    number: int


Pending = dict[str, dict[TopicPartition, Committed]]
"""The offsets in one producer's open transaction, by group id and partition."""


class GroupOffsets:
    """The committed and pending offsets of all groups."""

    def __init__(self, safeguards: Safeguards = Safeguards()) -> None:  # noqa: B008 - frozen
        self._safeguards = safeguards
        self._number = 0
        self._committed: dict[str, dict[TopicPartition, Committed]] = {}
        self._pending: dict[int, Pending] = {}
        self.counts: dict[str, int] = {}
        """Number of offsets by group, committed and pending. Groups without offsets are left out."""
        self.total = 0
        """Number of offsets of all groups, committed and pending."""

    def _count(self, group_id: str, change: int) -> None:
        self.total += change
        count = self.counts.get(group_id, 0) + change
        if count:
            self.counts[group_id] = count
        else:
            self.counts.pop(group_id, None)

    # -- applying records, when they are written and when the log is replayed

    def put(self, group_id: str, tp: TopicPartition, value: OffsetValue, producer_id: int = -1) -> None:
        """Apply a record of an offset. The offset takes effect at once if `producer_id` is -1, otherwise when the
        transaction of this producer is committed."""
        self._number += 1
        committed = Committed(value, self._number)
        if producer_id >= 0 and self._safeguards.pending_offsets:
            offsets = self._pending.setdefault(producer_id, {}).setdefault(group_id, {})
        else:
            offsets = self._committed.setdefault(group_id, {})
        self._count(group_id, tp not in offsets)
        offsets[tp] = committed

    def remove(self, group_id: str, tp: TopicPartition) -> None:
        """Apply a record without a value: remove the partition's committed offset and its offsets in open
        transactions."""
        self._number += 1
        for pending in self._pending.values():
            self._count(group_id, -(pending.get(group_id, {}).pop(tp, None) is not None))
        offsets = self._committed.get(group_id, {})
        self._count(group_id, -(offsets.pop(tp, None) is not None))
        if not offsets:
            self._committed.pop(group_id, None)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply the marker that ends the producer's transaction. The transaction's offsets take effect if `committed`;
        otherwise they are dropped."""
        for group_id, offsets in self._pending.pop(producer_id, {}).items():
            self._count(group_id, -len(offsets))
            if not committed or not offsets:
                continue
            group_offsets = self._committed.setdefault(group_id, {})
            for tp, pending in offsets.items():
                existing = group_offsets.get(tp)
                if existing is None or existing.number < pending.number or not self._safeguards.newer_record:
                    self._count(group_id, existing is None)
                    group_offsets[tp] = pending

    # -- present state

    def groups(self) -> set[str]:
        """Return the ids of the groups with committed or pending offsets."""
        return set(self.counts)

    def get(self, group_id: str, tp: TopicPartition) -> OffsetValue | None:
        committed = self._committed.get(group_id, {}).get(tp)
        return None if committed is None else committed.value

    def of_group(self, group_id: str) -> dict[TopicPartition, OffsetValue]:
        return {tp: c.value for tp, c in self._committed.get(group_id, {}).items()}

    def pending_of(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions for which the group has offsets in open transactions."""
        return {tp for pending in self._pending.values() for tp in pending.get(group_id, ())}

    def items(self) -> Iterator[tuple[str, TopicPartition, OffsetValue]]:
        for group_id, offsets in list(self._committed.items()):
            for tp, committed in list(offsets.items()):
                yield group_id, tp, committed.value

    def pending_items(self) -> Iterator[tuple[str, TopicPartition, OffsetValue]]:
        for pending in list(self._pending.values()):
            for group_id, offsets in list(pending.items()):
                for tp, committed in list(offsets.items()):
                    yield group_id, tp, committed.value

    def delete(self, group_id: str, partitions: Iterable[TopicPartition]) -> list[Record]:
        """Remove offsets, and return the records that delete them."""
        out: list[Record] = []
        for tp in partitions:
            self.remove(group_id, tp)
            out.append((records.offset_key(group_id, tp), None))
        return out
