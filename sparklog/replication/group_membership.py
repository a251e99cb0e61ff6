"""One consumer group (KIP-848) as a pure state machine: its members, and their steps towards the target assignment.

Every change of the members, their subscriptions or the topics raises the group's epoch and creates a new target
assignment. Each member moves towards the target with its own heartbeats. First it releases the partitions that its
target lacks; until then it stays in its old epoch. Then it enters the group's epoch and gets those partitions of its
target that no other member holds. So a partition never has two owners, and no member waits for all others. After a
heartbeat a member is in one of these states:

* *revoking*: the member has been told to release partitions; after the rebalance timeout it is removed;
* *waiting*: it is in the group's epoch, but other members still hold some partitions of its target;
* *stable*: it has all partitions of its target.

A member without a heartbeat for its session timeout is removed. A static member (`instance_id`) that leaves with epoch
-2 keeps the partitions of its target for the session timeout. A new member with the same instance id inherits them.

All changes are appended to `out` as records; `group_from_values` creates the same group from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct, field

from sparklog.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    InvalidRequestError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from sparklog.protocol.group_messages import GroupHeartbeatRequest
from sparklog.replication import group_records as records
from sparklog.replication.assignors import UNIFORM, Assignment, Subscriber, assignor_of
from sparklog.replication.group_records import CurrentValue, GroupValue, MemberValue, Record
from sparklog.types import TopicPartition

EPOCH_JOIN, EPOCH_LEAVE, EPOCH_AWAY = 0, -1, -2

STATE_EMPTY, STATE_RECONCILING, STATE_STABLE = "Empty", "Reconciling", "Stable"

Topics = Mapping[str, tuple[str, int]]
"""By topic name: topic id and number of partitions."""

_NONE: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True)
class Safeguards:
    """Protections that keep groups correct. Only tests switch a protection off, to prove that they detect its loss."""

    member_epoch: bool = True
    """A heartbeat or commit with another epoch than the member's is refused."""
    wait_for_release: bool = True
    """A partition is assigned only after its former owner has released it."""
    order: bool = True
    """A heartbeat or commit is refused if a later one of the same member was accepted before."""
    owner: bool = True
    """In the topics that a group subscribes to, only the owner of a partition is allowed to commit its offset."""
    pending_offsets: bool = True
    """Offsets of a transaction take effect only when it is committed."""
    newer_record: bool = True
    """An offset of a transaction does not replace an offset that was written after it."""


NAME_CHARS_MAX = 1_024


class GroupConfig(Struct, frozen=True):
    """The broker's settings for groups."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    group_size_max: int = 1_000_000
    offsets_retention_ms: int = 10_080 * 60_000
    groups_max: int = 20_000
    """Limit for one partition of `__consumer_offsets`. The groups with members and the groups with offsets are counted
    separately, and each of the two counts can reach the limit.
    """
    offsets_max: int = 500_000
    """Limit for one partition of `__consumer_offsets`, in offsets: committed ones and those in open transactions."""


class RegexDue(NamedTuple):
    """Time from which a regular expression has to be resolved again: as soon as the cluster's topics have changed, or,
    because permissions change, at a time. `version`: number of the topics' version of the last resolution."""

    version: int = -1
    at_ms: int = 0

    def is_due(self, version: int, now_ms: int) -> bool:
        """Return True if the topics have another version now, or the time has come."""
        return version != self.version or now_ms >= self.at_ms


class Member(Struct):
    """One member. Times are on the broker's monotonic clock, in ms."""

    member_id: str
    wish: MemberValue
    """The subscription that the member has requested."""
    epoch: int = 0
    previous_epoch: int = 0
    owned: frozenset[TopicPartition] = _NONE
    revoking: frozenset[TopicPartition] = _NONE
    """Partitions that the member has been told to release, and has not released yet."""
    session_until_ms: int = 0
    revoke_by_ms: int | None = None
    """Deadline for the release of `revoking`; None if it is empty."""
    last_sequence: int = -1
    """Highest sequence of an accepted heartbeat."""
    last_commit: int = -1
    """Highest sequence of an accepted commit."""
    regex_due: RegexDue = RegexDue()
    """Time of the next resolution of the member's regular expression."""

    def note_commit(self, sequence: int, safeguards: Safeguards) -> None:
        """Record the sequence of a commit. Raises StaleMemberEpochError if a later commit of this member was accepted
        before."""
        if safeguards.order and 0 <= sequence <= self.last_commit:
            raise StaleMemberEpochError("a later commit of this member was already accepted")
        self.last_commit = max(self.last_commit, sequence)

    @property
    def name(self) -> str:
        return self.wish.instance_id or self.member_id

    @property
    def is_absent(self) -> bool:
        return self.epoch == EPOCH_AWAY

    @property
    def current(self) -> CurrentValue:
        return CurrentValue(self.epoch, self.previous_epoch, self.owned, self.revoking)


class HeartbeatAnswer(NamedTuple):
    """The reply to a heartbeat. `assigned` has the member's partitions. It is None if these have not changed and the
    heartbeat reported none, and in the reply to a leaving member."""

    member_id: str
    epoch: int
    interval_ms: int
    assigned: frozenset[TopicPartition] | None


class Group(Struct):
    """A group that has, or had, members."""

    group_id: str
    config: GroupConfig
    safeguards: Safeguards = Safeguards()
    epoch: int = 0
    assignor: str = UNIFORM
    empty_since_ms: int = -1
    """Time since which the group has no members, in ms; -1 while it has members."""
    basis: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The subscribed topics from which `targets` was computed: topic id and number of partitions by name."""
    members: dict[str, Member] = field(default_factory=dict)
    targets: Assignment = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    """By partition: the member that owns the partition or has not released it yet."""
    out: list[Record] = field(default_factory=list)
    """The records of the changes so far. The caller takes and appends them."""

    # -- heartbeats

    def heartbeat(
        self,
        request: GroupHeartbeatRequest,
        host: str,
        topics: Topics,
        now_ms: int,
        wall_ms: int,
        matching: Sequence[str] | None = None,
    ) -> HeartbeatAnswer:
        """Handle a heartbeat, with which a member joins, stays alive, confirms the release of partitions, or leaves.
        `matching`: the topics that match the member's regular expression now; None: as before.

        Raises UnknownMemberIdError, FencedMemberEpochError, StaleMemberEpochError (a later heartbeat was accepted
        before), FencedInstanceIdError, UnreleasedInstanceIdError, GroupMaxSizeReachedError, UnsupportedAssignorError,
        InvalidRequestError. An error leaves the group unchanged."""
        if request.assignor is not None:
            assignor_of(request.assignor)
        if request.member_epoch < 0:
            return self._leave(request, topics, now_ms, wall_ms)
        owned = None if request.owned is None else _partitions(request)
        if request.member_epoch == EPOCH_JOIN:
            member, joined = self._join(request, host, now_ms)
            owned = _NONE if owned is None else owned
        else:
            member, joined = self._identified_member(request, owned), False
        member.last_sequence = max(member.last_sequence, request.sequence)
        member.session_until_ms = now_ms + self.session_ms(member.wish)
        before = member.current
        if self._update_wish(member, request, matching) or joined:
            self._rebalance(topics, wall_ms)
        self._reconcile(member, owned, now_ms)
        changed = request.owned is not None or before.owned != member.owned or request.member_epoch != member.epoch
        return HeartbeatAnswer(
            member.member_id, member.epoch, self._interval_ms(member), member.owned if changed else None
        )

    def session_ms(self, wish: MemberValue) -> int:
        """Return a member's session timeout in ms."""
        return wish.session_timeout_ms or self.config.session_timeout_ms

    def _interval_ms(self, member: Member) -> int:
        """Return the interval until a member's next heartbeat, in ms. A member that is not stable gets a tenth of the
        usual interval, so that a released partition soon gets its new owner.
        """
        interval_ms = min(self.config.heartbeat_interval_ms, max(1, self.session_ms(member.wish) // 3))
        return interval_ms if self.is_stable(member) else max(1, interval_ms // 10)

    def _identified_member(self, request: GroupHeartbeatRequest, owned: frozenset[TopicPartition] | None) -> Member:
        member = self.members.get(request.member_id)
        if member is None:
            self._check_instance(request)
            raise UnknownMemberIdError(
                f"group {self.group_id!r} has no member {request.member_id!r} (its session may have timed out): join "
                "again"
            )
        self._check_order(member, request)
        if not self.safeguards.member_epoch or request.member_epoch == member.epoch:
            return member
        lost_answer = (
            request.member_epoch == member.previous_epoch
            and owned is not None
            and owned <= member.owned | member.revoking
        )
        if not lost_answer:
            raise FencedMemberEpochError(
                f"member {member.member_id!r} of group {self.group_id!r} names epoch {request.member_epoch}, but its "
                f"epoch is {member.epoch}: revoke all partitions and join again"
            )
        return member

    def _check_order(self, member: Member, request: GroupHeartbeatRequest) -> None:
        if self.safeguards.order and 0 <= request.sequence <= member.last_sequence:
            raise StaleMemberEpochError("a later heartbeat of this member was already answered")

    def _check_instance(self, request: GroupHeartbeatRequest) -> None:
        holder = self.member_of_instance(request.instance_id)
        if holder is not None and holder.member_id != request.member_id:
            raise FencedInstanceIdError(
                f"instance {request.instance_id!r} of group {self.group_id!r} is now used by another process"
            )

    def member_of_instance(self, instance_id: str | None) -> Member | None:
        """Return the static member with this instance id, or None."""
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.wish.instance_id == instance_id), None)

    # -- joining and leaving

    def _join(self, request: GroupHeartbeatRequest, host: str, now_ms: int) -> tuple[Member, bool]:
        """Add the member, or reset a known member to epoch 0 without partitions. Returns the member, and True if the
        group needs a new target assignment."""
        if request.topics is None and not request.topic_regex:
            raise InvalidRequestError("a joining member has to name its topics, or a regular expression of topics")
        names = request.member_id, request.instance_id or "", request.client_id
        if max(map(len, names)) > NAME_CHARS_MAX:
            raise InvalidRequestError(
                f"a member's id, instance id and client id have {NAME_CHARS_MAX} characters at most"
            )
        present = self.members.get(request.member_id)
        if present is not None:
            self._check_order(present, request)
            self._release(present)  # a joining member holds no partitions
            present.epoch = present.previous_epoch = EPOCH_JOIN
            return present, False
        wish = MemberValue(
            request.instance_id,
            request.client_id,
            host,
            tuple(request.topics or ()),
            request.assignor or "",
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
        )
        holder = self.member_of_instance(request.instance_id)
        if holder is not None:
            return self._replace(holder, request.member_id, wish), False
        if len(self.members) >= self.config.group_size_max:
            raise GroupMaxSizeReachedError(
                f"group {self.group_id!r} has {len(self.members)} members, group.max.size is "
                f"{self.config.group_size_max}"
            )
        member = Member(request.member_id, wish)
        self.members[member.member_id] = member
        self.empty_since_ms = -1
        self._put_member(member)
        return member, True

    def _replace(self, holder: Member, member_id: str, wish: MemberValue) -> Member:
        """Replace the absent static member `holder`, whose process is back under a new member id. The new member
        inherits the holder's partitions and target. Raises UnreleasedInstanceIdError if the holder is not absent.
        """
        if not holder.is_absent:
            raise UnreleasedInstanceIdError(
                f"instance {wish.instance_id!r} of group {self.group_id!r} is in use by member {holder.member_id!r}; "
                "if that process has ended, the instance id is free after its session timeout"
                f" ({self.session_ms(holder.wish)} ms)"
            )
        owned, target = holder.owned, self.targets.get(holder.member_id, _NONE)
        before = holder.wish  # to compare the new subscription with
        self._forget(holder)
        wish = wish._replace(topics=before.topics, assignor=before.assignor)
        wish = wish._replace(topic_regex=before.topic_regex, regex_topics=before.regex_topics)
        member = Member(member_id, wish, owned=owned)
        self.members[member_id] = member
        self.owners.update(dict.fromkeys(owned, member_id))
        self._put_member(member)
        self._put_target(member_id, target)
        return member

    def _leave(self, request: GroupHeartbeatRequest, topics: Topics, now_ms: int, wall_ms: int) -> HeartbeatAnswer:
        member = self.members.get(request.member_id)
        if member is None:
            self._check_instance(request)
            raise UnknownMemberIdError(f"group {self.group_id!r} has no member {request.member_id!r}")
        self._check_order(member, request)
        member.last_sequence = max(member.last_sequence, request.sequence)
        if request.member_epoch == EPOCH_AWAY and member.wish.instance_id is not None:
            self._disown(member, member.revoking)
            member.revoking, member.revoke_by_ms = _NONE, None
            member.epoch = member.previous_epoch = EPOCH_AWAY
            member.session_until_ms = now_ms + self.session_ms(member.wish)
            self._keep_only_target(member)
            self._put_current(member)
        else:
            self._forget(member)
            self._rebalance(topics, wall_ms)
        return HeartbeatAnswer(request.member_id, request.member_epoch, self.config.heartbeat_interval_ms, None)

    def expire(self, topics: Topics, now_ms: int, wall_ms: int) -> list[str]:
        """Remove members whose session has timed out, or that did not release partitions in time. Returns the ids of
        the removed members."""
        late = [
            m
            for m in self.members.values()
            if m.session_until_ms <= now_ms or (m.revoke_by_ms is not None and m.revoke_by_ms <= now_ms)
        ]
        for member in late:
            self._forget(member)
        if late:
            self._rebalance(topics, wall_ms)
        return [m.member_id for m in late]

    # -- the target, and the way there

    def on_topics(self, topics: Topics, wall_ms: int) -> None:
        """Compute a new target assignment if a change of the cluster's topics concerns this group's subscriptions."""
        if self.members and self._basis(topics) != self.basis:
            self._rebalance(topics, wall_ms)

    def _basis(self, topics: Topics) -> dict[str, tuple[str, int]]:
        names = sorted({t for m in self.members.values() for t in m.wish.subscribed})
        return {t: topics[t] for t in names if t in topics}

    def _update_wish(self, member: Member, request: GroupHeartbeatRequest, matching: Sequence[str] | None) -> bool:
        """Update the member's subscription. Returns True if it has changed."""
        wish = member.wish
        if request.topics is not None and set(request.topics) != set(wish.topics):
            wish = wish._replace(topics=tuple(request.topics))
        if request.assignor is not None:
            wish = wish._replace(assignor=request.assignor)
        if request.topic_regex is not None and request.topic_regex != wish.topic_regex:
            wish = wish._replace(topic_regex=request.topic_regex, regex_topics=())
        if matching is not None and wish.topic_regex:
            wish = wish._replace(regex_topics=tuple(sorted(matching)))
        if wish == member.wish:
            return False
        member.wish = wish
        self._put_member(member)
        return True

    def _rebalance(self, topics: Topics, wall_ms: int) -> None:
        """Begin the next group epoch, and compute its target assignment."""
        self.epoch += 1
        self.assignor = self._choose_assignor()
        self.basis = self._basis(topics)
        self.empty_since_ms = -1 if self.members else wall_ms
        wishes = {i: Subscriber(m.name, m.wish.subscribed, self.targets.get(i, _NONE)) for i, m in self.members.items()}
        counts = {t: count for t, (_, count) in self.basis.items()}
        targets = assignor_of(self.assignor)(wishes, counts) if wishes else {}
        for member_id, target in targets.items():
            if self.targets.get(member_id) != target:
                self._put_target(member_id, target)
        for member in self.members.values():
            if member.is_absent and member.owned - targets[member.member_id]:
                self._keep_only_target(member)
                self._put_current(member)
        value = GroupValue(self.epoch, self.assignor, self.empty_since_ms, self.basis)
        self.out.append((records.group_key(self.group_id), records.encode_value(value)))

    def _choose_assignor(self) -> str:
        """Return the name of the assignor that most members request, on a tie the first name in alphabetical order.
        Without a request it is UNIFORM."""
        wishes = [m.wish.assignor for m in self.members.values() if m.wish.assignor]
        return min(set(wishes), key=lambda a: (-wishes.count(a), a)) if wishes else UNIFORM

    def _reconcile(self, member: Member, owned: frozenset[TopicPartition] | None, now_ms: int) -> None:
        """Move the member one step towards its target. `owned`: the partitions that the member reports; None if it
        reports none because nothing has changed.
        """
        before = member.current
        if member.revoking:
            if owned is None or member.revoking & owned:
                return
            self._disown(member, member.revoking)
            member.revoking, member.revoke_by_ms = _NONE, None
        target = self.targets.get(member.member_id, _NONE)
        kept, dropped = member.owned & target, member.owned - target
        if dropped and (owned is None or dropped & owned) and self.safeguards.wait_for_release:
            member.owned, member.revoking = kept, dropped
            member.revoke_by_ms = now_ms + member.wish.rebalance_timeout_ms
        else:
            self._disown(member, dropped)
            free = {tp for tp in target - kept if tp not in self.owners or not self.safeguards.wait_for_release}
            self.owners.update(dict.fromkeys(free, member.member_id))
            member.owned = kept | free
            if member.epoch != self.epoch:
                member.previous_epoch, member.epoch = member.epoch, self.epoch
        if member.current != before:
            self._put_current(member)

    def is_stable(self, member: Member) -> bool:
        """Return True if the member is absent, or is in the group's epoch with exactly its target's partitions."""
        if member.is_absent:
            return True
        target = self.targets.get(member.member_id, _NONE)
        return member.epoch == self.epoch and not member.revoking and member.owned == target

    @property
    def state(self) -> str:
        if not self.members:
            return STATE_EMPTY
        return STATE_STABLE if all(map(self.is_stable, self.members.values())) else STATE_RECONCILING

    # -- ownership

    def _disown(self, member: Member, partitions: frozenset[TopicPartition]) -> None:
        for tp in partitions:
            if self.owners.get(tp) == member.member_id:
                del self.owners[tp]

    def _release(self, member: Member) -> None:
        """Remove all partitions from the member."""
        self._disown(member, member.owned | member.revoking)
        member.owned = member.revoking = _NONE
        member.revoke_by_ms = None

    def _keep_only_target(self, member: Member) -> None:
        """Reduce the partitions of an absent member to its target. The member has no running process, so other members
        need not wait until it releases a partition.
        """
        target = self.targets.get(member.member_id, _NONE)
        self._disown(member, member.owned - target)
        member.owned &= target

    def _forget(self, member: Member) -> None:
        self._release(member)
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        for kind in (records.KIND_CURRENT, records.KIND_TARGET, records.KIND_MEMBER):
            self.out.append((records.member_key(kind, self.group_id, member.member_id), None))

    # -- records

    def _put_member(self, member: Member) -> None:
        key = records.member_key(records.KIND_MEMBER, self.group_id, member.member_id)
        self.out.append((key, records.encode_value(member.wish)))

    def _put_target(self, member_id: str, target: frozenset[TopicPartition]) -> None:
        self.targets[member_id] = target
        key = records.member_key(records.KIND_TARGET, self.group_id, member_id)
        self.out.append((key, records.encode_target(target)))

    def _put_current(self, member: Member) -> None:
        key = records.member_key(records.KIND_CURRENT, self.group_id, member.member_id)
        self.out.append((key, records.encode_current(member.current)))

    def tombstones(self) -> list[Record]:
        """Return the records that delete the group, which must have no members."""
        return [(records.group_key(self.group_id), None)]


class GroupValues(Struct):
    """The values of one group's records in the log."""

    group: GroupValue | None = None
    wishes: dict[str, MemberValue] = field(default_factory=dict)
    targets: Assignment = field(default_factory=dict)
    currents: dict[str, CurrentValue] = field(default_factory=dict)


def group_from_values(
    group_id: str, values: GroupValues, config: GroupConfig, safeguards: Safeguards, now_ms: int
) -> Group | None:
    """Return the group that its records describe; the session of every member begins at `now_ms`. Returns None if the
    group was deleted."""
    if values.group is None:
        return None
    group = Group(group_id, config, safeguards, values.group.epoch, values.group.assignor, values.group.empty_since_ms)
    group.basis = dict(values.group.topics)
    for member_id, wish in values.wishes.items():
        member = Member(member_id, wish, session_until_ms=now_ms + group.session_ms(wish))
        current = values.currents.get(member_id)
        if current is not None:
            member.epoch, member.previous_epoch, member.owned, member.revoking = current
        if member.revoking:
            member.revoke_by_ms = now_ms + wish.rebalance_timeout_ms
        group.members[member_id] = member
        group.targets[member_id] = values.targets.get(member_id, _NONE)
        group.owners.update(dict.fromkeys(member.owned | member.revoking, member_id))
    return group


def _partitions(request: GroupHeartbeatRequest) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(t.topic, p) for t in request.owned or () for p in t.partitions)
