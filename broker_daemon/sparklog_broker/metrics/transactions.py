"""Transactions by state, and the age of the oldest open one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from prometheus_client.core import Metric

from sparklog.errors import InvalidProducerIdMappingError
from sparklog.replication.transactions import Coordinator
from sparklog_broker.metrics.families import MetricInfo, gauge, one_gauge
from sparklog_broker.metrics.slices import Slices

IDS_MAX = 100_000
"""Largest number of transactional ids that one scrape reads. `sparklog_metrics_left_out` counts the rest."""


class TransactionsAtOnce(NamedTuple):
    """All transactional ids at one time. `open_since_ms`: wall-clock time at which the oldest open transaction began;
    None if none is open.
    """

    states: Mapping[str, int]
    open_count: int
    open_since_ms: int | None
    unread: int


def read_transactions(coordinators: Sequence[Coordinator], slices: Slices) -> TransactionsAtOnce:
    states: Counter[str] = Counter()
    started: list[int] = []
    remaining, count = IDS_MAX, 0
    for coordinator in coordinators:
        ids = coordinator.ids()
        count += len(ids)
        for transactional_id in slices.each(islice(ids, max(remaining, 0))):
            remaining -= 1
            try:
                summary = coordinator.summary(transactional_id)
            except InvalidProducerIdMappingError:  # it has just expired
                continue
            states[summary.state] += 1
            if summary.started_ms >= 0:
                started.append(summary.started_ms)
    return TransactionsAtOnce(states, len(started), min(started, default=None), max(0, count - IDS_MAX))


def transaction_families(transactions: TransactionsAtOnce, now_ms: int) -> Iterator[Metric]:
    described = MetricInfo("sparklog_transactional_ids", "Transactional ids and applications, by state.")
    yield gauge(described, [({"state": state}, count) for state, count in sorted(transactions.states.items())])
    yield one_gauge("sparklog_open_transactions", "Open transactions.", transactions.open_count)
    age_ms = 0 if transactions.open_since_ms is None else max(0, now_ms - transactions.open_since_ms)
    yield one_gauge("sparklog_open_transaction_age_seconds_max", "Age of the oldest open transaction.", age_ms / 1000)
