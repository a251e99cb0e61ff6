"""Classic groups: joins, rebalances, assignments, static members, and time."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

from sparklog.gateway.groups.classic import ClassicGroup
from sparklog.gateway.groups.model import GroupState, Join, JoinAnswer, Reply, SyncAnswer
from sparklog.gateway.limits import GROUP_SIZE_MAX
from sparklog.kafka.wire.errors import Kafka

SESSION_MS = 10_000
REBALANCE_MS = 60_000
PROTOCOLS = (("range", b"range"), ("roundrobin", b"rr"))


class World:
    """A group, its time, and the answers by the requests' tokens."""

    def __init__(self, members_max: int = GROUP_SIZE_MAX) -> None:
        numbers = count(1)
        self.group = ClassicGroup("g", lambda: str(next(numbers)), members_max)
        self.now_ms = 0
        self.answers: dict[Any, Any] = {}

    def take(self, replies: list[Reply]) -> None:
        for reply in replies:
            assert reply.token not in self.answers, "a request is answered once"
            self.answers[reply.token] = reply.answer

    def join(self, token: str, member_id: str = "", *, instance: str | None = None, **changes: Any) -> None:
        join = Join(member_id, instance, "c", "/h", SESSION_MS, REBALANCE_MS, "consumer", PROTOCOLS, False)
        self.take(self.group.join(join._replace(**changes), token, self.now_ms))

    def sync(self, token: str, member_id: str, assignments: dict[str, bytes] | None = None) -> None:
        given = list((assignments or {}).items())
        self.take(self.group.sync(member_id, None, self.group.generation, (None, None), given, token, self.now_ms))

    def wait(self, ms: int) -> None:
        """Lets time pass, looking when the group says."""
        end = self.now_ms + ms
        while (deadline := self.group.next_deadline_ms) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.take(self.group.expire(self.now_ms))
        self.now_ms = end

    def joined(self, token: str) -> JoinAnswer:
        answer = self.answers[token]
        assert isinstance(answer, JoinAnswer) and answer.error is Kafka.NONE, answer
        return answer

    def stable(self, *names: str) -> list[str]:
        """Members that have joined and have their assignments."""
        members: list[str] = []
        for name in names:
            self.join(f"{name}-first")
            for i, member in enumerate(members):  # all join again
                self.join(f"{name}-again-{i}", member)
            members.append(self.joined(f"{name}-first").member_id)
        for i, member in enumerate(members):
            is_leader = member == self.group.leader
            self.sync(f"sync-{i}", member, {m: m.encode() for m in members} if is_leader else None)
        assert self.group.state is GroupState.STABLE
        return members


def test_a_first_member_leads_and_gets_its_own_assignment() -> None:
    world = World()
    world.join("a")
    joined = world.joined("a")
    assert joined.leader == joined.member_id and joined.generation == 1 and joined.protocol == "range"
    assert [m[0] for m in joined.members] == [joined.member_id]
    world.sync("s", joined.member_id, {joined.member_id: b"all"})
    assert world.answers["s"] == SyncAnswer(Kafka.NONE, b"all", "consumer", "range")


def test_a_new_member_waits_until_the_others_have_joined_again() -> None:
    world = World()
    (first,) = world.stable("a")
    world.join("b")
    assert "b" not in world.answers
    assert world.group.heartbeat(first, None, 1, 0) is Kafka.REBALANCE_IN_PROGRESS
    world.join("a2", first)
    assert world.joined("b").generation == world.joined("a2").generation == 2
    assert world.joined("b").members == () and len(world.joined("a2").members) == 2


def test_followers_get_their_assignment_when_the_leader_brings_it() -> None:
    world = World()
    first, second = world.stable("a", "b")
    assert world.answers["sync-1"].assignment == second.encode()
    assert world.answers["sync-0"].assignment == first.encode()
    world.sync("again", second)
    assert world.answers["again"].assignment == second.encode()


def test_a_full_group_refuses_new_members_only() -> None:
    world = World(members_max=2)
    (first,) = world.stable("a")
    world.join("static", instance="i")
    world.join("again", first)
    world.join("new")
    world.join("new-instance", instance="j")
    for token in ("new", "new-instance"):
        assert world.answers[token].error is Kafka.GROUP_MAX_SIZE_REACHED, token
    world.join("restarted", instance="i")
    world.join("once-more", first)
    assert world.joined("restarted").generation == world.joined("once-more").generation
    assert world.group.leave(first, None, world.now_ms)[0] is Kafka.NONE
    world.join("later", instance="j")
    assert len(world.group.members) == 2


def test_a_member_that_is_silent_is_removed() -> None:
    world = World()
    first, second = world.stable("a", "b")
    world.wait(SESSION_MS - 1)
    world.group.heartbeat(first, None, 2, world.now_ms)
    world.wait(1)
    assert list(world.group.members) == [first] and world.group.state is GroupState.PREPARING
    assert world.group.heartbeat(second, None, 2, world.now_ms) is Kafka.UNKNOWN_MEMBER_ID


def test_a_rebalance_ends_without_those_that_do_not_join_again() -> None:
    world = World()
    (first,) = world.stable("a")
    world.join("b")
    for _ in range(REBALANCE_MS // SESSION_MS * 2):  # it lives, and does not join
        world.wait(SESSION_MS // 2)
        world.group.heartbeat(first, None, 1, world.now_ms)
    assert world.joined("b").leader == world.joined("b").member_id
    assert list(world.group.members) == [world.joined("b").member_id]


def test_a_leader_that_brings_no_assignment_is_removed() -> None:
    world = World()
    first, second = world.stable("a", "b")
    world.join("c")
    world.join("a2", first)
    world.join("b2", second)
    world.sync("follower", second)
    for _ in range(REBALANCE_MS // 1_000):
        world.wait(1_000)
        world.group.heartbeat(first, None, 3, world.now_ms)
        world.group.heartbeat(second, None, 3, world.now_ms)
        world.group.heartbeat(world.joined("c").member_id, None, 3, world.now_ms)
    assert world.answers["follower"].error is Kafka.REBALANCE_IN_PROGRESS
    assert first not in world.group.members


def test_a_departed_member_is_missed_at_once() -> None:
    world = World()
    first, second = world.stable("a", "b")
    error, replies = world.group.leave(first, None, 0)
    world.take(replies)
    assert error is Kafka.NONE
    assert world.group.heartbeat(second, None, 2, 0) is Kafka.REBALANCE_IN_PROGRESS
    world.join("b2", second)
    assert world.joined("b2").leader == second
    assert world.group.leave(first, None, 0)[0] is Kafka.UNKNOWN_MEMBER_ID


def test_the_last_one_leaves_an_empty_group() -> None:
    world = World()
    (first,) = world.stable("a")
    world.take(world.group.leave(first, None, 0)[1])
    assert world.group.state is GroupState.EMPTY
    assert world.group.check_commit("", None, -1, 0) is None


def test_newer_clients_get_an_id_before_they_join() -> None:
    world = World()
    world.join("a", needs_member_id=True)
    refused = world.answers["a"]
    assert refused.error is Kafka.MEMBER_ID_REQUIRED and not world.group.members
    world.join("a2", refused.member_id, needs_member_id=True)
    assert world.joined("a2").member_id == refused.member_id
    world.join("b", "made-up", needs_member_id=True)
    assert world.answers["b"].error is Kafka.UNKNOWN_MEMBER_ID


def test_an_unused_id_is_forgotten_and_delays_no_member() -> None:
    world = World()
    world.join("a", needs_member_id=True)
    world.join("b")
    assert "b" not in world.answers
    world.wait(SESSION_MS)
    assert world.joined("b").generation == 1


def test_a_static_member_keeps_its_place() -> None:
    world = World()
    world.join("a", instance="one")
    first = world.joined("a").member_id
    world.sync("s", first, {first: b"mine"})
    world.join("a2", instance="one", can_skip_assignment=True)
    second = world.joined("a2").member_id
    assert world.group.state is GroupState.STABLE and world.group.generation == 1
    assert world.joined("a2").skip_assignment and world.joined("a2").leader == second
    assert world.group.heartbeat(first, "one", 1, 0) is Kafka.FENCED_INSTANCE_ID
    world.sync("s2", second)
    assert world.answers["s2"].assignment == b"mine"


def test_members_that_do_not_fit_are_refused() -> None:
    world = World()
    world.stable("a")
    for changes, error in (
        ({"protocol_type": "connect"}, Kafka.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("other", b""),)}, Kafka.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, Kafka.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_timeout_ms": 0}, Kafka.INVALID_SESSION_TIMEOUT),
        ({"protocols": (("range", bytes(17 * 1024 * 1024)),)}, Kafka.GROUP_MAX_SIZE_REACHED),
    ):
        world.join(str(changes)[:60], **changes)
        assert world.answers[str(changes)[:60]].error is error
    assert world.group.state is GroupState.STABLE


def test_commits_prove_the_generation() -> None:
    world = World()
    (first,) = world.stable("a")
    group = world.group
    assert group.check_commit(first, None, 1, 0) is None
    assert group.check_commit(first, None, 0, 0) is Kafka.ILLEGAL_GENERATION
    assert group.check_commit("b", None, 1, 0) is Kafka.UNKNOWN_MEMBER_ID
    assert group.check_commit("", None, -1, 0) is Kafka.UNKNOWN_MEMBER_ID
    world.join("b")
    assert group.check_commit(first, None, 1, 0) is None  # what it has read before the rebalance
    world.join("a2", first)
    assert group.check_commit(first, None, 2, 0) is Kafka.REBALANCE_IN_PROGRESS


def test_a_group_that_ends_answers_all_waiting_members() -> None:
    world = World()
    world.stable("a")
    world.join("b")
    world.take(world.group.close(Kafka.NOT_COORDINATOR))
    assert world.answers["b"].error is Kafka.NOT_COORDINATOR
    assert world.group.state is GroupState.DEAD


@pytest.mark.parametrize("seed", range(20))
def test_each_request_is_answered_once_and_no_two_members_lead(seed: int) -> None:
    world, source, numbers = World(), random.Random(seed), count(1)
    waiting: set[str] = set()
    for _ in range(300):
        token, members = f"t{next(numbers)}", list(world.group.members)
        member = source.choice([*members, "stranger"])
        match source.randrange(6):
            case 0:
                world.join(token, needs_member_id=source.random() < 0.3)
                waiting.add(token)
            case 1:
                world.join(token, member)
                waiting.add(token)
            case 2:
                world.sync(token, member, dict.fromkeys(members, b"x"))
                waiting.add(token)
            case 3:
                world.take(world.group.leave(member, None, world.now_ms)[1])
            case 4:
                world.group.heartbeat(member, None, world.group.generation, world.now_ms)
            case _:
                world.wait(source.randrange(SESSION_MS))
        group = world.group
        if group.state in (GroupState.STABLE, GroupState.COMPLETING):
            assert group.members and group.leader in group.members
        assert (group.state is GroupState.EMPTY) == (not group.members)
    world.wait(10 * REBALANCE_MS)
    assert waiting <= set(world.answers), "all requests are answered when time is over"
