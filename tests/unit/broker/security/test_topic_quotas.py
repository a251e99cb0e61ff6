"""`max_topics` and `max_partitions`: owners, refusals, and the release of quota."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from sparklog.errors import PolicyViolationError
from sparklog.protocol import quota_messages as q
from sparklog.protocol import topic_messages as t
from sparklog.protocol.apis import Api
from sparklog.security.principals import Principal
from tests.unit.broker.security.access_world import ADMIN, ALICE, MALLORY, World

TOO_MANY = PolicyViolationError.code


def in_world(directory: Path, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = await World.begin(directory, **{"allow.everyone.if.no.acl.found": True})
        await scenario(world)
        await world.close()

    asyncio.run(run())


async def limit(world: World, user: str, **limits: float | None) -> None:
    request = q.AlterClientQuotasRequest([q.QuotaAlteration(user, None, dict(limits))])
    await world.do(ADMIN, Api.ALTER_CLIENT_QUOTAS, request)


async def create(world: World, who: Principal, name: str, partitions: int = 1, owner: str = "") -> int:
    request = t.CreateTopicRequest(name, partitions, owner=owner)
    return (await world.ask(who, Api.CREATE_TOPIC, request)).error_code


async def used(world: World, user: str) -> dict[str, int]:
    shown = await world.do(ADMIN, Api.DESCRIBE_CLIENT_QUOTAS, q.DescribeClientQuotasRequest())
    return next(entry.used for entry in shown.entries if entry.user == user)


def test_beyond_its_quota_a_user_makes_no_topics_until_it_deletes_some(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await limit(world, "alice", max_topics=2, max_partitions=5)
        assert await create(world, ALICE, "a1") == 0
        assert await create(world, ALICE, "a2", 4) == 0
        refused = await world.ask(ALICE, Api.CREATE_TOPIC, t.CreateTopicRequest("a3", 1))
        assert refused.error_code == TOO_MANY
        assert "max_topics" in refused.message.message
        assert "delete unused topics" in refused.message.message
        assert await create(world, MALLORY, "m1", 20) == 0, "who has no quota is not held to it"
        assert await used(world, "alice") == {"max_topics": 2, "max_partitions": 5}
        await world.do(ALICE, Api.DELETE_TOPIC, t.DeleteTopicRequest("a2"))
        assert await create(world, ALICE, "a3", 5) == TOO_MANY, "six partitions would be too many"
        assert await create(world, ALICE, "a3", 4) == 0
        await limit(world, "alice", max_topics=None, max_partitions=None)
        assert await create(world, ALICE, "a4", 9) == 0

    in_world(tmp_path, scenario)


def test_added_partitions_count_for_the_topics_owner(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await limit(world, "alice", max_partitions=4)
        await limit(world, "mallory", max_partitions=1)
        assert await create(world, ALICE, "a", 2) == 0
        grow = t.CreatePartitionsRequest("a", 5)
        assert (await world.ask(MALLORY, Api.CREATE_PARTITIONS, grow)).error_code == TOO_MANY
        await world.do(MALLORY, Api.CREATE_PARTITIONS, t.CreatePartitionsRequest("a", 4))
        assert (await used(world, "alice"), await used(world, "mallory")) == (
            {"max_partitions": 4},
            {"max_partitions": 0},
        )

    in_world(tmp_path, scenario)


def test_simultaneous_creations_do_not_exceed_the_quota(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await limit(world, "", max_topics=3)
        codes = await asyncio.gather(*(create(world, ALICE, f"t{i}") for i in range(10)))
        assert sorted(codes) == [0] * 3 + [TOO_MANY] * 7
        assert await create(world, MALLORY, "m") == 0, "a quota of the default user is each user's own"

    in_world(tmp_path, scenario)


def test_auto_created_topics_count(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await limit(world, "alice", max_topics=1)
        asked = t.MetadataRequest(["one", "two"], create_missing=True)
        refused = await world.ask(ALICE, Api.METADATA, asked)
        assert refused.error_code == TOO_MANY
        assert await used(world, "alice") == {"max_topics": 1}

    in_world(tmp_path, scenario)


def test_topics_count_for_their_own_creator(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await limit(world, "alice", max_topics=1)
        await limit(world, "mallory", max_topics=1)
        assert await create(world, MALLORY, "m1", owner="alice") == 0
        assert (await used(world, "alice"), await used(world, "mallory")) == ({"max_topics": 0}, {"max_topics": 1})
        assert await create(world, MALLORY, "m2", owner="alice") == TOO_MANY
        assert await used(world, "alice") == {"max_topics": 0}

    in_world(tmp_path, scenario)


def test_failed_creations_take_no_room(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await limit(world, "alice", max_topics=2, max_partitions=9)
        assert await create(world, ALICE, "a", 2) == 0
        for _ in range(3):
            assert await create(world, ALICE, "a", 2) != 0, "it exists"
            assert (await world.ask(ALICE, Api.CREATE_PARTITIONS, t.CreatePartitionsRequest("a", 1))).error_code != 0
            assert (
                await world.ask(ALICE, Api.CREATE_TOPIC, t.CreateTopicRequest("b", 2, b"no schema"))
            ).error_code != 0
        assert await create(world, ALICE, "b", 7) == 0

    in_world(tmp_path, scenario)


def test_a_restart_keeps_owners_and_quotas(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        await limit(world, "alice", max_topics=1)
        assert await create(world, ALICE, "a", 3) == 0

    async def after(world: World) -> None:
        assert await used(world, "alice") == {"max_topics": 1}
        assert await create(world, ALICE, "b") == TOO_MANY
        assert world.broker.topics.owners is not None
        assert world.broker.topics.owners.owned("alice") == (1, 3)
        await world.do(ALICE, Api.DELETE_TOPIC, t.DeleteTopicRequest("a"))
        assert await create(world, ALICE, "b") == 0

    in_world(tmp_path, before)
    in_world(tmp_path, after)
