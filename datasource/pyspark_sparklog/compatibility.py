"""Names that Spark 4.2 has and 4.0 and 4.1 do not: there the source works without what they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            ReadMinRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:
        from dataclasses import dataclass

        class ReadLimit: ...

        @dataclass
        class ReadAllAvailable(ReadLimit): ...

        @dataclass
        class ReadMinRows(ReadLimit):
            min_rows: int

        @dataclass
        class ReadMaxRows(ReadLimit):
            max_rows: int

        class SupportsTriggerAvailableNow: ...

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

STREAMS_CAN_BE_WRITTEN: bool = DataSourceStreamArrowWriter.__name__ == "DataSourceStreamArrowWriter"

__all__ = [
    "STREAMS_CAN_BE_WRITTEN",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]
