"""`format("sparklog-faulty")`: the sink with a fault in it, in whichever of Spark's Python processes reaches it first.

Options besides the sink's: `fault` (as SPARKLOG_FAULT) and `mark`, the file that makes it happen only once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter


class Faults:
    """Arms the fault in the process that calls."""

    def __init__(self, fault: str, mark: str) -> None:
        self.fault = fault
        self.mark = mark

    def __enter__(self) -> None:
        from sparklog.environment import fault_points as faults

        faults.arm(self.fault, self.mark)

    def __exit__(self, *_: object) -> None:
        from sparklog.environment import fault_points as faults

        faults.disarm()  # the process serves other queries, too


class FaultyStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, inner: Any, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults

    def write(self, iterator: Iterator[Any]) -> Any:
        with self.faults:
            return self.inner.write(iterator)

    def commit(self, messages: Sequence[Any], batch_id: int) -> None:
        with self.faults:
            self.inner.commit(messages, batch_id)

    def abort(self, messages: Sequence[Any], batch_id: int) -> None:
        with self.faults:
            self.inner.abort(messages, batch_id)


class FaultyBatchWriter(DataSourceArrowWriter):
    def __init__(self, inner: Any, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults

    def write(self, iterator: Iterator[Any]) -> Any:
        with self.faults:
            return self.inner.write(iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        with self.faults:
            self.inner.commit(messages)

    def abort(self, messages: Sequence[Any]) -> None:
        with self.faults:
            self.inner.abort(messages)


class FaultySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "sparklog-faulty"

    def _split(self) -> tuple[Faults, Mapping[str, str]]:
        given = dict(self.options)
        return Faults(given.pop("fault"), given.pop("mark")), given

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from pyspark_sparklog.sink.writer import batch_writer

        faults, given = self._split()
        return FaultyBatchWriter(batch_writer(given, schema, overwrite=overwrite), faults)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from pyspark_sparklog.sink.writer import stream_writer

        faults, given = self._split()
        return FaultyStreamWriter(stream_writer(given, schema, overwrite=overwrite), faults)


def register(spark: Any) -> None:
    """Spark's processes cannot import this module, so the classes travel with it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(FaultySource)
