"""A broker of `replication_world`: sparklog's rules around a model of a log. All its events go through `run`, so that a
crash ends it and a pause delays it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparklog import errors
from sparklog.errors import SparklogError
from sparklog.log.directories.broker_epoch import Lives
from sparklog.metadata.broker_registration import BrokerRegistration
from sparklog.metadata.cluster_znodes import Registration
from sparklog.metadata.controller_session import ControllerSession
from sparklog.replication.cluster_image import ClusterImage, PartitionImage
from sparklog.replication.controller import model as controller_model
from sparklog.replication.controller.controller import Controller
from sparklog.replication.replica import model as replica_model
from sparklog.replication.replica.follower import Follower
from sparklog.replication.replica.leader import Leader
from sparklog.replication.replica.model import AlterOutcome, Batches, Fetch, FetchAnswer, ProposalResult
from sparklog.types import TopicPartition
from tests.simulation.replication_log import SimLog, SimRecord

if TYPE_CHECKING:
    from tests.simulation.replication_world import World

TP = TopicPartition("t", 0)
IDLE_MS = 60
POLL_MS = 120
TICK_MS = 300
FETCH_TIMEOUT_MS = 400
RECORDS_MAX = 4
CONFIG = replica_model.ReplicaConfig(lag_max_ms=2_500, fetch_backoff_ms=80, proposal_retry_ms=300)


class Broker:
    """One machine: its log survives, `start` makes everything else again."""

    def __init__(self, world: World, broker_id: int, log: SimLog) -> None:
        self.world = world
        self.id = broker_id
        self.log = log
        self.life = 0
        self.is_alive = False
        self.is_paused = False
        self.lives = Lives()
        self._stopped_cleanly = False
        self._was_certain = True
        self._held: list[Callable[[], None]] = []

    # --- life

    def start(self) -> None:
        self.life += 1
        self.is_alive = True
        self.image = ClusterImage()
        self.replica: Leader | Follower | None = None
        self.fetches = 0
        self.tokens: dict[int, Callable[[Any], None]] = {}
        self.believed_controller = self.world.choose(len(self.world.brokers) or 1) + 1
        self.zk = self.world.zk.client()
        if not self._stopped_cleanly:
            self.lives = Lives((), self.lives.flushed)
        self._stopped_cleanly = False
        self.registration = BrokerRegistration(
            self.zk, self.id, lambda: self.world.zk.now_ms, lambda _: self._on_registered(), call=self.run,
        )  # fmt: skip
        self.controller = Controller(
            controller_model.ControllerConfig(rebalance_interval_ms=6_000), self.world.safeguards.controller
        )
        self.session = ControllerSession(
            self.zk, self.id, self.controller, lambda: self.world.zk.now_ms, self._on_controller, call=self.run,
            fenced=self.world.safeguards.fence,
        )  # fmt: skip
        self.registration.start(Registration(f"{self.id}.{self.life}", None, (), *self.lives))
        self.session.start()
        self._every(POLL_MS, self._poll)
        self._every(TICK_MS, self._tick)

    def crash(self, *, loses: bool) -> None:
        self.is_alive = False
        self.is_paused = False
        self._held.clear()
        self.zk.abandon()
        self.log.crash(self.world.choose, loses=loses)

    def stop_cleanly(self) -> None:
        self.log.flush()
        self.log.checkpoint()
        self._stopped_cleanly = True
        self.is_alive = False
        self._held.clear()
        self.zk.close()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for action in held:
            self.run(action)

    def run(self, action: Callable[[], None]) -> None:
        """Run `action` unless the broker is dead; later if it is paused."""
        if self.is_paused:
            self._held.append(action)
        elif self.is_alive:
            action()

    def in_this_life(self, action: Callable[..., None]) -> Callable[..., None]:
        life = self.life
        return lambda *args: self.run(lambda: action(*args)) if life == self.life else None

    def _every(self, interval_ms: int, action: Callable[[], None]) -> None:
        life = self.life

        def again() -> None:
            if life == self.life and self.is_alive:
                self.world.zk.at(self.world.zk.now_ms + interval_ms, again)
                if not self.is_paused:
                    action()

        again()

    @property
    def leader(self) -> Leader | None:
        return self.replica if isinstance(self.replica, Leader) and not self.replica.has_resigned else None

    # --- the image

    def _on_registered(self) -> None:
        self.lives = self.registration.lives.then(self.registration.broker_epoch)  # in its directories
        self._follow_image()

    def _poll(self) -> None:
        """Request the image from a broker that may be the controller."""
        target = self.world.brokers[self.believed_controller]
        if target.controller_image() is None and self.world.choose(2):
            target = self.world.brokers[self.world.choose(len(self.world.brokers)) + 1]

        def on_image(image: ClusterImage | None) -> None:
            if image is not None and image.version > self.image.version:
                self.believed_controller = target.id
                self.image = image
                self._follow_image()

        self.world.send(self, target, lambda: target.controller_image(), self.in_this_life(on_image))

    def controller_image(self) -> ClusterImage | None:
        return self.controller.image if self.is_alive else None

    def _follow_image(self) -> None:
        partition = self.image.partition(TP)
        self._was_certain = self.registration.is_certain()
        if partition is None or not self._was_certain:
            return
        now = self.world.zk.now_ms
        if partition.leader == self.id and self.image.known.get(self.id) == self.registration.broker_epoch:
            changed = self._image_changed(partition)
            if self.leader is not None and self.leader.broker_epoch == self.registration.broker_epoch:
                self._carry_out(self.leader.handle(changed, now))
            else:
                self._resign()
                self.world.promises.on_leader(partition.leader_epoch, (self.id, self.life), self.log)
                leader = Leader(
                    self.id,
                    self.registration.broker_epoch,
                    changed,
                    self.log,
                    now,
                    CONFIG,
                    self.world.safeguards.replica,
                )
                self.replica = leader
                self._carry_out(leader.become(now))
        elif partition.leader != self.id:
            self._follow(partition)

    def _image_changed(self, partition: PartitionImage) -> replica_model.NewImage:
        topic = self.image.topics[TP.topic]
        return replica_model.NewImage(
            partition, self.image.eligible(), self.image.min_insync(topic, len(partition.replicas))
        )

    def _follow(self, partition: PartitionImage) -> None:
        before = self.replica
        if isinstance(before, Follower) and before.partition.leader_epoch == partition.leader_epoch:
            return
        self._resign(partition.leader, partition.leader_epoch)
        follower = Follower(
            partition, self.log, first_fetch=self.fetches, config=CONFIG, safeguards=self.world.safeguards.replica
        )
        self.replica = follower
        self._follower_effects(follower, follower.become(self.world.zk.now_ms))

    def _resign(self, leader: int = -1, leader_epoch: int = -1) -> None:
        if self.leader is not None:
            self._carry_out(self.leader.handle(replica_model.Resignation(leader, leader_epoch), self.world.zk.now_ms))

    def _tick(self) -> None:
        now = self.world.zk.now_ms
        if self.leader is None or not self._was_certain:
            self._follow_image()
        if self.leader is not None:
            self._carry_out(self.leader.handle(replica_model.Tick(), now))
        self.session.handle(controller_model.Tick())
        if self.world.flushes and self.world.choose(8) == 0:
            self.log.flush()
            self.log.checkpoint()

    # --- leading

    def produce(self, value: int, answer: Callable[[str], None]) -> None:
        """Handle a producer's request. The answer is "acknowledged" or the name of an error, or never comes."""
        leader = self.leader
        if leader is None:
            answer("NOT_LEADER")
            return
        try:
            leader.check_append()
        except SparklogError as e:
            answer(e.name)
            return
        offset = self.log.log_end_offset
        epoch = leader.partition.leader_epoch
        self.log.append([SimRecord(epoch, value)])
        token = self.world.fresh()

        def on_done(effect: Any) -> None:
            if isinstance(effect, replica_model.Acknowledge):
                present = leader.partition.leader_epoch  # a later one if it has been elected again since the append
                self.world.promises.on_acknowledge(present, (self.id, self.life), offset, value, self.log)
                answer("acknowledged")
            else:
                answer(effect.error.name)

        self.tokens[token] = on_done
        now = self.world.zk.now_ms
        self._carry_out(leader.handle(replica_model.LogGrowth(), now))
        self._carry_out(leader.handle(replica_model.WaitForReplicas(token, offset + 1), now))
        if self.world.flush_each:
            self.world.later(self.world.choose(40), self.in_this_life(self._flushed))

    def _flushed(self) -> None:
        self.log.flush()
        if self.leader is not None:
            self._carry_out(self.leader.handle(replica_model.LogGrowth(), self.world.zk.now_ms))

    def _carry_out(self, effects: list[replica_model.LeaderEffect]) -> None:
        for effect in effects:
            match effect:
                case replica_model.BeginEpoch(epoch, offset):
                    self.log.epochs.assign(epoch, offset)
                case replica_model.SetHighWatermark(offset):
                    self.set_high_watermark(offset)
                case replica_model.ProposeIsr():
                    self._propose(effect)
                case (
                    replica_model.Acknowledge(token)
                    | replica_model.Refuse(token)
                    | replica_model.FetchAccepted(token)
                    | replica_model.FetchDiverging(token)
                    | replica_model.FetchRefused(token)
                ):
                    answer = self.tokens.pop(token, None)  # type: ignore[call-overload]
                    if answer is not None:
                        answer(effect)

    def set_high_watermark(self, offset: int) -> None:
        self.world.promises.on_high_watermark(self.id, self.log.high_watermark, offset, self.log)
        self.log.high_watermark = offset

    def serve(self, fetch: replica_model.FollowerFetch, answer: Callable[[Any], None]) -> None:
        """Handle a follower's fetch; the answer has the fields of FetchAnswer or FetchFailure, without the number."""
        leader = self.replica
        if not isinstance(leader, Leader):
            answer(("failed", errors.NotLeaderError("no leader"), 0, 0))
            return
        epoch = leader.partition.leader_epoch

        def on_done(effect: Any) -> None:
            match effect:
                case replica_model.FetchAccepted(_, end, high_watermark, start):
                    end = min(end, fetch.fetch_offset + RECORDS_MAX)
                    records = self.log.read(fetch.fetch_offset, end)
                    answer(("records", epoch, high_watermark, start, fetch.fetch_offset, records))
                case replica_model.FetchDiverging(_, end, high_watermark, start):
                    answer(("diverging", epoch, high_watermark, start, end))
                case replica_model.FetchRefused(_, error, start, end):
                    answer(("failed", error, start, end))

        self.tokens[fetch.token] = on_done  # type: ignore[index]
        self._carry_out(leader.handle(fetch, self.world.zk.now_ms))

    def _propose(self, proposal: replica_model.ProposeIsr) -> None:
        change = controller_model.IsrChange(
            TP, proposal.leader_epoch, proposal.partition_epoch, proposal.isr, proposal.recovering
        )
        token = self.world.fresh()
        request = controller_model.AlterPartition(token, self.id, self.registration.broker_epoch, (change,))

        def on_answer(effect: Any) -> None:
            result = effect.result[0] if isinstance(effect, controller_model.Answer) else effect.error
            outcome, partition = AlterOutcome.UNKNOWN, None
            if isinstance(result, PartitionImage):
                outcome, partition = AlterOutcome.COMMITTED, result
            elif isinstance(result, errors.IneligibleReplicaError):
                outcome = AlterOutcome.INELIGIBLE
            elif isinstance(result, errors.InvalidUpdateVersionError | errors.FencedLeaderEpochError):
                outcome = AlterOutcome.STALE
            if self.leader is not None:
                answered = ProposalResult(proposal.partition_epoch, outcome, partition)
                self._carry_out(self.leader.handle(answered, self.world.zk.now_ms))

        target = self.world.brokers[self.believed_controller]
        self.world.ask_controller(self, target, request, self.in_this_life(on_answer))
        self.world.later(FETCH_TIMEOUT_MS, self.in_this_life(lambda: self._timed_out(proposal.partition_epoch)))

    def _timed_out(self, partition_epoch: int) -> None:
        if self.leader is not None:
            answered = ProposalResult(partition_epoch, AlterOutcome.UNKNOWN)
            self._carry_out(self.leader.handle(answered, self.world.zk.now_ms))

    def _on_controller(self, effect: controller_model.Effect) -> None:
        if isinstance(effect, controller_model.Answer | controller_model.Refuse):
            answer = self.tokens.pop(effect.token, None)  # type: ignore[call-overload]
            if answer is not None:
                answer(effect)

    # --- following

    def _follower_effects(self, follower: Follower, effects: list[replica_model.FollowerEffect]) -> None:
        for effect in effects:
            match effect:
                case replica_model.TruncateTo(offset):
                    self.world.promises.on_truncate(self.id, offset, self.log)
                    self.log.truncate_to(offset)
                case replica_model.RestartAt(offset):
                    self.log.restart_at(offset)
                case replica_model.AppendReplica(Batches(_, _, data)):
                    assert isinstance(data, list)
                    self.log.append(data)
                    if self.world.flush_each:
                        self.log.flush()
                case replica_model.SetHighWatermark(offset):
                    self.set_high_watermark(offset)
                case Fetch():
                    self.fetches = effect.number
                    self._fetch_later(follower, effect)

    def _fetch_later(self, follower: Follower, fetch: Fetch) -> None:
        wait = max(0, fetch.at_ms - self.world.zk.now_ms)
        idle = IDLE_MS if self.world.choose(3) else 0
        self.world.later(wait + idle, self.in_this_life(lambda: self._send_fetch(follower, fetch)))

    def _send_fetch(self, follower: Follower, fetch: Fetch) -> None:
        if self.replica is not follower:
            return
        request = replica_model.FollowerFetch(
            self.world.fresh(), self.id, self.registration.broker_epoch, fetch.leader_epoch, fetch.fetch_offset,
            follower.last_epoch(), self.log.log_start_offset,
        )  # fmt: skip

        def on_answer(answer: tuple[Any, ...]) -> None:
            event: replica_model.FollowerEvent
            match answer:
                case ("records", epoch, high_watermark, start, base, records):
                    batches = Batches(base, base + len(records), records) if records else None
                    event = FetchAnswer(fetch.number, epoch, high_watermark, start, batches)
                case ("diverging", epoch, high_watermark, start, end):
                    event = FetchAnswer(fetch.number, epoch, high_watermark, start, diverging=end)
                case (_, error, start, end):
                    event = replica_model.FetchFailure(fetch.number, error, start, end)
            current = self.replica
            if isinstance(current, Follower):
                self._follower_effects(current, current.handle(event, self.world.zk.now_ms))

        def on_timeout() -> None:
            if self.replica is follower and self.fetches == fetch.number:
                failed = replica_model.FetchFailure(fetch.number, errors.RequestTimedOutError("no answer"))
                self._follower_effects(follower, follower.handle(failed, self.world.zk.now_ms))

        leader = self.world.brokers[fetch.leader]
        self.world.ask(self, leader, lambda answer: leader.serve(request, answer), self.in_this_life(on_answer))
        self.world.later(FETCH_TIMEOUT_MS, self.in_this_life(on_timeout))
