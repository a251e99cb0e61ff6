"""Long lists page by page, against a broker with a small limit of answers: the pages together are complete, and a
client that knows no pages gets the remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.config import make_config
from sparklog_broker.handlers import groups as group_handlers
from sparklog_broker.handlers import quotas as quota_handlers
from sparklog_broker.handlers import transactions as transaction_handlers
from sparklog_broker.handlers.metadata import metadata
from sparklog_broker.handlers.schemas import alter_schema
from sparklog_broker.request_context import RequestContext

from sparklog.errors import ResponseTooLargeError
from sparklog.metadata.store import TopicSpec
from sparklog.protocol import group_messages as g
from sparklog.protocol import quota_messages as q
from sparklog.protocol import transaction_messages as t
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import AlterSchemaRequest, AlterSchemaResponse, MetadataRequest, MetadataResponse
from sparklog.types import CONSUMER_OFFSETS_TOPIC
from tests.support.brokers import coordinating, started
from tests.unit.broker.answers import sent

LIMIT_BYTES = 64 * 1024
NOTHING = memoryview(b"")
Scenario = Callable[[Broker, RequestContext], Coroutine[Any, Any, None]]


def run(tmp_path: Path, scenario: Scenario) -> None:
    async def main() -> None:
        settings = {"data.dir": str(tmp_path / "data"), "response.max.bytes": LIMIT_BYTES}
        broker = await started(make_config(settings))
        try:
            await asyncio.wait_for(scenario(broker, RequestContext(broker, ("127.0.0.1", 1), "127.0.0.1")), 60)
        finally:
            broker.stop_waiting()
            assert await broker.close()

    asyncio.run(main())


def wide(columns: int, prefix: str = "column") -> pa.Schema:
    return pa.schema([(f"{prefix}_{i:04d}", pa.int64()) for i in range(columns)])


def test_metadata(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        names = [f"t{i}" for i in range(6)]
        for name in names:
            await broker.topics.create(TopicSpec(name, 3, schema=wide(250)))
        # the last one has so many schemas that they need several pages
        for i in range(4):
            added = wide(20, f"more_{i}").serialize().to_pybytes()
            response = await alter_schema(AlterSchemaRequest("t5", add_columns=added), NOTHING, context)
            altered = sent(Api.ALTER_SCHEMA, response, AlterSchemaResponse).topic
            assert altered.schemas[-1].schema_id == broker.partitions.topics["t5"].schema_id, (
                "the newest is always told"
            )

        found: dict[str, list[int]] = {}
        after, schemas_from, pages = "", -1, 0
        while True:
            request = MetadataRequest(None, paged=True, after=after, schemas_from=schemas_from)
            page = sent(Api.METADATA, await metadata(request, NOTHING, context), MetadataResponse)
            for topic in page.topics:
                assert len(topic.partitions) == (3 if topic.name not in found else 0)
                assert topic.partition_count == 3
                found.setdefault(topic.name, []).extend(s.schema_id for s in topic.schemas)
            pages += 1
            if not page.more:
                break
            after, schemas_from = page.topics[-1].name, page.schemas_from
        assert found == {name: sorted(broker.partitions.topics[name].schemas) for name in names}
        assert len(found["t5"]) == 5
        assert pages > 3

        with pytest.raises(ResponseTooLargeError, match="fewer topics"):
            await metadata(MetadataRequest(), NOTHING, context)
        request = MetadataRequest(with_schemas=False, with_partitions=False)
        counts = sent(Api.METADATA, await metadata(request, NOTHING, context), MetadataResponse).topics
        assert [(c.name, c.partition_count, c.partitions, c.schemas) for c in counts] == [(n, 3, [], []) for n in names]

        some = MetadataRequest(["t3", "t1", "none", "t3", "t2"], paged=True, after="t1")
        rest = sent(Api.METADATA, await metadata(some, NOTHING, context), MetadataResponse).topics
        assert [topic.name for topic in rest] == ["none", "t2"]

    run(tmp_path, scenario)


def test_groups_and_their_offsets(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await broker.topics.create(TopicSpec("t", 50))
        await coordinating(broker)
        ids = [f"{'g' * 200}{i:03d}" for i in range(500)]
        offsets = [g.CommittedOffset("t", 0, 7)]
        await asyncio.gather(
            *(group_handlers.offset_commit(g.OffsetCommitRequest(i, offsets), NOTHING, context) for i in ids)
        )
        found: list[str] = []
        while True:
            request = g.ListGroupsRequest(paged=True, after=found[-1] if found else "")
            page = sent(
                Api.LIST_GROUPS, await group_handlers.list_groups(request, NOTHING, context), g.ListGroupsResponse
            )
            found += [s.group_id for s in page.groups]
            if not page.more:
                break
        assert found == ids
        with pytest.raises(ResponseTooLargeError, match="newer client"):
            await group_handlers.list_groups(g.ListGroupsRequest(), NOTHING, context)

        notes = [g.CommittedOffset("t", p, p, metadata="n" * 4_000) for p in range(50)]
        await group_handlers.offset_commit(g.OffsetCommitRequest("g", notes), NOTHING, context)
        read: list[tuple[str, int]] = []
        while True:
            last = read[-1] if read else ("", -1)
            ask = g.OffsetFetchRequest("g", paged=True, after_topic=last[0], after_partition=last[1])
            answer = await group_handlers.offset_fetch(ask, NOTHING, context)
            part = sent(Api.OFFSET_FETCH, answer, g.OffsetFetchResponse)
            read += [(o.topic, o.partition) for o in part.offsets]
            if not part.more:
                break
        assert read == [("t", p) for p in range(50)]
        with pytest.raises(ResponseTooLargeError, match="fewer partitions"):
            await group_handlers.offset_fetch(g.OffsetFetchRequest("g"), NOTHING, context)

    run(tmp_path, scenario)


def test_the_members_of_a_large_group(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await coordinating(broker)
        for i in range(60):
            beat = g.GroupHeartbeatRequest("g", f"m{i:02d}", 0, topics=[f"{'x' * 240}{n}" for n in range(10)], owned=[])
            await group_handlers.group_heartbeat(beat, NOTHING, context)
        found: list[str] = []
        first, pages = 0, 0
        while first >= 0:
            request = g.DescribeGroupsRequest(["g", "g"], paged=True, members_from=first)
            answer = await group_handlers.describe_groups(request, NOTHING, context)
            page = sent(Api.DESCRIBE_GROUPS, answer, g.DescribeGroupsResponse)
            (group,) = page.groups
            found += [member.member_id for member in group.members]
            first, pages = page.members_from, pages + 1
            assert page.more == (first >= 0)
        assert found == [f"m{i:02d}" for i in range(60)]
        assert pages > 2
        with pytest.raises(ResponseTooLargeError, match="newer client"):
            await group_handlers.describe_groups(g.DescribeGroupsRequest(["g"]), NOTHING, context)

    run(tmp_path, scenario)


def test_quotas(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        users = [f"{'u' * 200}{i:03d}" for i in range(600)]
        alterations = [q.QuotaAlteration(user, None, {"max_connections": 5.0}) for user in users]
        await quota_handlers.alter_client_quotas(q.AlterClientQuotasRequest(alterations), NOTHING, context)
        found: list[str | None] = []
        after, pages = "", 0
        while True:
            answer = await quota_handlers.describe_client_quotas(q.DescribeClientQuotasRequest(after), NOTHING, context)
            page = sent(Api.DESCRIBE_CLIENT_QUOTAS, answer, q.DescribeClientQuotasResponse)
            found += [entry.user for entry in page.entries]
            pages += 1
            if not page.more:
                break
            after = q.page_key(page.entries[-1])
        assert len(found) == len(users)
        assert set(found) == set(users)
        assert pages > 2

    run(tmp_path, scenario)


def test_transactions(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        ids = [f"{'x' * 1000}{i:02d}" for i in range(100)]
        await coordinating(broker)
        await asyncio.gather(*(broker.transactions.init_producer_id(i, 60_000) for i in ids))
        found: list[str] = []
        while True:
            request = t.ListTransactionsRequest(paged=True, after=found[-1] if found else "")
            answer = await transaction_handlers.list_transactions(request, NOTHING, context)
            page = sent(Api.LIST_TRANSACTIONS, answer, t.ListTransactionsResponse)
            found += [s.transactional_id for s in page.transactions]
            if not page.more:
                break
        assert found == ids
        with pytest.raises(ResponseTooLargeError, match="newer client"):
            await transaction_handlers.list_transactions(t.ListTransactionsRequest(), NOTHING, context)
        wanted = t.DescribeTransactionsRequest([ids[0], ids[0], "none"])
        answer = await transaction_handlers.describe_transactions(wanted, NOTHING, context)
        described = sent(Api.DESCRIBE_TRANSACTIONS, answer, t.DescribeTransactionsResponse).transactions
        assert [(d.transactional_id, d.error_code != 0) for d in described] == [(ids[0], False), ("none", True)]

    run(tmp_path, scenario)


def test_offsets_of_partitions_that_do_not_exist_are_sorted_out(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        await broker.topics.create(TopicSpec("t", 50))
        await coordinating(broker)
        wanted = [g.CommittedOffset("t" if p % 2 else "none", p, p) for p in range(2_000)]
        response = await group_handlers.offset_commit(g.OffsetCommitRequest("g", wanted), NOTHING, context)
        results = sent(Api.OFFSET_COMMIT, response, g.OffsetCommitResponse).results
        assert [(r.topic, r.partition) for r in results] == [(o.topic, o.partition) for o in wanted]
        assert [r.partition for r in results if not r.error_code] == list(range(1, 50, 2))
        fetched = await group_handlers.offset_fetch(g.OffsetFetchRequest("g"), NOTHING, context)
        stored = sent(Api.OFFSET_FETCH, fetched, g.OffsetFetchResponse).offsets
        assert [(o.partition, o.offset) for o in stored] == [(p, p) for p in range(1, 50, 2)]
        assert CONSUMER_OFFSETS_TOPIC in broker.partitions.topics

    run(tmp_path, scenario)
