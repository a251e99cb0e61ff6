"""The controller: a pure state machine. The broker that is elected runs the cluster's only controller.

| event | effects |
|---|---|
| ElectionResult | the image becomes the controller's; no Write before the first BrokersChanged |
| BrokersChanged | brokers that ended, or have a new broker epoch, leave every ISR; leaders are elected; Write |
| AlterPartition | checks of `isr_changes`; Write, then Answer |
| ControlledShutdown | the broker's partitions get other leaders; Write, then Answer with the remaining number |
| DirectoryFull | the broker leaves the ISRs that keep enough members, other members lead; Write, then Answer |
| Suspect | with two observers: other ISR members lead instead of the broker; Write, then Answer |
| DirectoryFailed, Elect, Reassign, topics, AlterSecurity | Write, then Answer |
| Tick | leaderless partitions, reassignments, preferred leaders, ends of suspicions; Write |
| WriteResult OK | the image changes (no other event changes it); Publish, the waiting Answers; the next Write |
| WriteResult FENCED | Resign; all waiting requests are refused with NOT_CONTROLLER |
| WriteResult CONFLICT | Reload; all waiting requests are refused with NOT_CONTROLLER |
| SessionLost | Resign |

One write is in progress at a time. Events that arrive during a write wait, and are then handled together: a thousand
proposals cost a few writes. An Answer is sent only after its change is stored. A large change is stored in several
writes, partitions first. The brokers' epochs, which mark the change as complete, are in the last write, so that a new
controller completes a change that was interrupted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sparklog.errors import (
    NotControllerError,
    SparklogError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from sparklog.replication.cluster_image import (
    FLUSH_MODE_SETTING,
    NO_LEADER,
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    PartitionImage,
    Version,
)
from sparklog.replication.controller import election, operations, topics
from sparklog.replication.controller.draft import Draft
from sparklog.replication.controller.isr_changes import alter_isr
from sparklog.replication.controller.model import (
    ALL_SAFEGUARDS,
    AddPartitions,
    AlterConfig,
    AlterPartition,
    AlterSchema,
    AlterSecurity,
    Answer,
    BrokersChanged,
    ControlledShutdown,
    ControllerConfig,
    Cordon,
    CreateTopic,
    DeleteTopic,
    DirectoryFailed,
    DirectoryFull,
    Effect,
    Elect,
    ElectionResult,
    Event,
    Publish,
    Reassign,
    Refuse,
    Reload,
    Request,
    Resign,
    Safeguards,
    SessionLost,
    Suspect,
    Tick,
    Write,
    WriteOutcome,
    WriteResult,
)
from sparklog.replication.controller.write_parts import parts_of
from sparklog.security.records import CHANGE_BYTES_MAX, CHANGES_MAX, check_changes, settled, size_of
from sparklog.types import TopicPartition

WAITING_MAX = 100_000
OBSERVERS_MIN = 2
"""Number of brokers that have to miss a broker before it is suspected. One alone may be cut off itself."""
BATCH_MAX = 1_000


class _Term(Struct):
    """The state that begins with each election and reload of the image."""

    queue: deque[Request | BrokersChanged | Tick] = field(default_factory=deque)
    """Events that wait for the write in progress."""
    parts: deque[ClusterDelta] = field(default_factory=deque)
    """Parts of a change that are not written yet."""
    answers: list[Answer | Refuse] = field(default_factory=list)
    """Answers that are sent when the change is stored."""
    writing: Write | None = None
    """The write in progress."""
    has_seen_brokers: bool = False
    rebalance_at_ms: int | None = None
    image_at_rest: ClusterImage | None = None
    """The image in which a tick found nothing to change. In the same image, later ticks are skipped."""


class Controller:
    """The controller's state machine."""

    def __init__(self, config: ControllerConfig | None = None, safeguards: Safeguards = ALL_SAFEGUARDS) -> None:
        self._config = config if config is not None else ControllerConfig()
        self._guards = safeguards
        self._image: ClusterImage | None = None
        self._tag = 0
        self._term = _Term()
        self._offline: dict[tuple[int, int], set[TopicPartition]] = {}
        self._full: dict[tuple[int, int], set[TopicPartition]] = {}
        self._suspected_ms: dict[tuple[int, int], int] = {}
        """Times of the suspicions by (broker id, broker epoch)."""

    @property
    def image(self) -> ClusterImage | None:
        """The stored image; None if this broker is not the controller."""
        return self._image

    # --- events

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Return the effects of `event`."""
        effects: list[Effect] = []
        match event:
            case ElectionResult(image):
                self._refuse_all(effects)
                self._image = image
                self._term.rebalance_at_ms = now_ms + self._config.rebalance_interval_ms
            case WriteResult():
                self._on_written(event, effects)
            case SessionLost():
                self._resign(effects)
            case Tick():
                if self._image is not None and (
                    self._image is not self._term.image_at_rest or self._has_to_rebalance(now_ms)
                ):
                    self._term.queue.append(event)
            case BrokersChanged():
                if self._image is not None:
                    self._term.queue.append(event)
            case _:
                self._take(event, effects)
        self._advance(now_ms, effects)
        return effects

    def _take(self, request: Request, effects: list[Effect]) -> None:
        if self._image is None or len(self._term.queue) >= WAITING_MAX:
            effects.append(
                Refuse(request.token, NotControllerError("this broker is not the controller, or is overloaded"))
            )
        else:
            self._term.queue.append(request)

    def _on_written(self, written: WriteResult, effects: list[Effect]) -> None:
        if self._term.writing is None or written.tag != self._term.writing.tag or self._image is None:
            return
        write, self._term.writing = self._term.writing, None
        if written.outcome is WriteOutcome.FENCED:
            self._resign(effects)
        elif written.outcome is WriteOutcome.CONFLICT:
            if written.error is not None:
                effects += [Refuse(a.token, written.error) for a in self._term.answers]
                self._term.answers = []
            self._refuse_all(effects)  # reports of disks stay: brokers repeat them only to another controller
            self._suspected_ms = {}
            self._image = None
            effects.append(Reload())
        else:
            self._image = replace(write.after, version=written.version)
            effects.append(Publish(write.delta, self._image))
            if not self._term.parts:
                effects += self._term.answers
                self._term.answers = []

    def _resign(self, effects: list[Effect]) -> None:
        self._offline, self._full, self._suspected_ms = {}, {}, {}
        if self._image is not None:
            self._refuse_all(effects)
            self._image = None
            effects.append(Resign())

    def _refuse_all(self, effects: list[Effect]) -> None:
        """Refuse all requests that wait for a write or for their turn. The outcome of a write in progress is unknown,
        so the error is NOT_CONTROLLER, after which clients repeat the request.
        """
        tokens: list[Hashable] = [a.token for a in self._term.answers]
        tokens += [e.token for e in self._term.queue if not isinstance(e, BrokersChanged | Tick)]
        effects += [Refuse(t, NotControllerError("this broker is no longer the controller")) for t in tokens]
        self._term = _Term()

    def _advance(self, now_ms: int, effects: list[Effect]) -> None:
        """Begin the next write if there are changes and no write is in progress."""
        while self._image is not None and self._term.writing is None:
            if not self._term.parts:
                if not self._term.queue:
                    return
                self._term.parts = self._decide(self._image, now_ms)
                if not self._term.parts:
                    effects += self._term.answers
                    self._term.answers = []
                    continue
            delta = self._term.parts.popleft()
            self._tag += 1
            after = self._image.apply(
                delta, Version(self._image.version.controller_epoch, self._image.version.zxid + 1)
            )
            self._term.writing = Write(self._tag, delta, after)
            effects.append(self._term.writing)

    def _decide(self, image: ClusterImage, now_ms: int) -> deque[ClusterDelta]:
        draft = Draft(image, self._offline, self._guards, self._full)
        for _ in range(min(len(self._term.queue), BATCH_MAX)):
            event = self._term.queue[0]
            if isinstance(event, AlterSecurity) and not _fits(draft, event):
                break  # left for the next write
            self._term.queue.popleft()
            if isinstance(event, BrokersChanged):
                self._on_brokers(draft, event.brokers)
            elif isinstance(event, Tick):
                self._on_tick(draft, now_ms)
            else:
                try:
                    result = self._perform(draft, event, now_ms)
                except SparklogError as e:
                    self._term.answers.append(Refuse(event.token, e))
                else:
                    self._term.answers.append(Answer(event.token, result))
        delta = draft.delta()
        return deque(parts_of(delta, image) if delta else ())

    # --- brokers

    def _on_brokers(self, draft: Draft, brokers: Mapping[int, BrokerImage]) -> None:
        """Store the registered brokers, and remove ended lives of brokers from the ISRs. The brokers are compared with
        the stored image, not with earlier events, so that a new controller misses no change."""
        self._term.has_seen_brokers = True
        registered = self._registered_brokers(draft)
        gone = {i for i, epoch in registered.items() if i not in brokers or brokers[i].broker_epoch != epoch}
        crashed: set[int] = set()
        emptied: set[int] = set()
        if self._guards.unclean_restart_forgets:
            crashed = {i for i in gone if (b := brokers.get(i)) and not b.vouches_for(registered[i], b.clean_epochs)}
            emptied = {i for i in crashed if not brokers[i].vouches_for(registered[i], brokers[i].flushed_epochs)}
        before = draft.live_brokers()
        for broker_id in before:
            if broker_id not in brokers:
                draft.brokers[broker_id] = None
        for broker_id, broker in brokers.items():
            old = before.get(broker_id)
            same_life = old is not None and old.broker_epoch == broker.broker_epoch
            stopping = same_life and old is not None and old.is_stopping
            suspected = same_life and old is not None and old.is_suspected
            new = replace(broker, is_stopping=stopping, is_suspected=suspected)
            if new != old:
                draft.brokers[broker_id] = new
            if registered.get(broker_id) != broker.broker_epoch:
                draft.known[broker_id] = broker.broker_epoch
        lives = {(i, broker.broker_epoch) for i, broker in brokers.items()}
        self._offline = {life: tps for life, tps in self._offline.items() if life in lives}
        self._full = {life: tps for life, tps in self._full.items() if life in lives}
        self._suspected_ms = {life: at_ms for life, at_ms in self._suspected_ms.items() if life in lives}
        concerned = draft.partitions_that(
            lambda p: p.leader == NO_LEADER or not gone.isdisjoint(p.isr) or not crashed.isdisjoint(p.elr)
        )
        for tp, partition in concerned:
            is_flushed = draft.topic(tp.topic).configs.get(FLUSH_MODE_SETTING) == "group"
            is_only_replica = len(partition.replicas) == 1
            forgotten = emptied if is_flushed or is_only_replica else crashed
            self._depart(draft, tp, partition, gone, set() if self._config.has_own_store else forgotten)

    def _registered_brokers(self, draft: Draft) -> dict[int, int]:
        return {**(self._image.known if self._image is not None else {}), **draft.known}

    def _depart(
        self, draft: Draft, tp: TopicPartition, partition: PartitionImage, gone: set[int], forgotten: set[int]
    ) -> None:
        rules = draft.rules(tp, partition)
        remaining = election.without(partition, gone, rules.min_insync, forgotten)
        after = election.elect(remaining, rules)
        if remaining.leader == NO_LEADER and after.leader == partition.leader != NO_LEADER:
            draft.change(
                tp, remaining
            )  # a new life begins a new epoch: it may lack the last records of the old life's epoch
        draft.change(tp, after)

    def _check_life(self, draft: Draft, broker_id: int, broker_epoch: int) -> BrokerImage:
        broker = draft.broker(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            raise StaleBrokerEpochError(
                f"broker {broker_id} with epoch {broker_epoch} is not registered; registered epoch: "
                f"{broker.broker_epoch if broker is not None else 'none'}"
            )
        return broker

    # --- requests

    def _perform(self, draft: Draft, request: Request, now_ms: int) -> Any:
        match request:
            case AlterPartition():
                return self._alter_partitions(draft, request)
            case CreateTopic():
                return topics.create_topic(draft, request)
            case AddPartitions():
                return topics.add_partitions(draft, request)
            case AlterConfig():
                return topics.alter_config(draft, request)
            case AlterSchema():
                return topics.alter_schema(draft, request)
            case AlterSecurity(_, changes):
                changes = settled(draft.security(), changes)
                check_changes(draft.security(), changes)
                draft.change_security(changes)
                return None
            case DeleteTopic():
                return topics.delete_topic(draft, request)
            case ControlledShutdown():
                return self._shut_down(draft, request)
            case DirectoryFailed():
                return self._fail_directory(draft, request)
            case DirectoryFull():
                return self._spare_directory(draft, request)
            case Suspect():
                return self._suspect(draft, request, now_ms)
            case Elect():
                return operations.elect_leaders(draft, request)
            case Reassign():
                return operations.reassign(draft, request)
            case Cordon():
                return operations.cordon(draft, request)

    def _alter_partitions(self, draft: Draft, request: AlterPartition) -> tuple[PartitionImage | SparklogError, ...]:
        if self._guards.member_epoch_check:
            self._check_life(draft, request.broker_id, request.broker_epoch)
        results: list[PartitionImage | SparklogError] = []
        for change in request.changes:
            try:
                before = draft.partition(change.partition)
                after = alter_isr(draft, request.broker_id, change, self._guards)
            except SparklogError as e:
                results.append(e)
            else:
                results.append(after)
                for broker_id in {*after.isr}.difference(before.isr):
                    _trust(draft, broker_id)  # it has fetched since it left the ISR
        return tuple(results)

    def _shut_down(self, draft: Draft, request: ControlledShutdown) -> int:
        """Move the broker's leaderships to other ISR members, then remove the broker from the ISRs. A partition without
        another possible leader keeps this broker. Returns the number of partitions that the broker still leads."""
        broker = self._check_life(draft, request.broker_id, request.broker_epoch)
        draft.brokers[broker.broker_id] = replace(broker, is_stopping=True)
        led = 0
        for tp, partition in draft.partitions_that(lambda p: broker.broker_id in p.isr):
            rules = draft.rules(tp, partition)._replace(unclean=False)
            moved = election.elect(partition, rules) if partition.leader == broker.broker_id else partition
            if moved.leader == NO_LEADER or moved.leader not in moved.isr or len(moved.isr) == 1:
                led += partition.leader == broker.broker_id
                continue
            members = [r for r in moved.isr if r != broker.broker_id]
            draft.change(tp, election.with_isr(moved, members, rules.min_insync))
        return led

    def _fail_directory(self, draft: Draft, request: DirectoryFailed) -> int:
        """Elect other leaders for the partitions on a failed disk. Returns the number of these partitions for which no
        other replica can lead."""
        self._check_life(draft, request.broker_id, request.broker_epoch)
        life = request.broker_id, request.broker_epoch
        self._offline.setdefault(life, set()).update(request.partitions)
        leaderless = 0
        for tp in request.partitions:
            try:
                partition = draft.partition(tp)
            except UnknownTopicOrPartitionError:
                continue  # deleted meanwhile
            if request.broker_id not in partition.replicas:
                continue
            rules = draft.rules(tp, partition)
            remaining = election.without(partition, {request.broker_id}, rules.min_insync)
            leaderless += draft.change(tp, election.elect(remaining, rules)).leader == NO_LEADER
        return leaderless

    def _spare_directory(self, draft: Draft, request: DirectoryFull) -> int:
        """Remove the broker from the ISRs of the partitions on its full disk, and elect other leaders. Returns the
        number of partitions whose ISR the broker has left; 0 if the disk has room again."""
        self._check_life(draft, request.broker_id, request.broker_epoch)
        full = self._full.setdefault((request.broker_id, request.broker_epoch), set())
        if not request.is_full:
            full.difference_update(request.partitions)
            return 0
        full.update(request.partitions)
        count = 0
        for tp in request.partitions:
            try:
                partition = draft.partition(tp)
            except UnknownTopicOrPartitionError:
                continue  # deleted meanwhile
            after = election.spare(partition, request.broker_id, draft.rules(tp, partition))
            count += after is not partition
            draft.change(tp, after)
        return count

    def _suspect(self, draft: Draft, request: Suspect, now_ms: int) -> bool:
        """Let other in-sync replicas lead instead of a broker that two others do not reach. Returns True if the broker
        is suspected now."""
        broker = self._check_life(draft, request.broker_id, request.broker_epoch)
        if broker.is_suspected:
            return True
        if (broker.broker_id, broker.broker_epoch) in self._suspected_ms:
            return False  # it was reached again in the meantime
        observers = {i for i, epoch in request.observers if (b := draft.broker(i)) and b.broker_epoch == epoch}
        if len(observers - {broker.broker_id}) < OBSERVERS_MIN:
            return False
        draft.brokers[broker.broker_id] = replace(broker, is_suspected=True)
        self._suspected_ms[broker.broker_id, broker.broker_epoch] = now_ms
        for tp, partition in draft.partitions_that(lambda p: broker.broker_id in p.replicas):
            if not self._guards.suspicion_in_sync_only:
                partition = replace(partition, isr=partition.replicas)
            draft.change(tp, election.bypass(partition, broker.broker_id, draft.rules(tp, partition)))
        return True

    def _end_suspicions(self, draft: Draft, now_ms: int) -> None:
        """Trust the brokers again that were suspected `suspicion_ms` ago."""
        for (broker_id, epoch), at_ms in list(self._suspected_ms.items()):
            if now_ms - at_ms >= self._config.suspicion_ms:
                del self._suspected_ms[broker_id, epoch]
                _trust(draft, broker_id)

    # --- time

    def _on_tick(self, draft: Draft, now_ms: int) -> None:
        if not self._term.has_seen_brokers:
            return
        self._end_suspicions(draft, now_ms)
        concerned = draft.partitions_that(lambda p: p.leader == NO_LEADER or bool(p.adding or p.removing))
        # a later tick may find that a broker is back, or that a replica has caught up
        is_at_rest = not self._suspected_ms and not concerned
        for tp, partition in concerned:
            rules = draft.rules(tp, partition)
            elected = election.elect(partition, rules) if partition.leader == NO_LEADER else partition
            draft.change(tp, election.finish_reassignment(elected, rules))
        operations.end_throttle(draft)
        topics.guard_internal_topics(draft)
        if self._has_to_rebalance(now_ms):
            self._term.rebalance_at_ms = now_ms + self._config.rebalance_interval_ms
            self._rebalance(draft)
        if is_at_rest and not draft.delta():
            self._term.image_at_rest = self._image

    def _has_to_rebalance(self, now_ms: int) -> bool:
        return (
            self._config.rebalance and self._term.rebalance_at_ms is not None and now_ms >= self._term.rebalance_at_ms
        )

    def _rebalance(self, draft: Draft) -> None:
        """Give leaderships back to each broker that lacks more than `leader.imbalance.per.broker.percentage` of its
        preferred leaderships."""
        preferred = Counter(partition.replicas[0] for _, partition in draft.all_partitions())
        astray: dict[int, list[tuple[TopicPartition, PartitionImage]]] = {}
        for tp, partition in draft.partitions_that(lambda p: p.leader not in (NO_LEADER, p.replicas[0])):
            astray.setdefault(partition.replicas[0], []).append((tp, partition))
        for broker_id in draft.live_brokers():
            theirs = astray.get(broker_id, [])
            if 100 * len(theirs) > self._config.imbalance_percent * preferred[broker_id]:
                for tp, partition in theirs:
                    rules = draft.rules(tp, partition)
                    if broker_id in partition.isr and rules.can_lead(broker_id) and not rules.is_avoided(broker_id):
                        draft.change(tp, replace(partition, leader=broker_id))


def _trust(draft: Draft, broker_id: int) -> None:
    broker = draft.broker(broker_id)
    if broker is not None and broker.is_suspected:
        draft.brokers[broker_id] = replace(broker, is_suspected=False)


def _fits(draft: Draft, request: AlterSecurity) -> bool:
    """Return True if one write can hold the request together with the requests before it. The first request always
    fits; `check_changes` limits its size."""
    earlier = draft.security_changes
    if not earlier:
        return True
    count, size = len(earlier) + len(request.changes), size_of(earlier) + size_of(request.changes)
    return count <= CHANGES_MAX and size <= CHANGE_BYTES_MAX
