"""The known leaders of partitions, by the newest leader epoch (KIP-320, KIP-951).

Metadata come from any broker. A broker that lags behind the controller names a leader that has been replaced, so the
newer knowledge stays. Pure; the caller has a lock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.topic_info import TopicInfo

NEWER_MAX = 100_000


class Leader(NamedTuple):
    """The broker that leads a partition, and since which epoch."""

    endpoint: Endpoint
    broker_id: int
    epoch: int


class KnownLeaders:
    """The leaders that are newer than the metadata, by topic id: another topic of the same name begins empty."""

    def __init__(self) -> None:
        self._newer: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()

    def of(self, info: TopicInfo, partition: int) -> tuple[int, int]:
        """Return broker id and leader epoch; -1: no leader."""
        state = info.partition_states[partition]
        newer = self._newer.get((info.topic_id, partition)) if self._newer else None
        if newer is not None and newer[1] > state.leader_epoch:
            return newer
        return state.leader, state.leader_epoch

    def note(self, info: TopicInfo, partition: int, broker_id: int, epoch: int) -> bool:
        """Note a leader from an answer. True if it is newer than the known one."""
        if epoch <= self.of(info, partition)[1]:
            return False
        self._newer[(info.topic_id, partition)] = (broker_id, epoch)
        self._limit()
        return True

    def keep(self, info: TopicInfo) -> None:
        """Keep the leaders of `info` beyond the first ones, because `info` is about to be forgotten."""
        for number in range(info.partitions):
            known = self.of(info, number)
            if known[1] > 0:
                self._newer[(info.topic_id, number)] = known
        self._limit()

    def _limit(self) -> None:
        while len(self._newer) > NEWER_MAX:
            self._newer.popitem(last=False)

    def keep_newer(self, before: TopicInfo | None, info: TopicInfo) -> None:
        """Replace the metadata `before` of a topic by `info`, and keep known leaders of newer epochs."""
        if before is None or before.topic_id != info.topic_id:
            return
        for number in range(min(before.partitions, info.partitions)):
            known, told = self.of(before, number), info.partition_states[number].leader_epoch
            if known[1] > told:
                self._newer[(info.topic_id, number)] = known
            elif self._newer:
                self._newer.pop((info.topic_id, number), None)
