"""The broker that a position is read from: its leader, or for a while a nearer replica (KIP-392)."""

from __future__ import annotations

import time
from collections.abc import Iterable

from sparklog.client.consumer.position import Position
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.newest_leaders import Leader
from sparklog.errors import BrokerNotAvailableError, UnknownTopicOrPartitionError


class BrokerChoice:
    """The choice of brokers for the threads of one lane, without a lock."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def knows(self, positions: Iterable[Position]) -> bool:
        """True if the leaders of all positions are known."""
        return all(self._cluster.last_leader(p.tp) is not None for p in positions)

    def broker_of(self, position: Position) -> Endpoint:
        """Return the broker to read the partition from. No broker is asked if the topic is known.

        Raises UnknownTopicOrPartitionError, BrokerNotAvailableError.
        """
        tp = position.tp
        if position.replica >= 0:
            replica = self._cluster.broker(position.replica) if time.monotonic() < position.replica_until else None
            if replica is not None:
                return replica
            position.replica = -1
        leader = self._cluster.last_leader(tp)
        if leader is not None:
            position.in_doubt = False
            return leader.endpoint
        count = self._cluster.topic(tp.topic).partitions
        if tp.partition >= count:
            raise UnknownTopicOrPartitionError(
                f"topic {tp.topic!r} has partitions 0 to {count - 1}, and no partition {tp.partition}"
            )
        raise BrokerNotAvailableError(f"{tp} has no leader now")

    def stays(self, position: Position, broker: Endpoint) -> bool:
        """True if the partition is still to be read from `broker` and needs no look-up."""
        leader = self._cluster.last_leader(position.tp)
        if position.in_doubt or leader is None or leader.epoch > position.checked_epoch:
            return False
        return self.broker_of(position) == broker

    def epoch_of(self, position: Position) -> int:
        """Return the leader epoch that a request for the position names; -1: none is known."""
        leader = self._cluster.last_leader(position.tp)
        return -1 if leader is None else leader.epoch

    def of_earlier_topics(self, positions: Iterable[Position]) -> list[Position]:
        """Return the positions in topics that were deleted and created again, by the topics' ids."""
        earlier = []
        for position in positions:
            topic_id = self._cluster.last_topic_id(position.tp.topic)
            if topic_id is not None and topic_id != position.projection.info.topic_id:
                earlier.append(position)
        return earlier

    def unchecked(self, positions: Iterable[Position]) -> list[tuple[Position, Leader]]:
        """Return the positions with a new leader that has not confirmed the records which were read (KIP-320)."""
        positions_to_check = []
        for position in positions:
            leader = self._cluster.last_leader(position.tp)
            if leader is None or leader.epoch <= position.checked_epoch:
                continue
            if position.epoch < 0 or position.epoch >= leader.epoch:
                position.checked_epoch = leader.epoch  # nothing has been read, or all of it from this very leader
            else:
                positions_to_check.append((position, leader))
        return positions_to_check
