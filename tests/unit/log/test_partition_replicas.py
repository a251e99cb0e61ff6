"""The high watermark: the smallest log end in the ISR, never going back."""

from __future__ import annotations

import pytest

from sparklog.replication.partition import PartitionReplicas


def test_with_one_replica_it_follows_the_log_end() -> None:
    partition = PartitionReplicas(leader=3, log_end_offset=7)
    assert (partition.replicas, partition.isr, partition.high_watermark) == ((3,), (3,), 7)
    assert partition.on_append(9) == 9
    assert partition.on_append(8) == 9
    assert partition.log_end_offsets == {3: 8}


def test_with_more_it_is_the_smallest_of_the_isr() -> None:
    partition = PartitionReplicas(leader=1, replicas=(1, 2, 3), isr=(1, 2), high_watermark=4)
    assert partition.on_append(10) == 4
    assert partition.on_follower_fetch(2, 6) == 6
    assert partition.on_follower_fetch(3, 20) == 6
    assert partition.on_follower_fetch(2, 12) == 10
    assert partition.on_follower_fetch(2, 0) == 10


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="ISR"):
        PartitionReplicas(leader=1, isr=(2,), replicas=(1, 2))
    with pytest.raises(ValueError, match="ISR"):
        PartitionReplicas(leader=1, isr=(1, 2), replicas=(1,))
    with pytest.raises(ValueError, match="no follower"):
        PartitionReplicas(leader=1).on_follower_fetch(1, 3)
