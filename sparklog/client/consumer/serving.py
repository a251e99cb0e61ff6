"""Which broker a position is read from, by what is known of its partition: the leader, or for a while a replica that is
nearer (KIP-392)."""

from __future__ import annotations

import time
from collections.abc import Iterable

from sparklog.client.consumer.position import Position
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.known_leaders import Leader
from sparklog.errors import BrokerNotAvailableError, UnknownTopicOrPartitionError


class Serving:
    """For the threads of one lane, without a lock."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def knows(self, positions: Iterable[Position]) -> bool:
        """Whether nobody has to be asked for their leaders."""
        return all(self._cluster.last_leader(p.tp) is not None for p in positions)

    def broker_of(self, position: Position) -> Endpoint:
        """Where the partition is read. Raises UnknownTopicOrPartitionError, BrokerNotAvailableError; asks nobody if
        the topic is known."""
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
                f"topic {tp.topic!r} has partitions 0 to {count - 1}, there is no {tp.partition}"
            )
        raise BrokerNotAvailableError(f"{tp} has no leader at the moment")

    def stays(self, position: Position, broker: Endpoint) -> bool:
        """Whether the partition is to be read from `broker` again, and nothing has to be asked for."""
        leader = self._cluster.last_leader(position.tp)
        if position.in_doubt or leader is None or leader.epoch > position.checked_epoch:
            return False
        return self.broker_of(position) == broker

    def epoch_of(self, position: Position) -> int:
        """The leader epoch that a request for the position names; -1: none is known."""
        leader = self._cluster.last_leader(position.tp)
        return -1 if leader is None else leader.epoch

    def unchecked(self, positions: Iterable[Position]) -> list[tuple[Position, Leader]]:
        """Those with a new leader, which has to be asked whether it has what was read (KIP-320)."""
        found = []
        for position in positions:
            leader = self._cluster.last_leader(position.tp)
            if leader is None or leader.epoch <= position.checked_epoch:
                continue
            if position.epoch < 0 or position.epoch >= leader.epoch:
                position.checked_epoch = leader.epoch  # nothing has been read, or all of it from this very leader
            else:
                found.append((position, leader))
        return found
