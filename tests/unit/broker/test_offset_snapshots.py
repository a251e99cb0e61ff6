"""Who asks under one name gets one answer; what is kept has a limit."""

from __future__ import annotations

from sparklog_broker.partitions.offset_snapshots import Extent, OffsetSnapshots

from sparklog.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_the_first_who_asks_decides() -> None:
    snapshots = OffsetSnapshots()
    first = snapshots.of("action", lambda: [(T0, Extent(0, 5)), (T1, Extent(2, 9))])
    assert snapshots.of("action", lambda: [(T0, Extent(0, 6))]) is first
    assert first == {T0: Extent(0, 5), T1: Extent(2, 9)}
    assert snapshots.of("other", lambda: [(T0, Extent(0, 6))]) == {T0: Extent(0, 6)}


def test_those_that_were_asked_for_longest_ago_go_first() -> None:
    snapshots = OffsetSnapshots(partitions_max=3)
    for name in "abc":
        snapshots.of(name, lambda: [(T0, Extent(0, 1))])
    snapshots.of("a", list)
    snapshots.of("d", list)  # of nothing, but it takes a place
    assert snapshots.of("a", list) == snapshots.of("c", list) == {T0: Extent(0, 1)}
    assert snapshots.of("b", lambda: [(T1, Extent(0, 9))]) == {T1: Extent(0, 9)}
    large = snapshots.of("large", lambda: [(TopicPartition("t", n), Extent(0, 1)) for n in range(10)])
    assert snapshots.of("large", list) is large, "one is kept, however large"
