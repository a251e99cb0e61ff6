"""Discovery of the source, and the user's view of a wrong option."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.format.ddl import parse_ddl
from sparklog.format.schema import canonical_schema
from sparklog.format.spark_json import parse_spark_json
from tests.support.cases import in_gate

DDL = """
    a INT, b STRING, c TIMESTAMP, d DECIMAL(10,2), e ARRAY<STRING>, s STRUCT<x: INT, y: ARRAY<DOUBLE>>,
    m MAP<STRING,INT>, `odd name` bigint NOT NULL COMMENT 'it is', `tick``ed` tinyint, n timestamp_ntz, f float, g double,
    h smallint, i boolean, j date, k binary, l decimal, o numeric(5), t interval day to second, u: long comment "x",
    r map<int, struct<deep: map<string, array<array<date>>>>>
"""
"""All types that have an Arrow form in Spark."""


def test_the_source_loads_without_registration_and_can_be_registered(spark: Any, reads: Any, topic: Any) -> None:
    name = topic()
    assert reads.batch(name).count() == 0
    sparklog.register(spark)
    sparklog.register(spark)
    assert reads.batch(name).count() == 0


def test_a_thread_without_an_active_session_can_start_a_write_once_it_has_registered(
    spark: Any, topic: Any, broker: sparklog.LocalBroker, tmp_path: Path
) -> None:
    name = topic()

    def write() -> None:
        numbers = spark.readStream.format("rate").load().selectExpr("cast(value as string) value")
        to_topic = numbers.writeStream.format("sparklog").option("topic", name)
        options = {"sparklog.bootstrap.servers": broker.bootstrap_servers, "checkpointLocation": str(tmp_path)}
        to_topic.options(**options).start().stop()

    def register_and_write() -> None:
        sparklog.register(spark)
        write()

    with ThreadPoolExecutor(1) as other:
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            other.submit(write).result()
        other.submit(register_and_write).result()


@pytest.mark.usefixtures("spark")
def test_a_schema_is_read_as_by_sparks_own_parser() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    spark_type = StructType.fromDDL(DDL)
    canonical = canonical_schema(to_arrow_schema(spark_type, timezone="UTC"))  # type: ignore[arg-type]
    assert parse_ddl(DDL).equals(canonical)
    assert parse_spark_json(spark_type.json()).equals(canonical)


def test_importing_the_source_imports_no_heavy_module() -> None:
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_sparklog; "
        "print(sorted(m for m in set(sys.modules) - before if not m.startswith('pyspark')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_sql_can_read_a_topic(spark: Any, topic: Any, send: Any, broker: sparklog.LocalBroker) -> None:
    name = topic()
    send(name, "a")
    spark.sql(
        "create temporary view sparklog_view using sparklog "
        f"options (`sparklog.bootstrap.servers` '{broker.bootstrap_servers}', subscribe '{name}')"
    )
    assert spark.sql("select cast(value as string) from sparklog_view").first()[0] == "a"


BAD_READS: list[tuple[Any, ...]] = [
    ({}, "One of the following options must be specified"),
    ({"subscribe": "never-made"}, "no topic 'never-made'.*sparklog topic create"),
    ({"subscribe": "T", "startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
    ({"subscribe": "T", "startingOffsets": "{"}, "is not JSON"),
    (
        {"subscribe": "T", "startingOffsets": '{"T": {"1": 0}}'},
        "must name every partition that is read; missing: T-0",
    ),
    ({"subscribe": "T", "startingOffsets": '{"T": {"0": 0, "1": 0}}'}, "names partitions that are not read: T-1"),
    ({"subscribe": "T", "startingOffsets": "latest"}, "can't be latest for batch queries"),
    ({"subscribe": "T", "kafka.value.deserializer": "x"}, "values are deserialized as byte arrays"),
    ({"subscribe": "T", "sparklog.bootstrap.servers": "127.0.0.1:1"}, "no broker at 127.0.0.1:1.*sparklog broker"),
]


@pytest.mark.parametrize(("options", "message"), in_gate(BAD_READS, BAD_READS[1], BAD_READS[4], BAD_READS[8]))
def test_a_bad_batch_read(reads: Any, topic: Any, options: dict[str, str], message: str) -> None:
    name = topic()
    given = {k: v.replace("T", name) for k, v in options.items()}
    with pytest.raises(Exception, match=f"(?s){message.replace('T-', name + '-')}") as raised:
        reads.batch(**given).count()
    first = str(raised.value).splitlines()[0]
    assert re.match(r"\[PYTHON_DATA_SOURCE_ERROR\] Failed to [a-z A-Z]+: sparklog\.errors\.[A-Za-z]+: ", first)
    assert "Traceback" not in str(raised.value)


BAD_STREAMS: list[tuple[Any, ...]] = [
    ({"endingOffsets": "latest"}, "InvalidConfigError: ending offset not valid in streaming queries"),
    ({"startingOffsets": '{"T": {"0": 5}}'}, "offset 5 of T-0 is out of range, it has offsets 0 to 0"),
    ({"minPartitions": "x"}, "minPartitions = 'x': a whole number"),
]


@pytest.mark.parametrize(("options", "message"), in_gate(BAD_STREAMS, BAD_STREAMS[1]))
def test_a_bad_streaming_read(reads: Any, topic: Any, options: dict[str, str], message: str) -> None:
    name = topic()
    given = {k: v.replace("T", name) for k, v in options.items()}

    def run() -> None:
        query = reads.stream(name, **given).writeStream.format("noop").start()
        try:
            query.awaitTermination(60)
        finally:
            query.stop()

    with pytest.raises(Exception, match=message.replace("T-", name + "-")):
        run()
