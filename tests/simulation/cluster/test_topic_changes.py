"""Changes of topics that are requested twice, or from a broker that does not know the previous change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sparklog.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError
from sparklog.protocol import topic_messages as t
from sparklog.protocol.apis import Api
from sparklog.protocol.base import NO_VERSION, MetadataVersion
from sparklog.testing._sim_client import SimClient
from tests.simulation.cluster.play import PATIENCE_S, Play

BEHIND_S = 5.0


class Admin:
    """Sends requests to each of the brokers."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.loop = play.simulation.loop("admin")
        self._clients = {i: SimClient(self.loop, play.world.net, "admin", play[i].host) for i in (1, 2, 3)}

    async def create(self, broker: int, name: str, request_id: str, **asked: Any) -> t.CreateTopicResponse:
        request = t.CreateTopicRequest(name, request_id=request_id, replication_factor=3, **asked)
        return (await self._clients[broker].ask(Api.CREATE_TOPIC, request, t.CreateTopicResponse))[0]

    async def delete(self, broker: int, name: str, topic_id: str = "") -> t.DeleteTopicResponse:
        request = t.DeleteTopicRequest(name, topic_id)
        return (await self._clients[broker].ask(Api.DELETE_TOPIC, request, t.DeleteTopicResponse))[0]

    async def alter(self, broker: int, name: str, **configs: Any) -> t.AlterTopicResponse:
        request = t.AlterTopicRequest(name, {key.replace("_", "."): value for key, value in configs.items()})
        return (await self._clients[broker].ask(Api.ALTER_TOPIC, request, t.AlterTopicResponse))[0]

    async def metadata(self, broker: int, name: str, at_least: MetadataVersion = NO_VERSION) -> t.TopicState:
        request = t.MetadataRequest([name], at_least=at_least)
        return (await self._clients[broker].ask(Api.METADATA, request, t.MetadataResponse))[0].topics[0]

    def run(self, steps: Any) -> Any:
        return self._play.simulation.complete(self.loop, steps, limit_s=PATIENCE_S)


@pytest.fixture
def admin(play: Play) -> Admin:
    return Admin(play)


def test_a_repeated_request_is_answered_with_the_topic_of_the_first(play: Play, admin: Admin) -> None:
    async def steps() -> None:
        answers = await asyncio.gather(*(admin.create(i, "t", "mine", partitions=2) for i in (1, 2, 3)))
        assert len({answer.topic.topic_id for answer in answers}) == 1
        for broker in (1, 2, 3):
            assert (await admin.create(broker, "t", "mine", partitions=2)).topic.topic_id == answers[0].topic.topic_id
            for other in ("", "another"):
                with pytest.raises(TopicAlreadyExistsError):
                    await admin.create(broker, "t", other, partitions=2)

    admin.run(steps())
    play.come_to_rest()


def test_the_next_controller_knows_the_request_that_created_a_topic(play: Play, admin: Admin) -> None:
    made = admin.run(admin.create(1, "t", "mine"))
    old = play.world.controller()
    assert old is not None
    old.kill()
    play.until(lambda: (now := play.world.controller()) is not None and now is not old)
    others = [i for i in (1, 2, 3) if i != old.id]

    async def steps() -> None:
        for broker in others:
            assert (await admin.create(broker, "t", "mine")).topic.topic_id == made.topic.topic_id
            with pytest.raises(TopicAlreadyExistsError):
                await admin.create(broker, "t", "another")

    admin.run(steps())
    play.come_to_rest()


def test_a_deletion_that_comes_again_leaves_the_next_topic_of_the_name_alone(play: Play, admin: Admin) -> None:
    async def steps() -> None:
        first = (await admin.create(1, "t", "1")).topic.topic_id
        assert (await admin.delete(2, "t", first)).topic_id == first
        second = (await admin.create(3, "t", "2")).topic.topic_id
        for broker in (1, 2, 3):
            with pytest.raises(UnknownTopicOrPartitionError, match="another topic has the name"):
                await admin.delete(broker, "t", first)
        assert (await admin.delete(1, "t")).topic_id == second

    admin.run(steps())
    play.come_to_rest()


def test_a_broker_behind_a_change_waits_for_it_before_it_answers(play: Play, admin: Admin) -> None:
    """Changes of one topic, each requested from another broker just after the answer to the previous one."""

    async def steps() -> None:
        for n in range(8):
            a, b, c = (1 + (n + i) % 3 for i in range(3))
            made = await admin.create(a, "t", f"{n}")
            assert (await admin.alter(b, "t", retention_ms=n)).topic.configs == {"retention.ms": n}
            changed = await admin.alter(c, "t", retention_ms=n + 1)
            told = await admin.metadata(a, "t", changed.metadata_version)
            assert told.configs == {"retention.ms": n + 1}
            gone = await admin.delete(b, "t", made.topic.topic_id)
            assert (await admin.metadata(c, "t", gone.metadata_version)).error_code == UnknownTopicOrPartitionError.code
            with pytest.raises(UnknownTopicOrPartitionError):
                await admin.delete(a, "t")

    admin.run(steps())
    play.come_to_rest()


def test_a_request_about_an_unknown_version_waits_for_a_moment_only(play: Play, admin: Admin) -> None:
    begun_s = admin.loop.time()
    assert admin.run(admin.metadata(1, "nowhere", (1_000_000, 0))).error_code == UnknownTopicOrPartitionError.code
    assert BEHIND_S <= admin.loop.time() - begun_s < BEHIND_S + 1
