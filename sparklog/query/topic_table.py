"""The table that DuckDB scans: it hands a pyarrow Dataset the needed columns and the filter of the WHERE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds


class Scan(Protocol):
    """One reading of a table: the schema of its batches, and the batches, produced on demand."""

    schema: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]: ...


OpenScan = Callable[[Sequence[str] | None, pc.Expression | None], Scan]
"""A reading of these columns (None: all) of the rows that an expression holds for."""


class TopicTable(ds.Dataset):  # type: ignore[misc]
    """A Dataset by its class, which is how DuckDB finds out that it may push down; nothing of the base class is
    used."""

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
    """The part of a Scanner that DuckDB uses."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self.projected_schema = scan.schema

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._scan.schema, self._scan.batches())
