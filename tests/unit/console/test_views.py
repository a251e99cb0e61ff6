"""Content of pages, computed from the clients' results."""

from __future__ import annotations

import dataclasses
from collections import deque

import pyarrow as pa
import pytest

from sparklog.client.admin.admin import (
    BrokerDescription,
    ClusterDescription,
    LogDirDescription,
    PartitionDescription,
    TopicDescription,
)
from sparklog.client.admin.group_admin import GroupDescription, GroupListing, MemberDescription, PartitionLag
from sparklog.client.cluster_view import skew
from sparklog.console.views.chart import HEIGHT, WIDTH, line_chart
from sparklog.console.views.cluster import disks, open_long, problems_of, problems_together, spread
from sparklog.console.views.groups import group_rows, group_view, moves_from_text
from sparklog.console.views.numbers import age, number, rate, size, time
from sparklog.console.views.paging import page_of
from sparklog.console.views.topics import (
    column_rows,
    names_matching,
    readers_of,
    schema_changes,
    setting_rows,
    topic_row,
)
from sparklog.console.views.transactions import transaction_rows
from sparklog.console.views.watched import GrowthSample, LagSample, Rate, WatchedGroup, growth, measured
from sparklog.protocol.transaction_messages import TransactionSummary
from sparklog.types import OffsetAndMetadata, TopicPartition
from tests.support.cases import for_each

ONE = pa.schema([("zone", pa.string()), ("n", pa.int32())])
TWO = pa.schema([("zone", pa.string()), ("n", pa.int64()), ("tip", pa.float64())])
TOPIC = TopicDescription(
    "t", "id", "typed", 2, TWO, 2, ("zone",), None, {"retention.ms": 5}, 0,
    (
        PartitionDescription(0, 0, 10, 110, 3000, 0, 10, 0, "", (0, 1), (0, 1)),
        PartitionDescription(1, 1, 0, 50, 1000, 0, 0, 500, "", (0, 1), (1,)),
    ),
    {"segment.bytes": 1_000_000},
    {1: ONE, 2: TWO},
)  # fmt: skip
CLUSTER = ClusterDescription("c", 1, (BrokerDescription(0, "a", 1), BrokerDescription(1, "b", 2)))


def lag(partition: int, committed: int | None, end: int, lag: int | None) -> PartitionLag:
    offset = None if committed is None else OffsetAndMetadata(committed)
    return PartitionLag(TopicPartition("t", partition), offset, end, lag, None)


def watched(name: str, *lags: int | None, state: str = "Empty", kind: str = "consumer") -> WatchedGroup:
    samples = deque(LagSample(1_000 * i, value, 10 * i) for i, value in enumerate(lags))
    by_topic = {"t": lags[-1]} if lags and lags[-1] is not None else {}
    return WatchedGroup(GroupListing(name, state, kind, 0), frozenset({"t"}), by_topic, samples)


def test_numbers_as_text() -> None:
    assert (number(1234567), number(None)) == ("1,234,567", "–")
    assert [size(n) for n in (0, 1536, 5 * 2**20, 3 * 2**40, -1, None)] == [
        "0 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 TiB",
        "–",
        "–",
    ]
    assert [rate(r) for r in (None, 0, 0.25, 1234.5)] == ["–", "0/s", "0.2/s", "1,234/s"]
    assert (time(0), time(-1), time(2**62)) == ("1970-01-01 00:00:00.000Z", "–", str(2**62))
    assert [age(ms) for ms in (None, 1500, 300_000, 7_200_000, 10 * 86_400_000)] == [
        "–",
        "1.5 s",
        "5 min",
        "2 h",
        "10 d",
    ]


def test_a_broker_that_is_cordoned_or_stops_is_named() -> None:
    states = [BrokerDescription(n, "a", n, None, n == 1, n in (1, 2)) for n in range(3)]
    found = spread(ClusterDescription("c", 2, tuple(states)), [])
    cordoned = "cordoned: gets no new replicas"
    assert [b.state for b in found.brokers] == ["", f"stopping, {cordoned}", f"controller, {cordoned}"]


def test_pages_of_a_list() -> None:
    rows = list(range(101))
    assert page_of(rows, 1, 50)[1:] == (1, 3, 101, 1)
    assert page_of(rows, 3, 50).rows == [100]
    assert page_of(rows, 99, 50).number == 3
    assert page_of([], 1)[1:] == (1, 1, 0, 0)


def test_how_data_are_spread() -> None:
    found = spread(CLUSTER, [TOPIC])
    assert [(b.broker_id, b.leads, b.size_bytes, b.share, b.skew) for b in found.brokers] == [
        (0, 1, 3000, 0.75, 1.5),
        (1, 1, 1000, 0.25, 0.5),
    ]
    assert [b.state for b in found.brokers] == ["", "controller"]
    assert (found.size_bytes, found.remote_size_bytes, found.largest[0].skew) == (4000, 500, 1.5)
    assert found.problems.lines == ["t-1: 1 of 2 replicas are in sync"]
    assert spread(CLUSTER, []).brokers[0].share == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"error_code": 15}, "is offline: STORAGE"),
        ({"leader": -1}, "is offline: it has no leader"),
        ({"high_watermark": -1}, "is offline: its leader does not answer"),
        ({"write_error": "disk is full"}, "rejected its last append: disk is full"),
    ],
)
def test_partitions_that_want_a_look(changed: dict[str, object], words: str) -> None:
    partition = dataclasses.replace(TOPIC.partition_details[0], **changed)  # type: ignore[arg-type]
    topic = dataclasses.replace(TOPIC, partition_details=(partition,))
    assert problems_of(topic) == [f"t-0 {words}"]


def test_problems_explained_by_a_dead_broker_are_folded() -> None:
    two = PartitionDescription(0, 0, 0, 9, 9, 0, 9, 0, "", (0, 3), (0,))
    alone = PartitionDescription(1, -1, 0, -1, 0, 0, 0, 0, "", (3,), (3,))
    slow = PartitionDescription(2, 0, 0, 9, 9, 0, 9, 0, "", (0, 1), (0,))
    both = PartitionDescription(3, 0, 0, 9, 9, 0, 9, 0, "", (0, 1, 3), (0,))
    full = dataclasses.replace(two, partition=4, write_error="disk is full")
    topic = dataclasses.replace(TOPIC, partition_details=(two, alone, slow, both, full))
    found = problems_together([topic], {3})
    assert found.title == "1 partition is offline, 4 partitions lack replicas, 1 partition takes no records"
    assert found.folded == ["t-0: 1 of 2 replicas are in sync", "t-1 is offline: it has no leader"]
    assert [line.partition(":")[0] for line in found.lines] == ["t-2", "t-3", "t-4", "t-4 rejected its last append"]
    assert found.brokers == [3]
    assert problems_together([topic], ()).folded == []
    well = dataclasses.replace(TOPIC, partition_details=TOPIC.partition_details[:1])
    assert problems_together([well], {3}).title == ""
    assert spread(CLUSTER, [topic]).problems.brokers == [3]  # it has replicas and is not registered


def test_disks() -> None:
    full = LogDirDescription(1, "/a", "", 1000, 100, 3, 500)
    gone = LogDirDescription(1, "/b", "STORAGE: it is gone", -1, -1, 0, 0)
    found = disks(CLUSTER, {1: [full, gone]})
    assert [(d.broker_id, d.path, d.used, d.problem) for d in found if d.broker_id == 1] == [
        (1, "/a", 0.9, ""),
        (1, "/b", None, "STORAGE: it is gone"),
    ]
    assert {d.problem for d in found if d.broker_id != 1} == {"the broker does not answer"}


def test_skew() -> None:
    assert (skew([]), skew([0, 0]), skew([4, 4]), skew([8, 0])) == (1, 1, 1, 2)


def test_names_that_begin_so_come_first() -> None:
    names = {"my-trips": 1, "other": 1, "Trips": 1, "__consumer_offsets": 1}
    assert names_matching(names, "TRIP", internal=False) == ["Trips", "my-trips"]
    assert "__consumer_offsets" not in names_matching(names, "", internal=False)
    assert "__consumer_offsets" in names_matching(names, "", internal=True)


def test_a_line_of_the_topics() -> None:
    row = topic_row(TOPIC, Rate(1, 2), [watched("a", 5), watched("b", 9), watched("c", None)])
    assert (row.records, row.size_bytes, row.remote_size_bytes, row.groups, row.lag) == (150, 4000, 500, 3, 9)
    empty = dataclasses.replace(TOPIC.partition_details[0], log_start_offset=0, high_watermark=0)
    assert topic_row(dataclasses.replace(TOPIC, partition_details=(empty,)), None, []).records == 0
    offline = dataclasses.replace(TOPIC.partition_details[0], high_watermark=-1, size_bytes=-1)
    broken = dataclasses.replace(TOPIC, partition_details=(offline, TOPIC.partition_details[1]))
    assert (topic_row(broken, None, []).records, topic_row(broken, None, []).lag) == (None, None)


def test_settings_name_their_source() -> None:
    rows = setting_rows(TOPIC)
    assert (rows[0].name, rows[0].value, rows[0].origin) == ("retention.ms", "5", "topic")
    assert (rows[1].name, rows[1].value, rows[1].origin) == ("segment.bytes", "1000000", "broker")
    assert {r.origin for r in rows[2:]} == {"default"}


def test_columns_and_versions() -> None:
    assert [(c.name, c.role, c.since) for c in column_rows(TOPIC)] == [("zone", "key", 1), ("n", "", 1), ("tip", "", 2)]
    newest, first = schema_changes(TOPIC.schemas)
    assert newest.changes == [("added", "tip", "double"), ("changed", "n", "int32 → int64")]
    assert (first.schema_id, first.changes) == (1, [])
    assert schema_changes({1: TWO, 2: ONE})[0].changes[0] == ("removed", "tip", "double")


def test_groups_are_sorted_and_searched() -> None:
    groups = {g.listing.group_id: g for g in (watched("a", 5), watched("b", None), watched("c", 50), watched("d", 0))}
    assert [r.group_id for r in group_rows(groups, "", "lag")] == ["c", "a", "d", "b"]
    assert [r.group_id for r in group_rows(groups, "", "name")] == ["a", "b", "c", "d"]
    assert [r.group_id for r in group_rows(groups, "C", "lag")] == ["c"]
    assert group_rows(groups, "", "lag", kind="offsets") == []
    assert [r.group_id for r in readers_of("t", groups)] == ["c", "a", "b", "d"]


def test_a_group() -> None:
    tps = [TopicPartition("t", p) for p in range(3)]
    member = MemberDescription("m-1", None, "client", "host", 3, ("t",), (tps[0], tps[1]), (tps[1], tps[2]))
    described = GroupDescription(
        "g", "Stable", 3, "range", (member,), (lag(0, 5, 10, 5), lag(1, 0, 50, 50), lag(2, None, -1, None))
    )
    view = group_view(described, watched("g", 3, 9), by_lag=True)
    assert [r.partition for r in view.partitions] == [1, 0, 2]
    assert [r.share for r in view.partitions] == [1.0, 0.1, 0.0]
    assert (view.lag, view.partitions[2].end, view.topics) == (55, None, ["t"])
    assert (view.members[0].owned, view.members[0].awaited) == ("t: 0, 1", "+ t: 2; − t: 0")
    assert view.chart is not None
    assert group_view(dataclasses.replace(described, partitions=()), None, by_lag=False).lag is None


def test_a_groups_lag_is_measured() -> None:
    described = GroupDescription("g", "Empty", 1, "", (), (lag(0, 5, 10, 5), lag(1, 7, 9, 2), lag(2, None, 3, None)))
    assert measured(described, 99) == ({"t": 7}, LagSample(99, 7, 12))
    assert measured(dataclasses.replace(described, partitions=()), 1) == ({}, LagSample(1, None, 0))
    assert watched("g", 1, 1, 1).rate == pytest.approx(10)
    assert watched("g", 1).rate is None


def test_growth() -> None:
    assert growth([GrowthSample(0, 5, 10)]) is None
    assert growth([GrowthSample(0, 5, 10), GrowthSample(2_000, 25, 4)]) == Rate(10, 0)


def test_a_line_of_a_number_over_time() -> None:
    chart = line_chart([(0, 0), (10, 50), (20, None), (30, 100), (40, 25)], "Lag")
    assert chart is not None
    assert len(chart.lines) == 2
    points = [tuple(map(float, p.split(","))) for line in chart.lines for p in line.split()]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert points[0] == (4.0, HEIGHT - 4)
    assert points[2][1] == 8.0
    assert chart.label.endswith("0 at first, 25 now, at most 100")
    assert line_chart([(0, 5)], "Lag") is None
    assert line_chart([(0, None), (1, 5)], "Lag") is None
    flat = line_chart([(0, 0), (10, 0)], "Lag")
    assert flat is not None


def test_transactions_that_are_open_longest_come_first() -> None:
    found = [
        TransactionSummary("done", "plain", "CompleteCommit", 1, 0),
        TransactionSummary("young", "plain", "Ongoing", 2, 0, started_ms=90_000, timeout_ms=60_000),
        TransactionSummary("__shared:etl", "shared", "Ongoing", 3, 0, 17, "run", started_ms=10_000, timeout_ms=60_000),
    ]
    rows = transaction_rows(found, 100_000)
    assert [(r.name, r.open_ms, r.is_late) for r in rows] == [
        ("etl", 90_000, True),
        ("young", 10_000, False),
        ("done", None, False),
    ]
    assert [r.name for r in transaction_rows(found, 100_000, "YOU")] == ["young"]
    assert [r.name for r in open_long(found, 100_000)] == ["etl"]
    first, unknown = (TransactionSummary("id", "plain", "Empty", n, 5) for n in (0, -1))
    assert [r.producer for r in transaction_rows([first, unknown], 100_000)] == ["0, epoch 5", ""]


@for_each("text", ["t:0", "t:x:1", "t:0:1:2"])
def test_moves_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        moves_from_text(text)
