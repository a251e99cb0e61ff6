"""Requests wait for the controller that takes the place of one that is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sparklog_broker.cluster import controller_client
from sparklog_broker.cluster.controller_client import ControllerClient
from sparklog_broker.cluster.images import ImageFollower

from sparklog.errors import (
    BrokerNotAvailableError,
    NotControllerError,
    SparklogError,
    TopicAlreadyExistsError,
)
from sparklog.protocol.messages import Api
from sparklog.protocol.topic_messages import DeleteTopicRequest, DeleteTopicResponse
from sparklog.replication.cluster_image import ClusterImage

MOVING: tuple[SparklogError, ...] = (NotControllerError("not here"), BrokerNotAvailableError("it broke"))
EXISTS = TopicAlreadyExistsError("it exists")


def told(*answers: SparklogError | str, taken: str | None = None) -> str:
    """What comes of such answers; `taken`: what an attempt before has made."""
    left = list(answers)

    async def ask() -> str:
        answer = left.pop(0)
        if isinstance(answer, SparklogError):
            raise answer
        return answer

    async def found() -> str | None:
        return taken

    client = ControllerClient.__new__(ControllerClient)
    result = asyncio.run(client.while_it_moves(ask, found))
    assert not left
    return result


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_client, "AGAIN_S", 0.0)


def test_it_is_asked_again_until_there_is_one() -> None:
    assert told(*MOVING, *MOVING, "made") == "made"


def test_an_attempt_that_failed_may_have_been_taken() -> None:
    assert told(MOVING[1], EXISTS, taken="made before") == "made before"
    with pytest.raises(TopicAlreadyExistsError):
        told(MOVING[1], EXISTS)
    with pytest.raises(TopicAlreadyExistsError):
        told(EXISTS, taken="somebody else's")


def test_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_client, "MOVES_S", 0.0)
    with pytest.raises(NotControllerError):
        told(MOVING[0], "too late")


class Hanging(ControllerClient):
    """The first controller never answers; the second one is elected after `looks` looks."""

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._address = "first:1"
        self.was_cancelled = False

    async def find(self) -> bool:
        self._looks -= 1
        if self._looks <= 0:
            self._address = "second:1"
        return False

    async def request(self, *_: object, **__: object) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


def test_images_come_from_the_next_controller_when_one_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_client, "LOOK_S", 0.0)

    async def apply(_: ClusterImage) -> None:
        raise AssertionError("there is none")

    async def follow() -> None:
        images = ImageFollower(None, Hanging(3), 1, ClusterImage(), apply)  # type: ignore[arg-type]
        with pytest.raises(BrokerNotAvailableError, match="first:1 has been replaced"):
            async with asyncio.timeout(20):
                await images._news()

    asyncio.run(follow())


def test_a_controller_that_hangs_is_given_up_when_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_client, "LOOK_S", 0.0)
    client = Hanging(3)

    async def ask() -> None:
        with pytest.raises(BrokerNotAvailableError, match="first:1 has been replaced"):
            await client.request_unless_replaced(
                "topics", Api.DELETE_TOPIC, DeleteTopicRequest("t"), DeleteTopicResponse, timeout_s=30
            )
        await asyncio.sleep(0)

    asyncio.run(ask())
    assert client.was_cancelled
