"""The gateway's memory of permissions: by session, for a limited time, in a table of limited size."""

from __future__ import annotations

import asyncio
from typing import Any

from sparklog.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from sparklog.gateway.backend.recent_checks import RecentChecks
from sparklog.gateway.backend.write_permissions import KEPT_S, WritePermissions
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse, TopicState


class Broker:
    """A broker that allows to write to the topics in `writable`."""

    def __init__(self, *writable: str) -> None:
        self.writable = set(writable)
        self.requests: list[list[str]] = []

    async def ask(self, api: Any, message: MetadataRequest, response: type) -> MetadataResponse:
        assert message.topics is not None and message.to_write and not message.with_schemas
        self.requests.append(message.topics)
        denied = TopicAuthorizationFailedError.code
        codes = {name: 0 if name in self.writable else denied for name in message.topics if name != "omitted"}
        return MetadataResponse("c", 0, [], [TopicState(code, name) for name, code in codes.items()])


def test_a_permission_is_remembered_by_session_and_for_a_limited_time() -> None:
    async def main() -> None:
        now_s = [100.0]
        checks, broker = RecentChecks(lambda: now_s[0]), Broker("mine")
        alice, mallory = WritePermissions(checks, object()), WritePermissions(checks, object())
        refused = await alice.refusals(broker, ["mine", "other", "mine", "omitted"])  # type: ignore[arg-type]
        assert {name: type(error) for name, error in refused.items()} == {
            "other": TopicAuthorizationFailedError,
            "omitted": UnknownTopicOrPartitionError,
        }
        assert not await alice.refusals(broker, ["mine"])  # type: ignore[arg-type]
        assert broker.requests == [["mine", "other", "omitted"]], "the permission is remembered"
        broker.writable.clear()
        assert await mallory.refusals(broker, ["mine"]), "another session has its own"  # type: ignore[arg-type]
        now_s[0] += KEPT_S
        assert await alice.refusals(broker, ["mine"])  # type: ignore[arg-type]

    asyncio.run(main())


def test_the_oldest_checks_are_forgotten_beyond_the_limit() -> None:
    checks = RecentChecks(lambda: 0.0, checks_max=2)
    for key in "abac":
        checks.record(key)
    assert [key for key in "abc" if checks.is_recent(key, 1.0)] == ["a", "c"]
    checks.forget("a")
    assert not checks.is_recent("a", 1.0)
