"""`sparklog.register(spark)`: for sessions where Spark's auto-discovery of `pyspark_*` packages cannot see the
package."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the data source under the format name `sparklog` (again is fine)."""
    from pyspark.errors import AnalysisException
    from pyspark_sparklog import DefaultSource

    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as e:
        # Spark 4.0 refuses a name that it has found by itself
        if e.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
