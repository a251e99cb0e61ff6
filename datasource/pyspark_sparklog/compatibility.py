"""Names of PySpark's data source API that 4.2 has and older versions lack.

Under an older version the source works without the features that need the missing names.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_type

from sparklog.errors import InvalidConfigError

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

_TO_ARROW_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
)


def arrow_type_of(data_type: Any) -> Any:
    """Return the Arrow type in which Spark hands over a column of `data_type`, with UTC timestamps. Raises PySpark's
    errors."""
    return to_arrow_type(data_type, **_TO_ARROW_IN_UTC)


READERS_RECEIVE_THEIR_START: bool = hasattr(DataSourceStreamReader, "getDefaultReadLimit")
"""True if Spark passes the start of a micro-batch when it asks a Python source for the batch's end, as 4.2 does. Older
versions ask only for the latest offset."""


def check_read_limits(has_limit: bool) -> None:
    """Refuse a stream's read limits under a PySpark that cannot keep them. `has_limit`: True if the stream has a limit.
    Raises InvalidConfigError."""
    if has_limit and not READERS_RECEIVE_THEIR_START:
        raise InvalidConfigError(
            f"maxOffsetsPerTrigger and minOffsetsPerTrigger need PySpark 4.2: PySpark {pyspark.__version__} does not "
            "pass the start of a micro-batch to a Python source"
        )


STREAMS_CAN_BE_WRITTEN: bool = DataSourceStreamArrowWriter.__name__ == "DataSourceStreamArrowWriter"

__all__ = [
    "READERS_RECEIVE_THEIR_START",
    "STREAMS_CAN_BE_WRITTEN",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_type_of",
    "check_read_limits",
]
