"""The role of this broker for one partition: leader, follower, or neither.

A ClusterReplica has the state machine of the role, and carries out its effects on the high watermark and the ISR.
`replicas.py` changes the logs of followers, `replica_server.py` answers followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from sparklog.errors import NotLeaderError, RequestTimedOutError
from sparklog.log.partition_log import PartitionLog
from sparklog.replication.cluster_image import NO_LEADER, PartitionImage
from sparklog.replication.replica.follower import Follower
from sparklog.replication.replica.leader import UNKNOWN_END, Leader
from sparklog.replication.replica.model import (
    BeginEpoch,
    FetchAccepted,
    FetchDiverging,
    FetchRefused,
    FollowerFetch,
    LeaderEffect,
    LeaderEvent,
    LogGrowth,
    NewImage,
    ProposalResult,
    ProposeIsr,
    ReplicaConfig,
    Resignation,
    SetHighWatermark,
)
from sparklog.types import TopicPartition

UNKNOWN = PartitionImage((), NO_LEADER, -1, -1, ())
FetchVerdict = FetchAccepted | FetchDiverging | FetchRefused


class ReplicaHost(Protocol):
    """The parts of the broker that a replica uses. Event-loop thread only."""

    def now_ms(self) -> int: ...

    def last_fetch_ms(self, broker_id: int) -> int:
        """Return the time of a broker's last request for records, in ms; 0 if there was none."""
        ...

    def propose(self, replica: ClusterReplica, proposal: ProposeIsr) -> None:
        """Propose an ISR to the controller."""
        ...

    def on_role_lost(self, key: TopicPartition) -> None:
        """Note that this broker no longer leads the partition, although its image still names it."""
        ...

    def on_event(self, key: TopicPartition) -> None:
        """Note that the partition's leader gets an event, after which it can wait for time."""
        ...

    def on_new_data(self, key: TopicPartition) -> None:
        """Wake the followers that wait for this partition, after new records, a new high watermark or log start, or a
        change of leader."""
        ...


class ClusterReplica:
    """The `ReplicaRole` of one partition. Event-loop thread only, except for reads of `leader` and `isr`."""

    __slots__ = (
        "_broker_id",
        "_config",
        "_deletions",
        "_host",
        "_partition_epoch",
        "_proposed",
        "_replicated_to",
        "image",
        "key",
        "may_be_written",
        "on_high_watermark",
        "state",
    )

    def __init__(
        self, key: TopicPartition, broker_id: int, image: PartitionImage, config: ReplicaConfig, host: ReplicaHost
    ) -> None:
        self.key = key
        self.image = image
        self.state: Leader | Follower | None = None
        self.may_be_written = False
        """True if jobs of this broker's own leadership perhaps still append to the log."""
        self.on_high_watermark: Callable[[], None] = lambda: None
        """Called after a rise of `replicated_to`."""
        self._broker_id = broker_id
        self._config = config
        self._host = host
        self._replicated_to = 0
        self._partition_epoch = image.partition_epoch
        """The highest partition epoch in images and in the controller's answers."""
        self._proposed: ProposeIsr | None = None
        """The proposal of the last leadership, if it has no answer yet."""
        self._deletions: list[tuple[int, asyncio.Future[int]]] = []
        """Requests that wait until every live replica's log start has reached an offset."""

    # --- ReplicaRole

    @property
    def leader(self) -> int:
        return self.image.leader

    @property
    def leader_epoch(self) -> int:
        return self.image.leader_epoch

    @property
    def replicas(self) -> tuple[int, ...]:
        return self.image.replicas

    @property
    def isr(self) -> tuple[int, ...]:
        state = self.state
        return state.partition.isr if isinstance(state, Leader) else self.image.isr

    @property
    def replicated_to(self) -> int:
        return self._replicated_to

    def all_have(self, offset: int) -> bool:
        """Return True if every replica is in sync and has the records below `offset`, which must not be above the high
        watermark. On the leader, all in-sync replicas have the records below the high watermark. On a follower, the
        image can be older than the high watermark, so the leader's last answer must confirm `offset`."""
        state = self.state
        if state is None or not set(self.replicas) <= set(self.isr):
            return False
        return isinstance(state, Leader) or state.copied_to >= offset

    def check_leads(self) -> None:
        state = self.state
        if not isinstance(state, Leader) or state.has_resigned:
            is_other = self.image.leader not in (NO_LEADER, self._broker_id)
            leader = f"broker {self.image.leader} does" if is_other else "nobody"
            raise NotLeaderError(
                f"broker {self._broker_id} does not lead partition {self.key}, {leader} in leader epoch "
                f"{self.image.leader_epoch}; read the metadata again"
            )

    def check_follows(self) -> None:
        if not isinstance(self.state, Follower):
            self.check_leads()

    def leads_in(self, leader_epoch: int) -> bool:
        state = self.state
        return isinstance(state, Leader) and not state.has_resigned and state.partition.leader_epoch == leader_epoch

    def check_in_sync(self) -> None:
        if isinstance(self.state, Leader):
            self.state.check_append()

    def require_end(self) -> None:
        if isinstance(self.state, Leader):
            self.state.latest_offset()

    def on_append(self, log_end_offset: int) -> None:
        if isinstance(self.state, Leader):
            self.handle(LogGrowth())
            self._host.on_new_data(self.key)

    def on_follower_fetch(self, replica: int, fetch_offset: int) -> None:
        raise NotImplementedError("a follower's fetch needs a broker epoch and a leader epoch: use `take_fetch`")

    def on_log_start(self) -> None:
        if isinstance(self.state, Leader):
            self._host.on_new_data(self.key)
            self._check_deletions()

    async def until_deleted(self, offset: int, timeout_s: float) -> int:
        """Wait until the log start of every live replica has reached `offset` (KIP-107), and return the low watermark.
        Raises RequestTimedOutError, NotLeaderError.
        """
        self.check_leads()
        assert isinstance(self.state, Leader)
        waiting = offset, asyncio.get_running_loop().create_future()
        self._deletions.append(waiting)
        self._check_deletions()
        try:
            async with asyncio.timeout(timeout_s):
                return int(await waiting[1])
        except TimeoutError:
            raise RequestTimedOutError(
                f"records of {self.key} below {offset} are deleted on the leader, but not yet on all live replicas: the others follow"
            ) from None
        finally:
            if waiting in self._deletions:
                self._deletions.remove(waiting)

    def _check_deletions(self) -> None:
        state = self.state
        for offset, waiting in list(self._deletions):
            if waiting.done():
                continue
            if not isinstance(state, Leader) or state.has_resigned:
                waiting.set_exception(
                    NotLeaderError(f"this broker no longer leads {self.key}; read the metadata and retry")
                )
            elif state.low_watermark >= offset:
                waiting.set_result(state.low_watermark)

    # --- changes of role

    def lead(self, changed: NewImage, broker_epoch: int, log: PartitionLog) -> bool:
        """Lead the partition according to `changed`. Returns True if this broker leads.

        It does not lead if the controller has answered with a later state of the partition, whose image will follow:
        another broker perhaps leads in it. Raises FencedLeaderEpochError, StorageError.
        """
        self.image = changed.partition
        before = self.state
        if isinstance(before, Leader) and not before.has_resigned and before.broker_epoch == broker_epoch:
            self._hear_of(changed.partition)
            self.handle(changed, log)
            return True
        self.resign(changed.partition)  # its proposals name the broker's former epoch
        if changed.partition.partition_epoch < self._partition_epoch:
            return False
        now_ms = self._host.now_ms()
        proposed = self._proposed
        if proposed is not None:
            life = dict(proposed.isr).get(self._broker_id)
            if (life, proposed.leader_epoch) != (broker_epoch, changed.partition.leader_epoch):
                proposed = None  # the image already has the proposal's outcome
        leader = Leader(
            self._broker_id,
            broker_epoch,
            changed,
            log,
            now_ms,
            self._config,
            last_fetch_ms=self._host.last_fetch_ms,
            proposed=proposed,
        )
        effects = leader.become(now_ms)
        log.replica.begin_epoch(changed.partition.leader_epoch)
        self.state = leader
        self.may_be_written = True
        self._replicated_to = leader.high_watermark
        self._carry_out(effects, None)  # the epoch is in the log already
        return True

    def _hear_of(self, image: PartitionImage) -> None:
        self._partition_epoch = max(self._partition_epoch, image.partition_epoch)

    def resign(self, image: PartitionImage) -> None:
        """Stop leading, because this broker is not the leader or no longer certain that it is."""
        self.image = image
        self._hear_of(image)
        if isinstance(self.state, Leader):
            self._proposed = self.state.proposed
            self.handle(Resignation(image.leader, image.leader_epoch))
            self.state = None
            self._host.on_new_data(self.key)
            self._check_deletions()

    def forget(self, image: PartitionImage) -> None:
        """End the role: this broker has no replica of the partition any more."""
        self.resign(image)
        self.state = None
        self._replicated_to = 0

    # --- leading

    def handle(self, event: LeaderEvent, log: PartitionLog | None = None) -> None:
        """Pass an event to the leader's rules. Ignored if this broker does not lead."""
        if isinstance(event, ProposalResult) and event.partition is not None:
            self._hear_of(event.partition)
        if isinstance(self.state, Leader):
            before = self.isr
            self._host.on_event(self.key)
            self._carry_out(self.state.handle(event, self._host.now_ms()), log)
            if self.state.has_resigned:
                self._host.on_role_lost(self.key)
            if self.isr != before:
                self._host.on_new_data(self.key)  # answers tell followers which records all replicas have
            self._check_deletions()

    def take_fetch(self, fetch: FollowerFetch) -> FetchVerdict | None:
        """Pass a follower's fetch to the rules, and return their verdict; None if this broker does not lead."""
        if not isinstance(self.state, Leader):
            return None
        self._host.on_event(self.key)
        effects = self.state.handle(fetch, self._host.now_ms())
        verdict: FetchVerdict | None = None
        for effect in effects:
            if isinstance(effect, FetchAccepted | FetchDiverging | FetchRefused):
                verdict = effect
        self._carry_out(effects, None)
        self._check_deletions()
        return verdict

    def awaits_fetch(self, follower: int) -> bool:
        """Return True if this broker leads and does not count an earlier fetch of the follower any more."""
        progress = self.state.followers.get(follower) if isinstance(self.state, Leader) else None
        return progress is not None and progress.log_end_offset == UNKNOWN_END

    def _carry_out(self, effects: list[LeaderEffect], log: PartitionLog | None) -> None:
        for effect in effects:
            match effect:
                case BeginEpoch(epoch, _):
                    if log is not None:
                        log.replica.begin_epoch(epoch)
                    self._host.on_new_data(self.key)  # followers must report their log ends again
                case SetHighWatermark(offset):
                    self._replicated_to = offset
                    self.on_high_watermark()
                    self._host.on_new_data(self.key)
                case ProposeIsr():
                    self._host.propose(self, effect)
                case _:
                    pass  # `take_fetch` handles the answers to fetches
