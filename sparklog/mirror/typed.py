"""The conversion of records into the rows of a typed topic, and of the others into rows of the refused topic. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from sparklog.errors import LeaderNotAvailableError, MessageTooLargeError
from sparklog.format.schema import timestamp_bounds_ms
from sparklog.kafka.records import compression
from sparklog.kafka.values.fitting import ReadHeaders, ReadValues, fitting_rows, rows_reader
from sparklog.kafka.values.keys import Parse
from sparklog.metadata.refused_topics import REASON_CHARS_MAX, REFUSED_SCHEMA, refused_topic
from sparklog.mirror.batches import BatchPlace, PlacedWriter
from sparklog.mirror.refused import RefusedLog
from sparklog.settings import MIB

NO_LIMIT = -1
CONVERTED_BYTES_MAX = 64 * MIB
"""Size of batches and refused rows after which the rest of an answer is left to the next fetch."""


class RefusedTarget(NamedTuple):
    """A refused topic, with the limits of its batches."""

    schema_id: int
    batch_bytes_max: int
    inflated_bytes_max: int


class TypedTarget(NamedTuple):
    """A typed topic that a mirror fills, with the limits of its batches."""

    name: str
    schema: pa.Schema
    schema_id: int
    key_columns: tuple[str, ...]
    key_format: str
    key_schema: str
    is_compacted: bool
    timestamp_column: str | None
    read: ReadValues
    parse_keys: Parse
    read_headers: ReadHeaders | None
    drops_headers: bool
    batch_bytes_max: int
    inflated_bytes_max: int
    refused: RefusedTarget
    refused_max: int
    """Number of refused records of all partitions at which the mirror pauses before the next one; NO_LIMIT: none."""


class Refusals(NamedTuple):
    """The refused records of a conversion."""

    batches: tuple[memoryview, ...]
    """Batches of the refused topic at given offsets, from the end of its log on; empty: none."""
    log: RefusedLog
    """State of the refused log after the append."""
    stop: str
    """Reason of a pause before the next record; empty: none."""
    new: int = 0
    """Number of rows in the batches."""
    example: str = ""
    """Place of the first of these records, and the reason; empty: there is none."""


NO_REFUSALS = Refusals((), RefusedLog(), "")


class TypedConversion:
    """The conversion of one partition's part of a fetch answer."""

    def __init__(
        self, target: TypedTarget, partition: int, log: RefusedLog, others: int, *, position: int = 0, schema_id: int
    ) -> None:
        """`log`: state of the partition's refused log. `others`: number of refused records of the other partitions.
        `position`: log end of the topic. `schema_id`: that of the last batch of the topic, NO_SCHEMA if not known.

        Raises LeaderNotAvailableError if the last batch has newer columns than this worker knows."""
        if schema_id > target.schema_id:
            raise LeaderNotAvailableError(
                f"topic {target.name!r} has batches with the columns {schema_id}, this worker knows {target.schema_id}"
            )
        self.writer = PlacedWriter(target.schema, target.schema_id, target.batch_bytes_max, target.inflated_bytes_max)
        self._target = target
        self._fences = schema_id != target.schema_id
        self._decided_end = log.end if log.end > position else None
        """End of the offsets that are decided, and that this conversion does not exceed; None: all are undecided."""
        self._partition = partition
        self._log = log
        room = target.refused_max - others - log.count
        self._room = None if target.refused_max == NO_LIMIT else max(room, 0)
        self._stop = ""
        """Reason of a pause."""
        self._has_stopped = False
        self._size_bytes = 0
        """Size of the batches and refused rows so far."""
        self._epoch = log.epoch
        self._rows: list[pa.RecordBatch] = []
        self._new = 0
        """Number of refused records in `_rows`."""

    @property
    def has_stopped(self) -> bool:
        """True if later records are left to another conversion."""
        return self._has_stopped

    def convert(
        self, records: pa.RecordBatch, offsets: np.ndarray, place: BatchPlace
    ) -> tuple[list[memoryview], int, int]:
        """Convert the records of one batch. Returns the batches, the number of their rows, and the offset of the last
        record that is decided. The batches span the offsets up to this one; without batches it is a gap.

        Raises LeaderNotAvailableError if another worker has decided about a record with newer columns."""
        target = self._target
        fitting = fitting_rows(
            records,
            target,
            rows_reader(target.read, target, target.parse_keys),
            bytes_max=target.inflated_bytes_max,
            drops_headers=target.drops_headers,
            read_headers=target.read_headers,
        )
        rows, places, reasons = fitting.rows, fitting.places, fitting.refused
        if self._log.ahead:  # a worker has refused these records, and died before it appended the gap
            is_decided = np.isin(offsets[places], list(self._log.ahead))
            rows, places = rows.filter(pa.array(~is_decided)), places[~is_decided]
        end = place.last
        if fitting.converted < len(offsets):  # the others are left to the next conversion, to bound the memory
            end, self._has_stopped = int(offsets[fitting.converted - 1]), True
        if self._decided_end is not None and end >= self._decided_end - 1:
            end, self._has_stopped = self._decided_end - 1, True
            reasons = {index: reason for index, reason in reasons.items() if offsets[index] <= end}
        while True:
            last = self._limited(offsets, reasons, end)
            keep = offsets[places] <= last
            rows, places = rows.filter(pa.array(keep)), places[keep]
            if not len(places):
                batches: list[memoryview] = []
                break
            whole = place._replace(last=last, bounds_ms=self._bounds(rows, place))
            batches, too_large = self.writer.split(rows, offsets[places], whole)
            if not too_large:
                break
            is_large = np.isin(offsets[places], too_large)
            text = f"the row takes more than {target.batch_bytes_max} bytes (max.message.bytes)"
            reasons = reasons | dict.fromkeys(places[is_large].tolist(), text)
            rows, places = rows.filter(pa.array(~is_large)), places[~is_large]
        self._note_size(sum(map(len, batches)))
        self._refuse(records, offsets, {i: r for i, r in sorted(reasons.items()) if offsets[i] <= last}, place.epoch)
        return batches, len(places), last

    def refusals(self, end: int, epoch: int) -> Refusals:
        """Return the refused records so far. `end`, `epoch`: end of the conversion, and its leader epoch. Raises
        MessageTooLargeError for a record that the refused topic cannot have."""
        if not self._rows and not (self._fences and end > self._log.end):
            return Refusals((), self._log, self._stop)
        target = self._target.refused
        writer = PlacedWriter(REFUSED_SCHEMA, target.schema_id, target.batch_bytes_max, target.inflated_bytes_max)
        if not self._rows:
            fence = writer.gap(self._log.end, end, epoch)
            return Refusals(fence, replace(self._log, end=end, epoch=epoch), self._stop)
        rows = pa.Table.from_batches(self._rows).combine_chunks().to_batches()[0]
        offsets = np.asarray(rows.column("offset"))
        first, last = int(offsets[0]), int(offsets[-1])
        bounds = timestamp_bounds_ms(rows.column("timestamp"), 0)
        parts, too_large = writer.split(rows, offsets, BatchPlace(first, last, self._epoch, bounds, compression.ZSTD))
        if too_large:
            raise MessageTooLargeError(
                f"the record at offset {too_large[0]} does not fit the topic {self._target.name!r}, and takes more than "
                f"{target.batch_bytes_max} bytes as a refused record: raise max.message.bytes of "
                f"{refused_topic(self._target.name)!r}"
            )
        batches = [*writer.gap(self._log.end, first, self._epoch), *parts]
        ahead = self._log.ahead | set(offsets.tolist())
        log = RefusedLog(self._log.start, last + 1, self._epoch, self._log.count + len(offsets), ahead)
        if self._fences and end > log.end:
            batches += writer.gap(log.end, end, epoch)
            log = replace(log, end=end, epoch=epoch)
        example = f"offset {first} of partition {self._partition}: {rows.column('reason')[0]}"
        return Refusals(tuple(batches), log, self._stop, len(offsets), example)

    def _bounds(self, rows: pa.RecordBatch, place: BatchPlace) -> Sequence[int]:
        column = self._target.timestamp_column
        if column is None:
            return place.bounds_ms
        return timestamp_bounds_ms(rows.column(rows.schema.get_field_index(column)), place.bounds_ms[1])

    def _is_new(self, offset: int, reason: str) -> bool:
        """Return True if a refused record is not stored yet. Raises LeaderNotAvailableError."""
        log = self._log
        if offset >= log.end:
            return True
        if offset not in log.ahead and offset >= log.start:
            raise LeaderNotAvailableError(
                f"the record at offset {offset} of partition {self._partition} of {self._target.name!r} does not fit the "
                f"columns that this worker knows ({reason:.{REASON_CHARS_MAX}}), but another worker has accepted it"
            )
        return False

    def _limited(self, offsets: np.ndarray, reasons: dict[int, str], last: int) -> int:
        """Return the offset of the last record before the limit of refused records."""
        new = [index for index in sorted(reasons) if self._is_new(int(offsets[index]), reasons[index])]
        if self._room is None or len(new) + self._new <= self._room:
            return last
        index = new[self._room - self._new]
        self._has_stopped = True
        self._stop = (
            f"{self._target.refused_max} records of topic {self._target.name!r} are refused (mirror.refused.max), and "
            f"the one at offset {offsets[index]} of partition {self._partition} does not fit, too: {reasons[index]}"
        )
        return int(offsets[index]) - 1

    def _refuse(self, records: pa.RecordBatch, offsets: np.ndarray, reasons: dict[int, str], epoch: int) -> None:
        """Note refused records that are not stored yet."""
        indices = [index for index in reasons if offsets[index] >= self._log.end]
        if not indices:
            return
        count = len(indices)
        chosen = records.take(pa.array(indices, pa.int64()))
        first = self._log.count + self._new + 1
        columns = [
            pa.array(np.full(count, self._partition, np.int32)),
            pa.array(offsets[indices], pa.int64()),
            *chosen.columns,
            pa.array([reasons[index][:REASON_CHARS_MAX] for index in indices], pa.string()),
            pa.nulls(count, pa.string()),
            pa.array(np.arange(first, first + count), pa.int64()),
        ]
        self._rows.append(pa.RecordBatch.from_arrays(columns, schema=REFUSED_SCHEMA))
        self._new += count
        self._epoch = epoch
        self._note_size(self._rows[-1].nbytes)

    def _note_size(self, size_bytes: int) -> None:
        """Leave later batches to the next conversion if this one takes much memory."""
        self._size_bytes += size_bytes
        self._has_stopped |= self._size_bytes > CONVERTED_BYTES_MAX
