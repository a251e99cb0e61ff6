"""Reports to the controller of partitions whose log is unusable (a failed disk, damage). The controller elects other
leaders, and removes this broker from the ISRs (KIP-112). The broker continues with its other disks.

The controller keeps the reports only in memory. The broker repeats them to each new controller, and after each of its
own registrations.
"""

from __future__ import annotations

import asyncio
import logging

from sparklog.errors import SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.base import PARTITIONS_PER_REQUEST_MAX
from sparklog.protocol.cluster_messages import DirectoryFailedRequest, DirectoryFailedResponse, OfflinePartition
from sparklog.replication.cluster_image import NO_EPOCH, ClusterImage
from sparklog.replication.controller.model import DirectoryFailed
from sparklog.types import TopicPartition
from sparklog_broker.cluster.controller_client import ControllerClient
from sparklog_broker.cluster.membership import Membership
from sparklog_broker.cluster.replicas import Replicas

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
RETRY_S = 0.5


class FailedDisks:
    """Finds offline partitions and reports them. Event-loop thread only."""

    def __init__(
        self, broker_id: int, replicas: Replicas, membership: Membership, controller: ControllerClient
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._membership = membership
        self._controller = controller
        self._image = ClusterImage()
        self._reported_life: tuple[int, int] | None = None
        """(controller epoch, broker epoch) of the last report."""
        self._reported: frozenset[TopicPartition] = frozenset()
        self._look = asyncio.Event()

    def look(self, image: ClusterImage | None = None) -> None:
        """Check for unreported partitions, after a newer `image`, or after another partition went offline (None)."""
        self._image = image if image is not None else self._image
        self._look.set()

    def offline(self) -> frozenset[TopicPartition]:
        """Return the partitions whose replica on this broker is unusable."""
        return frozenset(key for key in self._replicas.without_log() if self._has_replica(key))

    def _has_replica(self, key: TopicPartition) -> bool:
        partition = self._image.partition(key)
        return partition is not None and self._broker_id in partition.replicas

    async def run(self) -> None:
        """Send the reports, until cancelled."""
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                await self._report()
            except SparklogError as e:
                log.info("the offline partitions of this broker are not reported to the controller yet: %s", e)
                await asyncio.sleep(RETRY_S)
                self._look.set()

    async def _report(self) -> None:
        epoch = self._membership.registration.broker_epoch
        life = self._image.version.controller_epoch, epoch
        offline = self.offline()
        if epoch == NO_EPOCH or self._image.known.get(self._broker_id) != epoch:
            return  # the controller does not know this registration yet: the next image will call `look`
        new = offline - self._reported if life == self._reported_life else offline
        for first in range(0, len(new), PARTITIONS_PER_REQUEST_MAX):
            await self._report_batch(epoch, tuple(sorted(new)[first : first + PARTITIONS_PER_REQUEST_MAX]))
        self._reported_life, self._reported = life, offline

    async def _report_batch(self, epoch: int, keys: tuple[TopicPartition, ...]) -> None:
        if await self._controller.find():
            leaderless = await self._membership.ask(lambda token: DirectoryFailed(token, self._broker_id, epoch, keys))
        else:
            request = DirectoryFailedRequest(self._broker_id, epoch, [OfflinePartition(*key) for key in keys])
            answer = await self._controller.request(
                "disks", Api.DIRECTORY_FAILED, request, DirectoryFailedResponse, timeout_s=TIMEOUT_S
            )
            leaderless = answer.leaderless
        log.warning(
            "%d partitions are offline on this broker and reported to the controller; %d of them have no leader",
            len(keys),
            leaderless,
        )
