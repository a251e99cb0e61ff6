"""Requests wait for the controller that takes the place of one that is gone."""

from __future__ import annotations

import asyncio

import pytest
from sparklog_broker.cluster import controller_client
from sparklog_broker.cluster.controller_client import ControllerClient

from sparklog.errors import (
    BrokerNotAvailableError,
    NotControllerError,
    SparklogError,
    TopicAlreadyExistsError,
)

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
