"""A batch DataFrame shows the present records at each action, the same to all of its tasks, though Spark plans it
once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.types import TopicPartition
from tests.spark.frames import values


def test_each_action_sees_new_records(
    spark: Any, reads: Any, topic: Callable[..., str], send: Callable[..., None], admin: sparklog.Admin
) -> None:
    name = topic(partitions=2)
    frame = reads.batch(name, minPartitions="3")
    assert (frame.count(), frame.rdd.getNumPartitions()) == (0, 2), "a task for each partition, though nothing is there"
    send(name, "a", "b")
    assert values(frame) == ["a", "b"]
    send(name, "c", partition=1)
    frame.createTempView(name.replace("-", "_"))
    assert values(frame) == values(spark.table(name.replace("-", "_"))) == ["a", "b", "c"]
    assert sorted(frame.rdd.map(lambda row: bytes(row.value).decode()).collect()) == ["a", "b", "c"]
    admin.delete_records({TopicPartition(name, 0): 1})
    assert values(frame) == ["b", "c"], "what is gone is no loss: it begins at earliest"
    both = frame.alias("l").join(frame.alias("r"), "value")
    assert both.count() == 2


def test_ends_that_are_named_stay(reads: Any, topic: Callable[..., str], send: Callable[..., None]) -> None:
    name = topic(partitions=2)
    send(name, "a")
    send(name, "x", partition=1)
    ends = json.dumps({name: {"0": 1, "1": -1}})
    frame = reads.batch(name, endingOffsets=ends)
    assert values(frame) == ["a", "x"]
    send(name, "b")
    send(name, "y", partition=1)
    assert values(frame) == ["a", "x", "y"]


@pytest.mark.nightly
def test_a_static_side_of_a_stream_goes_with_the_log(
    reads: Any, topic: Callable[..., str], send: Callable[..., None], collected: Any, tmp_path: Path
) -> None:
    stream, static = topic("stream"), topic("static")
    known = reads.batch(static).selectExpr("value", "offset as known_since")
    joined = reads.stream(stream, startingOffsets="earliest", maxOffsetsPerTrigger="1").join(known, "value")
    send(static, "a")
    send(stream, "a", "b")

    class Late:
        def __init__(self) -> None:
            self.rows: list[str] = []

        def __call__(self, frame: Any, batch_id: int) -> None:
            self.rows += values(frame)
            if batch_id == 0:
                send(static, "b")

    late = Late()
    query = joined.writeStream.foreachBatch(late).option("checkpointLocation", str(tmp_path))
    started = query.trigger(availableNow=True).start()
    assert started.awaitTermination(90)
    assert late.rows == ["a", "b"]


def test_a_beginning_beyond_the_end_is_refused(
    reads: Any, topic: Callable[..., str], send: Callable[..., None]
) -> None:
    name = topic()
    send(name, "a", "b", "c")
    both = {"startingOffsets": json.dumps({name: {"0": 2}}), "endingOffsets": json.dumps({name: {"0": 1}})}
    with pytest.raises(Exception, match="The specified start offset 2 is greater than the end offset 1"):
        reads.batch(name, **both).count()
