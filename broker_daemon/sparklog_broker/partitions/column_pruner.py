"""Fetches of some columns: the batches of a slice, each with these columns only.

The checksum of a pruned batch is computed when a reader asks for its columns the first time; then the whole batch is
read and checked, too. It stays in memory, so that later reads send ranges of the file, of which the broker reads
nothing. A byte that changes on the disk afterwards does not fit the checksum, which the reader verifies.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from sparklog.errors import CorruptBatchError, UnknownSchemaError
from sparklog.format.batch import BatchHeader, verify_checksum
from sparklog.format.pruned_batch import PrunedBatch, prune_batch
from sparklog.log.segments.header_walk import walk_headers
from sparklog.log.segments.slices import FileSlice

KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Largest memory for pruned batches, which is one per mille of their size or less."""
WHOLE_BYTES_MAX = 16 * 1024
"""Largest size of batches that are sent whole."""
READ_BYTES_MAX = 32 * 1024
"""Largest size of a range that is copied into the answer. The kernel sends larger ranges from the file."""
COPIED_BYTES_MAX = 1024 * 1024
"""Largest memory for the copied ranges of an answer, and about the largest for all that is not sent from files."""
_ENTRY_BYTES = 500
Part = bytes | FileSlice


class Room:
    """The room that is left in an answer. Its first batch always fits, so that every reader can pass a large batch."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.remaining_bytes = bytes_max
        self.remaining_copied_bytes = COPIED_BYTES_MAX

    @property
    def is_unused(self) -> bool:
        return self.remaining_bytes == self._bytes_max

    def has(self, size_bytes: int) -> bool:
        """Return True if a batch of this size fits."""
        return self.is_unused or (size_bytes <= self.remaining_bytes and self.remaining_copied_bytes > 0)

    def take(self, size_bytes: int) -> None:
        self.remaining_bytes -= size_bytes


class PrunedSlices(NamedTuple):
    """The batches of one partition in an answer."""

    parts: list[Part]
    next_offset: int
    """Offset after the last batch."""


class ColumnPruner:
    """Cuts columns out of slices. Usable by several threads."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._kept: OrderedDict[Hashable, tuple[PrunedBatch | None, int]] = OrderedDict()
        """The pruned batches (None: it stays whole) with their memory, the least recently used first."""
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def prune(
        self,
        log: Hashable,
        slices: Sequence[FileSlice],
        columns: Sequence[str],
        schema_of: Callable[[int], pa.Schema],
        bytes_max: int,
        room: Room,
    ) -> PrunedSlices:
        """Return the batches of the slices with the columns of these names, as many as fit into `bytes_max` and into
        `room`, which they take. `log`: identity of the log. Slices in the result are separate from `slices`. Raises
        StorageError."""
        answer = _Answer(bytes_max, room)
        selection = _Selection(columns, schema_of)
        next_offset = slices[0].base_offset
        try:
            for file_slice in slices:
                for position, header in _batches(file_slice):
                    if header is None:  # the reader refuses the rest as in a fetch of all columns
                        size = file_slice.position + file_slice.length_bytes - position
                        if answer.has_room(size):
                            answer.add_range(file_slice, position, size)
                            next_offset = file_slice.next_offset
                        return PrunedSlices(answer.parts(), next_offset)
                    pruned = None
                    if header.body_length_bytes > WHOLE_BYTES_MAX:
                        pruned = self._pruned(log, file_slice, position, header, selection)
                    if not answer.has_room(header.size_bytes if pruned is None else pruned.size_bytes):
                        return PrunedSlices(answer.parts(), next_offset)
                    answer.add(file_slice, position, header, pruned)
                    next_offset = header.next_offset
            return PrunedSlices(answer.parts(), next_offset)
        except BaseException:
            answer.release()
            raise

    def _pruned(
        self,
        log: Hashable,
        file_slice: FileSlice,
        position: int,
        header: BatchHeader,
        selection: _Selection,
    ) -> PrunedBatch | None:
        """Return the pruned batch; None if it is sent whole. A damaged batch is sent as it is: the reader refuses it as
        in a fetch of all columns."""
        try:
            schema, indexes = selection.of(header.schema_id)
        except (UnknownSchemaError, KeyError):
            return None
        key = (log, header, indexes)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        data = memoryview(file_slice.read_part(position, header.size_bytes))
        try:
            verify_checksum(data, 0, header)
            pruned = prune_batch(data, header, schema, indexes)
        except CorruptBatchError:
            return None
        size = _ENTRY_BYTES + 40 * len(indexes)
        if pruned is not None:
            size += len(pruned.head) + 100 * len(pruned.ranges)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = pruned, size
                self._kept_bytes += size
                while self._kept_bytes > self._kept_bytes_max:
                    self._kept_bytes -= self._kept.popitem(last=False)[1][1]
        return pruned


class _Selection:
    """The columns of a fetch. Names that a schema lacks are left out."""

    def __init__(self, columns: Sequence[str], schema_of: Callable[[int], pa.Schema]) -> None:
        self._columns = frozenset(columns)
        self._schema_of = schema_of
        self._by_schema: dict[int, tuple[pa.Schema, tuple[int, ...]]] = {}

    def of(self, schema_id: int) -> tuple[pa.Schema, tuple[int, ...]]:
        """Return a schema, and the indexes of its wanted columns. Raises UnknownSchemaError, KeyError."""
        if schema_id not in self._by_schema:
            schema = self._schema_of(schema_id)
            indexes = tuple(i for i, name in enumerate(schema.names) if name in self._columns)
            self._by_schema[schema_id] = schema, indexes
        return self._by_schema[schema_id]


def _batches(file_slice: FileSlice) -> Iterator[tuple[int, BatchHeader | None]]:
    """Yield the batches of a slice with their positions, and at damage its position without a header."""
    following = file_slice.position
    try:
        for position, header in walk_headers(file_slice.read_part, following, following + file_slice.length_bytes):
            yield position, header
            following = position + header.size_bytes
    except CorruptBatchError:
        yield following, None


class _Answer:
    """The batches of one partition as parts. Bytes that follow each other become one part."""

    def __init__(self, bytes_max: int, room: Room) -> None:
        self._remaining_bytes = bytes_max
        self._room = room
        self._parts: list[Part] = []
        self._bytes: list[bytes] = []
        self._range: tuple[FileSlice, int, int] | None = None
        """The last range [start, end) of a file, which the next one can extend."""

    def has_room(self, size_bytes: int) -> bool:
        """Return True for the first batch of the answer, and for others that fit."""
        return self._room.has(size_bytes) and (self._room.is_unused or size_bytes <= self._remaining_bytes)

    def add(self, file_slice: FileSlice, position: int, header: BatchHeader, pruned: PrunedBatch | None) -> None:
        """Add the batch at `position`: pruned, or whole."""
        if pruned is None:
            self.add_range(file_slice, position, header.size_bytes)
            return
        self._end_range()
        self._take(len(pruned.head))
        self._copy(pruned.head)
        for start, end in pruned.ranges:
            self.add_range(file_slice, position + start, end - start)

    def add_range(self, file_slice: FileSlice, position: int, length_bytes: int) -> None:
        self._take(length_bytes)
        start = position
        if self._range is not None and self._range[0] is file_slice and self._range[2] == position:
            start = self._range[1]
        else:
            self._end_range()
        self._range = file_slice, start, position + length_bytes

    def parts(self) -> list[Part]:
        self._end_range()
        self._end_bytes()
        return self._parts

    def release(self) -> None:
        for part in self._parts:
            if not isinstance(part, bytes):
                part.release()

    def _take(self, size_bytes: int) -> None:
        self._remaining_bytes -= size_bytes
        self._room.take(size_bytes)

    def _copy(self, data: bytes) -> None:
        self._bytes.append(data)
        self._room.remaining_copied_bytes -= len(data)

    def _end_range(self) -> None:
        if self._range is None:
            return
        file_slice, start, end = self._range
        self._range = None
        if end - start <= READ_BYTES_MAX and self._room.remaining_copied_bytes > 0:
            self._copy(file_slice.read_part(start, end - start))
        else:
            self._end_bytes()
            self._parts.append(file_slice.part(start, end - start))

    def _end_bytes(self) -> None:
        if self._bytes:
            self._parts.append(b"".join(self._bytes))
            self._bytes = []
