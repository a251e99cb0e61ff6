"""How far a partition is replicated: the smallest log end in the ISR."""

from __future__ import annotations

import pytest

from sparklog.replication.partition import PartitionReplicas


def test_with_one_replica_it_follows_the_log_end() -> None:
    partition = PartitionReplicas(leader=3, log_end_offset=7)
    assert (partition.replicas, partition.isr, partition.replicated_to) == ((3,), (3,), 7)
    partition.on_append(9)
    assert partition.replicated_to == 9
    assert partition.log_end_offsets == {3: 9}


def test_with_more_it_is_the_smallest_of_the_isr() -> None:
    partition = PartitionReplicas(leader=1, replicas=(1, 2, 3), isr=(1, 2))
    partition.on_append(10)
    found = [partition.replicated_to]
    for replica, offset in ((2, 6), (3, 20), (2, 12), (2, 0)):
        partition.on_follower_fetch(replica, offset)
        found.append(partition.replicated_to)
    assert found == [0, 6, 6, 10, 0]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="ISR"):
        PartitionReplicas(leader=1, isr=(2,), replicas=(1, 2))
    with pytest.raises(ValueError, match="ISR"):
        PartitionReplicas(leader=1, isr=(1, 2), replicas=(1,))
    with pytest.raises(ValueError, match="no follower"):
        PartitionReplicas(leader=1).on_follower_fetch(1, 3)
