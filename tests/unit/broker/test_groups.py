"""The group coordinator in a broker without sockets: durable before it answers, read again after a restart or a
failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.config import make_config
from sparklog_broker.coordinators.internal_topics import InternalTopic, Producer, ReplayedRecord
from sparklog_broker.coordinators.transactions import TransactionCoordinator
from sparklog_broker.handlers import groups as handlers
from sparklog_broker.request_context import RequestContext

from sparklog.errors import (
    CoordinatorLoadingError,
    InvalidRegularExpressionError,
    NonEmptyGroupError,
    SparklogError,
    StaleMemberEpochError,
    StorageError,
    StorageFullError,
    UnknownMemberIdError,
)
from sparklog.log.parts.log_appender import LogAppender
from sparklog.metadata.store import TopicSpec
from sparklog.protocol import group_messages as m
from sparklog.protocol.apis import Api
from sparklog.types import CONSUMER_OFFSETS_TOPIC
from tests.support.brokers import coordinating, started
from tests.support.compaction import compact
from tests.support.replicas import PartitionReplicas
from tests.unit.broker.answers import sent

Scenario = Callable[[Broker, RequestContext], Coroutine[Any, Any, None]]
NOTHING = memoryview(b"")
FAST = {
    "group.consumer.heartbeat.interval.ms": 50,
    "offsets.topic.num.partitions": 2,
    "offsets.retention.check.interval.ms": 20,
}


def run(tmp_path: Path, *scenarios: Scenario, **settings: Any) -> None:
    """Runs each scenario with a broker of its own, on the same data directory; the topic `t` has three partitions."""

    async def main(scenario: Scenario) -> None:
        given = {"data.dir": str(tmp_path / "data"), **FAST, **{k.replace("_", "."): v for k, v in settings.items()}}
        broker = await started(make_config(given))
        try:
            if "t" not in broker.partitions.topics:
                await broker.topics.create(TopicSpec("t", 3))
            await coordinating(broker)
            await asyncio.wait_for(scenario(broker, RequestContext(broker, ("127.0.0.1", 1), "10.0.0.1")), 60)
        finally:
            broker.stop_waiting()
            assert await broker.close()

    for scenario in scenarios:
        asyncio.run(main(scenario))


def context_of(broker: Broker) -> RequestContext:
    return RequestContext(broker, ("127.0.0.1", 1), "10.0.0.1")


async def ready(broker: Broker) -> None:
    while True:
        try:
            await listed(broker)
        except CoordinatorLoadingError:
            await asyncio.sleep(0)
        else:
            return


async def beat(context: RequestContext, member: str, epoch: int, **more: Any) -> m.GroupHeartbeatResponse:
    if epoch == 0:
        more = {"topics": ["t"], "owned": []} | more
    response = await handlers.group_heartbeat(m.GroupHeartbeatRequest("g", member, epoch, **more), NOTHING, context)
    assert isinstance(response.message, m.GroupHeartbeatResponse)
    return response.message


async def commit(context: RequestContext, member: str, epoch: int, *offsets: tuple[int, int]) -> list[int]:
    wanted = [m.CommittedOffset("t", p, o, metadata=f"note {p}") for p, o in offsets]
    response = await handlers.offset_commit(m.OffsetCommitRequest("g", wanted, member, epoch), NOTHING, context)
    assert isinstance(response.message, m.OffsetCommitResponse)
    return [r.error_code for r in response.message.results]


async def listed(broker: Broker) -> list[m.GroupSummary]:
    response = await handlers.list_groups(m.ListGroupsRequest(), NOTHING, context_of(broker))
    return sent(Api.LIST_GROUPS, response, m.ListGroupsResponse).groups


async def described(broker: Broker) -> m.GroupDetails:
    response = await handlers.describe_groups(m.DescribeGroupsRequest(["g"]), NOTHING, context_of(broker))
    (details,) = sent(Api.DESCRIBE_GROUPS, response, m.DescribeGroupsResponse).groups
    return details


async def fetched(broker: Broker) -> dict[int, tuple[int, str]]:
    response = await handlers.offset_fetch(m.OffsetFetchRequest("g"), NOTHING, context_of(broker))
    offsets = sent(Api.OFFSET_FETCH, response, m.OffsetFetchResponse).offsets
    return {o.partition: (o.offset, o.metadata) for o in offsets}


def partitions(assigned: list[m.TopicPartitions] | None) -> list[int]:
    return [p for t in assigned or [] for p in t.partitions]


def test_members_and_offsets_survive_a_restart(tmp_path: Path) -> None:
    async def first(broker: Broker, context: RequestContext) -> None:
        answer = await beat(context, "a", 0, client_id="tool")
        assert (partitions(answer.assigned), answer.member_epoch) == ([0, 1, 2], 1)
        assert await commit(context, "a", 1, (0, 5), (2, 7)) == [0, 0]

    async def second(broker: Broker, context: RequestContext) -> None:
        details = await described(broker)
        (member,) = details.members
        assert (details.state, details.group_epoch, member.member_epoch) == ("Stable", 1, 1)
        assert (member.client_id, member.client_host, partitions(member.owned)) == ("tool", "10.0.0.1", [0, 1, 2])
        assert await fetched(broker) == {0: (5, "note 0"), 2: (7, "note 2")}
        assert (await beat(context, "a", 1)).assigned is None, "it is still a member"
        await beat(context, "a", -1)
        assert await broker.groups.delete("g") == 2

    async def third(broker: Broker, context: RequestContext) -> None:
        assert await listed(broker) == []

    run(tmp_path, first, second, third)


def test_a_silent_member_is_put_out_and_its_partitions_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        now_ms = 1_000
        monkeypatch.setattr(broker.groups, "now_ms", lambda: now_ms)
        await beat(context, "a", 0, session_timeout_ms=80)
        answer = await beat(context, "b", 0)
        assert partitions(answer.assigned) == [], "the first one has not let go"
        now_ms += 100
        while len(partitions(answer.assigned)) < 3:
            await asyncio.sleep(0.01)
            answer = await beat(context, "b", answer.member_epoch, owned=answer.assigned)
        with pytest.raises(UnknownMemberIdError):
            await beat(context, "a", 1)
        with pytest.raises(UnknownMemberIdError):
            await commit(context, "a", 1, (0, 1))
        with pytest.raises(StaleMemberEpochError):
            await commit(context, "b", answer.member_epoch - 1, (0, 1))
        assert await commit(context, "b", answer.member_epoch, (0, 1)) == [0]

    run(tmp_path, scenario)


def test_an_answer_waits_for_the_high_watermark(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await broker.groups.topic.ensure()
        number = broker.groups.partition_of("g").number
        partition = broker.partitions.get(CONSUMER_OFFSETS_TOPIC, number)
        partition.replicas = PartitionReplicas(leader=0, replicas=(0, 1), isr=(0, 1))
        waiting = asyncio.ensure_future(commit(context, "", -1, (0, 5)))
        asked = asyncio.ensure_future(fetched(broker))
        while broker.partitions.produces.waiting_count == 0:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert not asked.done(), "it would tell what a restart could take back"
        partition.on_follower_fetch(1, partition.log.log_end_offset)
        assert await waiting == [0]
        assert await asked == {0: (5, "note 0")}

    run(tmp_path, scenario)


@pytest.mark.parametrize("failure", [StorageFullError, StorageError, ValueError])
def test_a_failed_append_takes_the_change_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        assert await commit(context, "", -1, (0, 5)) == [0]
        append = LogAppender.append_internal

        def full(*_: object, **__: Any) -> None:
            raise failure("it does not work")

        monkeypatch.setattr(LogAppender, "append_internal", full)
        first = asyncio.ensure_future(commit(context, "", -1, (0, 6)))
        second = asyncio.ensure_future(commit(context, "", -1, (1, 6)))
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert all(isinstance(o, SparklogError) and o.retriable for o in outcomes), outcomes
        monkeypatch.setattr(LogAppender, "append_internal", append)
        await ready(broker)
        assert await fetched(broker) == {0: (5, "note 0")}
        assert await commit(context, "", -1, (0, 7)) == [0]

    run(tmp_path, scenario)


def test_a_cancelled_request_leaves_its_change(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        gone = asyncio.ensure_future(commit(context, "", -1, (0, 5)))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert await fetched(broker) == {0: (5, "note 0")}

    async def after(broker: Broker, context: RequestContext) -> None:
        assert await fetched(broker) == {0: (5, "note 0")}

    run(tmp_path, scenario, after)


def test_compaction_keeps_the_records_that_a_restart_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a committed offset below one whose transaction was aborted, and one whose transaction is open."""

    async def leave(_: TransactionCoordinator) -> None:
        """No coordinator knows this test's transactions: it would abort them at the start."""

    monkeypatch.setattr(TransactionCoordinator, "_end_unknown", leave)

    async def first(broker: Broker, context: RequestContext) -> None:
        for offset in range(30):
            await commit(context, "", -1, (0, offset), (1, offset), (2, offset))
        groups = broker.groups
        number = groups.partition_of("g").number
        log = broker.partitions.get(CONSUMER_OFFSETS_TOPIC, number).log
        for producer_id, offset_of in ((7, 0), (8, 1), (9, 2)):
            if producer_id == 9:
                await beat(context, "a", 0)
                await beat(context, "a", -1)
                log.appender.begin_segment()  # what is open is not compacted
            request = m.TxnOffsetCommitRequest("x", producer_id, 0, "g", [m.CommittedOffset("t", offset_of, 99)])
            await groups.commit(request, Producer(producer_id, 0))
            if producer_id != 9:
                log.appender.append_marker(producer_id, 1, 0, commit=producer_id == 8, leader_epoch=0)
                groups.on_offsets_marker(number, producer_id, producer_id == 8)
                log.raise_high_watermark(log.log_end_offset)
        await beat(context, "b", 0)
        assert {p: o for p, (o, _) in (await fetched(broker)).items()} == {0: 29, 1: 99, 2: 29}
        before = log.size_bytes
        compact(log)
        assert log.size_bytes < before / 2

    async def second(broker: Broker, context: RequestContext) -> None:
        assert {p: o for p, (o, _) in (await fetched(broker)).items()} == {0: 29, 1: 99, 2: 29}
        (member,) = (await described(broker)).members
        assert (member.member_id, member.member_epoch, partitions(member.owned)) == ("b", 3, [0, 1, 2])
        broker.groups.on_offsets_marker(broker.groups.partition_of("g").number, 9, True)
        assert (await fetched(broker))[2] == (99, ""), "what was pending still is"

    run(tmp_path, first, second)


def test_topics_that_come_and_go(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await beat(context, "a", 0, topics=["t", "later"])
        await commit(context, "a", 1, (0, 5))
        await broker.topics.create(TopicSpec("later", 1))
        await asyncio.sleep(0)
        answer = await beat(context, "a", 1)
        assert [t.topic for t in answer.assigned or []] == ["later", "t"]
        await broker.topics.delete("t")
        await asyncio.sleep(0)
        answer = await beat(context, "a", answer.member_epoch, owned=[])
        assert [t.topic for t in answer.assigned or []] == ["later"]
        assert await fetched(broker) == {}, "a topic of the same name made later is another one"

    run(tmp_path, scenario)


def test_a_topic_created_while_the_state_is_read_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = InternalTopic.replay

    async def first(broker: Broker, context: RequestContext) -> None:
        await beat(context, "a", 0, topics=["t", "later"])
        reading, gate = asyncio.Event(), asyncio.Event()

        async def slow(topic: InternalTopic, partition: int) -> AsyncIterator[list[ReplayedRecord]]:
            reading.set()
            await gate.wait()
            async for piece in replay(topic, partition):
                yield piece

        monkeypatch.setattr(InternalTopic, "replay", slow)
        partition = broker.groups.partition_of("g")
        partition.coordinator = None
        loading = partition.load()
        await reading.wait()
        await broker.topics.create(TopicSpec("later", 1))
        gate.set()
        await loading
        answer = await beat(context, "a", 1)
        assert [t.topic for t in answer.assigned or []] == ["later", "t"]

    run(tmp_path, first)


def test_old_offsets_of_an_empty_group_are_forgotten(tmp_path: Path) -> None:
    async def keeps(broker: Broker, context: RequestContext) -> None:
        await commit(context, "", -1, (0, 5))
        for _ in range(5):
            await asyncio.sleep(0.02)
        assert await fetched(broker) == {0: (5, "note 0")}

    async def forgets(broker: Broker, context: RequestContext) -> None:
        while await fetched(broker):
            await asyncio.sleep(0.01)
        assert await listed(broker) == []

    run(tmp_path, keeps)
    run(tmp_path, forgets, offsets_retention_minutes=0)


def test_a_group_with_members_is_not_changed_from_outside(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await beat(context, "", 0)
        with pytest.raises(NonEmptyGroupError):
            await commit(context, "", -1, (0, 5))
        with pytest.raises(NonEmptyGroupError):
            await broker.groups.delete("g")

    run(tmp_path, scenario)


def test_a_regular_expression_finds_new_topics_and_hides_those_that_the_member_may_not_describe(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        may = msgspec.structs.replace(context, may=lambda operation, kind, name: name != "secret")
        joined = await beat(may, "m", 0, topics=None, topic_regex="t|new.*|secret")
        assert [t.topic for t in joined.assigned or ()] == ["t"]
        for name in ("new1", "secret"):
            await broker.topics.create(TopicSpec(name, 1))
        while (answer := await beat(may, "m", joined.member_epoch)).assigned is None:
            await asyncio.sleep(0)
        assert [t.topic for t in answer.assigned or ()] == ["new1", "t"]
        assert answer.topic_ids == [broker.partitions.topics[n].topic_id for n in ("new1", "t")]
        with pytest.raises(InvalidRegularExpressionError):
            await beat(may, "m", answer.member_epoch, topic_regex="(")

    run(tmp_path, scenario)
