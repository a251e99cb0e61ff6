"""Readers of a broker, called in a child: the consumer by socket and by mapped files, and `read_table`.

Each reads one partition with a hostile batch: the records before it, the batch, and, from `behind` on, the records
after it.
"""

from __future__ import annotations

import time
from typing import Any

import sparklog
from sparklog.errors import SparklogError
from sparklog.types import TopicPartition
from tests.campaigns.fuzz.cases import ENVELOPE_ID, SCHEMAS
from tests.campaigns.fuzz.log_targets import Found, Reading, wanted_columns
from tests.campaigns.fuzz.planted import HONEST_ROWS, Rows
from tests.campaigns.fuzz.values import columns_of

PATIENCE_S = 20.0


def consumer_socket(address: str, topic: str, partition: int, schema_id: int, behind: int | None) -> Found:
    return _consume(address, TopicPartition(topic, partition), schema_id, behind, "off")


def consumer_files(address: str, topic: str, partition: int, schema_id: int, behind: int | None) -> Found:
    return _consume(address, TopicPartition(topic, partition), schema_id, behind, "auto")


def _consume(address: str, tp: TopicPartition, schema_id: int, behind: int | None, local: str) -> Found:
    readings: list[Reading] = []
    refused: list[str] = []
    facts: dict[str, Any] = {}
    everything = tuple(range(len(SCHEMAS[schema_id])))
    for columns in wanted_columns(schema_id):
        names = None if columns == everything else [SCHEMAS[schema_id].names[c] for c in columns]
        with sparklog.Consumer(address, columns=names, local_read=local) as consumer:
            rows: Rows = {}
            try:
                consumer.assign([tp])
                consumer.seek(tp, 0)
                _poll(consumer, tp, behind, rows, refused)
            except SparklogError as e:  # the partition is offline
                refused.append(f"{type(e).__name__}: {e}")
                facts["offline"] = True
                break
            readings.append(Reading(f"consumer, local_read={local}", columns, rows))
    if schema_id == ENVELOPE_ID and "offline" not in facts:
        readings.append(_records(address, tp, behind, local, refused))
    return Found(readings, refused, facts)


def _end(behind: int | None) -> int | None:
    return None if behind is None else behind + 2 * HONEST_ROWS


def _poll(consumer: sparklog.Consumer, tp: TopicPartition, behind: int | None, rows: Rows, refused: list[str]) -> None:
    """Poll to the end; after a refusal continue behind the hostile batch, once. Raises a second refusal."""
    deadline = time.monotonic() + PATIENCE_S
    end = _end(behind)
    sought = False
    while end is None or consumer.position(tp) < end:
        assert time.monotonic() < deadline, f"stuck at {consumer.position(tp)}: {refused}"
        try:
            for batch in consumer.poll_batches(timeout_ms=500):
                rows.update(zip(batch.offsets().tolist(), zip(*columns_of(batch.data), strict=True), strict=True))
        except SparklogError as e:
            refused.append(f"{type(e).__name__}: {e}")
            if sought or behind is None:
                if not rows:
                    raise
                return
            consumer.seek(tp, behind)
            sought = True


def _records(address: str, tp: TopicPartition, behind: int | None, local: str, refused: list[str]) -> Reading:
    """With `poll`: keys and values of records."""
    rows: Rows = {}
    deadline = time.monotonic() + PATIENCE_S
    end, sought = _end(behind), False
    with sparklog.Consumer(address, local_read=local) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        while end is None or consumer.position(tp) < end:
            assert time.monotonic() < deadline, f"poll is stuck at {consumer.position(tp)}: {refused}"
            try:
                rows.update({r.offset: (r.key, r.value) for r in consumer.poll(timeout_ms=500)})
            except SparklogError as e:
                refused.append(f"{type(e).__name__}: {e}")
                if sought or behind is None:
                    break
                consumer.seek(tp, behind)
                sought = True
    return Reading(f"records, local_read={local}", (0, 1), rows)


def table(address: str, topic: str, partition: int, schema_id: int, behind: int | None) -> Found:
    """Call `read_table` for the whole partition, and for the parts before and behind the hostile batch."""
    readings: list[Reading] = []
    refused: list[str] = []
    everything = tuple(range(len(SCHEMAS[schema_id])))
    for columns in wanted_columns(schema_id):
        names = None if columns == everything else [SCHEMAS[schema_id].names[c] for c in columns]
        rows: Rows = {}
        bounds: list[tuple[Any, Any]] = [({partition: 0}, "latest"), ({partition: 0}, {partition: HONEST_ROWS})]
        if behind is not None:
            bounds.append(({partition: behind}, "latest"))
        failed = 0
        for start, end in bounds:
            for local in ("auto", "off"):
                try:
                    found = sparklog.read_table(address, topic, names, start, end, include_metadata=True, local=local)
                except SparklogError as e:
                    refused.append(f"{type(e).__name__}: {e}")
                    failed += 1
                    continue
                offsets = found.column("_offset").to_pylist()
                mine = found.select(list(range(len(columns))))
                rows.update(zip(offsets, zip(*columns_of(mine), strict=True), strict=True))
        if failed == 2 * len(bounds):
            return Found(readings, refused, {"offline": True})
        readings.append(Reading("read_table", columns, rows))
    return Found(readings, refused, {})
