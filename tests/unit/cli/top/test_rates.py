"""Two samples of a cluster and the rates they make."""

from __future__ import annotations

from typing import Any

import pytest

from sparklog.cli.top.rates import GroupRow, Order, TopicRow, model, sorted_groups, sorted_topics
from sparklog.cli.top.samples import BrokerPage, GroupSample, Snapshot
from sparklog.client.admin.admin import TopicDescription
from sparklog.client.admin.cluster_admin import BrokerDescription, ClusterDescription
from sparklog.client.cluster_view import ClusterView
from sparklog.protocol.transaction_messages import TransactionSummary
from tests.support.cases import for_each
from tests.unit.cli.descriptions import partition, topic

CLUSTER = ClusterDescription("c", -1, ())
PAGE = BrokerPage(1, "0.1.0", 0, 100, 5, 7, 25, 100, {"t": 1000}, {"t": 0}, {}, {})


def snapshot(
    at_s: float,
    *topics: TopicDescription,
    cluster: ClusterDescription = CLUSTER,
    transactions: tuple[TransactionSummary, ...] = (),
    **more: Any,
) -> Snapshot:
    view = ClusterView(cluster, {t.name: t for t in topics}, {}, transactions, (), {})
    return Snapshot(at_s, 1_000_000, view, {}, 0)._replace(**more)


def sized(*ends: int, size_bytes: int = 0, topic_id: str = "id") -> TopicDescription:
    """The topic t; an end of -1 is an offline partition's."""
    partitions = (partition(i, 0 if end >= 0 else -1, end=end, size_bytes=size_bytes) for i, end in enumerate(ends))
    return topic(*partitions, topic_id=topic_id)


def topic_row(before: TopicDescription | None, now: TopicDescription, **more: Any) -> TopicRow:
    """Of the topic t, two seconds later."""
    first = snapshot(1) if before is None else snapshot(1, before)
    (row,) = model(first, snapshot(3, now, **more)).topics
    return row


def group_row(before: GroupSample | None, now: GroupSample) -> GroupRow:
    first = snapshot(1, groups={} if before is None else {"g": before})
    (row,) = model(first, snapshot(3, groups={"g": now})).groups
    return row


def group(lag: int | None, **committed: int) -> GroupSample:
    return GroupSample("Stable", 2, committed, None if lag is None else {"t": lag})


def test_one_sample_has_no_rates() -> None:
    found = model(None, snapshot(5, sized(10, 20, size_bytes=150), groups={"g": group(4, t=6)}))
    assert found.over_s is None
    assert found.topics[0] == TopicRow("t", 2, None, None, None, 300, 4, "")
    assert found.groups[0] == GroupRow("g", "Stable", 2, 4, None, None, None)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (sized(10, 20), sized(16, 24), 5.0),
        (sized(10, -1), sized(16, 900), 3.0),  # it was offline
        (sized(10, 20), sized(16, -1), 3.0),  # it is
        (sized(10), sized(16, 900), 3.0),  # partitions were added
        (sized(10), sized(16, topic_id="other"), None),  # made again
        (sized(10), sized(4), 0.0),  # an end that goes back makes no rate
        (None, sized(16), None),
    ],
)
def test_records_per_second(before: TopicDescription | None, now: TopicDescription, expected: float | None) -> None:
    assert topic_row(before, now).records_per_s == expected


def test_problems_of_a_topic_are_named() -> None:
    partitions = [partition(i, replicas=(1, 2, 3), write_error="full" if i < 2 else "") for i in range(3)]
    row = topic_row(None, topic(*partitions, partition(3, -1)))
    assert row.trouble == "1 offline, 2 cannot be written, 3 under-replicated"


def test_a_topics_lag_is_that_of_the_group_furthest_behind() -> None:
    groups = {"a": GroupSample("Stable", 1, {}, {"t": 3, "u": 900}), "b": group(8)}
    assert topic_row(None, sized(1), groups=groups).lag == 8


def test_rates_of_a_group() -> None:
    row = group_row(group(100, a=10, b=10), group(60, a=40, b=5))
    assert (row.lag, row.lag_per_s, row.read_per_s, row.remaining_s) == (60, -20, 15, 3)
    assert group_row(group(10, a=0), group(30, a=0)).remaining_s is None, "it never catches up"
    assert group_row(group(10, a=0), group(0, a=10)).remaining_s == 0
    assert group_row(group(None), group(30, a=0)).lag_per_s is None
    assert group_row(None, group(30, a=0)).read_per_s is None


@for_each("before", [snapshot(3), snapshot(4), snapshot(1, cluster=ClusterDescription("other", -1, ()))])
def test_a_sample_of_something_else_makes_no_rate(before: Snapshot) -> None:
    assert model(before, snapshot(3)).over_s is None


def test_additions_of_the_metrics_page() -> None:
    cluster = ClusterDescription("c", 1, (BrokerDescription(1, "a", 1), BrokerDescription(2, "b", 1)))
    page = PAGE._replace(requests_total=140, errors_total=6, bytes_in={"t": 5000}, bytes_out={"t": 80})
    first = snapshot(1, sized(1), cluster=cluster, page=PAGE)
    found = model(first, snapshot(3, sized(1), cluster=cluster, page=page))
    one, two = found.brokers
    assert (one.requests_per_s, one.errors_per_s, one.connections, one.memory_share) == (20, 0.5, 7, 0.25)
    assert (two.requests_per_s, two.connections, two.memory_share) == (None, None, None)
    assert (found.topics[0].bytes_in_per_s, found.topics[0].bytes_out_per_s) == (2000, 40)
    restarted = PAGE._replace(requests_total=30)
    assert model(first, snapshot(3, cluster=cluster, page=restarted)).brokers[0].requests_per_s == 15
    other = PAGE._replace(broker_id=2)
    assert model(first, snapshot(3, cluster=cluster, page=other)).brokers[1].requests_per_s is None


def test_transactions_by_age() -> None:
    found = (
        TransactionSummary("young", "plain", "Ongoing", 1, 0, started_ms=999_000, timeout_ms=60_000),
        TransactionSummary("old", "plain", "Ongoing", 1, 0, started_ms=930_000, timeout_ms=60_000),
        TransactionSummary("ahead", "plain", "Ongoing", 1, 0, started_ms=1_000_500, timeout_ms=60_000),
    )
    rows = model(None, snapshot(1, transactions=found)).transactions
    assert [(r.transactional_id, r.age_s, r.timeout_s, r.is_late) for r in rows] == [
        ("old", 70, 60, True),
        ("young", 1, 60, False),
        ("ahead", 0, 60, False),
    ]


def ordered(name: str, rate: float | None, size: int, lag: int | None) -> TopicRow:
    return TopicRow(name, 1, rate, None, None, size, lag, "")


TOPICS = [ordered("b", 5, 10, None), ordered("a", None, 30, 7), ordered("d", 9, 20, 0), ordered("c", 9, 0, 0)]
GROUPS = [
    GroupRow("y", "", 0, 5, 0, 1, None),
    GroupRow("x", "", 0, None, None, None, None),
    GroupRow("z", "", 0, 1, 0, 9, None),
]


@pytest.mark.parametrize(
    ("order", "topics", "groups"),
    [(Order.lag, "acdb", "yzx"), (Order.rate, "cdba", "zyx"), (Order.size, "adbc", "yzx"), (Order.name, "abcd", "xyz")],
)
def test_orders(order: Order, topics: str, groups: str) -> None:
    assert "".join(row.name for row in sorted_topics(TOPICS, order)) == topics
    assert "".join(row.group_id for row in sorted_groups(GROUPS, order)) == groups
