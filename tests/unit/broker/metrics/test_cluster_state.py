"""Numbers of replicas: their sources, and the counted changes."""

from __future__ import annotations

from sparklog_broker.counters.replication import ReplicationCounters
from sparklog_broker.metrics.partition_rows import PartitionRow, Sums

from sparklog.replication.cluster_image import PartitionImage


def sums(*rows: PartitionRow) -> Sums:
    found = Sums()
    for row in rows:
        found.add(row)
    return found


def test_only_the_leader_reports_the_common_state_of_replicas() -> None:
    led = PartitionRow("t", 0, 3, 2, False, start=5, end=9, high_watermark=8, stable=7, size_bytes=100, min_in_sync=2)
    followed = led._replace(number=1, leads=False)
    both = sums(led, followed)
    assert (both.held, both.partitions, both.size_bytes) == (2, 1, 200)
    assert (both.replicas, both.in_sync, both.high_watermark, both.undecided) == (3, 2, 8, 1)
    assert (both.under_replicated, both.under_min_isr, both.at_min_isr) == (1, 0, 1)


def test_min_in_sync_replicas() -> None:
    row = PartitionRow("t", 0, 3, 3, False, min_in_sync=2)
    found = [sums(row._replace(in_sync=n)) for n in (3, 2, 1)]
    assert [(s.under_min_isr, s.at_min_isr) for s in found] == [(0, 0), (0, 1), (1, 0)]
    alone = sums(PartitionRow("t", 0, 1, 1, False))
    assert (alone.under_min_isr, alone.at_min_isr) == (0, 0), "there is no spare replica to lose"


def image(leader: int, epoch: int, *isr: int, recovering: bool = False) -> PartitionImage:
    return PartitionImage((1, 2, 3), leader, epoch, epoch, isr, recovering=recovering)


def test_counted_states() -> None:
    counted = ReplicationCounters()
    for before, after in (
        (image(1, 3, 1, 2, 3), image(1, 3, 1, 2)),
        (image(1, 3, 1, 2), image(1, 3, 1, 3)),  # one goes, another one comes
        (image(2, 3, 1, 2), image(1, 4, 1)),  # another leader's doing
        (image(1, 4, 1), image(1, 4, 1)),
    ):
        counted.count(before, after)
    assert (counted.isr_shrinks, counted.isr_expands, counted.unclean_elections) == (2, 1, 0)
    counted.count(image(-1, 4), image(1, 5, 1, recovering=True))
    counted.count(image(1, 5, 1, recovering=True), image(1, 5, 1, recovering=True))
    assert counted.unclean_elections == 1
