"""State of one's own in a query over sparklog: transformWithStateInPandas, which wants more than PySpark itself
brings."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        importlib.util.find_spec("google") is None, reason="needs protobuf: pip install 'sparklog[spark]'"
    ),
]


def processor() -> Any:
    """Counts the records of a key over all batches. Made here, so that it goes to Spark's workers by value."""
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]
    from pyspark.sql.types import IntegerType, StructField, StructType

    class Counts(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", StructType([StructField("value", IntegerType(), True)]))

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N803 - Spark's name
            count = sum(len(frame) for frame in rows)
            if self._count.exists():
                count += self._count.get()[0]
            self._count.update((count,))
            yield pd.DataFrame({"key": [key[0]], "count": [count]})

        def close(self) -> None:
            pass

    return Counts()


def test_counts_go_on_after_a_restart(
    spark: Any, reads: Any, topic: Callable[..., str], producer: Any, collected: Any, tmp_path: Path
) -> None:
    name = topic()
    rows = reads.stream(name, startingOffsets="earliest").selectExpr("cast(key as string) key", "value")
    counts = rows.groupBy("key").transformWithStateInPandas(
        statefulProcessor=processor(), outputStructType="key string, count int", outputMode="Update", timeMode="None"
    )

    def run() -> dict[str, int]:
        seen = collected()
        writer = counts.writeStream.outputMode("update").foreachBatch(seen).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return {row["key"]: row["count"] for row in seen.rows}

    def send(*keys: str) -> None:
        for future in [producer.send(name, b"v", key=key.encode()) for key in keys]:
            future.result(30)

    before = spark.conf.get(STORE)
    spark.conf.set(STORE, ROCKS)
    try:
        send("a", "b", "a")
        assert run() == {"a": 2, "b": 1}
        send("a", "c")
        assert run() == {"a": 3, "c": 1}
    finally:
        spark.conf.set(STORE, before)
