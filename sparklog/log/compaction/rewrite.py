"""The choice of the rows that stay in a group of segments, and the rewriting of the group with only these rows.

A row is removed if a later row of the log has its key, or if it is a tombstone whose batch's delete horizon has passed.
Rows after the last offset of the map and rows without a key stay. All rows of an aborted transaction are removed. A
batch without remaining rows is removed too, with two exceptions: the last batch of a group (the rewritten segment must
end where the next segment begins), and the last batch of a producer that the log still knows (its sequence numbers
must remain derivable). A transaction's marker stays until a run finds no data of the transaction any more. That run
sets a delete horizon, and the first run after the horizon removes the marker.

A remaining row keeps its offset (`sparklog.format.offset_column`), and its batch keeps its base offset, last offset,
leader epoch, append time, producer fields and compression. The largest timestamp in the header becomes that of the
remaining rows, so look-ups by time stay exact. If a row without a timestamp of its own remains, the header keeps its
largest timestamp, because this is the timestamp of such a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from sparklog.environment.files import FileSystem
from sparklog.errors import CorruptBatchError, LogCorruptError, StorageError
from sparklog.format.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_OFFSET_COLUMN,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    decode_header,
    decoded_size_bytes,
    encode_batch,
    verify_batch,
)
from sparklog.format.body_layout import InflatedSizeError
from sparklog.format.offset_column import OFFSET_FIELD, decode_rows, row_offsets, with_offset_column
from sparklog.format.packed_batch import compression_of_batch
from sparklog.format.schema import timestamp_bounds_ms
from sparklog.format.segment import SegmentInfo, encode_head, segment_name
from sparklog.log.compaction.key_hash import HashSeeds, KeyHashes, hash_keys
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.compaction.swap import CLEANED_SUFFIX
from sparklog.log.model.compaction_policy import NO_HORIZON
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.log.model.log_config import LogOwner
from sparklog.log.producers.transactions import AbortedRanges
from sparklog.log.segments.indexes import SegmentIndexes
from sparklog.log.segments.segment import LogSegment, PlacedBatch
from sparklog.log.segments.slices import HandleCache
from sparklog.log.segments.stored_schema import SchemaOf, schema_of_batch
from sparklog.log.segments.view import SegmentEnd, Tail

logger = logging.getLogger(__name__)

WRITE_BYTES = 1 << 20
"""Batches are collected until they have at least this size, and are then written at once."""

REWRITTEN_COPIES = 2
"""Copies of a batch's rows in memory: all rows, and the remaining ones."""

NEVER_MS = -2
"""A time before any delete horizon."""

NO_TIMESTAMP_MS = -1
"""The largest timestamp of a batch without rows."""


def pass_freely(size_bytes: int) -> None:
    """Accept any number of bytes at once: the throttle of a run without a limit."""


def always() -> bool:
    """Return True: no replica has to copy the deletions first."""
    return True


class RunContext(Struct, frozen=True):
    """Inputs of one run over one log. `throttle` is called with the number of bytes to be read or written next; it can
    wait, and an exception from it ends the run. `now_ms` is the time of the run."""

    directory: Path
    owner: LogOwner
    schema_of: SchemaOf
    files: FileSystem
    handles: HandleCache
    seeds: HashSeeds
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    inflated_bytes_max: int
    inflated: InflatedMemory
    """Budget for the memory of decompressed batches."""
    throttle: Callable[[int], None] = pass_freely
    deletions_may_go: Callable[[], bool] = always
    """Returns True if the run is allowed to remove tombstones and markers whose delete horizon has passed."""
    aborted: AbortedRanges = field(default_factory=AbortedRanges)
    last_of_producers: frozenset[int] = frozenset()
    """For every producer that the log still knows, the base offset of its last batch or marker."""


class SourceBatch(NamedTuple):
    """A batch of a segment being compacted: its header and its bytes, checksum verified."""

    segment: LogSegment
    position: int
    header: BatchHeader
    data: bytes

    def rows(
        self, context: RunContext, columns: Sequence[int] | None = None
    ) -> tuple[pa.RecordBatch, np.ndarray | None]:
        """Return the rows and their offsets, as `decode_rows` does; `columns`: only these columns, by index. Raises
        LogCorruptError, which says where the batch is."""
        schema = self.schema(context)
        try:
            return decode_rows(self.data, schema, self.header, columns, inflated_bytes_max=context.inflated_bytes_max)
        except CorruptBatchError as e:
            raise self._uncompacted_error(e) from e

    def decoding(self, context: RunContext, copies: int = 1) -> AbstractContextManager[None]:
        """Return a context that reserves memory for `copies` times the decoded rows. Raises LogCorruptError."""
        try:
            return context.inflated.hold(copies * decoded_size_bytes(self.data, self.header))
        except CorruptBatchError as e:
            raise self._uncompacted_error(e) from e

    def schema(self, context: RunContext) -> pa.Schema:
        """Return the schema that the rows were written with. Raises LogCorruptError if the batch names a schema that
        the topic does not have."""
        try:
            return schema_of_batch(self.header, context.schema_of)
        except CorruptBatchError as e:
            raise self._uncompacted_error(e) from e

    def _uncompacted_error(self, error: CorruptBatchError) -> LogCorruptError:
        return _uncompacted_error(self.segment, self.position, self.header.base_offset, error)


def _uncompacted_error(segment: LogSegment, position: int, offset: int, error: CorruptBatchError) -> LogCorruptError:
    too_large = isinstance(error, InflatedSizeError)
    hint = " (queued.max.inflated.bytes, or the topic's max.message.inflated.ratio: raise it)" if too_large else ""
    return LogCorruptError(
        f"{segment.path}, position {position}: the batch at offset {offset}: {error}{hint}; the partition is not "
        "compacted"
    )


def source_batches(segment: LogSegment, context: RunContext, start_offset: int = 0) -> Iterator[SourceBatch]:
    """Yield the batches of `segment` that hold offsets from `start_offset` on.

    Raises LogCorruptError for a damaged batch, which must not be copied: its copy would have a new, valid checksum.
    Raises StorageError.
    """
    position = None
    if start_offset > segment.base_offset:
        position = segment.find(start_offset).position
    shared = segment.acquire()  # open for the whole walk: the file can be renamed meanwhile
    try:
        for at, header in segment.headers_from(position):
            context.throttle(header.size_bytes)
            data = shared.file.read(at, header.size_bytes)
            try:
                read = decode_header(data)
                verify_batch(data, 0, read)
            except CorruptBatchError as e:
                raise _uncompacted_error(segment, at, header.base_offset, e) from e
            batch = SourceBatch(segment, at, read, data)
            with batch.decoding(context):
                yield batch
    finally:
        shared.release()


class KeyedRows(NamedTuple):
    """Offset, key hashes and tombstone mark of every row of a batch. `tombstones`: None if no row is a tombstone."""

    offsets: np.ndarray
    hashes: KeyHashes
    tombstones: np.ndarray | None

    def since(self, offset: int) -> tuple[KeyHashes, np.ndarray]:
        """Return hashes and offsets of the rows from `offset` on."""
        first = int(np.searchsorted(self.offsets, offset))
        return self.hashes.since(first), self.offsets[first:]


def keyed_rows(batch: SourceBatch, context: RunContext, *, tombstones: bool) -> KeyedRows:
    """Decode and hash the keys of a batch; with `tombstones`, find the tombstone rows too. Raises LogCorruptError."""
    schema = batch.schema(context)
    keys = sorted(schema.get_field_index(name) for name in context.owner.key_columns)
    values = value_columns(context.owner, schema) if tombstones else []
    indexes = sorted({*keys, *values})
    rows, offsets = batch.rows(context, indexes)
    hashes = hash_keys([rows.column(indexes.index(i)) for i in keys], context.seeds)
    mask: np.ndarray | None = None
    columns = [rows.column(indexes.index(i)) for i in values]
    if columns and all(c.null_count for c in columns):
        mask = np.ones(rows.num_rows, bool)
        for column in columns:
            mask &= np.asarray(column.is_null().to_numpy(zero_copy_only=False))
        if hashes.null is not None:
            mask &= ~hashes.null
    return KeyedRows(row_offsets(batch.header, offsets), hashes, mask if mask is not None and mask.any() else None)


def value_columns(owner: LogOwner, schema: pa.Schema) -> list[int]:
    """Return the indices of the columns that are all null in a tombstone. The list is empty for a topic with key
    columns only, which has no tombstones."""
    if owner.value_columns:
        return [schema.get_field_index(name) for name in owner.value_columns]
    return [i for i, name in enumerate(schema.names) if name not in owner.key_columns]


class BatchPlan(NamedTuple):
    """The fate of one batch. `segment`: index in the group. `keep`: mask of the rows that stay; None: all rows.
    `horizon_ms`: delete horizon after the run. `stays`: the batch is written even without rows. `may_go`: the batch is
    a marker that a run removes once its horizon has passed."""

    segment: int
    position: int
    header: BatchHeader
    keep: np.ndarray | None
    horizon_ms: int
    stays: bool
    may_go: bool = False

    @property
    def kept_row_count(self) -> int:
        return self.header.record_count if self.keep is None else int(np.count_nonzero(self.keep))

    @property
    def is_unchanged(self) -> bool:
        """True if the batch's bytes can be copied unchanged into the compacted segment."""
        compacted = self.header.attributes & ATTRIBUTE_OFFSET_COLUMN
        return bool(compacted) and self.keep is None and self.horizon_ms == horizon_of(self.header)


def horizon_of(header: BatchHeader) -> int:
    """Return a batch's delete horizon, or NO_HORIZON."""
    return header.min_timestamp_ms if header.attributes & ATTRIBUTE_DELETE_HORIZON else NO_HORIZON


class GroupPlan(Struct):
    """The fate of a group of segments, which become one segment, or several if the rewritten batches are too large."""

    segments: Sequence[LogSegment]
    batches: list[BatchPlan] = field(default_factory=list)
    rows_removed: int = 0
    markers_removed: int = 0
    null_keys: int = 0
    horizons_set: int = 0

    @property
    def is_worth_it(self) -> bool:
        """True if the rewrite has a gain: rows to remove, a delete horizon to set, or compacted segments to merge."""
        merges = len(self.segments) > 1 and any(s.compacted for s in self.segments)
        return bool(self.rows_removed or self.markers_removed or self.horizons_set or merges)

    @property
    def next_horizon_ms(self) -> int:
        """The earliest delete horizon of the batches that stay, or NO_HORIZON."""
        return min(
            (
                b.horizon_ms
                for b in self.batches
                if b.horizon_ms != NO_HORIZON and (b.kept_row_count or (b.may_go and b.stays))
            ),
            default=NO_HORIZON,
        )


def plan_group(
    segments: Sequence[LogSegment], keys: OffsetMap, context: RunContext, with_data: set[int] | None = None
) -> GroupPlan:
    """Decide the fate of every batch of the group; this reads all its keys. `with_data`: the producers whose current
    transaction has data, and no marker yet, in the batches so far. This call changes the set; pass the same set for all
    groups of a run. Raises LogCorruptError, StorageError."""
    plan = GroupPlan(segments)
    with_data = set() if with_data is None else with_data
    over_ms = context.now_ms if context.deletions_may_go() else NEVER_MS
    for number, segment in enumerate(segments):
        for batch in source_batches(segment, context):
            header = batch.header
            if header.attributes & ATTRIBUTE_CONTROL:
                planned = _plan_marker(number, batch, context, plan, with_data, over_ms)
            else:
                if header.record_count and header.attributes & ATTRIBUTE_TRANSACTIONAL:
                    with_data.add(header.producer_id)
                planned = _plan_batch(number, batch, keys, context, plan, over_ms)
            if header.base_offset in context.last_of_producers:
                planned = planned._replace(stays=True, may_go=False)
            plan.batches.append(planned)
    if plan.batches:
        plan.batches[-1] = plan.batches[-1]._replace(stays=True, may_go=False)
    plan.markers_removed = sum(not b.stays and bool(b.header.attributes & ATTRIBUTE_CONTROL) for b in plan.batches)
    return plan


def _plan_marker(
    number: int, batch: SourceBatch, context: RunContext, plan: GroupPlan, with_data: set[int], over_ms: int
) -> BatchPlan:
    """Plan a marker. It stays as long as its transaction has data in the log. Afterwards its delete horizon gives
    readers time, as with a tombstone. `over_ms`: horizons up to this time have passed."""
    header, horizon_ms = batch.header, horizon_of(batch.header)
    if header.producer_id in with_data:
        with_data.discard(header.producer_id)
        return BatchPlan(number, batch.position, header, None, NO_HORIZON, stays=True)
    if horizon_ms == NO_HORIZON:
        horizon_ms = context.now_ms + context.delete_retention_ms
        plan.horizons_set += 1
    return BatchPlan(number, batch.position, header, None, horizon_ms, over_ms < horizon_ms, may_go=True)


def _plan_batch(
    number: int, batch: SourceBatch, keys: OffsetMap, context: RunContext, plan: GroupPlan, over_ms: int
) -> BatchPlan:
    """Plan a batch of records. `over_ms`: delete horizons up to this time have passed."""
    header = batch.header
    horizon_ms = horizon_of(header)
    if not header.record_count:
        return BatchPlan(number, batch.position, header, None, horizon_ms, stays=False)
    if context.aborted.covers(header):
        batch.rows(context, [])  # there are as many as it says
        plan.rows_removed += header.record_count
        no_rows = np.zeros(header.record_count, bool)
        return BatchPlan(number, batch.position, header, no_rows, NO_HORIZON, stays=False)
    rows = keyed_rows(batch, context, tombstones=True)
    in_map = rows.offsets <= keys.latest_offset
    keep = rows.offsets >= keys.get(rows.hashes)  # after the map's last offset they always are
    if rows.hashes.null is not None:
        keep |= rows.hashes.null
        plan.null_keys += int(np.count_nonzero(rows.hashes.null))
    if rows.tombstones is not None:
        if horizon_ms != NO_HORIZON and over_ms >= horizon_ms:
            keep &= ~(rows.tombstones & in_map)
        elif horizon_ms == NO_HORIZON and in_map[-1] and (rows.tombstones & keep).any():
            # this run removes all that the tombstones delete; only now does the time for readers begin
            horizon_ms = context.now_ms + context.delete_retention_ms
            plan.horizons_set += 1
    if horizon_ms != NO_HORIZON and (rows.tombstones is None or not (rows.tombstones & keep).any()):
        horizon_ms = NO_HORIZON  # the tombstones are gone
    kept_rows = int(np.count_nonzero(keep))
    plan.rows_removed += header.record_count - kept_rows
    return BatchPlan(
        number, batch.position, header, None if kept_rows == header.record_count else keep, horizon_ms, False
    )


def write_group(plan: GroupPlan, context: RunContext) -> list[LogSegment]:
    """Write the remaining rows into new sealed segments (``.cleaned`` files, not yet fsynced). It is one segment, or
    several if the added offset column makes the data larger than `segment.bytes`. A failure removes the new files.

    Raises LogCorruptError, StorageError, StorageFullError.
    """
    writer = _Writer(plan.segments[0].info, context)
    sources = [s.acquire() for s in plan.segments]
    try:
        for batch in plan.batches:
            if not batch.kept_row_count and not batch.stays:
                continue
            data = sources[batch.segment].file.read(batch.position, batch.header.size_bytes)
            source = SourceBatch(plan.segments[batch.segment], batch.position, batch.header, data)
            written = data if batch.is_unchanged else _encode_rows(source, batch, context)
            context.throttle(len(written))
            writer.add(written)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise
    finally:
        for shared in sources:
            shared.release()


def _encode_rows(source: SourceBatch, plan: BatchPlan, context: RunContext) -> memoryview:
    with source.decoding(context, REWRITTEN_COPIES):
        return _encode(source, plan, context)


def _encode(source: SourceBatch, plan: BatchPlan, context: RunContext) -> memoryview:
    """Return the batch with only the rows that stay, and their offsets."""
    header = plan.header
    schema = source.schema(context)
    rows, offsets = source.rows(context)
    kept_offsets = row_offsets(header, offsets)
    if plan.keep is not None:
        mask = pa.py_buffer(np.packbits(plan.keep, bitorder="little"))  # `pa.array` would import pandas
        rows = rows.filter(pa.Array.from_buffers(pa.bool_(), header.record_count, [None, mask]))
        kept_offsets = kept_offsets[plan.keep]
    column = pa.Array.from_buffers(
        pa.int64(), len(kept_offsets), [None, pa.py_buffer(np.ascontiguousarray(kept_offsets))]
    )
    stored = pa.RecordBatch.from_arrays([*rows.columns, column], schema=pa.schema([*schema, OFFSET_FIELD]))
    attributes = (header.attributes | ATTRIBUTE_OFFSET_COLUMN) & ~ATTRIBUTE_DELETE_HORIZON
    low_ms, high_ms = _timestamp_bounds_ms(rows, header, context.owner.timestamp_column)
    if plan.horizon_ms != NO_HORIZON:
        attributes |= ATTRIBUTE_DELETE_HORIZON
        low_ms = plan.horizon_ms
    return encode_batch(
        stored,
        schema_id=header.schema_id,
        min_timestamp_ms=low_ms,
        max_timestamp_ms=high_ms,
        compression=compression_of_batch(source.data),
        attributes=attributes,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        append_time_ms=header.append_time_ms,
        last_offset_delta=header.last_offset_delta,
    )


def _timestamp_bounds_ms(rows: pa.RecordBatch, header: BatchHeader, timestamp_column: str | None) -> tuple[int, int]:
    """Return the smallest and largest timestamp for the new header: those of the remaining rows if each row has its own
    timestamp, else those of the old header."""
    if header.attributes & ATTRIBUTE_CONTROL:
        return header.max_timestamp_ms, header.max_timestamp_ms
    if not rows.num_rows:
        return NO_TIMESTAMP_MS, NO_TIMESTAMP_MS
    has_minimum = (
        not header.attributes & ATTRIBUTE_DELETE_HORIZON
    )  # else the smallest one has been given up for the horizon
    before = header.min_timestamp_ms if has_minimum else header.max_timestamp_ms, header.max_timestamp_ms
    index = rows.schema.get_field_index(timestamp_column) if timestamp_column is not None else -1
    if index < 0 or header.attributes & (ATTRIBUTE_LOG_APPEND_TIME | ATTRIBUTE_CONTROL):
        return before
    column: Any = rows.column(index)
    return before if column.null_count else timestamp_bounds_ms(column, header.max_timestamp_ms)


class _Writer:
    """Writes batches into as few segments as `segment.bytes` allows."""

    def __init__(self, first: SegmentInfo, context: RunContext) -> None:
        self._info = first
        self._context = context
        self._schema = context.schema_of(first.schema_id)
        self._segments: list[LogSegment] = []
        self._buffer = bytearray()
        self._placed: list[PlacedBatch] = []

    def add(self, data: bytes | memoryview) -> None:
        header = decode_header(data)
        segment = self._segments[-1] if self._segments else self._begin(self._info.base_offset)
        size = segment.end.position + len(self._buffer)
        if size > segment.data_position and size + len(data) > self._context.segment_bytes:
            self._write()
            segment = self._begin(segment.next_offset)
        self._placed.append(PlacedBatch(len(self._buffer), header))
        self._buffer += data
        if len(self._buffer) >= WRITE_BYTES:
            self._write()

    def finish(self) -> list[LogSegment]:
        self._write()
        for segment in self._segments:
            segment.seal(self._schema)
        return self._segments

    def abandon(self) -> None:
        """Remove the written files."""
        for segment in self._segments:
            try:
                segment.delete()
            except StorageError as e:
                logger.warning("a file of a failed compaction cannot be removed before the next run or start: %s", e)

    def _begin(self, base_offset: int) -> LogSegment:
        context = self._context
        info = self._info._replace(base_offset=base_offset)
        path = context.directory / (segment_name(base_offset) + CLEANED_SUFFIX)
        head = encode_head(with_offset_column(self._schema), info)
        file = context.files.open(path, create=True)
        try:
            file.truncate(0)
            file.write(0, head)
        finally:
            file.close()
        end = SegmentEnd(base_offset, len(head))
        segment = LogSegment(context.files, path, info, len(head), end, context.handles, compacted=True)
        segment.begin(Tail(), SegmentIndexes(base_offset))
        self._segments.append(segment)
        return segment

    def _write(self) -> None:
        if self._placed:
            data = memoryview(bytes(self._buffer))
            self._segments[-1].append(data, self._placed, self._context.index_interval_bytes)
            self._buffer, self._placed = bytearray(), []
