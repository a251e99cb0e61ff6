"""Pages of a topic's records, over all partitions, towards older or newer records, within a budget of bytes and time.

A `Cursor` has an offset for each partition. Paging shows every record once: if a page has read records and not shown
them, the next page reads these records again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.client.net.cluster import cluster
from sparklog.client.reading.consumed import ConsumedBatch
from sparklog.client.reading.isolation import isolation_of
from sparklog.client.reading.range_reader import Fetching, read_range
from sparklog.environment.clock import MachineClock
from sparklog.export.printable import with_metadata
from sparklog.security.client_security import Security
from sparklog.settings import MIB
from sparklog.types import TopicPartition

OLDER, NEWER = "older", "newer"
PARTITIONS_MAX = 64
"""Largest number of partitions of a page. In a topic with more partitions, the user can choose one."""
SHOWN_BYTES_MAX = 64 * MIB
"""Largest amount of data to read for one page without a filter. With large messages a page has fewer records."""
FILTERED_BYTES_MAX = 256 * MIB
"""Largest amount of data to read for one page with a filter."""
FILTER_S_MAX = 5.0
STEP_BYTES = 4 * MIB
STEP_OFFSETS_MAX = 65_536

Read = Callable[[int, int, int], Iterator[ConsumedBatch]]
"""Yields the batches of a partition from a start offset to an end offset."""


class Bounds(NamedTuple):
    """The readable offsets [start, end) of a partition."""

    start: int
    end: int
    record_bytes: float = 0.0
    """Mean size of a record; 0: unknown."""


class Cursor(NamedTuple):
    """Start of a page."""

    direction: str
    """NEWER: the page begins at `offsets`. OLDER: the page has the records below `offsets`."""
    offsets: Mapping[int, int]
    """Offset by partition."""

    def as_text(self) -> str:
        return " ".join(f"{p}:{o}" for p, o in sorted(self.offsets.items()))


def offsets_from_text(text: str) -> dict[int, int]:
    """Return the offsets in a text of `Cursor.as_text`, by partition. Raises ValueError."""
    pairs = [part.split(":") for part in text.split()]
    return {int(partition): int(offset) for partition, offset in pairs}


class Row(NamedTuple):
    """A record."""

    partition: int
    offset: int
    timestamp_ms: int
    data: pa.RecordBatch
    """Batch with the record."""
    row: int
    """Index of the record in `data`."""


@dataclass
class Budget:
    """Limits of the reads for one page."""

    remaining_bytes: int
    until_s: float
    clock: MachineClock
    scanned_rows: int = 0

    def take(self, batch: ConsumedBatch) -> None:
        self.remaining_bytes -= max(batch.size_bytes, 1)
        self.scanned_rows += batch.num_rows

    def is_spent(self) -> bool:
        return self.remaining_bytes <= 0 or self.clock.monotonic_s() >= self.until_s


class RecordPage(NamedTuple):
    """A page of records, the newest first."""

    rows: list[Row]
    older: Cursor | None
    """Cursor of the page with older records; None if there are none."""
    newer: Cursor | None
    """Cursor of the page with newer records; None if there are none."""
    scanned_rows: int
    is_partial: bool
    """True if the budget was spent before the page was full."""


@dataclass
class _Part:
    """The records of one partition for a page."""

    rows: list[Row] = field(default_factory=list)
    """Records in the order of reading."""
    reached: int = 0
    """Offset at which the reading stopped."""


def look_through(
    read: Read, bounds: Mapping[int, Bounds], cursor: Cursor, rows_max: int, filter_text: str, budget: Budget
) -> RecordPage:
    """Return the page at `cursor`: at most `rows_max` records with `filter_text` in one of their columns ("": all)."""
    newer = cursor.direction == NEWER
    starts = {p: min(max(cursor.offsets[p], b.start), b.end) for p, b in bounds.items() if p in cursor.offsets}
    parts: dict[int, _Part] = {}
    for p, offset in starts.items():
        if newer:
            parts[p] = _forward(read, p, offset, bounds[p].end, rows_max, filter_text, budget)
        else:
            parts[p] = _backward(read, p, bounds[p], offset, rows_max, filter_text, budget)
    order: Callable[[Row], int] = (lambda r: r.timestamp_ms) if newer else (lambda r: -r.timestamp_ms)
    merged = list(heapq.merge(*(part.rows for part in parts.values()), key=order))
    shown = merged[:rows_max]
    goes_on = {p: _resume_offset(p, part, merged[rows_max:], newer) for p, part in parts.items()}
    is_partial = budget.is_spent() and len(shown) < rows_max
    forth = any(goes_on[p] < bounds[p].end if newer else goes_on[p] > bounds[p].start for p in starts)
    back = any(starts[p] > bounds[p].start if newer else starts[p] < bounds[p].end for p in starts)
    ahead = Cursor(cursor.direction, goes_on) if forth else None
    behind = Cursor(OLDER if newer else NEWER, starts) if back else None
    older, newest = (behind, ahead) if newer else (ahead, behind)
    return RecordPage(shown[::-1] if newer else shown, older, newest, budget.scanned_rows, is_partial)


def _resume_offset(partition: int, part: _Part, unshown: Sequence[Row], newer: bool) -> int:
    for row in unshown:  # in the order of reading
        if row.partition == partition:
            return row.offset if newer else row.offset + 1
    return part.reached


def _forward(
    read: Read, partition: int, start: int, end: int, rows_max: int, filter_text: str, budget: Budget
) -> _Part:
    part = _Part(reached=start)
    if start >= end or budget.is_spent():
        return part
    for batch in read(partition, start, end):
        part.rows += matching_rows(batch, filter_text, rows_max - len(part.rows))
        part.reached = batch.next_offset
        budget.take(batch)
        if len(part.rows) >= rows_max:
            part.reached = part.rows[-1].offset + 1
            return part
        if budget.is_spent():
            return part
    part.reached = end
    return part


def _backward(
    read: Read, partition: int, bounds: Bounds, end: int, rows_max: int, filter_text: str, budget: Budget
) -> _Part:
    """Read a partition backwards in steps. After a step of less than STEP_BYTES, the next step is twice as long."""
    part = _Part(reached=end)
    fitting = STEP_BYTES / bounds.record_bytes if bounds.record_bytes > 0 else rows_max
    step = max(1, min(rows_max, int(fitting)))
    while part.reached > bounds.start and len(part.rows) < rows_max and not budget.is_spent():
        low = max(bounds.start, part.reached - step)
        together: list[Row] = []
        before = budget.remaining_bytes
        for batch in read(partition, low, part.reached):
            together += matching_rows(batch, filter_text, None)
            budget.take(batch)
        part.rows += together[::-1]
        part.reached = low
        if before - budget.remaining_bytes < STEP_BYTES:
            step = min(2 * step, STEP_OFFSETS_MAX)
    if len(part.rows) > rows_max:
        del part.rows[rows_max:]
        part.reached = part.rows[-1].offset
    return part


def matching_rows(batch: ConsumedBatch, filter_text: str, rows_max: int | None) -> list[Row]:
    """Return the first `rows_max` rows (None: all) with the text in a column. An empty text matches all rows."""
    data = batch.data
    offsets, times_ms = batch.offsets(), batch.timestamps_ms()
    if filter_text:
        chosen = np.flatnonzero(matches(data, filter_text))[:rows_max]
        if not len(chosen):
            return []
        if len(chosen) < data.num_rows:
            data = data.take(pa.array(chosen))  # frees the memory of the other records
        offsets, times_ms = offsets[chosen], times_ms[chosen]
    else:
        offsets, times_ms = offsets[:rows_max], times_ms[:rows_max]
    return [
        Row(batch.partition, offset, time_ms, data, index)
        for index, (offset, time_ms) in enumerate(zip(offsets.tolist(), times_ms.tolist(), strict=True))
    ]


def matches(data: pa.RecordBatch, text: str) -> np.ndarray:
    """Return a mask of the rows with `text` in a column of text, bytes, numbers or times, regardless of upper and lower
    case.

    Lists, structs and maps are not searched.
    """
    mask = np.zeros(data.num_rows, bool)
    for column in data.columns:
        t = column.type
        if pa.types.is_nested(t):
            continue
        if pa.types.is_fixed_size_binary(t):
            column = column.cast(pa.binary())
        is_text = pa.types.is_string(t) or pa.types.is_large_string(t)
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            hit = _in_bytes(column, text)
        else:
            hit = pc.match_substring(column if is_text else column.cast(pa.string()), text, ignore_case=True)
        mask |= pc.fill_null(hit, False).to_numpy(zero_copy_only=False)
    return mask


def _in_bytes(column: Any, text: str) -> Any:
    """Return a mask of the values that contain `text`. Case does not matter if all values are UTF-8; else the exact
    bytes of `text` are searched."""
    try:
        as_text = column.cast(pa.large_string() if pa.types.is_large_binary(column.type) else pa.string())
    except pa.ArrowInvalid:
        return pc.match_substring(column, text.encode())
    return pc.match_substring(as_text, text, ignore_case=True)


def reader_of(
    bootstrap_servers: str,
    topic: str,
    *,
    layout: pa.Schema | None = None,
    isolation_level: str = "read_committed",
    timeout_ms: int = 10_000,
    security: Security = None,
) -> Read:
    """Return a reader of a topic's partitions with the columns of `layout` (None: all columns).

    Its iteration raises the errors of `sparklog.read_table`.
    """
    columns = None if layout is None else layout.names
    shared = cluster(bootstrap_servers, security)
    isolation = isolation_of(isolation_level)

    def read(partition: int, start: int, end: int) -> Iterator[ConsumedBatch]:
        return read_range(
            shared,
            TopicPartition(topic, partition),
            start,
            end,
            columns=columns,
            layout=layout,
            isolation=isolation,
            retry_timeout_ms=timeout_ms,
            fetching=Fetching(max_bytes=STEP_BYTES, request_timeout_ms=timeout_ms),
        )

    return read


def exported(
    read: Read, ranges: Mapping[int, tuple[int, int]], filter_text: str, rows_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records of `ranges` (start and end offset by partition) with metadata columns, partition by partition.

    Each partition yields at most `rows_max` records. A batch is empty if no record matches the filter.
    """
    for partition, (start, end) in sorted(ranges.items()):
        remaining = rows_max
        for batch in read(partition, start, end) if start < end else ():
            table = with_metadata(batch)
            if filter_text:
                table = table.filter(pa.array(matches(batch.data, filter_text)))
            table = table.slice(0, remaining)
            remaining -= table.num_rows
            yield from table.combine_chunks().to_batches() or [_no_rows(table)]
            if remaining <= 0:
                break


def _no_rows(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=table.schema)
