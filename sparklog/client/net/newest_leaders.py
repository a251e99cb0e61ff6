"""The known leaders of partitions, by the newest leader epoch (KIP-320, KIP-951).

Metadata come from any broker. A broker that lags behind the controller names a leader that has been replaced, so a
known leader of a newer epoch stays. Pure; the caller has a lock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.topic_info import TopicInfo

NEWER_MAX = 100_000


class Leader(NamedTuple):
    """The broker that leads a partition in the leader epoch `epoch`."""

    endpoint: Endpoint
    broker_id: int
    epoch: int


class NewestLeaders:
    """Leaders of newer epochs than in the metadata. They are kept by topic id, so a topic that was created again under
    the same name begins without them."""

    def __init__(self) -> None:
        self._newer: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()

    def of(self, info: TopicInfo, partition: int) -> tuple[int, int]:
        """Return the broker id (-1: no leader) and the leader epoch."""
        state = info.partition_states[partition]
        newer = self._newer.get((info.topic_id, partition)) if self._newer else None
        if newer is not None and newer[1] > state.leader_epoch:
            return newer
        return state.leader, state.leader_epoch

    def remember(self, info: TopicInfo, partition: int, broker_id: int, epoch: int) -> bool:
        """Note a leader from an answer. Returns True if its epoch is newer than the known one."""
        if epoch <= self.of(info, partition)[1]:
            return False
        self._newer[(info.topic_id, partition)] = (broker_id, epoch)
        self._limit()
        return True

    def keep(self, info: TopicInfo) -> None:
        """Keep the leaders in `info`, because `info` is about to be forgotten. Leaders of epoch 0 are not kept: later
        metadata cannot have an older epoch."""
        for number in range(info.partitions):
            newest = self.of(info, number)
            if newest[1] > 0:
                self._newer[(info.topic_id, number)] = newest
        self._limit()

    def _limit(self) -> None:
        while len(self._newer) > NEWER_MAX:
            self._newer.popitem(last=False)

    def keep_newer(self, before: TopicInfo | None, info: TopicInfo) -> None:
        """Prepare for the replacement of a topic's metadata `before` by `info`: keep the known leaders whose epochs are
        newer than in `info`, and drop the others."""
        if before is None or before.topic_id != info.topic_id:
            return
        for number in range(min(before.partitions, info.partitions)):
            newest, reported = self.of(before, number), info.partition_states[number].leader_epoch
            if newest[1] > reported:
                self._newer[(info.topic_id, number)] = newest
            elif self._newer:
                self._newer.pop((info.topic_id, number), None)
