"""One group of Kafka's classic protocol (JoinGroup, SyncGroup): a state machine without sockets and clocks.

    state       all have joined, or time is over   leader's assignment   member joins or leaves
    EMPTY       -                                  -                     → PREPARING
    PREPARING   → COMPLETING (EMPTY: no members)   -                     stays
    COMPLETING  -                                  → STABLE              → PREPARING
    STABLE      -                                  -                     → PREPARING

A generation begins when PREPARING ends. Members name their generation in heartbeats and commits. One member is the
leader: it computes the assignment, which the coordinator distributes without reading it.

A group of consumers can move into the broker's group of its name, for members of the consumer protocol (`bridge.py`).
The move is a rebalance without a leader: when all members have joined, those that still read partitions get an empty
assignment, release the partitions and join once more. Then no member reads a partition, and all join the broker's group
(`JoinAnswer.is_moved`). The way back (`adopt`) is a rebalance of the members that have left the broker's group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sparklog.gateway.groups.model import (
    GROUP_BYTES,
    METADATA_BYTES_MAX,
    NAME_COPIES,
    NO_GENERATION,
    PENDING_BYTES,
    PENDING_MAX,
    PENDING_MS_MAX,
    SESSION_TIMEOUT_MS_MAX,
    GroupState,
    Join,
    JoinAnswer,
    Member,
    Pending,
    Reply,
    SyncAnswer,
    new_member,
    protocols_bytes,
)
from sparklog.gateway.groups.subscriptions import encode_assignment, reads_partitions
from sparklog.gateway.limits import GROUP_SIZE_MAX
from sparklog.kafka.wire.errors import Kafka


class ClassicGroup:
    """The state of one group. Methods return the answers that have become due. `new_id` returns the random part of a
    member id. `members_max`: the largest number of members."""

    def __init__(self, group_id: str, new_id: Callable[[], str], members_max: int = GROUP_SIZE_MAX) -> None:
        self.group_id = group_id
        self._members_max = members_max
        self.state = GroupState.EMPTY
        self.generation = NO_GENERATION
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self._new_id = new_id
        self._static: dict[str, str] = {}
        self._pending: dict[str, Pending] = {}
        """Issued member ids that no join has used yet."""
        self._rebalance_deadline_ms = 0
        self.is_moving = False
        """True from `move` until the group has moved or is empty."""

    # --- joins -------------------------------------------------------------------------------------------------------

    def join(self, join: Join, token: Any, now_ms: int) -> list[Reply]:
        """Handle a JoinGroup request of a new or a known member. `token` names the request in its Reply, which comes at
        once or at the end of the rebalance."""
        error = self._refusal(join)
        if error is not None:
            return [Reply(token, JoinAnswer(error, join.member_id))]
        if join.member_id == "":
            return self._join_new(join, token, now_ms)
        if join.member_id in self._pending:
            del self._pending[join.member_id]
            return self._add_and_rebalance(join.member_id, join, token, now_ms)
        error = self.check_member(join.member_id, join.instance_id)
        if error is not None:
            return [Reply(token, JoinAnswer(error, join.member_id))]
        return self._join_again(self.members[join.member_id], join, token, now_ms)

    def _refusal(self, join: Join) -> Kafka | None:
        if not 0 < join.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            return Kafka.INVALID_SESSION_TIMEOUT
        if not join.protocols or not join.protocol_type:
            return Kafka.INCONSISTENT_GROUP_PROTOCOL
        others = [m for m in self.members.values() if m.member_id != join.member_id]
        if others and join.protocol_type != self.protocol_type:
            return Kafka.INCONSISTENT_GROUP_PROTOCOL
        common = self._common_protocols(others)
        if others and not any(name in common for name, _ in join.protocols):
            return Kafka.INCONSISTENT_GROUP_PROTOCOL
        is_member = join.member_id in self.members or join.instance_id in self._static
        if not is_member and len(self.members) >= self._members_max:
            return Kafka.GROUP_MAX_SIZE_REACHED
        size = protocols_bytes(join.protocols) + sum(m.metadata_bytes for m in others)
        return Kafka.GROUP_MAX_SIZE_REACHED if size > METADATA_BYTES_MAX else None

    def _join_new(self, join: Join, token: Any, now_ms: int) -> list[Reply]:
        predecessor = self._static.get(join.instance_id) if join.instance_id is not None else None
        member_id = f"{join.instance_id or join.client_id or 'member'}-{self._new_id()}"
        if predecessor is not None:
            return self._replace_static(predecessor, member_id, join, token, now_ms)
        if join.instance_id is None and join.needs_member_id:
            if len(self._pending) >= PENDING_MAX:
                return [Reply(token, JoinAnswer(Kafka.GROUP_MAX_SIZE_REACHED))]
            deadline_ms = now_ms + min(join.session_timeout_ms, PENDING_MS_MAX)
            self._pending[member_id] = Pending(deadline_ms, join.client_host)
            return [Reply(token, JoinAnswer(Kafka.MEMBER_ID_REQUIRED, member_id))]
        return self._add_and_rebalance(member_id, join, token, now_ms)

    def _replace_static(self, predecessor: str, member_id: str, join: Join, token: Any, now_ms: int) -> list[Reply]:
        """Replace a static member after its restart. It keeps its place in the group under a new id; its former id is
        fenced."""
        member = self.members.pop(predecessor)
        replies = self._refuse_waiting(member, Kafka.FENCED_INSTANCE_ID)
        before = self.protocol
        was_leader = self.leader == predecessor
        member.member_id = member_id
        self.members[member_id] = member
        assert join.instance_id is not None
        self._static[join.instance_id] = member_id
        self._update(member, join, now_ms)
        if was_leader:
            self.leader = member_id
        stays = self.state is GroupState.STABLE and self._chosen_protocol() == before
        if not stays:
            member.join_token = token
            return replies + self._rebalance(now_ms)
        # clients before version 9 take a leader's id of their own as an order to assign: they get the old id
        leader = self.leader or ""
        if was_leader and not join.can_skip_assignment:
            leader = predecessor
        joined = self._join_answer(member)._replace(
            leader=leader, members=self._member_list() if was_leader and join.can_skip_assignment else (),
            skip_assignment=was_leader and join.can_skip_assignment,
        )  # fmt: skip
        return [*replies, Reply(token, joined)]

    def _add_and_rebalance(self, member_id: str, join: Join, token: Any, now_ms: int) -> list[Reply]:
        member = new_member(member_id, join, now_ms)
        if not self.members:
            self.protocol_type = join.protocol_type
        self.members[member_id] = member
        if join.instance_id is not None:
            self._static[join.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        member.join_token = token
        return self._rebalance(now_ms)

    def _join_again(self, member: Member, join: Join, token: Any, now_ms: int) -> list[Reply]:
        replies = []
        if member.join_token is not None:  # its earlier request lies in a connection that was given up
            replies.append(Reply(member.join_token, JoinAnswer(Kafka.UNKNOWN_MEMBER_ID, member.member_id)))
            member.join_token = None
        is_same = list(join.protocols) == member.protocols
        self._update(member, join, now_ms)
        if self.state is GroupState.COMPLETING and is_same:
            return [*replies, Reply(token, self._join_answer(member))]
        if self.state is GroupState.STABLE and is_same and member.member_id != self.leader:
            return [*replies, Reply(token, self._join_answer(member))]
        member.join_token = token
        return replies + self._rebalance(now_ms)

    def _update(self, member: Member, join: Join, now_ms: int) -> None:
        member.protocols = list(join.protocols)
        member.session_timeout_ms, member.rebalance_timeout_ms = join.session_timeout_ms, join.rebalance_timeout_ms
        member.client_id, member.client_host = join.client_id, join.client_host
        member.deadline_ms = now_ms + member.session_timeout_ms

    # --- rebalances --------------------------------------------------------------------------------------------------

    def _rebalance(self, now_ms: int) -> list[Reply]:
        """Begin a rebalance: all members have to join again."""
        replies = []
        if self.state is not GroupState.PREPARING:
            for member in self.members.values():
                member.assignment = b""
                if member.sync_token is not None:
                    replies.append(Reply(member.sync_token, SyncAnswer(Kafka.REBALANCE_IN_PROGRESS)))
                    member.sync_token = None
            self.state = GroupState.PREPARING
            longest = max((m.rebalance_timeout_ms for m in self.members.values()), default=0)
            self._rebalance_deadline_ms = now_ms + longest
        return replies + self._complete_join(now_ms, is_late=False)

    def _complete_join(self, now_ms: int, *, is_late: bool) -> list[Reply]:
        """Begin the next generation if all members have joined. With `is_late`, begin it with the members that have."""
        if self.state is not GroupState.PREPARING:
            return []
        if not self.members:
            self._become_empty()
            return []
        missing = [m for m in self.members.values() if m.join_token is None]
        if (missing or self._pending) and not is_late:
            return []
        for member in missing:
            if member.instance_id is None or self.is_moving:
                self._forget(member)
        if not self.members:
            self._become_empty()
            return []
        if self.is_moving:
            return self._complete_move(now_ms)
        self.generation += 1
        self.protocol = self._chosen_protocol()
        joined = [m for m in self.members.values() if m.join_token is not None]
        if self.leader not in self.members or self.members[self.leader].join_token is None:
            self.leader = joined[0].member_id if joined else next(iter(self.members))
        self.state = GroupState.COMPLETING
        longest = max(m.rebalance_timeout_ms for m in self.members.values())
        self._rebalance_deadline_ms = now_ms + longest
        replies = []
        for member in joined:
            member.deadline_ms = now_ms + member.session_timeout_ms
            replies.append(self._answer_join(member, self._join_answer(member)))
        return replies

    def _answer_join(self, member: Member, answer: JoinAnswer) -> Reply:
        reply = Reply(member.join_token, answer)
        member.has_joined, member.join_token, member.former_generation = True, None, None
        return reply

    # --- moves between the broker's groups and this group -----------------------------------------------------------

    def move(self, now_ms: int) -> list[Reply]:
        """Begin to move the group of consumers into the broker's group."""
        if self.is_moving:
            return []
        self.is_moving = True
        return self._rebalance(now_ms)

    def _complete_move(self, now_ms: int) -> list[Reply]:
        """End the move, or let the members release their partitions first. All members have joined."""
        members = list(self.members.values())
        if all(m.has_released or not reads_partitions(m) for m in members):
            replies = [Reply(m.join_token, JoinAnswer(Kafka.NONE, m.member_id, is_moved=True)) for m in members]
            for member in members:
                member.join_token = None
            return replies + self.close(Kafka.NOT_COORDINATOR)
        self.generation += 1
        self.protocol = self._chosen_protocol()
        self._rebalance_deadline_ms = now_ms + max(m.rebalance_timeout_ms for m in members)
        replies = []
        for member in members:
            member.deadline_ms = now_ms + member.session_timeout_ms
            answer = JoinAnswer(Kafka.NONE, member.member_id, self.generation, self.protocol_type, self.protocol)
            replies.append(self._answer_join(member, answer))
        return replies

    def adopt(self, former: Iterable[tuple[str, Join, int]], now_ms: int) -> None:
        """Begin the group with classic members of the broker's group, which have to join again. `former`: their ids,
        last joins and generations."""
        for member_id, join, generation in former:
            member = new_member(member_id, join, now_ms)
            member.has_joined, member.former_generation = True, generation
            self.members[member_id] = member
            if join.instance_id is not None:
                self._static[join.instance_id] = member_id
            self.protocol_type, self.generation = join.protocol_type, max(self.generation, generation)
        self.state = GroupState.PREPARING
        longest = max((m.rebalance_timeout_ms for m in self.members.values()), default=0)
        self._rebalance_deadline_ms = now_ms + longest

    def _join_answer(self, member: Member) -> JoinAnswer:
        return JoinAnswer(
            Kafka.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            self._member_list() if member.member_id == self.leader else (),
        )

    def _member_list(self) -> list[tuple[str, str | None, bytes]]:
        protocol = self.protocol or ""
        return [(m.member_id, m.instance_id, m.metadata_of(protocol)) for m in self.members.values()]

    def _common_protocols(self, members: Iterable[Member]) -> set[str]:
        names = [{name for name, _ in m.protocols} for m in members]
        return set.intersection(*names) if names else set()

    def _chosen_protocol(self) -> str | None:
        """Return the assignor that most members prefer, among those that all members have; None if they have none in
        common."""
        common = self._common_protocols(self.members.values())
        votes = Counter(
            next(name for name, _ in m.protocols if name in common) for m in self.members.values() if common
        )
        return max(votes, key=lambda name: votes[name]) if votes else None

    def _become_empty(self) -> None:
        self.state = GroupState.EMPTY
        self.generation += 1
        self.protocol = self.leader = None
        self.is_moving = False

    # --- syncs, heartbeats, leaving ----------------------------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocols: tuple[str | None, str | None],
        assignments: Sequence[tuple[str, bytes]],
        token: Any,
        now_ms: int,
    ) -> list[Reply]:
        """Handle a SyncGroup request, by which a member asks for its assignment. The leader's request has the
        assignments of all members. `protocols`: protocol type and assignor; None for a value that the client does not
        send."""
        error = self.check_generation(member_id, instance_id, generation)
        if error is None and self.is_moving:
            self.members[member_id].has_released = True
            return [Reply(token, SyncAnswer(Kafka.NONE, encode_assignment(()), self.protocol_type, self.protocol))]
        kind, name = protocols
        if error is None and ((kind or self.protocol_type), (name or self.protocol)) != (
            self.protocol_type,
            self.protocol,
        ):
            error = Kafka.INCONSISTENT_GROUP_PROTOCOL
        if error is None and self.state is GroupState.PREPARING:
            error = Kafka.REBALANCE_IN_PROGRESS
        if error is not None:
            return [Reply(token, SyncAnswer(error))]
        member = self.members[member_id]
        member.deadline_ms = now_ms + member.session_timeout_ms
        if self.state is GroupState.STABLE:
            return [Reply(token, self._sync_answer(member))]
        replies = []
        if member.sync_token is not None:
            replies.append(Reply(member.sync_token, SyncAnswer(Kafka.UNKNOWN_MEMBER_ID)))
        member.sync_token = token
        if member_id == self.leader:
            if sum(len(data) for _, data in assignments) > METADATA_BYTES_MAX:
                member.sync_token = None
                return [*replies, Reply(token, SyncAnswer(Kafka.GROUP_MAX_SIZE_REACHED))]
            by_member = dict(assignments)
            self.state = GroupState.STABLE
            for one in self.members.values():
                one.assignment = by_member.get(one.member_id, b"")
                if one.sync_token is not None:
                    replies.append(Reply(one.sync_token, self._sync_answer(one)))
                    one.sync_token = None
                    one.deadline_ms = now_ms + one.session_timeout_ms
        return replies

    def _sync_answer(self, member: Member) -> SyncAnswer:
        return SyncAnswer(Kafka.NONE, member.assignment, self.protocol_type, self.protocol)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Kafka:
        """Handle a heartbeat. Returns REBALANCE_IN_PROGRESS if the member has to join again, NONE, or an error of
        `check_generation`."""
        error = self.check_generation(member_id, instance_id, generation)
        if error is not None:
            return error
        member = self.members[member_id]
        member.deadline_ms = now_ms + member.session_timeout_ms
        return Kafka.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else Kafka.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> tuple[Kafka, list[Reply]]:
        """Remove a member, by its id, or a static member by its instance id with an empty member id."""
        if member_id in self._pending:
            del self._pending[member_id]
            return Kafka.NONE, self._complete_join(now_ms, is_late=False)
        if member_id == "" and instance_id is not None:
            member_id = self._static.get(instance_id, "")
        error = self.check_member(member_id, instance_id)
        if error is not None:
            return error, []
        return Kafka.NONE, self._remove(self.members[member_id], now_ms)

    def _remove(self, member: Member, now_ms: int) -> list[Reply]:
        replies = self._refuse_waiting(member, Kafka.UNKNOWN_MEMBER_ID)
        self._forget(member)
        if self.state is GroupState.PREPARING:
            return replies + self._complete_join(now_ms, is_late=False)
        return replies + self._rebalance(now_ms)

    def _refuse_waiting(self, member: Member, error: Kafka) -> list[Reply]:
        replies = []
        if member.join_token is not None:
            replies.append(Reply(member.join_token, JoinAnswer(error, member.member_id)))
        if member.sync_token is not None:
            replies.append(Reply(member.sync_token, SyncAnswer(error)))
        member.join_token = member.sync_token = None
        return replies

    def _forget(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = None

    def close(self, error: Kafka) -> list[Reply]:
        """End the group, because another gateway coordinates it or this one stops. Requests that wait get `error`."""
        replies = [reply for member in self.members.values() for reply in self._refuse_waiting(member, error)]
        self.members.clear()
        self._static.clear()
        self._pending.clear()
        self.state = GroupState.DEAD
        return replies

    def abandon(self, token: Any, now_ms: int) -> list[Reply]:
        """Note that the client of a waiting request is gone. A member that has never joined is removed at once, because
        its client does not know it. Any other member no longer waits, and expires without the client's next request."""
        for member in list(self.members.values()):
            if token in (member.join_token, member.sync_token):
                member.join_token = None if member.join_token is token else member.join_token
                member.sync_token = None if member.sync_token is token else member.sync_token
                if not member.has_joined:
                    return self._remove(member, now_ms)
                member.deadline_ms = now_ms + member.session_timeout_ms
        return []

    def held_bytes(self) -> Counter[str]:
        """Return the memory of the group in bytes, by the addresses of its clients. The first client has that of the
        group itself."""
        sizes: Counter[str] = Counter()
        for member in self.members.values():
            sizes[member.client_host] += member.held_bytes
        for one in self._pending.values():
            sizes[one.client_host] += PENDING_BYTES
        for host in sizes:
            sizes[host] += GROUP_BYTES + NAME_COPIES * len(self.protocol_type or "")
            break
        return sizes

    # --- checks and time ---------------------------------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None) -> Kafka | None:
        """Return the error for a member that is unknown, or fenced by a newer member with the same instance id; None
        for a valid member."""
        if instance_id is not None and instance_id in self._static and self._static[instance_id] != member_id:
            return Kafka.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return Kafka.UNKNOWN_MEMBER_ID
        if instance_id is not None and self.members[member_id].instance_id != instance_id:
            return Kafka.UNKNOWN_MEMBER_ID
        return None

    def check_generation(self, member_id: str, instance_id: str | None, generation: int) -> Kafka | None:
        """Check the member as `check_member` does. Return ILLEGAL_GENERATION if `generation` is not the current one."""
        error = self.check_member(member_id, instance_id)
        if error is None and generation not in (self.generation, self.members[member_id].former_generation):
            return Kafka.ILLEGAL_GENERATION
        return error

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Kafka | None:
        """Return the error of a commit that is not allowed; None if it is allowed. A client that is not a member may
        commit while the group has no members. A member's commit counts as a heartbeat."""
        if generation < 0 and not member_id:
            return None if not self.members else Kafka.UNKNOWN_MEMBER_ID
        error = self.check_generation(member_id, instance_id, generation)
        if error is not None:
            return error
        if self.state is GroupState.COMPLETING:
            return Kafka.REBALANCE_IN_PROGRESS
        member = self.members[member_id]
        member.deadline_ms = now_ms + member.session_timeout_ms
        return None

    def expire(self, now_ms: int) -> list[Reply]:
        """Remove members without heartbeats and expired member ids, and end a rebalance whose time is over."""
        replies: list[Reply] = []
        for member_id in [i for i, one in self._pending.items() if one.deadline_ms <= now_ms]:
            del self._pending[member_id]
            replies += self._complete_join(now_ms, is_late=False)
        for member in list(self.members.values()):
            waits = member.join_token is not None
            if not waits and member.deadline_ms <= now_ms and member.member_id in self.members:
                replies += self._remove(member, now_ms)
        if self.state is GroupState.PREPARING and self._rebalance_deadline_ms <= now_ms:
            self._pending.clear()
            replies += self._complete_join(now_ms, is_late=True)
        elif self.state is GroupState.COMPLETING and self._rebalance_deadline_ms <= now_ms:
            # members that have not asked for their assignment are gone; one of them can be the leader
            silent = [m for m in self.members.values() if m.sync_token is None]
            for member in silent:
                replies += self._refuse_waiting(member, Kafka.UNKNOWN_MEMBER_ID)
                self._forget(member)
            replies += self._rebalance(now_ms)
        return replies

    @property
    def next_deadline_ms(self) -> int | None:
        """Time in ms at which `expire` has to be called next; None: no deadline is set."""
        deadlines = [one.deadline_ms for one in self._pending.values()]
        deadlines += [m.deadline_ms for m in self.members.values() if m.join_token is None]
        if self.state in (GroupState.PREPARING, GroupState.COMPLETING):
            deadlines.append(self._rebalance_deadline_ms)
        return min(deadlines, default=None)
