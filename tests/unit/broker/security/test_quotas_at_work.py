"""Quotas in the pipeline: the muted clients, the time, and the clients that are not muted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from sparklog.errors import InvalidConfigError
from sparklog.protocol import group_messages as groups
from sparklog.protocol import messages as m
from sparklog.protocol import quota_messages as q
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.apis import Api
from sparklog.protocol.base import NO_VERSION, Message
from sparklog.protocol.cluster_messages import ReplicaFetchRequest
from sparklog.protocol.frames import RequestPrefix
from sparklog.protocol.topic_messages import DeleteTopicRequest
from sparklog.security.acl_records import acl_record
from sparklog.security.acls import CLUSTER, Acl, Operation, PatternType, Permission, ResourceType
from sparklog.security.quota_records import quota_record, quotas_of
from sparklog.security.quotas import Entity, QuotaKey
from sparklog.security.records import RecordKind
from tests.unit.broker.security.access_world import ADMIN, ALICE, BATCH, MALLORY, Connected, World, text_of

CLUSTER_ACTION, DENY = Operation.CLUSTER_ACTION, Permission.DENY
PRODUCE = m.ProduceRequest(1, 1_000, [m.ProducePartition("public", 0, len(BATCH))])
FETCH = m.FetchRequest(0, 1, 1 << 20, 0, [m.FetchPartition("public", 0, 0, 1 << 20)])


async def furnished(directory: Path) -> World:
    world = await World.begin(directory, **{"allow.everyone.if.no.acl.found": True})
    await world.furnish()
    return world


async def limit(world: World, user: str | None, client_id: str | None = None, **limits: float | None) -> Any:
    request = q.AlterClientQuotasRequest([q.QuotaAlteration(user, client_id, dict(limits))])
    return await world.do(ADMIN, Api.ALTER_CLIENT_QUOTAS, request)


def test_only_the_client_above_its_quota_has_to_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await furnished(tmp_path)
        assert (await world.do(ALICE, Api.PRODUCE, PRODUCE, BATCH)).throttle_ms == 0
        assert not world.broker.throttling.is_needed
        await limit(world, "alice", producer_byte_rate=1.0)
        first = await world.do(ALICE, Api.PRODUCE, PRODUCE, BATCH)
        assert first.results[0].error_code == 0, "it is done all the same"
        owed_s = len(BATCH) - 10  # ten windows of one second are free
        assert owed_s * 1_000 - 2_000 < first.throttle_ms <= owed_s * 1_000
        assert world.muted_ms == [first.throttle_ms]
        assert (await world.do(MALLORY, Api.PRODUCE, PRODUCE, BATCH)).throttle_ms == 0
        assert (await world.do(ALICE, Api.FETCH, FETCH)).throttle_ms == 0, "another quota"
        assert world.muted_ms == [first.throttle_ms]
        shown = await world.do(ADMIN, Api.DESCRIBE_CLIENT_QUOTAS, q.DescribeClientQuotasRequest())
        assert shown.entries == [q.QuotaEntry("alice", None, {"producer_byte_rate": 1.0})]
        assert [(t.quota, t.user, t.client_id) for t in shown.throttled] == [("producer_byte_rate", "alice", None)]
        assert world.broker.throttling.throttled[QuotaKey.PRODUCER_BYTE_RATE] == (1, first.throttle_ms)
        await limit(world, "alice", producer_byte_rate=None)
        assert (await world.do(ALICE, Api.PRODUCE, PRODUCE, BATCH)).throttle_ms == 0
        assert not world.broker.throttling.is_needed
        await world.close()

    asyncio.run(scenario())


def test_a_fetch_in_debt_gets_no_records_and_has_no_cost(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await furnished(tmp_path)
        await limit(world, None, "tests", consumer_byte_rate=1.0)
        first = await world.do(ALICE, Api.FETCH, FETCH)
        assert first.results[0].length_bytes > 0, "a batch is served whole"
        assert first.throttle_ms > 0
        again = await world.do(MALLORY, Api.FETCH, FETCH)
        assert (again.results[0].error_code, again.results[0].length_bytes) == (0, 0)
        assert again.results[0].high_watermark == 3
        assert 0 < again.throttle_ms <= first.throttle_ms
        await world.close()

    asyncio.run(scenario())


def test_time_is_counted_and_its_waits_are_one_window_at_most(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await furnished(tmp_path)
        await limit(world, "alice", request_percentage=0.000_001)
        for _ in range(5):
            await world.do(ALICE, Api.LIST_OFFSETS, m.ListOffsetsRequest([m.ListOffsetsPartition("public", 0, -1)]))
        assert world.muted_ms
        assert max(world.muted_ms) <= 1_000
        muted = len(world.muted_ms)
        for _ in range(5):
            await world.do(MALLORY, Api.LIST_OFFSETS, m.ListOffsetsRequest([m.ListOffsetsPartition("public", 0, -1)]))
        assert len(world.muted_ms) == muted, "nobody else waits for it"
        await world.close()

    asyncio.run(scenario())


LOOK = m.ListOffsetsRequest([m.ListOffsetsPartition("public", 0, -1)])
ASKED: list[tuple[Api, Message]] = [
    (Api.LIST_OFFSETS, LOOK),  # encoded when it is sent
    (Api.METADATA, topics.MetadataRequest(["public"])),  # encoded piece by piece before the quota is looked at
    (Api.LIST_TRANSACTIONS, txn.ListTransactionsRequest()),
    (Api.ALTER_TOPIC, topics.AlterTopicRequest("public", {"retention.ms": -1})),
    (Api.OFFSET_COMMIT, groups.OffsetCommitRequest("crew-2", [groups.CommittedOffset("public", 0, 1)])),
]


def unversioned(answer: Any) -> Any:
    """Without the version of the image, which a change raises."""
    return structs.replace(answer, metadata_version=NO_VERSION) if hasattr(answer, "metadata_version") else answer


@pytest.mark.parametrize(("api", "request_"), ASKED)
def test_every_answer_says_how_long_its_connection_is_muted(tmp_path: Path, api: Api, request_: Message) -> None:
    """The rest of the answer is the same."""

    async def scenario() -> None:
        world = await furnished(tmp_path)
        before = unversioned(await world.do(ALICE, api, request_))
        assert before.throttle_ms == 0
        await limit(world, "alice", request_percentage=0.000_001)
        answer = await world.do(ALICE, api, request_)
        assert world.muted_ms == [answer.throttle_ms]
        assert answer.throttle_ms > 0
        assert unversioned(structs.replace(answer, throttle_ms=0)) == before
        await world.close()

    asyncio.run(scenario())


def test_brokers_among_themselves_have_no_quota(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await furnished(tmp_path)
        await limit(world, "", request_percentage=0.000_001, producer_byte_rate=1.0)
        world.muted_ms.clear()
        ask = ReplicaFetchRequest(1, 1, 0, 1, 0, 0, [])
        await world.ask(ADMIN, Api.REPLICA_FETCH, ask)
        assert world.muted_ms == []
        await world.ask(ADMIN, Api.LIST_OFFSETS, LOOK)
        assert len(world.muted_ms) == 1, "clients ask that, too"
        world.broker.throttling.protected_listener = "CLIENTS"
        await world.ask(ADMIN, Api.LIST_OFFSETS, LOOK)
        await world.ask(ADMIN, Api.PRODUCE, PRODUCE, BATCH)
        assert len(world.muted_ms) == 1, "not on the brokers' own listener"
        denial = Acl(ResourceType.CLUSTER, PatternType.LITERAL, CLUSTER.name, ALICE, "*", CLUSTER_ACTION, DENY)
        await world.broker.security_records.change(dict([acl_record(denial)]))
        await world.ask(ALICE, Api.LIST_OFFSETS, LOOK)
        await world.ask(ALICE, Api.REPLICA_FETCH, ask)
        assert len(world.muted_ms) == 3, "who is no broker has one there, too, and whatever it asks"
        await world.close()

    asyncio.run(scenario())


def test_failing_and_malformed_requests_cost_their_sender(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await furnished(tmp_path)
        await limit(world, "alice", request_percentage=0.000_001)
        failed = await world.ask(ALICE, Api.DELETE_TOPIC, DeleteTopicRequest("gone"))
        assert text_of(failed)
        assert world.muted_ms == [failed.message.throttle_ms]
        assert failed.message.throttle_ms > 0
        prefix = RequestPrefix(Api.LIST_OFFSETS, 0, 7, 1, 1)
        for who, muted in ((ALICE, 2), (MALLORY, 2)):
            peer: Any = Connected(who, "10.0.0.1", lambda ms: world.muted_ms.append(ms) if ms else None)
            reply = await world.pipeline.answer(prefix, memoryview(bytearray(b"\xc1")), peer)
            assert reply is not None
            assert reply.close
            assert len(world.muted_ms) == muted
        await world.close()

    asyncio.run(scenario())


def test_bytes_of_a_write_that_fails_count(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await furnished(tmp_path)
        await limit(world, "alice", producer_byte_rate=1.0)
        wrong = m.ProduceRequest(1, 1_000, [m.ProducePartition("public", 0, len(BATCH) + 1)])
        assert text_of(await world.ask(ALICE, Api.PRODUCE, wrong, BATCH))
        assert world.muted_ms
        assert world.muted_ms[0] > 1_000
        await world.close()

    asyncio.run(scenario())


def test_quotas_survive_a_restart_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    async def first() -> None:
        world = await furnished(tmp_path)
        now = await limit(world, "", producer_byte_rate=5.0, consumer_byte_rate=7.0)
        assert now.entries == [q.QuotaEntry("", None, {"consumer_byte_rate": 7.0, "producer_byte_rate": 5.0})]
        for changes, hint in (({"bytes": 1.0}, "is not a quota"), ({"producer_byte_rate": -1.0}, "above 0")):
            request = q.AlterClientQuotasRequest([q.QuotaAlteration("alice", None, dict(changes))])
            assert hint in text_of(await world.ask(ADMIN, Api.ALTER_CLIENT_QUOTAS, request))
        nobody = q.AlterClientQuotasRequest([q.QuotaAlteration(None, None, {"producer_byte_rate": 1.0})])
        assert "is for a user" in text_of(await world.ask(ADMIN, Api.ALTER_CLIENT_QUOTAS, nobody))
        await world.close()

    async def second() -> None:
        world = await World.begin(tmp_path)
        assert list(world.broker.throttling.entries.values()) == [
            (Entity(""), {QuotaKey.PRODUCER_BYTE_RATE: 5.0, QuotaKey.CONSUMER_BYTE_RATE: 7.0})
        ]
        await world.close()

    asyncio.run(first())
    asyncio.run(second())


def test_records() -> None:
    entity, quotas = Entity("alice", ""), {QuotaKey.PRODUCER_BYTE_RATE: 5.0}
    name, value = quota_record(entity, quotas)
    assert name.kind == RecordKind.QUOTAS
    assert value is not None
    assert quotas_of(value) == (entity, quotas)
    assert quota_record(entity, {}) == (name, None)
    assert quota_record(Entity("alice"), quotas)[0] != name
    for spoiled in (b"", b"[]", b"{}", b'{"user":"a","quotas":{"producer_byte_rate":-1}}', b'{"quotas":{}}'[:-1]):
        with pytest.raises(InvalidConfigError):
            quotas_of(spoiled)
