"""A topic as a pyarrow Dataset, to which DuckDB passes the needed columns and the conditions of the WHERE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds


class Scan(Protocol):
    """One scan of a table: the schema of its batches, and the batches, read on demand."""

    schema: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]: ...


OpenScan = Callable[[Sequence[str] | None, pc.Expression | None], Scan]
"""Function of column names (None: all) and a filter expression (None: all rows) that returns the scan of these columns
of the rows that pass the filter."""


class TopicTable(ds.Dataset):  # type: ignore[misc]
    """A table for DuckDB. It is a subclass of Dataset, although it uses nothing of that class, because DuckDB pushes
    columns and filter down only into instances of Dataset."""

    def __init__(self, schema: pa.Schema, open_scan: OpenScan) -> None:
        self._table_schema = schema
        self._open_scan = open_scan

    @property
    def schema(self) -> pa.Schema:
        return self._table_schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any
    ) -> TopicScanner:
        return TopicScanner(self._open_scan(columns, filter))


class TopicScanner:
    """The methods of pyarrow's Scanner that DuckDB uses."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self.projected_schema = scan.schema

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._scan.schema, self._scan.batches())
