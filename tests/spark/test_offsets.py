"""A query's statements about its position: in its checkpoint and in its progress."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark_sparklog.compatibility import READERS_RECEIVE_THEIR_START
from pyspark_sparklog.lag import offsets_behind_latest

import sparklog


def progress(reads: Any, topic: str, checkpoint: Path, **options: Any) -> Any:
    """Of all batches of a run to the end."""
    query = (
        reads.stream(topic, startingOffsets="earliest", **options)
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(90)
    finally:
        query.stop()
    return query.recentProgress


def rewrite(checkpoint: Path, batch: int, offsets: dict[str, Any]) -> None:
    """Puts another text in the place of where the batch ends."""
    file = checkpoint / "offsets" / str(batch)
    *head, _ = file.read_text().split("\n")
    file.write_text("\n".join([*head, json.dumps(offsets)]))
    (checkpoint / "offsets" / f".{batch}.crc").unlink(missing_ok=True)


def test_offsets_are_topics_and_numbers(reads: Any, topic: Any, send: Any, tmp_path: Path) -> None:
    name = topic(partitions=2)
    send(name, "a", "b", partition=1)
    source = progress(reads, name, tmp_path)[-1]["sources"][0]
    expected = {name: {"0": 0, "1": 2}}
    assert ast.literal_eval(source["endOffset"]) == expected, "PySpark 4.0 and 4.1 have made a Python value of it"
    assert json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1]) == expected
    if READERS_RECEIVE_THEIR_START:
        assert json.loads(source["endOffset"]) == json.loads(source["latestOffset"]) == expected


@pytest.mark.nightly
@pytest.mark.skipif(not READERS_RECEIVE_THEIR_START, reason="before 4.2 Spark does not ask where the topics end")
def test_the_lag_of_a_query_that_is_behind(reads: Any, topic: Any, send: Any, tmp_path: Path) -> None:
    name = topic(partitions=2)
    send(name, "a", "b", "c", partition=0)
    send(name, "a", partition=1)
    first, *_ = progress(reads, name, tmp_path, maxOffsetsPerTrigger="2")
    behind = offsets_behind_latest(first["sources"][0])
    assert behind == {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "2", "avgOffsetsBehindLatest": "1.0"}


def test_checkpoints_of_earlier_versions(
    reads: Any, topic: Any, send: Any, admin: sparklog.Admin, collected: Any, tmp_path: Path
) -> None:
    name = topic()
    send(name, "a", "b", "c")
    progress(reads, name, tmp_path)
    topic_id = admin.describe_topic(name).topic_id
    rewrite(tmp_path, 0, {name: {"0": 2}, "$ids": {name: topic_id}, "$initial": {name: {"0": 0}}})
    assert collected().run(reads.stream(name), tmp_path).values() == ["c"]
    rewrite(tmp_path, 1, {name: {"0": 2}, "$ids": {name: "0" * 32}})
    with pytest.raises(Exception, match="the topic was deleted and created again"):
        collected().run(reads.stream(name), tmp_path)


def test_offsets_written_by_hand_are_taken_as_they_are(
    reads: Any, topic: Any, send: Any, collected: Any, tmp_path: Path
) -> None:
    name = topic()
    send(name, "a", "b", "c")
    progress(reads, name, tmp_path)
    rewrite(tmp_path, 0, {name: {"0": 1}})
    assert collected().run(reads.stream(name), tmp_path).values() == ["b", "c"]
