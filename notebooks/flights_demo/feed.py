"""Feeding the topics in time order, a day of 2013 at a time, and following the result as it appears.

Both are threads: they wait for the broker most of the time, and Ctrl-C reaches the main thread only.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import sparklog
from sparklog import TopicPartition

from .data import FLIGHTS_SCHEMA, WEATHER_SCHEMA, Data
from .verify import RESULT_SCHEMA

FLIGHTS, WEATHER, EVENTS = "flights", "weather", "flight-events"
CLOCK, RESULT = "flights-clock", "delay-by-origin-hour"

PARTITIONS = {FLIGHTS: 4, WEATHER: 2, EVENTS: 2, CLOCK: 1, RESULT: 2}
KEY_COLUMN = {FLIGHTS: "carrier", WEATHER: "origin", EVENTS: "key"}

ACK_TIMEOUT_S = 60.0
HEAD_START_DAYS = 7
_DAY_US = 86_400_000_000


def create_topics(bootstrap_servers: str, replicas: int = 1) -> None:
    """The demo's topics: four typed ones (flights, its clock, weather, the result) and the envelope topic of events.
    With three `replicas` what is acknowledged is on two brokers at least."""
    kept: dict[str, Any] = {"replication_factor": replicas} if replicas > 1 else {}
    safe = {"min.insync.replicas": 2} if replicas > 2 else {}
    with sparklog.Admin(bootstrap_servers) as admin:
        typed: tuple[tuple[str, pa.Schema, list[str]], ...] = (
            (FLIGHTS, FLIGHTS_SCHEMA, ["carrier"]),
            (WEATHER, WEATHER_SCHEMA, ["origin"]),
            (CLOCK, FLIGHTS_SCHEMA, []),
            (RESULT, RESULT_SCHEMA, ["origin"]),
        )
        for topic, schema, keys in typed:
            admin.create_topic(
                topic,
                partitions=PARTITIONS[topic],
                schema=schema,
                key_columns=keys,
                timestamp_column="time_hour",
                configs={"retention.ms": -1, **safe},  # 2013 is long past: any broker would soon delete it
                **kept,
            )
        admin.create_topic(EVENTS, partitions=PARTITIONS[EVENTS], configs=safe, **kept)


def send_clock(bootstrap_servers: str, last_hour: dt.datetime, watermark_delay: dt.timedelta) -> None:
    """Tells the query that event time has moved on: one row in the clock topic, two hours past the watermark's delay.

    A streaming aggregate gives an hour out only when the watermark has passed it, and the watermark follows the newest
    event seen. At the end of the year no later flight comes along to push it, so the clock does. It is a topic of its
    own, read by the same query, so that `flights` holds flights and nothing else; the clock's own hour is never closed.
    """
    row = {name: [None] for name in FLIGHTS_SCHEMA.names}
    row["time_hour"] = [last_hour + watermark_delay + dt.timedelta(hours=2)]  # type: ignore[list-item]
    with sparklog.Producer(bootstrap_servers, acks="all") as producer:
        producer.send_batch(CLOCK, pa.table(row, schema=FLIGHTS_SCHEMA)).result(ACK_TIMEOUT_S)


class Feeder(threading.Thread):
    """Sends flights, weather and events in step by event time; a day is sent when the one before is acknowledged.

    The first days are sent at once; then it waits for `go`, so that the year does not pass while Spark warms up.
    `year_s` is how long a whole year takes from there; a shorter stretch takes its share. `sent` counts acknowledged
    rows per topic. After the end `error` holds what went wrong, if anything did.
    """

    def __init__(self, bootstrap_servers: str, data: Data, year_s: float, stop: threading.Event) -> None:
        super().__init__(name="feeder", daemon=True)
        self._bootstrap_servers = bootstrap_servers
        self._stopping = stop
        self.totals = {FLIGHTS: data.flights.num_rows, WEATHER: data.weather.num_rows, EVENTS: data.events.num_rows}
        self._tables: Mapping[str, pa.Table] = {WEATHER: data.weather, EVENTS: data.events, FLIGHTS: data.flights}
        times = {
            WEATHER: data.weather["time_hour"],
            EVENTS: data.events["timestamp"],
            FLIGHTS: data.flights["time_hour"],
        }
        self._cuts, self._days = _daily_cuts(times)
        self._step_s = year_s / 365
        self.sent = dict.fromkeys(self.totals, 0)
        self.day: dt.date | None = None
        self.seconds = 0.0
        """Since the feed began, without the wait for `go`."""
        self.busy_s = 0.0
        """Of those, spent on sending: the rest is pace."""
        self.go = threading.Event()
        self.done = threading.Event()
        self.error: BaseException | None = None

    @property
    def rows_sent(self) -> int:
        return sum(self.sent.values())

    def run(self) -> None:
        try:
            with sparklog.Producer(self._bootstrap_servers, acks="all", linger_ms=0) as producer:
                self._feed(producer)
        except Exception as e:  # noqa: BLE001 - handed to the main thread, which raises it
            self.error = e
        finally:
            self.done.set()

    def _feed(self, producer: Any) -> None:
        start = time.monotonic()
        for step, day in enumerate(self._days):
            if step == HEAD_START_DAYS:
                self._wait_for_go()
                start = time.monotonic()
            if step >= HEAD_START_DAYS:
                self._stopping.wait(max(0.0, start + (step - HEAD_START_DAYS) * self._step_s - time.monotonic()))
            if self._stopping.is_set():
                return
            begun = time.monotonic()
            futures = []
            for topic, table in self._tables.items():
                low, high = self._cuts[topic][step : step + 2]
                if high > low:
                    futures.append((topic, high - low, producer.send_batch(topic, table.slice(low, high - low))))
            for topic, rows, future in futures:
                future.result(ACK_TIMEOUT_S)
                self.sent[topic] += int(rows)
            self.day = day
            self.busy_s += time.monotonic() - begun
            self.seconds = time.monotonic() - start

    def _wait_for_go(self) -> None:
        while not self.go.wait(0.05) and not self._stopping.is_set():
            pass


def _daily_cuts(times: Mapping[str, pa.ChunkedArray]) -> tuple[dict[str, list[int]], list[dt.date]]:
    """Row numbers at which each (time-ordered) table is cut into days of UTC, and the days."""
    micros = {topic: t.cast(pa.int64()).to_numpy() for topic, t in times.items()}
    filled = [m for m in micros.values() if len(m)]
    if not filled:
        return {topic: [0] for topic in micros}, []
    first = min(int(m[0]) for m in filled) // _DAY_US
    last = max(int(m[-1]) for m in filled) // _DAY_US
    edges = np.arange(first, last + 2, dtype=np.int64) * _DAY_US
    cuts = {topic: np.searchsorted(m, edges, side="left").tolist() for topic, m in micros.items()}
    epoch = dt.date(1970, 1, 1)
    return cuts, [epoch + dt.timedelta(days=d) for d in range(first, last + 1)]


class ResultFollower(threading.Thread):
    """Follows the result topic with a plain consumer, outside Spark: what a dashboard would do."""

    def __init__(self, bootstrap_servers: str, stop: threading.Event) -> None:
        super().__init__(name="result-follower", daemon=True)
        self._bootstrap_servers = bootstrap_servers
        self._stopping = stop
        self.rows = 0
        self.first_at: float | None = None
        """When the first row was here, on the monotonic clock."""
        self.latest: pa.Table | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            consumer = sparklog.Consumer(self._bootstrap_servers, auto_offset_reset="earliest")
            try:
                consumer.assign([TopicPartition(RESULT, p) for p in range(PARTITIONS[RESULT])])
                while not self._stopping.is_set():
                    self._take(consumer.poll_batches(timeout_ms=200))
            finally:
                consumer.close()
        except Exception as e:  # noqa: BLE001 - handed to the main thread, which raises it
            self.error = e

    def _take(self, batches: list[Any]) -> None:
        if not batches:
            return
        if self.first_at is None:
            self.first_at = time.monotonic()
        self.rows += sum(b.data.num_rows for b in batches)
        fresh = pa.Table.from_batches([b.data for b in batches])
        both = fresh if self.latest is None else pa.concat_tables([self.latest, fresh])
        newest = both.sort_by([("time_hour", "descending"), ("origin", "ascending")])
        hours = pc.unique(newest["time_hour"])[:6]
        # a copy, so that the batches it came from can go
        self.latest = newest.filter(pc.is_in(newest["time_hour"], hours)).combine_chunks()
