"""`sparklog.register(spark)` registers the data source by hand; `sparklog.history(spark, topic)` reads a whole topic.

It is for sessions in which Spark's auto-discovery of `pyspark_*` packages cannot see the package, and for threads
without an active session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def history(spark: SparkSession, topic: str, *, bootstrap_servers: str | None = None, **options: object) -> DataFrame:
    """Return a DataFrame of a topic's whole history: the offsets that its Delta table has come from the table, also
    those that the log has deleted, and the others from the log.

    Each offset comes once. Commits of the lake worker, compactions and retention may go on meanwhile. Rows that were
    deleted from the table are not read. A stream reads the same with `.option("startingOffsets", "history")`.

    Args:
        spark: A session of Spark 4.
        topic: The topic's name. Without a Delta table its rows come from the log alone.
        bootstrap_servers: "host:port,…". None: as for the data source.
        **options: Options of `format("sparklog")`, such as `includeMetadata="true"`.

    Returns:
        The rows, with the columns of `format("sparklog")`.

    Example:
        ```python
        sparklog.history(spark, "trips", bootstrap_servers="127.0.0.1:9292").groupBy("zone").count().show()
        ```
    """
    register(spark)
    reader = spark.read.format("sparklog").option("subscribe", topic).option("startingOffsets", "history")
    if bootstrap_servers is not None:
        reader = reader.option("sparklog.bootstrap.servers", bootstrap_servers)
    for name, value in options.items():
        reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return reader.load()


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
        # what PySpark itself does in `createDataFrame`, the only public call that does it
        java_session.setActiveSession(java_session)
