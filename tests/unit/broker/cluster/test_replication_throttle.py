"""The limit of copying replicas that are being added."""

from __future__ import annotations

from sparklog_broker.cluster.replication_throttle import Quota, is_throttled

from sparklog.replication.cluster_image import PartitionImage


def test_without_a_rate_no_fetch_waits() -> None:
    quota = Quota(lambda: 0)
    assert quota.wait_ms() == 0


def test_borrowed_bytes_are_paid_back() -> None:
    now = [0]
    quota = Quota(lambda: now[0])
    quota.set_rate(1_000)
    assert quota.wait_ms() == 0
    quota.take(3_000)  # one second's worth was in stock
    assert quota.wait_ms() == 2_001
    now[0] = 2_000
    assert quota.wait_ms() > 0
    now[0] = 2_001
    assert quota.wait_ms() == 0
    now[0] = 60_000  # idle time is not saved up
    assert quota.wait_ms() == 0
    quota.take(2_000)
    assert 0 < quota.wait_ms() <= 2_001


def test_over_a_minute_the_rate_is_kept() -> None:
    now = [0]
    quota = Quota(lambda: now[0])
    quota.set_rate(10_000)
    taken = 0
    while now[0] < 60_000:
        wait_ms = quota.wait_ms()
        if wait_ms:
            now[0] += wait_ms
        else:
            quota.take(4_321)
            taken += 4_321
    assert 590_000 < taken < 620_000


def test_only_replicas_that_are_added_and_out_of_sync() -> None:
    partition = PartitionImage((3, 1, 2), 1, 4, 9, (1, 3), adding=(3, 4), removing=(2,))
    assert [broker for broker in range(6) if is_throttled(partition, broker)] == [4]
