"""This broker as a member of its cluster: the parts for images, replicas and topics, and their start and stop.

Start: a `ClusterStore` is opened, the broker opens its logs, its server listens, and `join` registers the broker and
follows the controller. Stop: `leave` moves leaderships to other brokers, and `close` ends the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from sparklog.environment import Environment
from sparklog.environment.time_slices import LoopTimeSlices
from sparklog.errors import InvalidConfigError, SparklogError
from sparklog.log.directories.broker_epoch import NO_EPOCH, note_lives, note_registration, noted_lives
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.store_history import StoreMark, mark_of
from sparklog.protocol.apis import Api
from sparklog.protocol.cluster_messages import ControlledShutdownRequest, ControlledShutdownResponse
from sparklog.replication.cluster_image import UNCLEAN_SETTING, ClusterImage, Version
from sparklog.replication.controller.model import AlterSecurity, ControlledShutdown, ControllerConfig
from sparklog.security.listeners import endpoint_for
from sparklog.security.records import RecordChanges
from sparklog.types import TopicPartition
from sparklog_broker.background.background import Background
from sparklog_broker.cluster.broker_peers import BrokerPeers
from sparklog_broker.cluster.cluster_store import ClusterStore
from sparklog_broker.cluster.controller_client import ControllerClient
from sparklog_broker.cluster.failed_disks import FailedDisks
from sparklog_broker.cluster.follower_side.log_starts import LogStarts
from sparklog_broker.cluster.full_disks import FullDisks
from sparklog_broker.cluster.images import ImageFollower
from sparklog_broker.cluster.leader_side.isr_proposals import IsrProposals
from sparklog_broker.cluster.leader_side.replica_server import ReplicaServer
from sparklog_broker.cluster.membership import Membership
from sparklog_broker.cluster.peer_connection import Connect
from sparklog_broker.cluster.replicas import Replicas
from sparklog_broker.cluster.suspicions import Suspicions
from sparklog_broker.cluster.topics import Topics
from sparklog_broker.config import BrokerConfig, parse_address
from sparklog_broker.counters.replication import SessionCounters
from sparklog_broker.partitions.io_threads import IoThreads
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage
from sparklog_broker.partitions.topic_owners import TopicOwners

log = logging.getLogger(__name__)

LEAVE_PATIENCE_S = 3.0
"""Time in s without progress after which a stopping broker keeps its leaderships. Perhaps no other broker is left."""
LEAVE_AGAIN_S = 0.2
JOIN_SLACK_S = 10.0
RETRY_S = 1.0


class ImageListener(Protocol):
    """The parts of the broker outside `cluster/` that follow the cluster's images."""

    def on_image(self, image: ClusterImage) -> None:
        """Apply the security records and settings of an image, before its topics are applied."""
        ...

    def on_leadership(self, key: TopicPartition, leads: bool) -> None:
        """Follow a change of leadership. `leads`: True if this broker begins to lead the partition, False if it ceases
        to lead it."""
        ...


def _controller_config(config: BrokerConfig, *, is_sole: bool) -> ControllerConfig:
    return ControllerConfig(
        config.leader_imbalance_check_interval_seconds * 1_000,
        config.leader_imbalance_per_broker_percentage,
        config.auto_leader_rebalance_enable,
        has_own_store=is_sole,
    )


class ClusterMember:
    """The membership of this broker in its cluster, with all its parts. Event-loop thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        store: ClusterStore,
        storage: Storage,
        io: IoThreads,
        partitions: Partitions,
        background: Background,
        owners: TopicOwners,
        time_slices: LoopTimeSlices,
        listener: ImageListener,
        connect: Connect,
    ) -> None:
        """`listener` is called from `join` on."""
        broker_id, clock, zk = config.broker_id, environment.clock, store.coordination
        self._config = config
        self._loop = loop
        self._environment = environment
        self._store = store
        self._storage = storage
        self._listener = listener
        self._record = store.record(config, loop, environment, storage)
        self.controller = ControllerClient(zk, broker_id, connect)
        self.peers = BrokerPeers(self.endpoint_of, connect)
        self.membership = Membership(
            zk,
            broker_id,
            clock,
            loop,
            _controller_config(config, is_sole=storage.metadata.is_sole),
            on_registered=self._on_registered,
            on_duplicate=self._on_duplicate,
            seen=self._seen,
            cached_image=store.image_for_election,
        )
        self.images = ImageFollower(self.membership, self.controller, broker_id, store.image, self._follow)
        self._proposals = IsrProposals(self.membership, self.controller, broker_id)
        now_ms = lambda: int(clock.monotonic_s() * 1_000)  # noqa: E731
        self.server = ReplicaServer(partitions, now_ms, config.fetch_max_bytes, storage.remote_reads)
        self.replicas = Replicas(
            config,
            loop,
            clock,
            io,
            connect,
            partitions,
            self.server,
            self._proposals,
            self.membership.registration,
            LogStarts(loop, lambda: storage.run(storage.logs.checkpoints.write)),
            store.image,
            listener.on_leadership,
        )
        self.topics = Topics(
            config, environment, storage, partitions, background, time_slices, self.replicas, self.membership,
            self.controller, self.images, owners, self._record.on_created,
        )  # fmt: skip
        self._failed_disks = FailedDisks(broker_id, self.replicas, self.membership, self.controller)
        self._full_disks = FullDisks(broker_id, clock, storage, self.replicas, self.membership, self.controller)
        self.suspicions = Suspicions(
            broker_id, clock, connect, self.membership, self.controller, self.peers, self.images, self.replicas
        )
        self.has_joined = False
        """True if requests are answered. Earlier, this broker has only the image that it read at its start."""
        self._endpoints: tuple[str, ...] = ()
        self._is_duplicate = False
        """True if another process was registered with this broker's id."""
        self._on_lost: Callable[[str], None] = lambda reason: None
        self._tasks: list[asyncio.Task[None]] = []
        self._follow_lock = asyncio.Lock()

    @property
    def session(self) -> SessionCounters | None:
        """Counters of the ZooKeeper session; None without ZooKeeper."""
        return self._store.session

    @property
    def image(self) -> ClusterImage:
        """The image that this broker has applied. Before the join: the image read at the start, without brokers."""
        return self.images.image

    async def as_new_as(self, version: Version, timeout_s: float) -> bool:
        """Wait until this broker has applied an image of at least this version. Returns False after `timeout_s`."""
        return await self.images.until_true(lambda image: image.version >= version, timeout_s)

    @property
    def is_certain(self) -> bool:
        """True if this broker is registered, and its session with ZooKeeper cannot have ended yet."""
        return self.membership.registration.is_certain()

    def endpoint_of(self, broker_id: int, listener: str = "") -> tuple[str, int] | None:
        """Return the address of a broker for clients of `listener`; for requests of brokers if `listener` is "". None
        if the broker is not registered or has no such address.
        """
        broker = self.image.brokers.get(broker_id)
        address = endpoint_for(broker.endpoints, listener) if broker is not None else ""
        return parse_address(address) if address else None

    @property
    def has_endpoints(self) -> bool:
        """True if this broker has registered addresses for other brokers and clients."""
        return bool(self._endpoints)

    def registered(self) -> Iterable[int]:
        """Return the ids of all registered brokers."""
        return self.image.brokers

    def may_cut_committed(self, topic: str) -> bool:
        """True if a log of the topic can be truncated below its high watermark, after an unclean election."""
        state = self.image.topics.get(topic)
        return state is not None and bool(self.image.setting(state, UNCLEAN_SETTING, False))

    # --- life

    async def join(self, endpoints: Sequence[str], on_lost: Callable[[str], None]) -> None:
        """Register this broker at `endpoints` (see `registered_endpoints`), and return when an image that contains this
        registration is applied. If that takes too long, log a warning and return; the attempts continue.

        `on_lost` is called with the reason if the broker must stop later. Raises InvalidConfigError if another process
        has the same broker id.
        """
        self._endpoints, self._on_lost = tuple(endpoints), on_lost
        logs = self._storage.logs
        lives = await self._storage.run(lambda: noted_lives(logs.directories.all, is_whole=logs.has_all_directories))
        try:
            await self._storage.run(lambda: note_registration(logs.directories.live))
        except SparklogError as e:
            log.warning(
                "the broker epoch is not stored yet: if this broker crashes now, the controller treats its disk as empty: %s",
                e,
            )
        incarnation = self._environment.randomness.new_id()
        self.replicas.start()
        self.membership.start(
            znodes.Registration(incarnation, self._config.broker_rack or None, self._endpoints, *lives)
        )
        parts = (
            self._proposals.run(),
            self.images.run(),
            self._retry(),
            self._failed_disks.run(),
            self._full_disks.run(),
            self.suspicions.run(),
        )
        self._tasks = [self._loop.create_task(part) for part in parts]
        patience_s = 2 * self._config.zookeeper_session_timeout_ms / 1_000 + JOIN_SLACK_S
        if not await self.images.until_true(self._is_registered_in, patience_s):
            if self._is_duplicate and self.membership.registration.broker_epoch == NO_EPOCH:
                raise InvalidConfigError(
                    f"another broker is registered as broker.id {self._config.broker_id}: give this broker another "
                    "id, or stop the other broker"
                )
            log.warning("this broker has not reached the controller for %d s; it keeps trying", patience_s)
        self.has_joined = True
        self._record.on_joined()

    async def change_security(self, changes: RecordChanges) -> None:
        """Make all changes of security records or none; called on the controller's broker. The changes are stored and
        in effect on this broker when the call returns. Raises as `SecurityRecords.change`."""
        await self.membership.ask(lambda token: AlterSecurity(token, changes))
        await self.images.reach(self.membership.version)

    def _seen(self) -> StoreMark:
        """Return the mark of the newest image of this broker."""
        return mark_of(self._storage.cluster_id, max(self._store.image, self.image, key=lambda image: image.version))

    @property
    def controller_id(self) -> int:
        """The controller's broker id, as far as this broker knows; -1 if there is no controller that it follows."""
        return -1 if self.older_store else self.controller.controller_id

    @property
    def older_store(self) -> str:
        """The reason why ZooKeeper's data are older than this broker's newest image, or belong to another cluster; ""
        if neither holds."""
        return self.membership.older_store

    @property
    def put_aside(self) -> Sequence[str]:
        """Names of topics whose files this broker has put aside, because an image lacked them."""
        return self._record.topics_put_aside

    def _is_registered_in(self, image: ClusterImage) -> bool:
        epoch = self.membership.registration.broker_epoch
        return epoch != NO_EPOCH and image.known.get(self._config.broker_id) == epoch

    def _on_duplicate(self) -> None:
        if not self._is_duplicate:
            log.warning(
                "another process is registered as broker.id %d; this one waits for its session to end",
                self._config.broker_id,
            )
        self._is_duplicate = True

    def _on_registered(self, epoch: int) -> None:
        log.info("broker %d is registered with epoch %d", self._config.broker_id, epoch)
        logs = self._storage.logs
        lives = self.membership.registration.lives.then(epoch)
        noting = self._storage.run(lambda: note_lives(logs.directories.live, lives, logs.directories_away))
        noting.add_done_callback(partial(self._on_noted, epoch))

    def _on_noted(self, epoch: int, noting: asyncio.Future[None]) -> None:
        if noting.cancelled():
            return
        error = noting.exception()
        if error is not None:
            self._on_lost(f"the broker epoch cannot be written into the log directories: {error}")
            return
        self.replicas.noted_epoch = epoch
        self.replicas.follow_image(self.replicas.image)

    async def _follow(self, image: ClusterImage) -> None:
        async with self._follow_lock:
            try:
                self._listener.on_image(image)
                self.replicas.image = image  # roles of new partitions begin with it
                absent = await self.topics.follow(image)
                self.replicas.follow_image(image)
                self._failed_disks.look(image)
                self._record.follow(image, absent)
            except Exception:
                log.exception("image %s cannot be applied", image.version)

    def on_offline(self) -> None:
        """Release the roles of partitions whose log was lost with its disk, and report them to the controller."""
        self.replicas.follow_image(self.replicas.image)
        self._failed_disks.look()

    async def _retry(self) -> None:
        """Retry to create missing replicas, for example after a full disk, until cancelled."""
        while True:
            await asyncio.sleep(RETRY_S)
            if self.topics.has_to_retry:
                await self._follow(self.replicas.image)

    async def leave(self) -> None:
        """Move this broker's leaderships and the controller's role to other brokers, if there are any."""
        if any(broker_id != self._config.broker_id for broker_id in self.registered()):
            await self._hand_over()
        self.membership.retire()

    async def _hand_over(self) -> None:
        broker_id, epoch = self._config.broker_id, self.membership.registration.broker_epoch
        fewest, until = -1, self._loop.time() + LEAVE_PATIENCE_S
        reason = ""
        while self._loop.time() < until:
            try:
                remaining = await self._shut_down(broker_id, epoch)
            except SparklogError as e:  # the controller may be stopping, too: another one is elected soon
                reason = str(e)
            else:
                if remaining == 0:
                    return
                reason = f"{remaining} partitions have no other leader yet"
                if fewest < 0 or remaining < fewest:
                    fewest, until = remaining, self._loop.time() + LEAVE_PATIENCE_S
            await asyncio.sleep(LEAVE_AGAIN_S)
        log.warning("this broker stops while it leads partitions: %s", reason)

    async def _shut_down(self, broker_id: int, epoch: int) -> int:
        if await self.controller.find():
            remaining: int = await self.membership.ask(lambda token: ControlledShutdown(token, broker_id, epoch))
            return remaining
        request = ControlledShutdownRequest(broker_id, epoch)
        answer = await self.controller.request(
            "stop", Api.CONTROLLED_SHUTDOWN, request, ControlledShutdownResponse, timeout_s=LEAVE_PATIENCE_S
        )
        return answer.remaining

    async def stop(self) -> None:
        """Stop applying images and copying records."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.replicas.stop()
        self.membership.stop()
        await self._record.stop()
        self.controller.close()
        self.peers.close()

    def close(self) -> None:
        """End the session, which removes the broker's registration. Blocks."""
        self._store.close()
