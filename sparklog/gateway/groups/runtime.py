"""The classic groups of one gateway, with their waiting requests and timers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from sparklog.gateway.groups.classic import ClassicGroup
from sparklog.gateway.groups.model import GroupState, Join, JoinAnswer, Reply, SyncAnswer
from sparklog.gateway.wire.errors import Kafka

GROUPS_MAX = 10_000
_ID_BYTES = 16


class Groups:
    """The classic groups of one gateway. Event-loop thread only."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._groups: dict[str, ClassicGroup] = {}
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

    async def join(self, group_id: str, join: Join) -> JoinAnswer:
        """Join a group, and wait until the rebalance is over."""
        group = self._groups.get(group_id)
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                return JoinAnswer(Kafka.GROUP_MAX_SIZE_REACHED)
            if join.member_id:
                return JoinAnswer(Kafka.UNKNOWN_MEMBER_ID, join.member_id)
            group = self._groups[group_id] = ClassicGroup(group_id, lambda: secrets.token_hex(_ID_BYTES))
        token = asyncio.get_running_loop().create_future()
        self._apply(group, group.join(join, token, self.now_ms))
        answer = await token
        assert isinstance(answer, JoinAnswer)
        return answer

    async def sync(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocols: tuple[str | None, str | None],
        assignments: Iterable[tuple[str, bytes]],
    ) -> SyncAnswer:
        """Return a member's assignment; wait until the leader has sent it."""
        group = self._groups.get(group_id)
        if group is None:
            return SyncAnswer(Kafka.UNKNOWN_MEMBER_ID)
        token = asyncio.get_running_loop().create_future()
        replies = group.sync(member_id, instance_id, generation, protocols, list(assignments), token, self.now_ms)
        self._apply(group, replies)
        answer = await token
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

    def check_commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> Kafka:
        """Return the error of a commit that the group does not allow; NONE if it is allowed."""
        group = self._groups.get(group_id)
        if group is None:
            return Kafka.NONE if generation < 0 and not member_id else Kafka.UNKNOWN_MEMBER_ID
        return group.check_commit(member_id, instance_id, generation, self.now_ms) or Kafka.NONE

    def drop(self, group_id: str, error: Kafka) -> None:
        """Remove a group that another broker's gateway coordinates. Requests that wait get `error`."""
        group = self._groups.get(group_id)
        if group is not None:
            self._apply(group, group.close(error))

    def close(self) -> None:
        """Remove all groups, because the gateway stops. Requests that wait get NOT_COORDINATOR."""
        for group_id in list(self._groups):
            self.drop(group_id, Kafka.NOT_COORDINATOR)

    def _apply(self, group: ClassicGroup, replies: Iterable[Reply]) -> None:
        for reply in replies:
            token: asyncio.Future[Any] = reply.token
            if not token.done():
                token.set_result(reply.answer)
        self._watch(group)

    def _watch(self, group: ClassicGroup) -> None:
        timer = self._timers.pop(group.group_id, None)
        if timer is not None:
            timer.cancel()
        deadline_ms = group.next_deadline_ms
        if group.state is GroupState.DEAD or (not group.members and deadline_ms is None):
            self._groups.pop(group.group_id, None)
        elif deadline_ms is not None:
            left_s = max(deadline_ms - self.now_ms, 1) / 1000
            self._timers[group.group_id] = asyncio.get_running_loop().call_later(left_s, self._expire, group)

    def _expire(self, group: ClassicGroup) -> None:
        if self._groups.get(group.group_id) is group:
            self._apply(group, group.expire(self.now_ms))
