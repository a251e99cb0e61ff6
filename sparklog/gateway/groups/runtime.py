"""The classic groups of one gateway, with their waiting requests and timers."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.errors import GroupIdNotFoundError
from sparklog.gateway.groups.bridge import BridgedGroup
from sparklog.gateway.groups.classic import ClassicGroup
from sparklog.gateway.groups.model import (
    GROUP_BYTES,
    MEMBER_BYTES,
    NAME_COPIES,
    GroupState,
    Join,
    JoinAnswer,
    Reply,
    SyncAnswer,
    protocols_bytes,
)
from sparklog.gateway.groups.subscriptions import CONSUMER
from sparklog.gateway.limits import GROUP_SIZE_MAX
from sparklog.kafka.wire.errors import Kafka
from sparklog.replication.groups import NO_EPOCH

EMPTIED_MS = 600_000
"""Time in ms for which a group without members is remembered. Kafka looks for such groups as often."""
EMPTIED_MAX = 1_000
"""Number of groups without members that are remembered."""
EXPIRY_MS = 1_000
"""Shortest time in ms between two searches for members of the broker's groups whose session has ended."""
HOST_SHARE = 2
"""Divisor of the groups' memory: clients of one address hold at most 1/HOST_SHARE of it."""
_ID_BYTES = 16


class Committer(NamedTuple):
    """The member whose offsets are committed. `error`: NONE if the commit is allowed so far. `member_id` "" and `epoch`
    -1: no member of a broker's group."""

    error: Kafka
    member_id: str = ""
    epoch: int = NO_EPOCH


NO_COMMITTER = Committer(Kafka.NONE)
"""A client that is no member."""


class Groups:
    """The classic groups of one gateway. Event-loop thread only."""

    def __init__(self, clock_s: Callable[[], float], memory: MemoryBudget, members_max: int = GROUP_SIZE_MAX) -> None:
        """`memory`: the budget for the members of all groups. `members_max`: the largest number of members of one
        group."""
        self._clock_s = clock_s
        self._memory = memory
        self._members_max = members_max
        self._held: dict[tuple[type, str], Counter[str]] = {}
        """Counted memory in bytes, by kind and id of the group, and by the addresses of its clients."""
        self._hosts: Counter[str] = Counter()
        """Counted memory in bytes by the clients' addresses."""
        self._groups: dict[str, ClassicGroup] = {}
        self._bridges: dict[str, BridgedGroup] = {}
        """The classic members of the broker's groups, by group id. No group has an entry here and in `_groups`."""
        self._emptied: OrderedDict[str, tuple[int, str]] = OrderedDict()
        """Groups whose last member has left, the oldest first: the time in ms until which the group is remembered, and
        its protocol type. Kafka's tools show such a group as empty, rather than as missing."""
        self._expired_ms = 0
        """Time of the last search for members of `_bridges` whose session has ended, in ms."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def now_ms(self) -> int:
        """Present time of the groups' clock in ms."""
        return int(self._clock_s() * 1000)

    def find(self, group_id: str) -> ClassicGroup | None:
        """Return a group that has members or issued member ids; None if the gateway has no such group."""
        return self._groups.get(group_id)

    def all(self) -> list[ClassicGroup]:
        """Return all groups that have members or issued member ids."""
        return list(self._groups.values())

    def emptied(self) -> dict[str, str]:
        """Return the protocol types of the groups whose last member has left in the last EMPTIED_MS, by group id."""
        while self._emptied and next(iter(self._emptied.values()))[0] <= self.now_ms:
            self._emptied.popitem(last=False)
        return {group_id: protocol_type for group_id, (_, protocol_type) in self._emptied.items()}

    def forget(self, group_id: str) -> None:
        """Forget a group without members: it is deleted, or has members again."""
        self._emptied.pop(group_id, None)

    def lock(self, group_id: str) -> asyncio.Lock:
        """Return the lock for the decision between a classic group and the broker's group, until the first member of
        the chosen one has joined."""
        return self._locks.setdefault(group_id, asyncio.Lock())

    def bridge(self, group_id: str) -> BridgedGroup | None:
        """Return the classic members of a broker's group; None if there are none."""
        bridge = self._bridges.get(group_id)
        if bridge is not None and self.now_ms >= self._expired_ms + EXPIRY_MS:
            self._expired_ms = self.now_ms
            for other in list(self._bridges.values()):
                other.expire(self._expired_ms)
                self.note_bridge(other)
        return self._bridges.get(group_id)

    def open_bridge(self, group_id: str) -> BridgedGroup:
        """Return the classic members of a broker's group, which may get its first one now."""
        self.forget(group_id)
        return self._bridges.setdefault(group_id, BridgedGroup(group_id, self.now_ms))

    def note_bridge(self, bridge: BridgedGroup) -> bool:
        """Count the memory of classic members of a broker's group after a change. Without members it is forgotten,
        unless its classic group has just moved. Returns False if the group has become a classic group meanwhile."""
        if self._bridges.get(bridge.group_id) is not bridge:
            return False
        if not bridge.members and bridge.is_over(self.now_ms):
            del self._bridges[bridge.group_id]
        self._count(bridge)
        return True

    def reserve_ms(self, group_id: str) -> int:
        """Return the time in ms for which the broker's group has to be reserved for a classic group; -1 if the gateway
        has no such group."""
        group = self._groups.get(group_id)
        return max((m.session_timeout_ms for m in group.members.values()), default=-1) if group is not None else -1

    def move(self, group_id: str, instance_id: str | None) -> bool:
        """Begin to move a classic group into the broker's group, for a member of the consumer protocol with an instance
        id. Returns True if the classic group has no members any more. Raises GroupIdNotFoundError if its members are no
        consumers."""
        group = self._groups.get(group_id)
        if group is None or not group.members:
            return True
        if group.protocol_type != CONSUMER:
            raise GroupIdNotFoundError(
                f"group {group_id!r} has classic members of the type {group.protocol_type!r}: choose another group id"
            )
        if instance_id is not None:  # the process of this instance is back, with the other protocol
            self._apply(group, group.leave("", instance_id, self.now_ms)[1])
        self._apply(group, group.move(self.now_ms))
        return not group.members

    def move_back(self, bridge: BridgedGroup) -> None:
        """Make the classic members of a broker's group a classic group again."""
        if self._bridges.get(bridge.group_id) is bridge:  # otherwise its last member has left meanwhile
            del self._bridges[bridge.group_id]
        former = [(m.member_id, m.join, m.generation) for m in bridge.members.values()]
        bridge.members.clear()
        self._count(bridge)
        if former:
            self.forget(bridge.group_id)
            group = self._groups[bridge.group_id] = self._new_group(bridge.group_id)
            group.adopt(former, self.now_ms)
            self._watch(group)

    def _new_group(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, lambda: secrets.token_hex(_ID_BYTES), self._members_max)

    def has_room(self, join: Join, *, is_new_group: bool) -> bool:
        """Return True if there is memory for a further member, and for its group if this is new."""
        size = MEMBER_BYTES + GROUP_BYTES * is_new_group + protocols_bytes(join.protocols)
        size += NAME_COPIES * (len(join.instance_id or "") + len(join.protocol_type))
        return self._has_room(join.client_host, size)

    async def join(self, group_id: str, join: Join) -> JoinAnswer:
        """Join a group, and wait until the rebalance is over. Without memory for a further member the answer is
        COORDINATOR_LOAD_IN_PROGRESS, after which clients try again."""
        group = self._groups.get(group_id)
        if group is None and join.member_id:
            return JoinAnswer(Kafka.UNKNOWN_MEMBER_ID, join.member_id)
        if not self.has_room(join, is_new_group=group is None):
            return JoinAnswer(Kafka.COORDINATOR_LOAD_IN_PROGRESS, join.member_id)
        if group is None:
            group = self._groups[group_id] = self._new_group(group_id)
            self.forget(group_id)
        token = asyncio.get_running_loop().create_future()
        self._apply(group, group.join(join, token, self.now_ms))
        answer = await self._answer(group, token)
        assert isinstance(answer, JoinAnswer)
        return answer

    def _has_room(self, client_host: str, size_bytes: int) -> bool:
        """Return True if there is memory in the budget and in the share of the client's address."""
        limit = self._memory.limit_bytes
        return (
            self._memory.used_bytes + size_bytes <= limit
            and self._hosts[client_host] + size_bytes <= limit // HOST_SHARE
        )

    async def _answer(self, group: ClassicGroup, token: asyncio.Future[Any]) -> Any:
        try:
            return await token
        except asyncio.CancelledError:
            self._apply(group, group.abandon(token, self.now_ms))
            raise

    async def sync(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocols: tuple[str | None, str | None],
        assignments: Iterable[tuple[str, bytes]],
    ) -> SyncAnswer:
        """Return a member's assignment; wait until the leader has sent it. Without memory for the assignments the
        answer is REBALANCE_IN_PROGRESS, after which the members join again."""
        group = self._groups.get(group_id)
        if group is None:
            return SyncAnswer(Kafka.UNKNOWN_MEMBER_ID)
        assignments = list(assignments)
        member = group.members.get(member_id)
        size = sum(len(assignment) for _, assignment in assignments)
        if member is not None and size and not self._has_room(member.client_host, size):
            return SyncAnswer(Kafka.REBALANCE_IN_PROGRESS)
        token = asyncio.get_running_loop().create_future()
        replies = group.sync(member_id, instance_id, generation, protocols, assignments, token, self.now_ms)
        self._apply(group, replies)
        answer = await self._answer(group, token)
        assert isinstance(answer, SyncAnswer)
        return answer

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Kafka:
        """Handle a heartbeat of a member. Returns NONE or an error."""
        group = self._groups.get(group_id)
        if group is None:
            return Kafka.UNKNOWN_MEMBER_ID
        error = group.heartbeat(member_id, instance_id, generation, self.now_ms)
        self._watch(group)
        return error

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> Kafka:
        """Remove a member. Returns NONE or an error."""
        group = self._groups.get(group_id)
        if group is None:
            return Kafka.UNKNOWN_MEMBER_ID
        error, replies = group.leave(member_id, instance_id, self.now_ms)
        self._apply(group, replies)
        return error

    def committer(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Committer:
        """Check a commit, and return the member in whose name the broker is asked. The broker checks the members of its
        own groups, and does not know the members of classic groups."""
        group, bridge = self._groups.get(group_id), self._bridges.get(group_id)
        if bridge is not None and member_id in bridge.members:
            error = bridge.check(member_id, instance_id, generation)
            return Committer(error or Kafka.NONE, member_id, bridge.members[member_id].epoch)
        if group is None:
            return Committer(Kafka.NONE, member_id, generation)
        return Committer(group.check_commit(member_id, instance_id, generation, self.now_ms) or Kafka.NONE)

    def drop(self, group_id: str, error: Kafka) -> None:
        """Remove a group that another broker's gateway coordinates. Requests that wait get `error`."""
        group, bridge = self._groups.get(group_id), self._bridges.get(group_id)
        self.forget(group_id)
        if group is not None:
            self._apply(group, group.close(error))
        if bridge is not None:
            del self._bridges[group_id]
            bridge.members.clear()
            self._count(bridge)

    def close(self) -> None:
        """Remove all groups, because the gateway stops. Requests that wait get NOT_COORDINATOR."""
        for group_id in [*self._groups, *self._bridges]:
            self.drop(group_id, Kafka.NOT_COORDINATOR)

    def _apply(self, group: ClassicGroup, replies: Iterable[Reply]) -> None:
        for reply in replies:
            if isinstance(reply.answer, JoinAnswer) and reply.answer.is_moved:
                self.open_bridge(group.group_id)
            token: asyncio.Future[Any] = reply.token
            if not token.done():
                token.set_result(reply.answer)
        self._watch(group)

    def _count(self, group: ClassicGroup | BridgedGroup) -> None:
        """Count the memory of a group after a change."""
        key = type(group), group.group_id
        before, now = self._held.pop(key, Counter()), group.held_bytes()
        if now:
            self._held[key] = now
        self._hosts.subtract(before)
        self._hosts.update(now)
        for host in [host for host in before if not self._hosts[host]]:
            del self._hosts[host]
        more = now.total() - before.total()
        if more >= 0:
            self._memory.take(more)
        else:
            self._memory.release(group, -more)

    def _watch(self, group: ClassicGroup) -> None:
        self._count(group)
        timer = self._timers.pop(group.group_id, None)
        if timer is not None:
            timer.cancel()
        deadline_ms = group.next_deadline_ms
        if group.state is GroupState.DEAD or (not group.members and deadline_ms is None):
            self._groups.pop(group.group_id, None)
            if group.state is GroupState.EMPTY and group.protocol_type is not None:
                self._note_emptied(group.group_id, group.protocol_type)
        elif deadline_ms is not None:
            remaining_s = max(deadline_ms - self.now_ms, 1) / 1000
            self._timers[group.group_id] = asyncio.get_running_loop().call_later(remaining_s, self._expire, group)

    def _note_emptied(self, group_id: str, protocol_type: str) -> None:
        self.forget(group_id)
        self._emptied[group_id] = self.now_ms + EMPTIED_MS, protocol_type
        if len(self._emptied) > EMPTIED_MAX:
            self._emptied.popitem(last=False)

    def _expire(self, group: ClassicGroup) -> None:
        if self._groups.get(group.group_id) is group:
            self._apply(group, group.expire(self.now_ms))
