"""Functions for Spark sessions: `register` the data source, and read a topic's `history` or its `latest` rows.

`register` is needed in sessions in which Spark's auto-discovery of `pyspark_*` packages cannot see the package, and in
threads without an active session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from sparklog.client.net import arguments as arg
from sparklog.errors import InvalidRequestError

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def _session_first(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with an optional session: a call without one uses the thread's active session."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        has_no_session = "spark" not in kwargs and (not args or isinstance(args[0], str))
        if has_no_session and (args or "topic" in kwargs):
            args = (_active_session(function.__name__), *args)  # type: ignore[assignment]
        return function(*args, **kwargs)

    return called


def _active_session(call: str) -> SparkSession:
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        raise InvalidRequestError(f"{call}: this thread has no active Spark session: use {call}(spark, topic)")
    return spark


@_session_first
@arg.takes(topic=arg.text)
def history(spark: SparkSession, topic: str, *, bootstrap_servers: str | None = None, **options: object) -> DataFrame:
    """Return a DataFrame of a topic's whole history: rows of its Delta table, then newer rows of its log.

    All offsets that the table has are read from the table, also offsets that the log has deleted; the others are read
    from the log. Each offset is read once. Commits of the lake worker, compactions and retention can continue
    meanwhile. Rows that were deleted from the table are not read. A stream reads the same with
    `.option("startingOffsets", "history")`.

    Args:
        spark: A session of Spark 4. If it is left out, the thread's active session is used.
        topic: The topic's name. Without a Delta table its rows come from the log alone.
        bootstrap_servers: "host:port,…". None: as for the data source.
        **options: Options of `format("sparklog")`, such as `includeMetadata="true"`.

    Returns:
        The rows, with the columns of `format("sparklog")`.

    Raises:
        InvalidRequestError: `spark` is left out, and the thread has no active session.

    Example:
        ```python
        sparklog.history(spark, "trips", bootstrap_servers="127.0.0.1:9292").groupBy("zone").count().show()
        ```
    """
    register(spark)
    return spark.read.format("sparklog").options(**_reading(topic, "history", bootstrap_servers, options)).load()


def _reading(topic: str, starting: str, bootstrap_servers: str | None, options: Mapping[str, object]) -> dict[str, str]:
    """Return the options of a batch read of one topic, as texts."""
    values = {"subscribe": topic, "startingOffsets": starting, **options}
    if bootstrap_servers is not None:
        values["sparklog.bootstrap.servers"] = bootstrap_servers
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


@_session_first
@arg.takes(topic=arg.text)
def latest(spark: SparkSession, topic: str, *, bootstrap_servers: str | None = None, **options: object) -> DataFrame:
    """Return a DataFrame of the newest row of each key of a topic, without deleted keys.

    A row deletes its key if all columns but the key and the timestamp column are null, or if its column `_op` is "d" or
    "delete". Rows that the log has deleted and the topic's Delta table still has are included, in both modes of the
    table.

    Args:
        spark: A session of Spark 4. If it is left out, the thread's active session is used.
        topic: Name of a topic with key columns, or of an envelope topic.
        bootstrap_servers: "host:port,…". None: as for the data source.
        **options: Options of `format("sparklog")`. `includeMetadata="true"` keeps the columns of the position.

    Returns:
        The rows, with the columns of `format("sparklog")`.

    Raises:
        InvalidRequestError: The topic has no key columns; or `spark` is left out, and the thread has no active session.
        InvalidConfigError: An option is unknown or wrong, or nothing names a broker.
        UnknownTopicOrPartitionError: The topic does not exist.
        BrokerNotAvailableError: No broker could be reached within 30 s.

    Example:
        ```python
        sparklog.latest(spark, "accounts", bootstrap_servers="127.0.0.1:9292").where("balance < 0").show()
        ```
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StringType
    from pyspark.sql.window import Window
    from pyspark_sparklog.options.options import parse_source_options

    from sparklog.client.reading.latest_rows import key_columns_of, value_columns_of
    from sparklog.lake.newest_rows import DELETE_OPERATIONS, OPERATION_COLUMN

    register(spark)
    source_options = _reading(topic, "newest", bootstrap_servers, options)
    parsed = parse_source_options(source_options, streaming=False)
    info = parsed.address.connect().topic(topic, refresh=True)
    keys, values = key_columns_of(info), [c for c in value_columns_of(info) if c != OPERATION_COLUMN]
    if not info.is_envelope:
        source_options = {name: value for name, value in source_options.items() if name.lower() != "includemetadata"}
        source_options["includeMetadata"] = "true"
    rows = spark.read.format("sparklog").options(**source_options).load()
    partition, offset, timestamp = (
        ("partition", "offset", "timestamp") if info.is_envelope else ("_partition", "_offset", "_timestamp")
    )

    def column(name: str) -> Column:
        return F.col("`" + name.replace("`", "``") + "`")

    by_offset = Window.partitionBy(partition, *map(column, keys)).orderBy(F.col(offset).desc())
    by_time = Window.partitionBy(*map(column, keys)).orderBy(F.col(timestamp).desc(), F.col(partition).desc())
    place = "_" * (1 + max(map(len, rows.columns)))  # no name of a column
    for window in (by_offset, by_time):
        rows = rows.withColumn(place, F.row_number().over(window)).where(F.col(place) == 1).drop(place)
    deleted = F.lit(bool(values))
    for name in values:
        deleted = deleted & column(name).isNull()
    if isinstance(rows.schema[OPERATION_COLUMN].dataType if OPERATION_COLUMN in rows.columns else None, StringType):
        deleted = deleted | F.coalesce(F.lower(F.col(OPERATION_COLUMN)).isin(*DELETE_OPERATIONS), F.lit(False))
    rows = rows.where(~deleted)
    if info.is_envelope or parsed.include_metadata:
        return rows
    return rows.drop("_topic", "_partition", "_offset", "_timestamp")


def register(spark: SparkSession) -> None:
    """Register the data source under the format name `sparklog`, and make the session the active one of this thread.

    `writeStream.start()` looks for a data source written in Python only in the active session of its thread. Without
    this call only the thread that created the session has an active session, and in other threads Spark raises
    `DATA_SOURCE_NOT_FOUND`. A second call does nothing more.

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
