"""A query whose records have been deleted: failOnDataLoss both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog import TopicPartition


def test_a_stream_whose_next_records_are_gone(
    reads: Any, topic: Any, send: Any, collected: Any, admin: sparklog.Admin, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    send(name, "a", "b")
    send(name, "x", partition=1)
    assert collected().run(reads.stream(name, startingOffsets="earliest"), tmp_path).values() == ["a", "b", "x"]
    send(name, "c", "d", "e")
    send(name, "y", partition=1)
    admin.delete_records({TopicPartition(name, 0): 4})
    for _ in range(2):  # the checkpoint has not moved
        with pytest.raises(Exception, match=rf"(?s){name} partition 0, .*2.*4.*failOnDataLoss"):
            collected().run(reads.stream(name), tmp_path)
    found = collected().run(reads.stream(name, failOnDataLoss="false"), tmp_path)
    assert {(r.partition, r.offset, bytes(r.value)) for r in found.rows} == {(0, 4, b"e"), (1, 1, b"y")}
    assert collected().run(reads.stream(name), tmp_path).values() == [], "what was lost is told once"


def test_deleting_read_records_is_no_loss(
    reads: Any, topic: Any, send: Any, collected: Any, admin: sparklog.Admin, tmp_path: Path
) -> None:
    name = topic()
    send(name, "a", "b")
    collected().run(reads.stream(name, startingOffsets="earliest"), tmp_path)
    admin.delete_records({TopicPartition(name, 0): -1})
    send(name, "c")
    assert collected().run(reads.stream(name), tmp_path).values() == ["c"]


def test_a_batch_read_begins_where_the_log_does(reads: Any, topic: Any, send: Any, admin: sparklog.Admin) -> None:
    name = topic()
    send(name, "a", "b", "c")
    admin.delete_records({TopicPartition(name, 0): 2})
    assert [(r.offset, bytes(r.value)) for r in reads.batch(name).collect()] == [(2, b"c")]
    explicit = {"startingOffsets": f'{{"{name}": {{"0": 1}}}}'}
    with pytest.raises(Exception, match=f"offset 1 of {name}-0 is out of range, it has offsets 2 to 3"):
        reads.batch(name, **explicit).count()
    assert reads.batch(name, failOnDataLoss="false", **explicit).count() == 1
