"""Gathering of Spark's batches for the producer by a task of a write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.options.options import parse_sink_options
from pyspark_sparklog.sink.publication import Publisher
from pyspark_sparklog.sink.sink_task import SPREAD_BYTES, SinkTask

from sparklog.settings import MIB

VALUES = pa.array([b"v" * 1000] * 300, pa.binary())
BATCH_BYTES = pa.record_batch({"value": VALUES}).nbytes


def _task(*, envelope: bool = True, keyed: bool = False, **options: Any) -> SinkTask:
    given = {"topic": "t", "sparklog.bootstrap.servers": "127.0.0.1:1"} | options
    publisher = Publisher(ClusterAddress("127.0.0.1:1"), 1, 1, -1)
    return SinkTask(parse_sink_options(given, streaming=False), envelope, keyed, publisher)


def _pieces(task: SinkTask, columns: dict[str, Any], batches: int) -> list[int]:
    """Batches in each piece."""
    rows: Iterator[pa.RecordBatch] = iter([pa.record_batch(columns)] * batches)
    return [piece.data.num_rows // len(VALUES) for piece in task._gather_by_topic(rows)]


NO_KEYS = pa.nulls(len(VALUES), pa.binary())


@pytest.mark.parametrize("columns", [{"value": VALUES}, {"key": NO_KEYS, "value": VALUES}])
def test_rows_that_may_go_anywhere_are_gathered_to_one_batch(columns: dict[str, Any]) -> None:
    near = round(MIB / BATCH_BYTES)
    assert _pieces(_task(), columns, 2 * near + 1) == [near, near, 1]


def test_the_batch_size_decides() -> None:
    assert _pieces(_task(**{"sparklog.batch.size.bytes": "1"}), {"value": VALUES}, 3) == [1, 1, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "columns",
    [
        {"key": VALUES, "value": NO_KEYS},
        {"value": VALUES, "partition": pa.array([0] * len(VALUES), pa.int32())},
    ],
)
def test_rows_that_name_their_partitions_are_gathered_for_several(columns: dict[str, Any]) -> None:
    count = -(-SPREAD_BYTES // pa.record_batch(columns).nbytes)
    assert _pieces(_task(), columns, count + 1) == [count, 1]


def test_a_keyed_topic_has_rows_for_several_partitions() -> None:
    count = -(-SPREAD_BYTES // BATCH_BYTES)
    assert _pieces(_task(envelope=False, keyed=True), {"value": VALUES}, count + 1) == [count, 1]
    assert _pieces(_task(envelope=False), {"value": VALUES}, 4) == [3, 1]
