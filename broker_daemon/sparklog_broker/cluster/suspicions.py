"""Early failover: finds brokers that are gone before their sessions end.

1. A broker is silent: its replies or fetches are late, or connections to it fail. Its followers and leaders notice it,
   and brokers that fetch images from it.
2. One of them probes it without success, and is the first observer. It sends SUSPECT_BROKER to the controller; if it is
   the controller itself, or suspects the controller, to another broker.
3. The receiver probes it without success, and is the second observer.
4. The controller moves leaderships to other in-sync replicas, by its rule for `Suspect`. If the controller is
   suspected, the first observer deletes the controller's node, so that the brokers elect another one.

No step needs the certainty that the broker is dead: leader epochs fence it, and the version of `/controller_epoch`
fences a controller. Only the end of its session makes its death certain.
"""

from __future__ import annotations

import asyncio
import logging

from sparklog.environment.clock import MachineClock
from sparklog.errors import SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.cluster_messages import SuspectBrokerRequest, SuspectBrokerResponse
from sparklog.replication.cluster_image import BrokerImage
from sparklog.replication.controller.controller import OBSERVERS_MIN
from sparklog.replication.controller.model import Suspect
from sparklog_broker.cluster.broker_peers import BrokerPeers
from sparklog_broker.cluster.controller_client import ControllerClient
from sparklog_broker.cluster.images import ImageFollower
from sparklog_broker.cluster.membership import Membership
from sparklog_broker.cluster.peer_connection import Connect
from sparklog_broker.cluster.probe import is_reachable
from sparklog_broker.cluster.replicas import Replicas

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.1
TIMEOUT_S = 1.0
REST_S, REST_S_MAX = 0.2, 5.0
"""Time in s after which a silent broker that was reachable is probed again. It doubles with each such probe."""
EVICTION_INTERVAL_S = 10.0
"""Shortest time in s between two evictions of the same controller by this broker."""


class Suspicions:
    """Finds unreachable brokers and reports them. Event-loop thread only."""

    def __init__(
        self,
        broker_id: int,
        clock: MachineClock,
        connect: Connect,
        membership: Membership,
        controller: ControllerClient,
        peers: BrokerPeers,
        images: ImageFollower,
        replicas: Replicas,
    ) -> None:
        self._broker_id = broker_id
        self._now_s = clock.monotonic_s
        self._connect = connect
        self._membership = membership
        self._controller = controller
        self._peers = peers
        self._images = images
        self._replicas = replicas
        self._investigations: dict[int, asyncio.Task[None]] = {}
        self._rests: dict[int, tuple[float, float]] = {}
        """By broker id: end of the rest after a successful probe, and the length of this rest, in s."""
        self._evicted: dict[tuple[int, int], float] = {}
        """Times in s of the evictions in the last EVICTION_INTERVAL_S, by (broker id, broker epoch)."""

    async def run(self) -> None:
        """Investigate silent brokers, until cancelled."""
        try:
            while True:
                await asyncio.sleep(POLL_INTERVAL_S)
                self._poll()
        finally:
            for task in self._investigations.values():
                task.cancel()

    def _poll(self) -> None:
        brokers = self._images.image.brokers
        silent = self._silent_brokers() if len(brokers) > OBSERVERS_MIN else set()
        self._rests = {i: rest for i, rest in self._rests.items() if i in silent}
        self._investigations = {i: task for i, task in self._investigations.items() if not task.done()}
        for broker_id in sorted(silent - self._investigations.keys()):
            broker = brokers.get(broker_id)
            if broker is not None and broker.endpoints and self._now_s() >= self._rests.get(broker_id, (0.0, 0.0))[0]:
                self._investigations[broker_id] = asyncio.ensure_future(self._investigate(broker))

    def _silent_brokers(self) -> set[int]:
        controller = {self._controller.controller_id} if self._images.has_lost_controller else set()
        return (self._replicas.silent_brokers() | controller) - {self._broker_id}

    async def _investigate(self, broker: BrokerImage) -> None:
        if await is_reachable(self._connect, broker.endpoints[0]):
            rest_s = min(2 * self._rests.get(broker.broker_id, (0.0, REST_S / 2))[1], REST_S_MAX)
            self._rests[broker.broker_id] = self._now_s() + rest_s, rest_s
            return
        try:
            await self._report(broker)
        except SparklogError as e:
            log.debug("broker %d does not answer, which is not reported yet: %s", broker.broker_id, e)

    async def _report(self, broker: BrokerImage) -> None:
        is_controller = await self._controller.find()
        if not is_controller and self._controller.controller_id != broker.broker_id:
            if not broker.is_suspected:
                await self._controller.request(
                    "suspicion", Api.SUSPECT_BROKER, self._request(broker), SuspectBrokerResponse, timeout_s=TIMEOUT_S
                )
            return
        if is_controller and broker.is_suspected:
            return
        other = await self._second_observer(broker)
        if other is None:
            return
        if is_controller:
            await self._suspect(broker, (other.broker_id, other.broker_epoch))
        else:
            self._evict(broker, other)

    def _request(self, broker: BrokerImage) -> SuspectBrokerRequest:
        epoch = self._membership.registration.broker_epoch
        return SuspectBrokerRequest(self._broker_id, epoch, broker.broker_id, broker.broker_epoch)

    async def _second_observer(self, broker: BrokerImage) -> BrokerImage | None:
        """Return another broker that does not reach `broker` either; None if the first one that answers reaches it."""
        for other in self._images.image.brokers.values():
            if other.is_suspected or other.broker_id in (self._broker_id, broker.broker_id):
                continue
            try:
                answer = await self._peers.request(
                    other.broker_id, Api.SUSPECT_BROKER, self._request(broker), SuspectBrokerResponse,
                    timeout_s=TIMEOUT_S,
                )  # fmt: skip
            except SparklogError as e:
                log.debug("broker %d does not say if it reaches broker %d: %s", other.broker_id, broker.broker_id, e)
                continue
            return other if answer.is_confirmed else None
        return None

    def _evict(self, broker: BrokerImage, other: BrokerImage) -> None:
        life = broker.broker_id, broker.broker_epoch
        now_s = self._now_s()
        self._evicted = {i: at_s for i, at_s in self._evicted.items() if now_s - at_s < EVICTION_INTERVAL_S}
        if life not in self._evicted:
            self._evicted[life] = now_s
            log.warning(
                "brokers %d and %d do not reach the controller, broker %d: the brokers elect another controller",
                self._broker_id, other.broker_id, broker.broker_id,
            )  # fmt: skip
            self._membership.evict(broker.broker_id)

    async def confirm(self, request: SuspectBrokerRequest) -> bool:
        """Probe the broker that another broker suspects. Returns True if this broker does not reach it either; on the
        controller, if it is suspected now. Raises the errors of `Membership.ask`."""
        broker = self._images.image.brokers.get(request.broker_id)
        if broker is None or broker.broker_epoch != request.broker_epoch or not broker.endpoints:
            return False
        if broker.broker_id == self._broker_id or await is_reachable(self._connect, broker.endpoints[0]):
            return False
        if not self._membership.is_controller:
            return True
        return await self._suspect(broker, (request.observer_id, request.observer_epoch))

    async def _suspect(self, broker: BrokerImage, other: tuple[int, int]) -> bool:
        """Let this broker's controller suspect `broker`. Returns True if it is suspected now."""
        stored = self._membership.controller_image().brokers.get(broker.broker_id)
        if stored is not None and stored.is_suspected:
            return stored.broker_epoch == broker.broker_epoch
        own = self._broker_id, self._membership.registration.broker_epoch
        is_suspected: bool = await self._membership.ask(
            lambda token: Suspect(token, broker.broker_id, broker.broker_epoch, (own, other))
        )
        if is_suspected:
            log.warning(
                "brokers %d and %d do not reach broker %d: other in-sync replicas lead its partitions",
                self._broker_id, other[0], broker.broker_id,
            )  # fmt: skip
        return is_suspected
