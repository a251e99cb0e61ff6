"""`sparklog.register(spark)`: registers the data source by hand.

It is for sessions in which Spark's auto-discovery of `pyspark_*` packages cannot see the package, and for threads
without an active session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the data source under the format name `sparklog`, and make the session the active one of this thread.

    `writeStream.start()` looks for a data source written in Python only in the active session of its thread. Only the
    thread that created the session has one; in another thread Spark raises `DATA_SOURCE_NOT_FOUND`. A second call does
    nothing more.

    Args:
        spark: A session of Spark 4, classic or Spark Connect.

    Example:
        ```python
        sparklog.register(spark)
        spark.read.format("sparklog").option("subscribe", "trips").load()
        ```
    """
    from pyspark.errors import AnalysisException
    from pyspark_sparklog import DefaultSource

    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as e:
        # Spark 4.0 refuses a name that it has found by itself
        if e.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    # a session of Spark Connect has no JVM here: its server sets the active session for every request
    java_session = getattr(spark, "_jsparkSession", None)
    if java_session is not None:
        # PySpark does the same in `createDataFrame`, the only public call that does it
        java_session.setActiveSession(java_session)
