"""Requests wait for the controller that takes the place of one that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from sparklog_broker.cluster.controller_client import AGAIN_S, MOVES_S, ControllerClient
from sparklog_broker.cluster.images import ImageFollower

from sparklog.errors import (
    BrokerNotAvailableError,
    NotControllerError,
    SparklogError,
    TopicAlreadyExistsError,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import DeleteTopicRequest, DeleteTopicResponse
from sparklog.replication.cluster_image import ClusterImage
from sparklog.testing._sim_loop import Simulation

T = TypeVar("T")

MOVING: tuple[SparklogError, ...] = (NotControllerError("not here"), BrokerNotAvailableError("it broke"))
EXISTS = TopicAlreadyExistsError("it exists")


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    with Simulation(0) as simulation:
        result: T = simulation.complete(simulation.loop("broker"), work, limit_s=60)
    return result


def told(*answers: SparklogError | str) -> str:
    """Return the outcome of such answers."""
    left = list(answers)

    async def ask() -> str:
        answer = left.pop(0)
        if isinstance(answer, SparklogError):
            raise answer
        return answer

    client = ControllerClient.__new__(ControllerClient)
    result = in_virtual_time(client.while_it_moves(ask))
    assert not left
    return result


def test_it_is_repeated_until_a_controller_exists() -> None:
    assert told(*MOVING, *MOVING, "made") == "made"


def test_a_refusal_ends_the_attempts() -> None:
    with pytest.raises(TopicAlreadyExistsError):
        told(MOVING[1], EXISTS)


def test_it_ends() -> None:
    attempts = 0

    async def ask() -> None:
        nonlocal attempts
        attempts += 1
        raise MOVING[0]

    async def scenario() -> None:
        with pytest.raises(NotControllerError):
            await ControllerClient.__new__(ControllerClient).while_it_moves(ask)
        assert MOVES_S <= asyncio.get_running_loop().time() < MOVES_S + 2 * AGAIN_S

    in_virtual_time(scenario())
    assert attempts > 100


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


def test_images_come_from_the_next_controller_when_one_hangs() -> None:
    async def apply(_: ClusterImage) -> None:
        raise AssertionError("there is none")

    async def follow() -> None:
        images = ImageFollower(None, Hanging(3), 1, ClusterImage(), apply)  # type: ignore[arg-type]
        with pytest.raises(BrokerNotAvailableError, match="first:1 was replaced"):
            await images._news()

    in_virtual_time(follow())


@pytest.mark.parametrize(
    ("failures", "logged"),
    [
        ("011100", [1, 0]),
        ("0", []),
        ("010101", [1]),
        ("0011", [0, 1]),
    ],
)
def test_a_failed_attempt_is_logged_if_the_next_one_fails(
    failures: str, logged: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    class Membership:
        may_take_images = True

        async def until_published(self, timeout_s: float) -> None:
            pass

    class Failing(ImageFollower):
        errors = iter([MOVING[int(which)] for which in failures])

        async def _news(self) -> Any:
            raise next(self.errors, None) or asyncio.CancelledError

    async def apply(image: ClusterImage) -> None:
        raise AssertionError("there is none")

    with caplog.at_level("INFO"), pytest.raises(asyncio.CancelledError):
        asyncio.run(Failing(Membership(), None, 1, ClusterImage(), apply).run())  # type: ignore[arg-type]
    assert [record.args for record in caplog.records] == [(str(MOVING[which]),) for which in logged]


def test_a_controller_that_hangs_is_abandoned_when_it_is_replaced() -> None:
    client = Hanging(3)

    async def ask() -> None:
        with pytest.raises(BrokerNotAvailableError, match="first:1 was replaced"):
            await client.request_unless_replaced(
                "topics", Api.DELETE_TOPIC, DeleteTopicRequest("t"), DeleteTopicResponse, timeout_s=30
            )
        await asyncio.sleep(0)

    in_virtual_time(ask())
    assert client.was_cancelled
