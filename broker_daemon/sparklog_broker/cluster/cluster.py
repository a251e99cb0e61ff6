"""The cluster as one broker sees it: its parts, and their start and stop.

Start: `connect` reads the store in ZooKeeper, or `alone` the store in the data directory. The broker opens its logs,
its server listens, and `join` registers the broker and follows the controller. Stop: `leave` moves leaderships to other
brokers, and `close` ends the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from sparklog.environment import Environment
from sparklog.environment.time_slices import LoopTimeSlices
from sparklog.errors import InvalidConfigError, SparklogError, StorageUnavailableError
from sparklog.log.directories.broker_epoch import NO_EPOCH, note_lives, note_registration, noted_lives
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import (
    ConnectionLossError,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    Op,
    SetData,
    Steps,
)
from sparklog.metadata.image_copy import ImageCopy, read_copy
from sparklog.metadata.image_store import IdBlocks, topic_of
from sparklog.metadata.local_coordination import LocalCoordination
from sparklog.metadata.local_store import MADE, METADATA_FILE, open_local, read_image, read_made, take_epochs
from sparklog.metadata.store import Topic
from sparklog.metadata.store_history import StoreMark, mark_of, older, read_mark
from sparklog.protocol.apis import Api
from sparklog.protocol.cluster_messages import ControlledShutdownRequest, ControlledShutdownResponse
from sparklog.replication.cluster_image import UNCLEAN_SETTING, ClusterImage, TopicImage, Version
from sparklog.replication.controller.model import AlterSecurity, ControlledShutdown, ControllerConfig
from sparklog.replication.replica.model import ReplicaConfig
from sparklog.security.listeners import endpoint_for
from sparklog.security.records import RecordChanges
from sparklog.settings import Value
from sparklog_broker.background.background import Background
from sparklog_broker.cluster.broker_peers import BrokerPeers
from sparklog_broker.cluster.controller_client import ControllerClient, done
from sparklog_broker.cluster.failed_disks import FailedDisks
from sparklog_broker.cluster.follower_side.log_starts import LogStarts
from sparklog_broker.cluster.follower_side.replica_fetcher import FetchLimits
from sparklog_broker.cluster.full_disks import FullDisks
from sparklog_broker.cluster.growth import check_not_copying
from sparklog_broker.cluster.image_copies import ImageCopies
from sparklog_broker.cluster.images import ImageFollower
from sparklog_broker.cluster.leader_side.isr_proposals import IsrProposals
from sparklog_broker.cluster.leader_side.replica_server import ReplicaServer
from sparklog_broker.cluster.membership import Membership
from sparklog_broker.cluster.peers import Connect
from sparklog_broker.cluster.replicas import Replicas
from sparklog_broker.cluster.topics import Topics, is_here, was_made
from sparklog_broker.config import BrokerConfig, parse_address
from sparklog_broker.counters.replication import SessionCounters
from sparklog_broker.partitions.io_threads import IoThreads
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import ClusterMetadata, Storage
from sparklog_broker.security.records import SecurityRecords

log = logging.getLogger(__name__)

READ_ATTEMPTS = 5
"""Number of attempts to read the store at the start, while the connection to ZooKeeper breaks."""
LEAVE_PATIENCE_S = 3.0
"""Time in s without progress after which a stopping broker keeps its leaderships. Perhaps no other broker is left."""
LEAVE_AGAIN_S = 0.2
NOTE_S = 0.5
"""Time in s for which created topics are collected, so that one transaction records all of them."""
JOIN_SLACK_S = 10.0
RETRY_S = 1.0


class Cluster:
    """The cluster of this broker, created by `connect` or `alone`. Event-loop thread only, except for `serve`, which
    can be called before the loop runs.
    """

    def __init__(
        self,
        coordination: Coordination,
        cluster_id: str,
        image: ClusterImage,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        connect: Connect = asyncio.open_connection,
        put_aside: Mapping[str, TopicImage] | None = None,
        made: Mapping[str, int] | None = None,
    ) -> None:
        """`put_aside`: by topic id, the topics whose files this broker has put aside. None if the store is in the data
        directory, so that no copy of the image is needed. `made`: by topic id, the number of partitions whose
        directories were created, from `read_made`; None with ZooKeeper.
        """
        self._zk = coordination
        self._config = config
        self._loop = loop
        self._environment = environment
        self._connect = connect
        self._first_image = image
        self._put_aside = put_aside
        self._follows_images = False
        self.has_joined = False
        """True if requests are answered. Earlier, this broker has only the image that it read at its start."""
        self.session = None if put_aside is None else SessionCounters()
        """Counters of the ZooKeeper session; None without ZooKeeper."""
        if self.session is not None:
            coordination.listen(self.session.on_state)
        self._ids = IdBlocks(coordination)
        self.metadata = ClusterMetadata(
            cluster_id,
            {name: topic_of(topic) for name, topic in image.topics.items()},
            image.security,
            self._ids,
            is_here(image, config.broker_id),
            put_aside is None,
            was_made(image, made or {}) if put_aside is None else None,
        )
        self._created_topics = dict(made or {})
        self._topics_created_before = tuple(self._created_topics)
        """Topic ids whose nodes below MADE are from before this start. `join` deletes these nodes in one
        transaction."""
        self._unsaved_topics: dict[str, int] = {}
        """By topic id: number of created partitions that the store does not have yet."""
        self._has_unsaved = asyncio.Event()
        self._copies: ImageCopies | None = None
        self._endpoints: tuple[str, ...] = ()
        self.controller = ControllerClient(coordination, config.broker_id, connect)
        self.peers = BrokerPeers(self.endpoint_of, connect)
        self.on_configs: Callable[[Mapping[str, Value]], None] = lambda configs: None
        """Called with the cluster's settings of each image, before its topics are applied."""
        self._tasks: list[asyncio.Task[None]] = []
        self._follow_lock = asyncio.Lock()

    @classmethod
    async def connect(
        cls,
        coordination: Coordination,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        connect: Connect = asyncio.open_connection,
    ) -> Cluster:
        """Read the stored metadata, and create the base nodes in an empty store. Raises StorageUnavailableError, also
        if the store is older than this broker's newest image, or has another cluster's metadata. Raises StorageError if
        the data directory cannot be read.
        """
        copy = read_copy(environment.files, config.data_dir)
        for left in reversed(range(READ_ATTEMPTS)):
            try:
                cluster_id, image = await _read_store(coordination, config, environment, copy)
                break
            except (CoordinationError, msgspec.DecodeError) as e:
                # a busy machine can lose the connection that it has just made; the client connects again by itself
                if not isinstance(e, ConnectionLossError) or not left:
                    raise StorageUnavailableError(f"the cluster's metadata in ZooKeeper cannot be read: {e!r}") from e
        absent = {} if copy is None else {**copy.put_aside, **_absent(copy.image, image)}
        return cls(coordination, cluster_id, image, config, loop, environment, connect, absent)

    @classmethod
    def alone(
        cls, config: BrokerConfig, loop: asyncio.AbstractEventLoop, environment: Environment, *, create: bool
    ) -> Cluster:
        """Return the cluster of one broker, whose store is in its data directory. `create`: True to create a missing
        store. Blocks. Raises StorageError, StorageFullError.
        """
        path = config.data_dir / METADATA_FILE
        log_dirs = config.log_dirs or [config.data_dir]
        coordination = open_local(path, environment, create=create, log_dirs=log_dirs)
        try:
            cluster_id, image = read_image(coordination, path)
            made = read_made(coordination)
            return cls(coordination, cluster_id, image, config, loop, environment, made=made)
        except BaseException:
            coordination.close()
            raise

    def take_epochs(self, logs: LogManager) -> None:
        """Raise the leader epochs in metadata.db to those of the logs. A partition's epoch is lower in metadata.db if
        that file was restored from an older copy. No effect with ZooKeeper. Blocks. Raises StorageError,
        StorageFullError.
        """
        if isinstance(self._zk, LocalCoordination):
            epochs = {tp: partition_log.leader_epoch for tp, partition_log in logs.logs.items()}
            self._first_image = take_epochs(self._zk, self._first_image, epochs)

    # --- parts of the broker

    def serve(self, io: IoThreads) -> Replicas:
        """Create the object that holds the roles of this broker's partitions. Called once, before `topics`."""
        config = self._config
        self.replicas = Replicas(
            config.broker_id,
            self._loop,
            self._environment.clock,
            io,
            ReplicaConfig(lag_max_ms=config.replica_lag_time_max_ms, fetch_backoff_ms=config.replica_fetch_backoff_ms),
            FetchLimits(
                config.replica_fetch_wait_max_ms,
                config.replica_fetch_max_bytes,
                config.replica_fetch_response_max_bytes,
                config.replica_fetch_backoff_ms,
            ),
            self._connect,
        )
        self.replicas.image = self._first_image
        return self.replicas

    def topics(
        self, storage: Storage, partitions: Partitions, background: Background, time_slices: LoopTimeSlices
    ) -> Topics:
        """Create the object that applies changes of topics on this broker. Called once, after `serve`."""
        self._storage, self._partitions, self._background = storage, partitions, background
        self.server = ReplicaServer(
            partitions,
            self.replicas.now_ms,
            self._config.fetch_max_bytes,
            storage.remote_reads,
            self.replicas.counters,
        )
        if self._put_aside is not None:
            self._copies = ImageCopies(self._config, self._loop, self._environment.files, storage, self._put_aside)
        self._topics = Topics(
            self._config, self._environment, storage, self._ids, partitions, background, time_slices, self.replicas
        )
        if self._put_aside is None:
            self._topics.on_made = self._note_created
        return self._topics

    def _note_created(self, topic: Topic) -> None:
        """Note that the directories of all partitions of a topic exist. `_save_notes` soon stores the note."""
        self._unsaved_topics[topic.topic_id] = topic.partitions
        self._has_unsaved.set()

    async def _save_notes(self) -> None:
        """Run until cancelled: write the topics that `_note_created` records to the metadata store."""
        while True:
            await self._has_unsaved.wait()
            await asyncio.sleep(NOTE_S)
            await self._save_created()

    async def _save_created(self) -> None:
        made, self._unsaved_topics = self._unsaved_topics, {}
        self._has_unsaved.clear()
        ops: list[Op] = []
        for topic_id, partitions in made.items():
            path, data = f"{MADE}/{topic_id}", b"%d" % partitions
            ops.append(SetData(path, data) if topic_id in self._created_topics else Create(path, data))
        try:
            await done(self._zk.transaction(ops))
        except CoordinationError as e:
            log.warning("the store does not say that the directories of %d topics have been made: %s", len(made), e)
        else:
            self._created_topics |= made

    def follow_security(self, records: SecurityRecords) -> None:
        """Update `records` from the images, from `join` on."""
        self._security = records

    @property
    def image(self) -> ClusterImage:
        """The image that this broker has applied. Before the join: the image read at the start, without brokers."""
        return self.images.image if self._follows_images else self._first_image

    async def as_new_as(self, version: Version, timeout_s: float) -> bool:
        """Wait until this broker has applied an image of at least this version. Returns False after `timeout_s`."""
        return self.image.version >= version or await self.images.until_true(
            lambda image: image.version >= version, timeout_s
        )

    @property
    def is_certain(self) -> bool:
        """True if this broker has begun to join, and its session with ZooKeeper cannot have ended yet."""
        return self._follows_images and self.membership.registration.is_certain()

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
        found = self.image.topics.get(topic)
        return found is not None and bool(self.image.setting(found, UNCLEAN_SETTING, False))

    # --- life

    async def join(self, endpoints: Sequence[str], on_lost: Callable[[str], None]) -> None:
        """Register this broker at `endpoints` (see `registered_endpoints`), and return when an image that contains this
        registration is applied. If that takes too long, log a warning and return; the attempts continue.

        `on_lost` is called with the reason if the broker must stop later. Raises InvalidConfigError if another process
        has the same broker id.
        """
        self._endpoints = tuple(endpoints)
        logs = self._storage.logs
        lives = await self._storage.run(lambda: noted_lives(logs.directories.all, is_whole=logs.has_all_directories))
        try:
            await self._storage.run(lambda: note_registration(logs.directories.live))
        except SparklogError as e:
            log.warning(
                "the broker epoch is not stored yet: if this broker crashes now, the controller treats its disk as empty: %s",
                e,
            )
        registration = znodes.Registration(
            self._environment.randomness.new_id(), self._config.broker_rack or None, tuple(endpoints), *lives
        )
        taken: list[bool] = []

        def on_duplicate() -> None:
            if not taken:
                log.warning("another process is registered as broker.id %d; this one waits for its session to end", me)
            taken.append(True)

        me = self._config.broker_id
        self.membership = Membership(
            self._zk,
            self._config.broker_id,
            registration,
            self._environment.clock,
            self._loop,
            ControllerConfig(
                self._config.leader_imbalance_check_interval_seconds * 1_000,
                self._config.leader_imbalance_per_broker_percentage,
                self._config.auto_leader_rebalance_enable,
                has_own_store=self._put_aside is None,
            ),
            on_registered=lambda epoch: self._on_registered(epoch, on_lost),
            on_duplicate=on_duplicate,
            seen=self._seen,
            known=self._first_image if self._put_aside is None else None,
        )
        proposals = IsrProposals(self.membership, self.controller, self._config.broker_id)
        # The image read at the start has no brokers; version 0 makes the controller send a whole image.
        first = replace(self._first_image, version=Version())
        self.images = ImageFollower(self.membership, self.controller, self._config.broker_id, first, self._follow)
        self._follows_images = True
        self._topics.join(self.membership, self.controller, self.images)
        self._security.change = self._change_records
        storage = self._storage
        log_starts = LogStarts(self._loop, lambda: storage.run(storage.logs.checkpoint))
        self.replicas.start(self._partitions, self.server, proposals, self.membership.registration, log_starts)
        self._disks = FailedDisks(self._config.broker_id, self.replicas, self.membership, self.controller)
        self._full_disks = FullDisks(
            self._config.broker_id, self._environment.clock, storage, self.replicas, self.membership, self.controller
        )
        self._background.on_offline = self._on_offline
        self.membership.start()
        running = proposals.run(), self.images.run(), self._retry(), self._disks.run(), self._full_disks.run()
        self._tasks = [self._loop.create_task(run) for run in (*running, self._save_notes())]
        patience_s = 2 * self._config.zookeeper_session_timeout_ms / 1_000 + JOIN_SLACK_S
        if not await self.images.until_true(self._is_known, patience_s):
            if taken and self.membership.registration.broker_epoch == NO_EPOCH:
                raise InvalidConfigError(
                    f"another broker is registered as broker.id {self._config.broker_id}: give this broker another "
                    "id, or stop the other broker"
                )
            log.warning("this broker has not reached the controller for %d s; it keeps trying", patience_s)
        self.has_joined = True
        if self._topics_created_before:
            self._zk.transaction([Delete(f"{MADE}/{topic_id}") for topic_id in self._topics_created_before])
            self._created_topics.clear()

    async def _change_records(self, changes: RecordChanges) -> None:
        await self.membership.ask(lambda token: AlterSecurity(token, changes))
        await self.images.reach(self.membership.version)

    def _seen(self) -> StoreMark:
        """Return the mark of the newest image of this broker."""
        return mark_of(self._storage.cluster_id, max(self._first_image, self.image, key=lambda image: image.version))

    @property
    def controller_id(self) -> int:
        """The controller's broker id, as far as this broker knows; -1 if there is no controller that it follows."""
        return -1 if self.older_store else self.controller.controller_id

    @property
    def older_store(self) -> str:
        """The reason why ZooKeeper's data are older than this broker's newest image, or belong to another cluster; ""
        if neither holds, and before this broker follows images."""
        return self.membership.older_store if self._follows_images else ""

    @property
    def put_aside(self) -> Sequence[str]:
        """Names of topics whose files this broker has put aside, because an image lacked them."""
        return [] if self._copies is None else sorted(topic.name for topic in self._copies.put_aside.values())

    def _is_known(self, image: ClusterImage) -> bool:
        epoch = self.membership.registration.broker_epoch
        return epoch != NO_EPOCH and image.known.get(self._config.broker_id) == epoch

    def _on_registered(self, epoch: int, on_lost: Callable[[str], None]) -> None:
        log.info("broker %d is registered with epoch %d", self._config.broker_id, epoch)
        logs = self._storage.logs
        lives = self.membership.registration.lives.then(epoch)
        noting = self._storage.run(lambda: note_lives(logs.directories.live, lives, logs.directories_away))
        noting.add_done_callback(partial(self._on_noted, epoch, on_lost))

    def _on_noted(self, epoch: int, on_lost: Callable[[str], None], noting: asyncio.Future[None]) -> None:
        if noting.cancelled():
            return
        error = noting.exception()
        if error is not None:
            on_lost(f"the broker epoch cannot be written into the log directories: {error}")
            return
        self.replicas.noted_epoch = epoch
        self.replicas.follow_image(self.replicas.image)

    async def _follow(self, image: ClusterImage) -> None:
        async with self._follow_lock:
            try:
                self._security.follow(image.security)
                self.on_configs(image.configs)
                self.replicas.image = image  # roles of new partitions begin with it
                absent = await self._topics.follow(image)
                self.replicas.follow_image(image)
                self._disks.look(image)
                if self._copies is not None:
                    self._copies.follow(image, absent)
            except Exception:
                log.exception("image %s cannot be applied", image.version)

    def _on_offline(self) -> None:
        """Release the roles of partitions whose log was lost with its disk, and report them to the controller."""
        self.replicas.follow_image(self.replicas.image)
        self._disks.look()

    async def _retry(self) -> None:
        """Retry to create missing replicas, for example after a full disk, until cancelled."""
        while True:
            await asyncio.sleep(RETRY_S)
            if self._topics.has_to_retry:
                await self._follow(self.replicas.image)

    async def leave(self) -> None:
        """Move this broker's leaderships and the controller's role to other brokers, if there are any."""
        if any(broker_id != self._config.broker_id for broker_id in self.registered()):
            await self._hand_over()
        self.membership.retire()

    async def _hand_over(self) -> None:
        broker_id, epoch = self._config.broker_id, self.membership.registration.broker_epoch
        fewest, until = -1, self._loop.time() + LEAVE_PATIENCE_S
        why = ""
        while self._loop.time() < until:
            try:
                left = await self._shut_down(broker_id, epoch)
            except SparklogError as e:  # the controller may be stopping, too: another one is elected soon
                why = str(e)
            else:
                if left == 0:
                    return
                why = f"{left} partitions have no other leader yet"
                if fewest < 0 or left < fewest:
                    fewest, until = left, self._loop.time() + LEAVE_PATIENCE_S
            await asyncio.sleep(LEAVE_AGAIN_S)
        log.warning("this broker stops while it leads partitions: %s", why)

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
        if self._follows_images:  # a broker may stop before it has begun to join
            await self.replicas.stop()
            self.membership.stop()
        if self._copies is not None:
            await self._copies.stop()
        if self._unsaved_topics:
            await self._save_created()
        self.controller.close()
        self.peers.close()

    def close(self) -> None:
        """End the session, which removes the broker's registration. Blocks."""
        self._zk.close()


def _absent(before: ClusterImage, after: ClusterImage) -> dict[str, TopicImage]:
    """Return by topic id the topics of `before` that `after` lacks without an order to delete them."""
    left = {topic.topic_id for topic in after.topics.values()} | after.deleted.keys()
    return {topic.topic_id: topic for topic in before.topics.values() if topic.topic_id not in left}


async def _read_store(
    coordination: Coordination, config: BrokerConfig, environment: Environment, copy: ImageCopy | None
) -> tuple[str, ClusterImage]:
    """Return the cluster's id and its metadata; the base nodes are created in an empty store. `copy`: this broker's
    newest image. Raises as `Cluster.connect`, and CoordinationError."""
    await perform(check_not_copying(coordination))
    found = await perform(read_mark(coordination))
    if copy is not None and found.cluster_id not in ("", copy.mark.cluster_id):
        raise StorageUnavailableError(
            f"{config.data_dir} belongs to broker {config.broker_id} of cluster {copy.mark.cluster_id}, and "
            f"ZooKeeper at {config.zookeeper_connect} has cluster {found.cluster_id}: name the zookeeper.connect of "
            "the directory's cluster, or another data directory"
        )
    reason = "" if copy is None else older(found, copy.mark)
    if reason:
        raise StorageUnavailableError(
            f"ZooKeeper's data at {config.zookeeper_connect} are older than this broker's copy"
            f" ({reason}). With them it would lose records. Restore a newer copy of ZooKeeper's data, or "
            f"write back what the brokers know: sparklog cluster restore-metadata --data-dir {config.data_dir} "
            f"--zookeeper {config.zookeeper_connect}"
        )
    await perform(znodes.make_base(coordination))
    cluster_id = await perform(znodes.take_cluster_id(coordination, environment.randomness.new_id()))
    epoch = await done(coordination.get(znodes.CONTROLLER_EPOCH))
    assert epoch is not None, "made above"
    image = await perform(znodes.load_image(coordination, int(epoch.data), epoch.mzxid, epoch.version))
    return cluster_id, image


async def perform(steps: Steps) -> Any:
    """Run the steps on the event loop, and return their result. Raises their errors."""
    send: Callable[[], Any] = lambda: next(steps)  # noqa: E731
    while True:
        try:
            waiting = send()
        except StopIteration as e:
            return e.value
        try:
            if isinstance(waiting, list):
                result: Any = [await done(future) for future in waiting]
            else:
                result = await done(waiting)
        except CoordinationError as e:
            send = partial(steps.throw, e)
        else:
            send = partial(steps.send, result)
