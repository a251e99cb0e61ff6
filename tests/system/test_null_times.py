"""Records without an event time: look-ups by time find the first record whose `_timestamp` is at least that time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import sparklog
from sparklog import Admin, Producer, TopicPartition
from sparklog.client.local import LocalBroker

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
TIMES = st.none() | st.integers(-5, 5).map(lambda n: n * 600_000)
BATCHES = st.lists(st.lists(TIMES, min_size=1, max_size=5), min_size=1, max_size=6)


def send(address: str, topic: str, batches: list[list[int | None]], now_ms: int) -> None:
    numbers = itertools.count()
    with Producer(address) as producer:
        for times in batches:
            at = [None if t is None else (now_ms + t) * 1_000 for t in times]
            rows = pa.table({"n": [next(numbers) for _ in times], "at": pa.array(at, pa.int64())}).cast(SCHEMA)
            producer.send_batch(topic, rows, partition=0).result(60)


def shown_ms(address: str, topic: str) -> list[int]:
    table = sparklog.read_table(address, topic, include_metadata=True).sort_by("_offset")
    return [us // 1_000 for us in table.column("_timestamp").cast(pa.int64()).to_pylist()]


def test_a_look_up_finds_the_shown_time(broker: LocalBroker, admin: Admin, topic_name: Callable[[], str]) -> None:
    address = broker.bootstrap_servers

    @settings(max_examples=15)
    @given(BATCHES)
    def hold(batches: list[list[int | None]]) -> None:
        topic, now_ms = topic_name(), int(time.time() * 1000)
        admin.create_topic(topic, 1, SCHEMA, timestamp_column="at")
        send(address, topic, batches, now_ms)
        ended_ms = int(time.time() * 1000)
        shown = shown_ms(address, topic)
        rows = [(t, max((u for u in times if u is not None), default=None)) for times in batches for t in times]
        for (given_ms, latest), stamp_ms in zip(rows, shown, strict=True):
            if given_ms is not None:
                assert stamp_ms == now_ms + given_ms
            elif latest is not None:
                assert stamp_ms == now_ms + latest
            else:
                assert now_ms <= stamp_ms <= ended_ms
        tp = TopicPartition(topic, 0)
        with sparklog.SqlSession(address) as session:
            for asked_ms in sorted({t + d for t in shown for d in (0, 1)}):
                expected = next(((o, t) for o, t in enumerate(shown) if t >= asked_ms), (-1, -1))
                found = admin.list_offsets({tp: asked_ms})[tp]
                assert (found.offset, found.timestamp_ms) == expected
                query = f'SELECT _offset FROM "{topic}" WHERE epoch_ms(_timestamp) >= {asked_ms}'
                at = datetime.fromtimestamp(asked_ms / 1000, UTC).isoformat(timespec="milliseconds")
                by_range = f"SELECT _offset FROM \"{topic}\" WHERE _timestamp >= '{at}'"
                for text in (query, by_range):
                    with session.execute(text) as result:
                        offsets = sorted(result.read_all().column(0).to_pylist())
                    assert offsets == [o for o, t in enumerate(shown) if t >= asked_ms], text

    hold()
