"""Expected content of a compacted log: a replay of all records that were appended to it, by offset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sparklog.format.batch import ATTRIBUTE_CONTROL, iterate_batches
from sparklog.format.offset_column import decode_rows, row_offsets
from sparklog.log.partition_log import PartitionLog
from sparklog.log.producers.transactions import AbortedRanges
from tests.support.compaction import Stored
from tests.support.logs import SCHEMAS


class Appended(NamedTuple):
    """A record, or the marker of a transaction (`commit` is not None). `producer_id` -1: outside any."""

    key: bytes | None = None
    value: bytes | None = None
    producer_id: int = -1
    commit: bool | None = None


class Replay(NamedTuple):
    """`rows`: the decided ones that count, below `stable_offset`."""

    rows: list[Stored]
    stable_offset: int
    open_ids: set[int]


def replay(entries: Mapping[int, Appended], end: int) -> Replay:
    """Replay the entries below `end`. Each transaction has a producer id of its own."""
    below = {offset: e for offset, e in sorted(entries.items()) if offset < end}
    decided = {e.producer_id: e.commit for e in below.values() if e.commit is not None}
    open_ids = {e.producer_id for e in below.values()} - {-1, *decided}
    stable = min((o for o, e in below.items() if e.producer_id in open_ids), default=end)
    rows = [
        Stored(offset, e.key, e.value)
        for offset, e in below.items()
        if e.commit is None and offset < stable and decided.get(e.producer_id, True)
    ]
    return Replay(rows, stable, open_ids)


def committed_rows(log: PartitionLog) -> list[Stored]:
    """Return the records that readers of committed records get."""
    stable = log.last_stable_offset
    aborted = AbortedRanges(log.reader.aborted_transactions(0, stable))
    found: list[Stored] = []
    at = log.log_start_offset
    while (piece := log.reader.read(at, 1 << 20, end=stable)) is not None:
        data = piece.read()
        for position, header in iterate_batches(data):
            if header.attributes & ATTRIBUTE_CONTROL or not header.record_count or aborted.covers(header):
                continue
            rows, offsets = decode_rows(
                data[position : position + header.size_bytes], SCHEMAS[header.schema_id], header
            )
            columns = (rows.column(name).to_pylist() for name in ("key", "value"))
            found += [Stored(*row) for row in zip(row_offsets(header, offsets).tolist(), *columns, strict=True)]
        at = piece.next_offset
        piece.release()
    return found


def without_key(rows: Iterable[Stored]) -> set[Stored]:
    return {row for row in rows if row.key is None}
