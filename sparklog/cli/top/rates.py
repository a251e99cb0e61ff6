"""The rows of the screen, with rates computed from two samples of a cluster. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sparklog.cli.top.samples import BrokerPage, GroupSample, LakeSample, Snapshot
from sparklog.client.cluster_view import age_ms, is_offline, is_under_replicated, leads

if TYPE_CHECKING:
    from sparklog.client.admin.admin import TopicDescription


class Order(StrEnum):
    """The order of rows: by lag, rate or size, the largest first, or by name."""

    lag = "lag"
    rate = "rate"
    size = "size"
    name = "name"


class TopicRow(NamedTuple):
    """A topic. Unknown rates are None."""

    name: str
    partitions: int
    records_per_s: float | None
    """Offsets written per second."""
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    size_bytes: int
    lag: int | None
    """Largest lag of a group, in offsets; None if no group has committed offsets."""
    trouble: str
    """Numbers of partitions with faults, in words; empty without faults."""


class GroupRow(NamedTuple):
    """A group. Unknown values are None."""

    group_id: str
    state: str
    members: int
    lag: int | None
    lag_per_s: float | None
    """Change of the lag per second; positive if the group falls further behind."""
    read_per_s: float | None
    """Committed offsets per second."""
    remaining_s: float | None
    """Time in s until the lag is 0 at the current rate; None also if the lag does not shrink."""


class BrokerRow(NamedTuple):
    """A broker. Values from a metrics page are None for a broker whose page was not requested."""

    broker_id: int
    address: str
    is_controller: bool
    leads: int
    requests_per_s: float | None = None
    errors_per_s: float | None = None
    connections: float | None = None
    memory_share: float | None = None


class TransactionRow(NamedTuple):
    """A transaction that has not ended."""

    transactional_id: str
    kind: str
    state: str
    age_s: float
    timeout_s: float | None
    """Timeout in s; None without a timeout."""
    is_late: bool
    """True if the transaction is open for longer than its timeout."""


class Model(NamedTuple):
    """The content of the screen."""

    cluster_id: str
    over_s: float | None
    """Time in s between the two samples of the rates; None with a single sample."""
    topics: tuple[TopicRow, ...]
    omitted_topics: int
    groups: tuple[GroupRow, ...]
    omitted_groups: int
    brokers: tuple[BrokerRow, ...]
    transactions: tuple[TransactionRow, ...]
    page_problem: str
    lakes: tuple[LakeSample, ...] = ()


def model(before: Snapshot | None, now: Snapshot) -> Model:
    """Return the rows of `now`, with rates since the earlier sample `before`. Rates are unknown if `before` is None, or
    if it is a sample of another cluster."""
    cluster_id = now.view.cluster.cluster_id
    if before is not None and (before.view.cluster.cluster_id != cluster_id or now.at_s <= before.at_s):
        before = None
    over_s = None if before is None else now.at_s - before.at_s
    worst = _worst_lags(now.groups.values())
    return Model(
        cluster_id,
        over_s,
        tuple(_topic_row(topic, before, now, worst.get(topic.name)) for topic in now.view.topics.values()),
        now.view.topics_left_out,
        tuple(
            _group_row(name, group, None if before is None else before.groups.get(name), over_s)
            for name, group in now.groups.items()
        ),
        now.omitted_groups,
        tuple(_broker_rows(before, now)),
        tuple(_transaction_rows(now)),
        now.page_problem,
        now.lakes,
    )


def _worst_lags(groups: Iterable[GroupSample]) -> dict[str, int]:
    worst: dict[str, int] = {}
    for group in groups:
        for topic, lag in (group.lags or {}).items():
            worst[topic] = max(lag, worst.get(topic, 0))
    return worst


def _topic_row(topic: TopicDescription, before: Snapshot | None, now: Snapshot, lag: int | None) -> TopicRow:
    then = None if before is None else before.view.topics.get(topic.name)
    if then is not None and then.topic_id != topic.topic_id:
        then = None  # the topic was deleted and created again
    records = None
    over_s = 0.0 if before is None else now.at_s - before.at_s
    if then is not None:
        # left out: partitions that are new, or offline in one of the samples
        pairs = zip(_ends(topic), _ends(then), strict=False)
        records = sum(end - was for end, was in pairs if 0 <= was <= end) / over_s
    pages = (None if before is None else before.page, now.page)
    return TopicRow(
        topic.name,
        len(topic.partition_details),
        records,
        _counter_rate(pages, over_s, lambda page: page.bytes_in.get(topic.name)),
        _counter_rate(pages, over_s, lambda page: page.bytes_out.get(topic.name)),
        sum(max(0, p.size_bytes) for p in topic.partition_details),
        lag,
        _trouble(topic),
    )


def _ends(topic: TopicDescription) -> list[int]:
    """Return the high watermark of each partition; -1 for an offline one."""
    return [-1 if is_offline(p) else p.high_watermark for p in topic.partition_details]


def _trouble(topic: TopicDescription) -> str:
    partitions = topic.partition_details
    counts = (
        (sum(map(is_offline, partitions)), "offline"),
        (sum(bool(p.write_error) for p in partitions), "cannot be written"),
        (sum(map(is_under_replicated, partitions)), "under-replicated"),
    )
    return ", ".join(f"{count} {trouble}" for count, trouble in counts if count)


def _counter_rate(
    pages: tuple[BrokerPage | None, BrokerPage | None],
    over_s: float,
    value: Callable[[BrokerPage], float | None],
) -> float | None:
    """Return a counter's rate per second; None without two pages of the same broker. The counter restarts at 0 with its
    broker."""
    before, now = pages
    if before is None or now is None or before.broker_id != now.broker_id:
        return None
    was, is_ = value(before), value(now)
    if was is None or is_ is None:
        return None
    return (is_ - was if is_ >= was else is_) / over_s


def _group_row(name: str, group: GroupSample, then: GroupSample | None, over_s: float | None) -> GroupRow:
    lag_per_s = read_per_s = remaining_s = None
    if then is not None and over_s:
        read_per_s = _read(then.committed, group.committed) / over_s
        if group.lag is not None and then.lag is not None:
            lag_per_s = (group.lag - then.lag) / over_s
            remaining_s = 0.0 if group.lag == 0 else group.lag / -lag_per_s if lag_per_s < 0 else None
    return GroupRow(name, group.state, group.members, group.lag, lag_per_s, read_per_s, remaining_s)


def _read(then: Mapping[Any, int], now: Mapping[Any, int]) -> int:
    """Return the number of offsets by which the commits advanced; a reset to earlier offsets does not count."""
    return sum(max(0, offset - then[key]) for key, offset in now.items() if key in then)


def _broker_rows(before: Snapshot | None, now: Snapshot) -> Iterable[BrokerRow]:
    pages = (None if before is None else before.page, now.page)
    over_s = 0.0 if before is None else now.at_s - before.at_s
    cluster, led = now.view.cluster, leads(now.view.topics.values())
    for broker in sorted(cluster.brokers, key=lambda b: b.broker_id):
        is_controller = broker.broker_id == cluster.controller_id
        row = BrokerRow(broker.broker_id, f"{broker.host}:{broker.port}", is_controller, led[broker.broker_id])
        page = now.page
        if page is not None and page.broker_id == broker.broker_id:
            limit = page.memory_limit_bytes
            row = row._replace(
                requests_per_s=_counter_rate(pages, over_s, lambda page: page.requests_total),
                errors_per_s=_counter_rate(pages, over_s, lambda page: page.errors_total),
                connections=page.connections,
                memory_share=page.memory_used_bytes / limit if limit > 0 else None,
            )
        yield row


def _transaction_rows(now: Snapshot) -> Iterable[TransactionRow]:
    """Yield the rows of transactions, the oldest first."""
    for t in sorted(now.view.transactions, key=lambda t: (t.started_ms, t.transactional_id)):
        open_ms = age_ms(t, now.now_ms)
        timeout_s = t.timeout_ms / 1000 if t.timeout_ms >= 0 else None
        is_late = timeout_s is not None and open_ms > t.timeout_ms
        yield TransactionRow(t.transactional_id, t.kind, t.state, open_ms / 1000, timeout_s, is_late)


R = TypeVar("R", TopicRow, GroupRow)


def sorted_topics(rows: Iterable[TopicRow], order: Order) -> list[TopicRow]:
    """Sort topics. In the order by lag, topics with equal lag are sorted by rate; in the order by rate, topics with
    equal rate by lag. The last criterion is always the name."""
    return _sort_rows(rows, order, lambda row: row.name, {
        Order.lag: lambda row: (_sort_key(row.lag), _sort_key(row.records_per_s)),
        Order.rate: lambda row: (_sort_key(row.records_per_s), _sort_key(row.lag)),
        Order.size: lambda row: (row.size_bytes,),
    })  # fmt: skip


def sorted_groups(rows: Iterable[GroupRow], order: Order) -> list[GroupRow]:
    """Sort groups. Groups have no size, so the order by size is the same as the order by lag."""
    by_lag: Callable[[GroupRow], tuple[float, ...]] = lambda row: (_sort_key(row.lag), _sort_key(row.read_per_s))  # noqa: E731
    return _sort_rows(rows, order, lambda row: row.group_id, {
        Order.lag: by_lag,
        Order.rate: lambda row: (_sort_key(row.read_per_s), _sort_key(row.lag)),
        Order.size: by_lag,
    })  # fmt: skip


def _sort_rows(
    rows: Iterable[R],
    order: Order,
    name: Callable[[R], str],
    keys: Mapping[Order, Callable[[R], tuple[float, ...]]],
) -> list[R]:
    by_name = sorted(rows, key=name)
    key = keys.get(order)
    return by_name if key is None else sorted(by_name, key=key, reverse=True)


def _sort_key(value: float | None) -> float:
    """Return the sort key of a value, so that unknown values (None) come last."""
    return -1.0 if value is None else value
