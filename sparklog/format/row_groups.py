"""Row groups: batches of one schema that are collected in memory and written together.

A log batch can have a few rows only. A file with a row group, or a record batch, per log batch is several times larger,
and slow to read.
"""

from __future__ import annotations

import pyarrow as pa

from sparklog.settings import MIB

ROW_GROUP_ROWS = 1_000_000
"""Number of rows at which a row group is full."""
ROW_GROUP_BYTES = 64 * MIB
"""Size of the rows in Arrow's memory, in bytes, at which a row group is full."""
SMALL_BATCHES_MAX = 256
"""Number of added batches that are kept as they are. More of them are copied into one batch: a batch takes 500 bytes
per column beside its rows, and can keep the memory of a whole response."""


class RowGroup:
    """The rows of some batches, which `take` returns together. Its size exceeds the limits by one batch at most."""

    def __init__(self, *, rows_max: int = ROW_GROUP_ROWS, bytes_max: int = ROW_GROUP_BYTES) -> None:
        """Create an empty row group. `rows_max` and `bytes_max`: numbers of rows and bytes at which the row group is
        full."""
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._batches: list[pa.RecordBatch] = []
        self._combined = 0
        """Number of batches at the begin of `_batches` that consist of combined small batches."""
        self.rows = 0
        self.size_bytes = 0
        """Size of the rows in Arrow's memory."""

    @property
    def is_full(self) -> bool:
        return self.rows >= self._rows_max or self.size_bytes >= self._bytes_max

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of the same schema as the others."""
        self._batches.append(batch)
        self.rows += batch.num_rows
        self.size_bytes += batch.nbytes
        if len(self._batches) - self._combined >= SMALL_BATCHES_MAX:
            self._batches[self._combined :] = _combine(self._batches[self._combined :])
            self._combined = len(self._batches)

    def take(self) -> list[pa.RecordBatch]:
        """Return the rows and make the row group empty. The rows are one batch, unless a column's texts exceed the
        2 GiB of one array."""
        batches = _combine(self._batches)  # first, because Ctrl-C during this long step must not lose the rows
        self._batches, self._combined, self.rows, self.size_bytes = [], 0, 0, 0
        return batches


def _combine(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())
