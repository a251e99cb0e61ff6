"""The newest rows of changed keys, in memory up to a size, then in a temporary file.

The rows in the file are divided into buckets by the hash of their key, so that the newest row of each key is found with
the rows of a few buckets in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.client.producer.partitioner import partitions_for_columns
from sparklog.lake.newest_rows import newest_per_key

BUCKETS = 251
"""Number of buckets. It is a prime number, because the hashes of a partition's keys have the same remainder by the
number of partitions."""


class Place(NamedTuple):
    """The place of a batch of rows in the temporary file."""

    start: int
    """First byte."""
    size_bytes: int


class TemporaryRows:
    """Rows of one round in a temporary file. The file has no name, so that it ends with the process."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0

    def __enter__(self) -> TemporaryRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, rows: pa.Table) -> list[Place]:
        """Write rows, and return their places. Raises OSError."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="sparklog-lake-")  # noqa: SIM115 - closed by __exit__
        places = []
        for batch in rows.combine_chunks().to_batches():
            data = batch.serialize()
            self._file.seek(self._end)
            self._file.write(data)
            places.append(Place(self._end, data.size))
            self._end += data.size
        return places

    def read(self, places: Sequence[Place], schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows at these places. Raises OSError."""
        assert self._file is not None
        for place in places:
            self._file.seek(place.start)
            data = self._file.read(place.size_bytes)
            yield pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(data), schema)])


class ChangedRows:
    """The newest row of each key among the rows of one partition, which are added in the order of their offsets."""

    def __init__(self, key_columns: Sequence[str], memory_bytes: int, on_disk: TemporaryRows | None) -> None:
        """Create an empty set. `memory_bytes`: size in memory of the newest rows, above which they are written to
        `on_disk`; None: they stay in memory."""
        self._key_columns = list(key_columns)
        self._memory_bytes = memory_bytes
        self._on_disk = on_disk
        self._parts: list[pa.Table] = []
        self._added_bytes = 0
        self._buckets: dict[int, list[Place]] = {}
        self._schema: pa.Schema | None = None
        self.newest_bytes = 0
        """Size in memory of the newest rows, when they were last selected."""

    def add(self, rows: pa.Table) -> bool:
        """Add rows. Returns True if the newest rows have been selected now."""
        self._parts.append(rows)
        self._added_bytes += rows.nbytes
        if self._added_bytes < max(self._memory_bytes, 2 * self.newest_bytes):
            return False
        self._select()  # memory is bounded by the keys, not by the changes
        if self._on_disk is not None and self.newest_bytes > self._memory_bytes // 2:
            self._move_to_disk(self._on_disk, BUCKETS)
        return True

    def complete(self, memory_bytes: int) -> None:
        """Select the newest rows after the last call of `add`. They are written to the file if they take more than
        `memory_bytes`."""
        if not self._parts:
            return
        self._select()
        if self._on_disk is not None and (self._buckets or self.newest_bytes > memory_bytes):
            self._move_to_disk(self._on_disk, BUCKETS if self._buckets else 1)

    def groups(self) -> Iterator[pa.Table]:
        """Yield the newest rows, each key in one table. It can be called again."""
        yield from self._parts
        group: list[Place] = []
        for places in self._buckets.values():
            if group and sum(p.size_bytes for p in [*group, *places]) > self._memory_bytes:
                yield self._newest(group)
                group = []
            group += places
        if group:
            yield self._newest(group)

    def _select(self) -> None:
        self._parts = [newest_per_key(pa.concat_tables(self._parts).combine_chunks(), self._key_columns)]
        self.newest_bytes = self._added_bytes = self._parts[0].nbytes

    def _move_to_disk(self, on_disk: TemporaryRows, buckets: int) -> None:
        (rows,) = self._parts
        bucket = partitions_for_columns([rows.column(name) for name in self._key_columns], buckets)
        order = np.argsort(bucket)
        rows, bucket = rows.take(pa.array(order)), bucket[order]
        numbers, starts = np.unique(bucket, return_index=True)
        for number, start, end in zip(numbers, starts, [*starts[1:], len(bucket)], strict=True):
            self._buckets.setdefault(int(number), []).extend(on_disk.append(rows.slice(start, end - start)))
        self._schema = rows.schema
        self._parts, self._added_bytes, self.newest_bytes = [], 0, 0

    def _newest(self, places: Sequence[Place]) -> pa.Table:
        assert self._on_disk is not None
        assert self._schema is not None
        rows = ChangedRows(self._key_columns, self._memory_bytes, None)
        for part in self._on_disk.read(places, self._schema):
            rows.add(part)
        rows.complete(0)
        (newest,) = rows.groups()
        return newest
