"""All replicas of this broker: their roles, and the copying from their leaders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from sparklog.environment.clock import MachineClock
from sparklog.errors import SparklogError, StorageError
from sparklog.log.partition_log import PartitionLog
from sparklog.metadata.broker_registration import BrokerRegistration
from sparklog.replication.cluster_image import NO_EPOCH, NO_LEADER, ClusterImage, PartitionImage
from sparklog.replication.replica.follower import Follower
from sparklog.replication.replica.leader import Leader
from sparklog.replication.replica.model import (
    Fetch,
    FetchFailure,
    FollowerEffect,
    NewImage,
    ProposeIsr,
    RefreshMetadata,
    ReplicaConfig,
    Tick,
)
from sparklog.types import TopicPartition
from sparklog_broker.cluster.follower_side.follower_log import carry_out, is_not_durable
from sparklog_broker.cluster.follower_side.log_starts import LogStarts, is_written
from sparklog_broker.cluster.follower_side.replica_fetcher import FetchEvent, FetchLimits, FollowerState, ReplicaFetcher
from sparklog_broker.cluster.leader_side.isr_proposals import IsrProposals
from sparklog_broker.cluster.leader_side.replica_server import ReplicaServer
from sparklog_broker.cluster.peer_connection import Connect
from sparklog_broker.cluster.peers import Peer
from sparklog_broker.cluster.replica import UNKNOWN, ClusterReplica
from sparklog_broker.cluster.replication_throttle import Quota, is_throttled
from sparklog_broker.config import BrokerConfig
from sparklog_broker.partitions.io_threads import IoThreads
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.partitions.partitions import Partitions

log = logging.getLogger(__name__)

TICK_S = 0.5


def _barrier() -> None:
    """Do nothing. When this job is done, all earlier jobs are."""


class _FollowedImage(NamedTuple):
    """The facts from which the roles were derived."""

    image: ClusterImage
    is_sure: bool
    full: frozenset[TopicPartition]

    def differs_in_topics_only(self, before: _FollowedImage) -> bool:
        """Return True if only topics have changed since `before`, so that the roles of other topics need no check. For
        the same image, which is applied again to check all roles, return False."""
        one, other = self.image, before.image
        return one is not other and (one.brokers, one.known, one.configs, self.is_sure, self.full) == (
            other.brokers,
            other.known,
            other.configs,
            before.is_sure,
            before.full,
        )


class Replicas:
    """The replicas. Implements the `ReplicaHost` of every `ClusterReplica`. Event-loop thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        clock: MachineClock,
        io: IoThreads,
        connect: Connect,
        partitions: Partitions,
        server: ReplicaServer,
        proposals: IsrProposals,
        registration: BrokerRegistration,
        log_starts: LogStarts,
        image: ClusterImage,
        on_leadership: Callable[[TopicPartition, bool], None],
    ) -> None:
        """`image`: the image at the broker's start. `on_leadership`: called with the partition, and True when this
        broker begins to lead it, False when it ceases to lead it."""
        self._broker_id = config.broker_id
        self._loop = loop
        self._clock = clock
        self._io = io
        self._config = ReplicaConfig(
            lag_max_ms=config.replica_lag_time_max_ms, fetch_backoff_ms=config.replica_fetch_backoff_ms
        )
        self._limits = FetchLimits(
            config.replica_fetch_wait_max_ms,
            config.replica_fetch_max_bytes,
            config.replica_fetch_response_max_bytes,
            config.replica_fetch_backoff_ms,
        )
        self._connect = connect
        self._partitions = partitions
        self._server = server
        self._proposals = proposals
        self._registration = registration
        self._log_starts = log_starts
        self._on_leadership = on_leadership
        self._replicas: dict[TopicPartition, ClusterReplica] = {}
        self._follower_states: dict[TopicPartition, FollowerState] = {}
        self._fetchers: dict[int, tuple[ReplicaFetcher, asyncio.Task[None]]] = {}
        self._fetches = 0
        """The largest number of a fetch so far, by which late answers to an earlier role's fetches are recognised."""
        self._ticking: asyncio.TimerHandle | None = None
        self._quota = Quota(self.now_ms)
        self.image = image
        self.noted_epoch = NO_EPOCH
        """The broker epoch that the log directories contain. While the registration has another epoch, this broker
        leads and copies no partition."""
        self.full: frozenset[TopicPartition] = frozenset()
        """Partitions on full disks, into which no records are copied."""
        self.counters = server.counters
        self._was_certain = True
        self._unsettled: dict[TopicPartition, None] = {}
        """Partitions with an event since the last tick, and those that wait for time: the others need no tick."""
        self._followed = _FollowedImage(ClusterImage(), False, frozenset())
        self._idle: dict[TopicPartition, None] = {}
        """Partitions that this broker neither leads nor copies. Any image can give them a role."""
        self._eligible: dict[int, int] = {}
        self._new_leaderships = 0
        """Number of leaderships begun since the last log line about them."""

    def start(self) -> None:
        """Start the ticks."""
        self._tick()

    async def stop(self) -> None:
        """Stop copying."""
        self._log_starts.stop()
        if self._ticking is not None:
            self._ticking.cancel()
        tasks = [task for _, task in self._fetchers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- ReplicaHost

    def now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1_000)

    def last_fetch_ms(self, broker_id: int) -> int:
        return self._server.last_fetch_ms(broker_id)

    def silent_brokers(self) -> set[int]:
        """Return the leaders whose replies are late or missing, and the followers whose fetches are late."""
        silent = {leader for leader, (fetcher, _) in self._fetchers.items() if fetcher.is_silent}
        return silent.union(self._server.silent_followers())

    def propose(self, replica: ClusterReplica, proposal: ProposeIsr) -> None:
        self._proposals.add(replica, proposal)

    def on_event(self, key: TopicPartition) -> None:
        self._unsettled[key] = None

    def on_new_data(self, key: TopicPartition) -> None:
        self._unsettled[key] = None
        self._server.on_new_data(key)

    def on_role_lost(self, key: TopicPartition) -> None:
        self._idle[key] = None

    # --- roles

    def role_of(self, key: TopicPartition, partition_log: PartitionLog | None) -> ClusterReplica:
        """Create the role of a partition that will be served. Before `follow_image`, the role is neither leader nor
        follower."""
        image = self.image.partition(key) or UNKNOWN
        replica = self._replicas[key] = ClusterReplica(key, self._broker_id, image, self._config, self)
        self._idle[key] = None
        return replica

    def follow_image(self, image: ClusterImage) -> None:
        """Give every served partition its role in `image`.

        Roles begin only when the log directories have a broker epoch and the image has brokers. The image that a broker
        reads from the store has none.
        """
        self.image = image
        if self.noted_epoch == NO_EPOCH or not image.brokers:
            return
        self._unsettled = dict.fromkeys(self._replicas)
        self._eligible = image.eligible()
        self._quota.set_rate(image.throttle_bytes)
        self._server.quota.set_rate(image.throttle_bytes)
        self._was_certain = self._is_sure
        for leader in list(self._fetchers):
            self._fetcher(leader)  # its address may be new or changed
        before, self._followed = self._followed, _FollowedImage(image, self._is_sure, self.full)
        if self._followed.differs_in_topics_only(before):
            earlier = before.image.topics
            changed = [name for name, topic in image.topics.items() if earlier.get(name) is not topic]
            for partition in self._partitions.of(changed, self._idle):
                self._follow(partition)
        else:
            for partition in self._partitions.all():
                self._follow(partition)
        if self._new_leaderships:
            led = len(self._replicas) - len(self._idle) - len(self._follower_states)
            log.info(
                "now leading %d more partitions, %d of %d in total", self._new_leaderships, led, len(self._replicas)
            )
            self._new_leaderships = 0
        self._stop_idle_fetchers()

    def without_log(self) -> list[TopicPartition]:
        """Return the partitions without an open log on this broker."""
        return [p.key for p in self._partitions.of((), self._idle) if p.open_log is None]

    def _is_at_work(self, key: TopicPartition) -> bool:
        """True if this broker leads or copies the partition."""
        state = self._replicas[key].state
        return key in self._follower_states or (isinstance(state, Leader) and not state.has_resigned)

    def drop(self, key: TopicPartition) -> None:
        """End the role of a partition that is not served any more."""
        replica = self._replicas.pop(key, None)
        self._unfollow(key)
        if replica is not None:
            if isinstance(replica.state, Leader):
                self._on_leadership(key, False)
            replica.resign(UNKNOWN)
        self._idle.pop(key, None)

    def release(self, partition: Partition, image: PartitionImage) -> None:
        """End this broker's replica of the partition. The broker then neither leads nor copies it."""
        replica, key = self._replicas[partition.key], partition.key
        was_leading = isinstance(replica.state, Leader)
        self._unfollow(key)
        replica.forget(image)
        self._idle[key] = None
        partition.on_role_changed()
        if was_leading:
            self._on_leadership(key, False)

    def _follow(self, partition: Partition) -> None:
        """Give the partition its role in the present image."""
        self._take_role(partition)
        if self._is_at_work(partition.key):
            self._idle.pop(partition.key, None)
        else:
            self._idle[partition.key] = None

    def _take_role(self, partition: Partition) -> None:
        replica, key = self._replicas[partition.key], partition.key
        image = self.image.partition(key)
        replica.on_high_watermark = partition.on_replicated
        if image is None:
            return
        if not self._is_settled(partition, image):
            return
        partition_log = partition.open_log
        may_lead = (
            image.leader == self._broker_id
            and partition_log is not None
            and self._is_sure
            and self.image.known.get(self._broker_id) == self._registration.broker_epoch
        )
        if may_lead and partition_log is not None:
            self._unfollow(key)
            self.counters.count(replica.image, image)
            self._lead(partition, replica, image, partition_log)
        else:
            self._copy(partition, replica, image, partition_log)

    @property
    def _is_sure(self) -> bool:
        """True if this broker's registration cannot have ended, and the log directories have its broker epoch."""
        return self._registration.is_certain() and self.noted_epoch == self._registration.broker_epoch

    def _is_settled(self, partition: Partition, image: PartitionImage) -> bool:
        """True if no job of an earlier role will still change the log. Otherwise the partition gets its role after the
        last such job, because a new role begins at the log's real end.
        """
        key = partition.key
        following = self._follower_states.get(key)
        if following is None or not following.pending:
            return True
        before = following.follower.partition
        if (before.leader, before.leader_epoch) == (image.leader, image.leader_epoch):
            return True
        following.on_settled = lambda: self._on_settled(partition, following)
        return False

    def _on_settled(self, partition: Partition, following: FollowerState) -> None:
        following.on_settled = None
        if self._partitions.find(partition.key) is partition:
            self._follow(partition)

    def _lead(
        self, partition: Partition, replica: ClusterReplica, image: PartitionImage, partition_log: PartitionLog
    ) -> None:
        was_leading = isinstance(replica.state, Leader)
        topic = self.image.topics[partition.key.topic]
        changed = NewImage(image, self._eligible, self.image.min_insync(topic, len(image.target)))
        try:
            leads = replica.lead(changed, self._registration.broker_epoch, partition_log)
        except SparklogError as e:
            log.error("partition %s cannot be led: %s", partition.key, e)  # noqa: TRY400 - its message says it all
            leads = False
        if was_leading and not leads:
            partition.on_role_changed()
            self._on_leadership(partition.key, False)
        elif leads and not was_leading:
            log.debug("leading %s in epoch %d", partition.key, image.leader_epoch)
            self._new_leaderships += 1
            partition.on_role_changed()
            self._on_leadership(partition.key, True)

    def _copy(
        self, partition: Partition, replica: ClusterReplica, image: PartitionImage, partition_log: PartitionLog | None
    ) -> None:
        key = partition.key
        following = self._follower_states.get(key)
        before = following.follower.partition if following is not None else None
        was_leading = isinstance(replica.state, Leader)
        replica.resign(image)
        if was_leading:
            partition.on_role_changed()
            self._on_leadership(key, False)
        is_open = partition_log is not None and key not in self.full
        if (
            is_open
            and before is not None
            and (before.leader, before.leader_epoch) == (image.leader, image.leader_epoch)
        ):
            return
        self._unfollow(key)
        if (
            partition_log is None
            or key in self.full
            or image.leader in (NO_LEADER, self._broker_id)
            or not self._is_sure
        ):
            return  # a fetch without a registration would not count
        if replica.may_be_written:
            self._let_appends_end(partition, replica)
            return
        if partition_log.leader_epoch > image.leader_epoch:  # an older history: it would cut the log
            log.error(
                "partition %s is not fetched from broker %d: the log has records of leader epoch %d, newer than "
                "epoch %d of the cluster's metadata",
                key, image.leader, partition_log.leader_epoch, image.leader_epoch,
            )  # fmt: skip
            return
        follower = Follower(image, partition_log, first_fetch=self._fetches, config=self._config)
        following = self._follower_states[key] = FollowerState(key, follower, partition_log)
        replica.state = follower
        self._carry_out(following, follower.become(self.now_ms()))
        partition.on_role_changed()

    def _let_appends_end(self, partition: Partition, replica: ClusterReplica) -> None:
        """Wait on the partition's thread for the appends of this broker's leadership. Then give the partition its
        role."""

        def done(_: None, __: Exception | None) -> None:
            if not isinstance(replica.state, Leader):
                replica.may_be_written = False
            if self._replicas.get(partition.key) is replica and self._partitions.find(partition.key) is partition:
                self._follow(partition)

        self._io.submit(self._io.index_of(*partition.key), _barrier, done)

    def _unfollow(self, key: TopicPartition) -> None:
        following = self._follower_states.pop(key, None)
        if following is not None:
            fetcher = self._fetchers.get(following.follower.partition.leader)
            if fetcher is not None:
                fetcher[0].forget(key)

    # --- copying

    def _carry_out(self, following: FollowerState, effects: Sequence[FollowerEffect]) -> None:
        """Carry out effects on the log, on the partition's thread, and then send the next fetch."""
        fetch = next((e for e in effects if isinstance(e, Fetch)), None)
        on_log = [e for e in effects if not isinstance(e, Fetch | RefreshMetadata)]
        if fetch is not None:
            self._fetches = max(self._fetches, fetch.number)
        if on_log:
            self._submit(following, fetch, on_log)
        elif is_not_durable(following.log) or not is_written(following.log):
            # flush first: an earlier fsync or checkpoint failed, or this broker led just before
            wait_s = 0.0 if fetch is None else max(0, fetch.at_ms - self.now_ms()) / 1_000
            self._loop.call_later(wait_s, self._submit_if_current, following, fetch)
        else:
            self._on_log_done(following, fetch, None)

    def _submit_if_current(self, following: FollowerState, fetch: Fetch | None) -> None:
        if self._follower_states.get(following.key) is following:
            self._submit(following, fetch, [])

    def _submit(self, following: FollowerState, fetch: Fetch | None, on_log: Sequence[FollowerEffect]) -> None:
        following.pending += 1

        def deliver(cut_to: int | None, error: Exception | None) -> None:
            following.pending -= 1
            from_end = fetch if fetch is None or cut_to is None else replace(fetch, fetch_offset=cut_to)
            self._on_log_done(following, from_end, error)
            if not following.pending and following.on_settled is not None:
                following.on_settled()

        self._io.submit(self._io.index_of(*following.key), partial(carry_out, following.log, on_log), deliver)

    def _on_log_done(self, following: FollowerState, fetch: Fetch | None, error: Exception | None) -> None:
        if self._follower_states.get(following.key) is not following or fetch is None:
            return
        if error is None and not is_written(following.log):
            self._log_starts.write(following.log, partial(self._send_fetch, following, fetch))
        else:
            self._send_fetch(following, fetch, error)

    def _send_fetch(self, following: FollowerState, fetch: Fetch, error: Exception | None) -> None:
        if self._follower_states.get(following.key) is not following:
            return
        partition = self._partitions.find(following.key)
        if error is not None:
            log.warning("partition %s: the leader's response cannot be applied: %s", following.key, error)
            # not `error` itself, which the rules would take for the leader's reply
            failed = FetchFailure(fetch.number, StorageError(str(error)))
            self._carry_out(following, following.follower.handle(failed, self.now_ms()))
            return
        if partition is not None:
            partition.on_copied()
        self._fetcher(fetch.leader).ask(following, fetch)

    def _on_events(self, arrived: list[FetchEvent]) -> None:
        now_ms = self.now_ms()
        for one in arrived:
            if self._follower_states.get(one.following.key) is one.following:
                self._carry_out(one.following, one.following.follower.handle(one.event, now_ms))

    def _fetcher(self, leader: int) -> ReplicaFetcher:
        """Return the fetcher for `leader`. A missing fetcher is created, and a fetcher with an outdated address is
        replaced."""
        broker = self.image.brokers.get(leader)
        present = self._fetchers.get(leader)
        address = broker.endpoints[0] if broker is not None and broker.endpoints else ""
        if present is not None and (present[0].address == address or not address):
            return present[0]
        if present is not None:
            present[1].cancel()
        fetcher = ReplicaFetcher(
            Peer(address, self._connect),
            self._broker_id,
            lambda: self._registration.broker_epoch,
            self._limits,
            self.now_ms,
            self._on_events,
            self._quota,
            self._is_throttled,
            self._count_copied,
        )
        self._fetchers[leader] = fetcher, self._loop.create_task(fetcher.run())
        if present is not None:
            present[0].hand_over(fetcher)
        return fetcher

    def _count_copied(self, key: TopicPartition, size_bytes: int) -> None:
        self.counters.copied(size_bytes, self._broker_id, self.image.partition(key))

    def _is_throttled(self, key: TopicPartition) -> bool:
        """True if a reassignment is adding this broker's replica, so that the throttle applies."""
        partition = self.image.partition(key)
        return partition is not None and is_throttled(partition, self._broker_id)

    def _stop_idle_fetchers(self) -> None:
        for leader, (fetcher, task) in list(self._fetchers.items()):
            if leader not in self.image.brokers and fetcher.is_idle:
                task.cancel()
                del self._fetchers[leader]

    # --- time

    def _tick(self) -> None:
        self._ticking = self._loop.call_later(TICK_S, self._tick)
        certain = self._is_sure
        if certain and not self._was_certain:
            self.follow_image(self.image)
        self._was_certain = certain
        for key in list(self._unsettled):
            replica = self._replicas.get(key)
            state = None if replica is None else replica.state
            if replica is not None and isinstance(state, Leader) and state.waits_for_time:
                replica.handle(Tick())
            else:
                del self._unsettled[key]
