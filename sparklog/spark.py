"""`sparklog.register(spark)`: for sessions where Spark's auto-discovery of `pyspark_*` packages cannot see the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the data source under the format name `sparklog` (again is fine)."""
    from pyspark_sparklog import DefaultSource

    spark.dataSource.register(DefaultSource)
