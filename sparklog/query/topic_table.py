"""A topic as a pyarrow Dataset. DuckDB passes the needed columns and the filter of the WHERE to the dataset."""

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
"""Function that returns a scan: of the columns (None: all) of the rows that pass the expression (None: all rows)."""


class TopicTable(ds.Dataset):  # type: ignore[misc]
    """A table for DuckDB. DuckDB pushes columns and filter down only into instances of Dataset, so this is a subclass;
    it uses nothing of the base class."""

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
