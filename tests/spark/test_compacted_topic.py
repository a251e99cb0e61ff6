"""A compacted topic: the offsets have gaps, and a range of them may be empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.support.waiting import until

KEYS, ROUNDS = 20, 30


@pytest.fixture
def compacted(
    topic: Any, admin: sparklog.Admin, producer: sparklog.Producer, broker: sparklog.LocalBroker
) -> tuple[str, list[tuple[int, bytes, bytes]]]:
    """A topic written in rounds over the same keys, and the (offset, key, value) that compaction has left of it."""

    def compacted_topic() -> str:
        name: str = topic(configs={"segment.bytes": 8192})
        for i in range(ROUNDS):
            keys = [b"key-%d" % k for k in range(KEYS)]
            producer.send_batch(name, {"key": keys, "value": [b"%d" % i] * KEYS}, partition=0).result(60)
        admin.alter_topic(name, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
        until(lambda: sparklog.read_table(broker.bootstrap_servers, name).num_rows < KEYS * ROUNDS // 2, "compaction")
        admin.alter_topic(name, {"min.compaction.lag.ms": 1 << 50})  # no more of it between the readers
        return name

    name = compacted_topic()
    compacted_topic()  # the broker has one cleaner: what it had begun with the first topic is done
    table = sparklog.read_table(broker.bootstrap_servers, name, include_metadata=True)
    columns = [table.column(c).to_pylist() for c in ("_offset", "key", "value")]
    return name, list(zip(*columns, strict=True))


def rows_of(rows: Any) -> list[tuple[int, bytes, bytes]]:
    return sorted((row.offset, bytes(row.key), bytes(row.value)) for row in rows)


def test_batch_and_stream_read_the_remaining_records(
    compacted: tuple[str, list[tuple[int, bytes, bytes]]], reads: Any, collected: Any, send: Any, tmp_path: Path
) -> None:
    name, left = compacted
    assert {o for o, _, _ in left} >= set(range(KEYS * (ROUNDS - 1), KEYS * ROUNDS))
    assert rows_of(reads.batch(name).collect()) == left
    assert rows_of(reads.batch(name, minPartitions=4).collect()) == left
    gap = next(o for o in range(KEYS * ROUNDS) if o not in {offset for offset, _, _ in left})
    bounds = {"startingOffsets": f'{{"{name}": {{"0": {gap}}}}}', "endingOffsets": f'{{"{name}": {{"0": {gap + 1}}}}}'}
    assert reads.batch(name, **bounds).count() == 0
    streamed = collected().run(
        reads.stream(name, startingOffsets="earliest", maxOffsetsPerTrigger=KEYS * 10), tmp_path / "checkpoint"
    )
    assert rows_of(streamed.rows) == left
    send(name, "more", key=b"new")
    again = collected().run(reads.stream(name), tmp_path / "checkpoint")
    assert rows_of(again.rows) == [(KEYS * ROUNDS, b"new", b"more")]
