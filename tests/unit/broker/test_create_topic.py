"""The topic that a request asks for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from sparklog_broker.handlers.topics import create_topic

from sparklog.metadata.store import TopicSpec
from sparklog.protocol.topic_messages import CreateTopicRequest


class Asked(Exception):  # noqa: N818 - ends the handler, is no error
    def __init__(self, spec: TopicSpec) -> None:
        self.spec = spec


class Topics:
    async def create(self, spec: TopicSpec, *, validate_only: bool = False) -> Any:
        raise Asked(spec)


def spec_of(request: CreateTopicRequest, num_partitions: int) -> TopicSpec:
    config = SimpleNamespace(num_partitions=num_partitions, broker_id=1)
    broker = SimpleNamespace(cluster=object(), config=config, topics=Topics())
    context: Any = SimpleNamespace(broker=broker, principal=SimpleNamespace(name="ada"), request_id="1")
    with pytest.raises(Asked) as asked:
        asyncio.run(create_topic(request, memoryview(b""), context))
    return asked.value.spec


def test_an_assignment_counts_the_partitions_with_any_default() -> None:
    assigned = [[1, 2], [2, 1], [1, 2]]
    for default in (1, 3, 5):
        for named in (-1, 3):
            spec = spec_of(CreateTopicRequest("t", named, assignment=assigned), default)
            assert (spec.partitions, spec.assignment) == (3, assigned)
        assert spec_of(CreateTopicRequest("t"), default).partitions == default
        assert spec_of(CreateTopicRequest("t", 7), default).partitions == 7
