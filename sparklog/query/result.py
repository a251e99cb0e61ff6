"""The result of a statement."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import pyarrow as pa

from sparklog.errors import ClosedError, QueryResultTooLargeError
from sparklog.query.calls import CALLS
from sparklog.query.scan import Control, ScanStatistics


class QueryResult:
    """The rows of a statement, which DuckDB computes as they are requested.

    Close the result before the session's next statement, or use it in a `with` block.
    """

    def __init__(
        self,
        reader: Any,
        translate: Callable[[Exception], BaseException],
        control: Control,
        end: Callable[[], None] | None,
    ) -> None:
        """Wrap DuckDB's reader. Users call `SqlSession.execute` instead.

        Args:
            reader: The reader of record batches.
            translate: Returns sparklog's error for an error of DuckDB.
            control: The state that the statement shares with its scans.
            end: Called once by `close`. None: no function.
        """
        self._reader = reader
        self._translate = translate
        self._control = control
        self._end = end
        self.schema: pa.Schema = reader.schema
        """Schema of the rows."""
        self.is_parents = False
        """True in a forked child for a result of its parent, which raises ClosedError there: the child lacks the
        threads that compute the rows."""

    @property
    def statistics(self) -> ScanStatistics:
        """Numbers of records and bytes that the statement has read so far."""
        return self._control.statistics

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows in batches. Raises the errors of `sql`, and ClosedError for a result of the parent."""
        if self.is_parents:
            raise ClosedError("this result belongs to the parent process: create a SqlSession in the child")
        while True:
            with CALLS:
                try:
                    batch = self._reader.read_next_batch()
                except StopIteration:
                    return
                except Exception as e:
                    raise self._translate(e) from e
            if batch.num_rows:
                yield batch

    def read_all(self, *, max_rows: int | None = None, max_bytes: int | None = None) -> pa.Table:
        """Read all rows.

        Args:
            max_rows: Largest number of rows. None: no limit.
            max_bytes: Largest size in bytes. None: no limit.

        Returns:
            The rows.

        Raises:
            QueryResultTooLargeError: The result is larger than a limit.
            ClosedError: The result belongs to the parent process.
            SparklogError: As from `sql`.
        """
        table, complete = self.read_up_to(max_rows=max_rows, max_bytes=max_bytes)
        if not complete:
            limits = [f"max_rows = {max_rows:,}"] if max_rows is not None else []
            limits += [f"max_bytes = {max_bytes:,}"] if max_bytes is not None else []
            raise QueryResultTooLargeError(f"the result is larger than {' or '.join(limits)}")
        return table

    def read_up_to(self, *, max_rows: int | None = None, max_bytes: int | None = None) -> tuple[pa.Table, bool]:
        """Read the first rows that stay within both limits.

        Args:
            max_rows: Largest number of rows. None: no limit.
            max_bytes: Largest size in bytes. None: no limit.

        Returns:
            The rows, and True if they are all rows of the result.

        Raises:
            ClosedError: The result belongs to the parent process.
            SparklogError: As from `sql`.
        """
        batches: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        complete = True
        for batch in self:
            fitting = batch.num_rows if max_rows is None else min(batch.num_rows, max_rows - rows)
            if max_bytes is not None:
                fitting = _rows_within(batch, fitting, max_bytes - size_bytes)
            complete = fitting == batch.num_rows
            kept = batch.slice(0, fitting)
            batches.append(kept)
            if not complete:
                break
            rows += fitting
            size_bytes += kept.nbytes
        return pa.Table.from_batches(batches, self.schema), complete

    def close(self) -> None:
        """End the statement, also if rows are unread. A second call does nothing."""
        if self.is_parents:
            return
        with contextlib.suppress(ClosedError), CALLS:  # at the end of the process the main thread closes the results
            self._reader.close()
            end, self._end = self._end, None
            if end is not None:
                end()

    def __enter__(self) -> QueryResult:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _rows_within(batch: pa.RecordBatch, rows_max: int, bytes_max: int) -> int:
    """Return the largest number of first rows, up to `rows_max`, whose size is at most `bytes_max`."""
    if batch.slice(0, rows_max).nbytes <= bytes_max:
        return rows_max
    return bisect_right(range(1, rows_max + 1), bytes_max, key=lambda rows: batch.slice(0, rows).nbytes)
