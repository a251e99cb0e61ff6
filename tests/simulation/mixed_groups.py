"""One group with members of three kinds, in virtual time: classic clients and clients of the consumer protocol, both at
the gateway's handlers, and sparklog's consumers at the coordinator.

No partition may be read by two members at once, whichever members join and leave, and in the end each partition is read
by one member.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from sparklog.client.group.membership import MemberConfig, Membership
from sparklog.environment.memory_budget import MemoryBudget
from sparklog.errors import SparklogError
from sparklog.gateway.backend.recent_checks import RecentChecks
from sparklog.gateway.groups.runtime import Groups
from sparklog.gateway.groups.subscriptions import decode_subscription, encode_assignment
from sparklog.gateway.handlers import consumer_groups, groups
from sparklog.kafka.wire.codec import decoder, encoder
from sparklog.kafka.wire.errors import Kafka
from sparklog.kafka.wire.schema import DATA
from sparklog.protocol import group_messages as m
from sparklog.protocol.apis import Api
from sparklog.replication.group_membership import GroupConfig
from sparklog.replication.groups import GroupCoordinator

GROUP, TOPIC, PARTITIONS = "g", "t", 4
TOPIC_ID = UUID(int=7)
SESSION_MS, REBALANCE_MS, HEARTBEAT_S = 6_000, 30_000, 0.5
Numbers = frozenset[int]


class World:
    """The coordinator, the gateway and the members."""

    def __init__(self, loop: asyncio.AbstractEventLoop, source: random.Random) -> None:
        self.loop, self.source = loop, source
        topics = {TOPIC: (TOPIC_ID.hex, PARTITIONS)}
        self.coordinator = GroupCoordinator(
            GroupConfig(session_timeout_ms=SESSION_MS, heartbeat_interval_ms=500), topics
        )
        self.groups = Groups(loop.time, MemoryBudget(1 << 24))
        self.members: list[Member] = []
        self.gateway = SimpleNamespace(groups=self.groups, checks=RecentChecks(loop.time), broker_id=0)

    @property
    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def session(self) -> Any:
        """A connection to the gateway."""

        async def broker() -> World:
            return self

        names = SimpleNamespace(names_of=self._names_of)
        return SimpleNamespace(
            gateway=self.gateway, broker=broker, client_id="c", peer_host="h", check_key=object(), topic_names=names,
            request=SimpleNamespace(release=lambda: None),
        )  # fmt: skip

    async def _names_of(self, _: Any, ids: Iterable[UUID]) -> dict[UUID, str]:
        return {i: TOPIC for i in ids if i == TOPIC_ID}

    async def pause(self) -> None:
        await asyncio.sleep(self.source.random() * 0.05)

    async def ask(self, api: Api, message: Any, response: type) -> Any:
        """Answer a request of the gateway, as the broker does. Requests and answers take time."""
        await self.pause()
        try:
            if api is Api.FIND_COORDINATOR:
                return m.FindCoordinatorResponse(0)
            if api is Api.DESCRIBE_GROUPS:
                return m.DescribeGroupsResponse([self.coordinator.describe(GROUP)])
            assert api is Api.GROUP_HEARTBEAT
            return self.coordinator.heartbeat(message, "h", self.now_ms, self.now_ms).answer
        finally:
            await self.pause()

    async def pages(self, api: Api, message: Any, response: type, following: Any) -> Any:
        yield await self.ask(api, message, response)

    def check(self) -> None:
        """No partition is read twice, and none has two owners in the coordinator."""
        readers: dict[int, str] = {}
        for member in self.members:
            for partition in member.held:
                other = readers.setdefault(partition, member.name)
                assert other == member.name, f"{partition} is read by {other} and {member.name}"
        group = self.coordinator._groups.get(GROUP)
        owned = [] if group is None else [tp for x in group.members.values() for tp in x.owned | x.revoking]
        assert len(owned) == len(set(owned)), "no partition has two owners whose epochs are current"

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self.coordinator.tick(self.now_ms, self.now_ms)


class Member:
    """A client. `held`: the partitions that it reads."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.held: Numbers = frozenset()
        self.is_leaving = False
        self.session = world.session()
        world.members.append(self)
        self.task = world.loop.create_task(self._run())

    def hold(self, numbers: Iterable[int]) -> None:
        self.held = frozenset(numbers)
        self.world.check()

    async def _run(self) -> None:
        while not self.is_leaving:
            await self.step()
            self.world.check()
        self.hold(())
        await self.leave()
        self.world.members.remove(self)

    async def step(self) -> None:
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError


class Classic(Member):
    """A classic client. A cooperative one goes on reading during a rebalance."""

    def __init__(self, world: World, name: str, *, is_cooperative: bool) -> None:
        self.is_cooperative = is_cooperative
        self.member_id, self.generation = "", -1
        super().__init__(world, name)

    async def step(self) -> None:
        if self.generation < 0:
            await self._join()
            return
        await asyncio.sleep(HEARTBEAT_S)
        beat: Any = {"group_id": GROUP, "member_id": self.member_id, "generation_id": self.generation}
        code = (await groups.heartbeat(self.session, beat, 4))["error_code"]
        if code == Kafka.REBALANCE_IN_PROGRESS:
            self.generation = -1
        elif code:
            self._reset(code)

    def _reset(self, code: int) -> None:
        assert code in (Kafka.UNKNOWN_MEMBER_ID, Kafka.ILLEGAL_GENERATION, Kafka.COORDINATOR_LOAD_IN_PROGRESS), code
        self.hold(())
        self.member_id, self.generation = "", -1

    async def _join(self) -> None:
        if not self.is_cooperative:
            self.hold(())
        await self.world.pause()
        owned = [{"topic": TOPIC, "partitions": sorted(self.held)}] if self.held else []
        subscription = encoder(DATA, "ConsumerProtocolSubscription", 1)({"topics": [TOPIC], "owned_partitions": owned})
        join: Any = {
            "group_id": GROUP, "session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS,
            "member_id": self.member_id, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\1" + b"".join(subscription)}],
        }  # fmt: skip
        joined = await groups.join_group(self.session, join, 5)
        if joined["error_code"] == Kafka.MEMBER_ID_REQUIRED:
            self.member_id = joined["member_id"]
            return
        if joined["error_code"]:
            self._reset(joined["error_code"])
            await asyncio.sleep(0.1)
            return
        self.member_id, generation = joined["member_id"], joined["generation_id"]
        await self.world.pause()
        assignments = _assign(joined["members"]) if joined["leader"] == self.member_id else []
        sync: Any = {
            "group_id": GROUP,
            "generation_id": generation,
            "member_id": self.member_id,
            "assignments": assignments,
        }
        synced = await groups.sync_group(self.session, sync, 4)
        if synced["error_code"] == Kafka.REBALANCE_IN_PROGRESS:
            return
        if synced["error_code"]:
            self._reset(synced["error_code"])
            return
        assigned = _assigned(synced["assignment"])
        revoked = self.held - assigned
        await self.world.pause()
        self.hold(assigned)
        self.generation = -1 if revoked else generation

    async def leave(self) -> None:
        if self.member_id:
            gone: Any = {"group_id": GROUP, "members": [{"member_id": self.member_id, "group_instance_id": None}]}
            await groups.leave_group(self.session, gone, 3)


def _assign(members: list[Any]) -> list[dict[str, Any]]:
    """The assignment of a leader: each member gets its share, but no partition that another member reads now."""
    owners = {
        p: x["member_id"] for x in members for t in decode_subscription(x["metadata"]).owned for p in t.partitions
    }
    shares: dict[str, list[int]] = {x["member_id"]: [] for x in members}
    for p in range(PARTITIONS):
        member_id = members[p % len(members)]["member_id"]
        if owners.get(p, member_id) == member_id:
            shares[member_id].append(p)
    return [
        {"member_id": i, "assignment": encode_assignment([m.TopicPartitions(TOPIC, p)] if p else [])}
        for i, p in shares.items()
    ]


def _assigned(assignment: bytes) -> Numbers:
    if not assignment:
        return frozenset()
    body = decoder(DATA, "ConsumerProtocolAssignment", 0)(memoryview(assignment)[2:])
    return frozenset(p for t in body["assigned_partitions"] for p in t["partitions"])


class ConsumerProtocol(Member):
    """A client of the consumer protocol."""

    def __init__(self, world: World, name: str) -> None:
        self.epoch, self.reported = 0, True
        super().__init__(world, name)

    async def step(self) -> None:
        answer = await self._beat(self.epoch)
        code = answer["error_code"]
        if code in (Kafka.FENCED_MEMBER_EPOCH, Kafka.UNKNOWN_MEMBER_ID):
            self.hold(())
            self.epoch = 0
        elif code:
            assert code == Kafka.COORDINATOR_LOAD_IN_PROGRESS, answer
        else:
            self.epoch = answer["member_epoch"]
            assignment = answer["assignment"]
            if assignment is not None:
                assigned = frozenset(p for t in assignment["topic_partitions"] for p in t["partitions"])
                self.reported = assigned == self.held
                await self.world.pause()
                self.hold(assigned)
        await asyncio.sleep(self.world.source.choice([0.05, HEARTBEAT_S]))

    async def _beat(self, epoch: int) -> Any:
        owned = [{"topic_id": TOPIC_ID, "partitions": sorted(self.held)}] if self.held else []
        is_full = epoch == 0 or not self.reported
        self.reported = True
        request: Any = {
            "group_id": GROUP, "member_id": self.name, "member_epoch": epoch, "instance_id": None, "rack_id": None,
            "rebalance_timeout_ms": REBALANCE_MS if epoch == 0 else -1, "server_assignor": None,
            "subscribed_topic_names": [TOPIC] if epoch == 0 else None, "subscribed_topic_regex": None,
            "topic_partitions": owned if is_full else None,
        }  # fmt: skip
        return await consumer_groups.consumer_group_heartbeat(self.session, request, 1)

    async def leave(self) -> None:
        await self._beat(-1)


class Own(Member):
    """A consumer of sparklog's own protocol, which does not ask the gateway."""

    def __init__(self, world: World, name: str) -> None:
        self.membership = Membership(MemberConfig(GROUP, session_timeout_ms=SESSION_MS))
        self.membership.member_id = name
        self.membership.subscribe([TOPIC])
        super().__init__(world, name)

    async def step(self) -> None:
        try:
            answer = await self.world.ask(Api.GROUP_HEARTBEAT, self.membership.request(), m.GroupHeartbeatResponse)
        except SparklogError as e:
            self.membership.failed(e)
        else:
            self.membership.answered(answer)
        changes = self.membership.changes()
        if changes.revoked:
            self.membership.let_go(changes.revoked)
        self.hold(tp.partition for tp in self.membership.held)
        await asyncio.sleep(self.world.source.choice([0.05, HEARTBEAT_S]))

    async def leave(self) -> None:
        with suppress(SparklogError):
            await self.world.ask(Api.GROUP_HEARTBEAT, self.membership.leave_request(), m.GroupHeartbeatResponse)


async def live(world: World, steps: int, kinds: str) -> None:
    """Let members join and leave at random, and then the last ones share all partitions. `kinds`: letters of the kinds
    of members: e (eager), c (cooperative), p (consumer protocol), s (sparklog)."""
    source, ticks = world.source, world.loop.create_task(world.tick())
    for number in range(steps):
        present = [x for x in world.members if not x.is_leaving]
        if len(present) > 1 and source.random() < 0.45:
            source.choice(present).is_leaving = True
        elif len(present) < 4:
            join(world, source.choice(kinds), f"m{number}")
        await asyncio.sleep(source.choice([0.1, 1.0, 8.0]))
    if not [x for x in world.members if not x.is_leaving]:
        join(world, kinds[0], "last")
    await asyncio.sleep(120.0)
    held = sorted(p for x in world.members for p in x.held)
    assert held == list(range(PARTITIONS)), {x.name: (type(x).__name__, sorted(x.held)) for x in world.members}
    ticks.cancel()
    for member in world.members:
        if member.task.done():
            member.task.result()


def join(world: World, kind: str, name: str) -> Member:
    """Let a member of a kind join."""
    if kind in "ec":
        return Classic(world, name, is_cooperative=kind == "c")
    return ConsumerProtocol(world, name) if kind == "p" else Own(world, name)
