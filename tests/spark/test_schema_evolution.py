"""Spark reads of topics whose schema changes: batch, a restarted and a running streaming query, the sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

SCHEMA = pa.schema([("id", pa.int32()), ("n", pa.int32())])
BIG = 1 << 40


@pytest.fixture
def typed(topic: Any, producer: Any) -> str:
    name: str = topic("evolving", schema=SCHEMA)
    producer.send_batch(name, [{"id": 0, "n": 0}, {"id": 1, "n": 1}]).result(30)
    return name


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(r) for r in frame.collect()), key=lambda r: r[0])


def test_a_batch_read_has_the_newest_schema(reads: Any, admin: Any, producer: Any, typed: str) -> None:
    admin.alter_schema(typed, add_columns={"c": pa.string()}, widen_columns={"n": pa.int64()})
    producer.send_batch(typed, [{"id": 2, "n": BIG, "c": "x"}]).result(30)
    for local in ("auto", "off"):
        frame = reads.batch(typed, **{"sparklog.local.read": local})
        assert frame.dtypes == [("id", "int"), ("n", "bigint"), ("c", "string")]
        assert rows(frame) == [(0, 0, None), (1, 1, None), (2, BIG, "x")]
        assert rows(frame.select("id", "c").where("c is null")) == [(0, None), (1, None)]
    assert reads.batch(typed, includeMetadata="true", columns="_offset").count() == 3


def test_a_running_query_leaves_new_columns_out_and_a_restart_reads_them(
    reads: Any, admin: Any, producer: Any, typed: str, collected: Any, tmp_path: Path
) -> None:
    sink = collected()
    query = (
        reads.stream(typed, startingOffsets="earliest")
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
        assert len(sink.rows) == 2
        admin.alter_schema(typed, add_columns={"c": pa.string()})
        producer.send_batch(typed, [{"id": 2, "n": 2, "c": "left out"}]).result(30)
        query.processAllAvailable()
        assert len(sink.rows) == 3
    finally:
        query.stop()
    assert sorted(map(tuple, sink.rows)) == [(0, 0), (1, 1), (2, 2)]
    producer.send_batch(typed, [{"id": 3, "n": 3, "c": "read"}]).result(30)
    again = collected().run(reads.stream(typed, startingOffsets="earliest"), tmp_path)
    assert [tuple(r) for r in again.rows] == [(3, 3, "read")]


@pytest.mark.nightly
def test_a_widened_column_ends_a_running_query_until_it_is_restarted(
    reads: Any, admin: Any, producer: Any, typed: str, collected: Any, tmp_path: Path
) -> None:
    sink, unconcerned = collected(), collected()
    query = (
        reads.stream(typed, startingOffsets="earliest")
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "n"))
        .start()
    )
    other = reads.stream(typed, startingOffsets="earliest", columns="id").writeStream.foreachBatch(unconcerned).start()
    try:
        query.processAllAvailable()
        assert len(sink.rows) == 2
        other.processAllAvailable()
        assert len(unconcerned.rows) == 2
        admin.alter_schema(typed, widen_columns={"n": pa.int64()})
        producer.send_batch(typed, [{"id": 2, "n": BIG}]).result(30)
        other.processAllAvailable()
        assert len(unconcerned.rows) == 3
        with pytest.raises(Exception, match="column 'n' is int64 now, it was int32 when the query started"):
            query.awaitTermination(60)
    finally:
        query.stop()
        other.stop()
    assert len(sink.rows) == 2
    again = collected().run(reads.stream(typed, startingOffsets="earliest"), tmp_path / "n")
    assert [tuple(r) for r in again.rows] == [(2, BIG)]


def test_a_stateful_query_goes_on_with_a_cast_to_the_type_before(
    reads: Any, admin: Any, producer: Any, typed: str, collected: Any, tmp_path: Path
) -> None:
    """The guide's way: counts by `n`, and rows that are told apart by all columns."""
    from pyspark.sql.functions import col

    def counts(frame: Any) -> Any:
        return frame.groupBy("n").count()

    def run(query: Any, name: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(r) for r in collected().run(query, tmp_path / name, mode="update").rows)

    def stream() -> Any:
        return reads.stream(typed, startingOffsets="earliest")

    assert run(counts(stream()), "counts") == [(0, 1), (1, 1)]
    assert run(stream().dropDuplicates(), "distinct") == [(0, 0), (1, 1)]
    admin.alter_schema(typed, add_columns={"c": pa.string()}, widen_columns={"n": pa.int64()})
    producer.send_batch(typed, [{"id": 1, "n": 1, "c": "x"}]).result(30)
    for query, name in ((counts(stream()), "counts"), (stream().dropDuplicates(), "distinct")):
        with pytest.raises(Exception, match="STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"):
            run(query, name)
    before = stream().withColumn("n", col("n").cast("int"))
    assert run(counts(before), "counts") == [(1, 2)]
    assert run(before.select("id", "n").dropDuplicates(), "distinct") == []


def test_the_sink_writes_new_columns(spark: Any, reads: Any, admin: Any, typed: str, broker: Any) -> None:
    options = {"sparklog.bootstrap.servers": broker.bootstrap_servers, "topic": typed}

    def write(sql: str) -> None:
        spark.sql(sql).write.format("sparklog").options(**options).mode("append").save()

    write("SELECT 2 AS id, 2 AS n")  # the workers know the old schema now
    with pytest.raises(Exception, match="unknown column 'c'"):
        write("SELECT 3 AS id, 3 AS n, 'x' AS c")
    admin.alter_schema(typed, add_columns={"c": pa.string()}, widen_columns={"n": pa.int64()})
    write(f"SELECT 3 AS id, {BIG} AS n, 'x' AS c")
    assert rows(reads.batch(typed)) == [(0, 0, None), (1, 1, None), (2, 2, None), (3, BIG, "x")]
