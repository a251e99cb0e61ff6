"""Classic members of the broker's groups, as pure rules.

While a group has members of the consumer protocol, the gateway makes its classic members members of the broker's group,
too. Each of their requests becomes a heartbeat of the broker's group:

    JoinGroup    a heartbeat with the topics and the partitions that the member still reads. The generation of the
                 answer is the member's epoch. No member is the leader: the broker assigns the partitions
    SyncGroup    no heartbeat; the answer is the assignment that came with JoinGroup
    Heartbeat    a heartbeat. If the broker has changed the epoch or the partitions, the answer is
                 REBALANCE_IN_PROGRESS, and the member joins again

The broker gives a partition to another member when the classic member has joined again without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from sparklog.gateway.groups.model import MEMBER_BYTES, NAME_COPIES, Join, protocols_bytes
from sparklog.gateway.groups.subscriptions import Subscription
from sparklog.kafka.wire.errors import Kafka
from sparklog.protocol.group_messages import GroupHeartbeatRequest, GroupHeartbeatResponse, TopicPartitions

EPOCH_JOIN, EPOCH_LEAVE, EPOCH_AWAY = 0, -1, -2
MOVE_MS = 60_000
"""Time in ms for which a moved group waits for its first member of the consumer protocol."""


class BridgedMember(Struct):
    """One classic member of a broker's group."""

    member_id: str
    join: Join
    """Its last JoinGroup request."""
    deadline_ms: int
    """Time at which the gateway forgets the member, unless it sends a request before. The broker has its own."""
    epoch: int = EPOCH_JOIN
    """Its epoch in the broker's group."""
    generation: int = EPOCH_JOIN
    """The generation that the client names: the epoch at its last JoinGroup."""
    assigned: list[TopicPartitions] = field(default_factory=list)
    has_changed: bool = False
    """True if the broker has changed the epoch or the partitions since the last JoinGroup."""

    @property
    def held_bytes(self) -> int:
        """Memory of the member in bytes."""
        numbers = sum(len(t.partitions) for t in self.assigned)
        names = len(self.join.instance_id or "") + sum(len(t.topic) for t in self.assigned)
        return MEMBER_BYTES + protocols_bytes(self.join.protocols) + NAME_COPIES * (names + 2 * numbers)

    def request(self, group_id: str, subscription: Subscription | None) -> GroupHeartbeatRequest:
        """Return the broker's heartbeat for a JoinGroup with `subscription`, or, if this is None, for a Heartbeat."""
        request = GroupHeartbeatRequest(
            group_id, self.member_id, self.epoch, self.join.instance_id, client_id=self.join.client_id
        )
        if subscription is not None:
            request.topics, request.owned = subscription.topics, subscription.owned
            request.rebalance_timeout_ms = self.join.rebalance_timeout_ms
            request.session_timeout_ms = self.join.session_timeout_ms
            if self.epoch == EPOCH_JOIN:
                request.owned, request.reserve_ms = [], 0
        return request

    def on_answer(self, answer: GroupHeartbeatResponse, now_ms: int, *, of_join: bool) -> None:
        """Apply the broker's answer to a heartbeat for JoinGroup (`of_join`) or Heartbeat."""
        is_new = answer.member_epoch != self.epoch or answer.assigned is not None
        self.epoch = answer.member_epoch
        if answer.assigned is not None:
            self.assigned = answer.assigned
        if of_join:
            self.generation, self.has_changed = self.epoch, False
        else:
            self.has_changed = self.has_changed or is_new
        self.deadline_ms = now_ms + self.join.session_timeout_ms


class BridgedGroup(Struct):
    """The classic members of one broker's group."""

    group_id: str
    moved_ms: int
    """Time at which the first classic member came."""
    members: dict[str, BridgedMember] = field(default_factory=dict)
    is_mixed: bool = False
    """True if the group has had members of the consumer protocol since `moved_ms`."""

    def check(self, member_id: str, instance_id: str | None, generation: int | None = None) -> Kafka | None:
        """Return the error for a member that is unknown, fenced by a newer member with its instance id, or in another
        generation; None if it is valid. `generation` None: not checked."""
        holder = self.of_instance(instance_id)
        if holder is not None and holder.member_id != member_id:
            return Kafka.FENCED_INSTANCE_ID
        member = self.members.get(member_id)
        if member is None:
            return Kafka.UNKNOWN_MEMBER_ID
        return Kafka.ILLEGAL_GENERATION if generation not in (None, member.generation) else None

    def of_instance(self, instance_id: str | None) -> BridgedMember | None:
        """Return the static member with an instance id, or None."""
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.join.instance_id == instance_id), None)

    def held_bytes(self) -> Counter[str]:
        """Return the memory of the members in bytes, by the addresses of their clients."""
        sizes: Counter[str] = Counter()
        for member in self.members.values():
            sizes[member.join.client_host] += member.held_bytes
        return sizes

    def expire(self, now_ms: int) -> None:
        """Forget the members whose session has ended."""
        for member_id in [i for i, m in self.members.items() if m.deadline_ms <= now_ms]:
            del self.members[member_id]

    def note_members(self, member_ids: Iterable[str]) -> None:
        """Note the members that the broker's group has now."""
        self.is_mixed = self.is_mixed or not self.members.keys() >= set(member_ids)

    def is_over(self, now_ms: int) -> bool:
        """Return True if members of the consumer protocol have come, or have not come in time."""
        return self.is_mixed or now_ms >= self.moved_ms + MOVE_MS

    def is_classic(self, member_ids: Iterable[str], now_ms: int) -> bool:
        """Return True if the group has to become a classic group again: all its members are classic, after members of
        the consumer protocol have left, or have not come in time."""
        return self.is_over(now_ms) and self.members.keys() >= set(member_ids)
