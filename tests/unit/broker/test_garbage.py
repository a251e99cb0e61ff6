"""Requests leave no garbage that somebody has to look for: a collection of everything stops the event loop."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from sparklog_broker.handlers.produce import _cut

from sparklog.errors import SparklogError
from sparklog.protocol import group_messages as groups
from sparklog.protocol import messages as m
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.topic_messages import CreateTopicRequest
from tests.unit.broker.security.access_world import ADMIN, BATCH, World

PARTITIONS = 2_000


def subclasses(cls: type[Message]) -> list[type[Message]]:
    return [s for c in cls.__subclasses__() for s in (c, *subclasses(c))]


def errors_there_are() -> int:
    """Other tests of this process may have left some."""
    return sum(isinstance(o, SparklogError) for o in gc.get_objects())


def test_the_garbage_collector_passes_over_messages() -> None:
    found = [c for c in subclasses(Message) if c.__module__.startswith("sparklog")]
    assert m.FetchPartition in found
    assert m.FetchResult in found
    assert [c for c in found if c.__struct_config__.gc] == []


@pytest.mark.parametrize(
    ("api", "request_", "payload"),
    [
        (Api.LIST_OFFSETS, m.ListOffsetsRequest([m.ListOffsetsPartition("no", i, -1) for i in range(PARTITIONS)]), b""),
        (
            Api.DELETE_RECORDS,
            m.DeleteRecordsRequest(0, [m.DeleteRecordsPartition("no", i, 0) for i in range(PARTITIONS)]),
            b"",
        ),
        (
            Api.FETCH,
            m.FetchRequest(0, 1, 1, 0, [m.FetchPartition("no", i, 0, 1) for i in range(PARTITIONS)]),
            b"",
        ),
        (
            Api.PRODUCE,
            m.ProduceRequest(1, 100, [m.ProducePartition("no", i, len(BATCH)) for i in range(PARTITIONS)]),
            BATCH * PARTITIONS,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Api) else "",
)
def test_errors_of_many_partitions_are_not_kept(api: Api, request_: Message, payload: bytes, tmp_path: Path) -> None:
    async def scenario() -> int:
        world = await World.begin(tmp_path)
        gc.collect()
        gc.disable()
        before = errors_there_are()
        try:
            answer = await world.ask(ADMIN, api, request_, payload)
            assert len(answer.message.results) == PARTITIONS
            assert all(r.error_code and r.message for r in answer.message.results)
            return errors_there_are() - before
        finally:
            gc.enable()
            await world.close()

    assert asyncio.run(scenario()) < 10


def test_pieces_of_a_payload_are_created_on_demand() -> None:
    payload = memoryview(bytearray(b"aabbbc"))
    request = [m.ProducePartition("t", i, length) for i, length in enumerate((2, 3, 0, 1))]
    gc.collect()
    before = sum(isinstance(o, memoryview) for o in gc.get_objects())
    pieces = _cut(request, payload)
    assert sum(isinstance(o, memoryview) for o in gc.get_objects()) == before
    assert [bytes(p) for p in pieces] == [b"aa", b"bbb", b"", b"c"]
    assert [bytes(pieces[i]) for i in (0, 1, 2, 3, -1)] == [b"aa", b"bbb", b"", b"c", b"c"]
    assert [bytes(p) for p in pieces[1:3]] == [b"bbb", b""]
    with pytest.raises(IndexError):
        pieces[4]
    assert len(pieces) == 4


def test_partitions_that_a_member_cannot_own_are_sorted_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[groups.GroupHeartbeatRequest] = []

    async def heartbeat(request: groups.GroupHeartbeatRequest, host: str, may: object) -> groups.GroupHeartbeatResponse:
        seen.append(request)
        return groups.GroupHeartbeatResponse("m", 1, 1)

    async def scenario() -> None:
        world = await World.begin(tmp_path)
        await world.do(ADMIN, Api.CREATE_TOPIC, CreateTopicRequest("there", 3))
        monkeypatch.setattr(world.broker.groups, "heartbeat", heartbeat)
        every = list(range(10_000))
        for owned in (
            [groups.TopicPartitions("there", every), groups.TopicPartitions("no", every)],
            [groups.TopicPartitions("there", [0, 1]), groups.TopicPartitions("no", [7, 8])],
        ):
            await world.do(ADMIN, Api.GROUP_HEARTBEAT, groups.GroupHeartbeatRequest("g", "m", 1, owned=owned))
        await world.close()

    asyncio.run(scenario())
    assert [[(t.topic, t.partitions) for t in r.owned or ()] for r in seen] == [
        [("there", [0, 1, 2, 3]), ("no", [0])],
        [("there", [0, 1]), ("no", [7, 8])],
    ]
