"""Permissions in the pipeline, item by item, and the visible part of answers; ACLs through their APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sparklog_broker.config import make_config

from sparklog.errors import InvalidConfigError, InvalidRequestError
from sparklog.protocol import acl_messages as acls
from sparklog.protocol import group_messages as groups
from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.apis import Api
from sparklog.security.acls import Operation, PatternType, Resource, ResourceType
from sparklog.security.principals import ANONYMOUS
from sparklog.security.records import RecordKind
from tests.support.cases import for_each
from tests.unit.broker.security.access_world import (
    ADMIN,
    ALICE,
    BATCH,
    MALLORY,
    World,
    item_codes,
    record,
    text_of,
)

Op, TOPIC, GROUP = Operation, ResourceType.TOPIC, ResourceType.GROUP
Scenario = Callable[[World], Coroutine[Any, Any, None]]


def run(directory: Path, scenario: Scenario, **settings: object) -> None:
    async def main() -> None:
        world = await World.begin(directory, **settings)
        try:
            await world.furnish()
            await asyncio.wait_for(scenario(world), 30)
        finally:
            await world.close()

    asyncio.run(main())


def topic(name: str) -> Resource:
    return Resource(TOPIC, name)


def test_the_allowed_items_of_a_request_are_done_and_each_result_has_its_place(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.grant(ALICE, [(Op.WRITE, topic("public")), (Op.READ, topic("public"))])
        wanted = [("secret", 0), ("public", 0), ("secret", 1), ("public", 1)]
        request = m.ProduceRequest(1, 1_000, [m.ProducePartition(t, p, len(BATCH)) for t, p in wanted])
        answer = await world.ask(ALICE, Api.PRODUCE, request, BATCH * 4)
        assert [(r.topic, r.partition, r.error_code, r.base_offset) for r in answer.message.results] == [
            ("secret", 0, 103, -1),
            ("public", 0, 0, 3),
            ("secret", 1, 103, -1),
            ("public", 1, 0, 0),
        ]
        ends = m.ListOffsetsRequest([m.ListOffsetsPartition(t, p, -1) for t, p in wanted])
        assert [r.offset for r in (await world.do(ADMIN, Api.LIST_OFFSETS, ends)).results] == [3, 6, 0, 3]
        answer = await world.ask(ALICE, Api.LIST_OFFSETS, ends)
        assert [(r.topic, r.error_code, r.offset) for r in answer.message.results] == [
            ("secret", 103, -1),
            ("public", 0, 6),
            ("secret", 103, -1),
            ("public", 0, 3),
        ]
        fetch = m.FetchRequest(5_000, 1 << 20, 1 << 20, 0, [m.FetchPartition(t, p, 0, 1 << 20) for t, p in wanted])
        results = (await world.ask(ALICE, Api.FETCH, fetch)).message.results
        assert [(r.topic, r.error_code, r.length_bytes > 0) for r in results] == [
            ("secret", 103, False),
            ("public", 0, True),
            ("secret", 103, False),
            ("public", 0, True),
        ]

    run(tmp_path, scenario)


def test_a_produce_with_wrong_lengths_is_refused_with_and_without_denials(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.grant(ALICE, [(Op.WRITE, topic("public"))])
        request = m.ProduceRequest(
            1, 1_000, [m.ProducePartition("secret", 0, 5), m.ProducePartition("public", 0, len(BATCH))]
        )
        answer = await world.ask(ALICE, Api.PRODUCE, request, BATCH)
        assert "do not add up" in text_of(answer)

    run(tmp_path, scenario)


def test_a_denied_produce_without_acks_ends_the_connection(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        request = m.ProduceRequest(0, 1_000, [m.ProducePartition("secret", 0, len(BATCH))])
        answer = await world.ask(MALLORY, Api.PRODUCE, request, BATCH)
        assert answer.message is None
        ends = m.ListOffsetsRequest([m.ListOffsetsPartition("secret", 0, -1)])
        assert (await world.do(ADMIN, Api.LIST_OFFSETS, ends)).results[0].offset == 3

    run(tmp_path, scenario)


def test_lists_show_describable_resources_only(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.grant(
            ALICE,
            [
                (Op.READ, topic("public")),
                (Op.DESCRIBE, Resource(GROUP, "idle")),
                (Op.DESCRIBE, Resource(GROUP, "crew")),
                (Op.DESCRIBE, Resource(ResourceType.TRANSACTIONAL_ID, "appl")),
            ],
        )
        found = await world.do(ALICE, Api.METADATA, topics.MetadataRequest())
        assert [t.name for t in found.topics] == ["public"]
        found = await world.do(ALICE, Api.OFFSET_FETCH, groups.OffsetFetchRequest("idle"))
        assert found.offsets == []
        found = await world.do(ADMIN, Api.OFFSET_FETCH, groups.OffsetFetchRequest("idle"))
        assert [o.topic for o in found.offsets] == ["secret"]
        named = groups.OffsetFetchRequest("idle", [groups.TopicPartitions(t, [0]) for t in ("secret", "public")])
        answer = await world.ask(ALICE, Api.OFFSET_FETCH, named)
        assert [(o.topic, o.error_code, o.offset) for o in answer.message.offsets] == [
            ("secret", 103, -1),
            ("public", 0, -1),
        ]
        found = await world.do(ALICE, Api.LIST_GROUPS, groups.ListGroupsRequest())
        assert {g.group_id for g in found.groups} == {"crew", "idle"}
        found = await world.do(ALICE, Api.DESCRIBE_GROUPS, groups.DescribeGroupsRequest(["crew"]))
        member = found.groups[0].members[0]
        assert (member.member_id, member.topics, member.target) == ("m1", [], [])
        answer = await world.ask(ALICE, Api.DESCRIBE_GROUPS, groups.DescribeGroupsRequest(["none", "crew", "other"]))
        assert [(g.group_id, g.error_code) for g in answer.message.groups] == [
            ("none", 104),
            ("crew", 0),
            ("other", 104),
        ]
        found = await world.do(ALICE, Api.LIST_TRANSACTIONS, txn.ListTransactionsRequest())
        assert [t.transactional_id for t in found.transactions] == ["__shared:appl"]
        both = txn.DescribeTransactionsRequest(["till", "__shared:appl"])
        answer = await world.ask(ALICE, Api.DESCRIBE_TRANSACTIONS, both)
        assert [(t.transactional_id, t.error_code) for t in answer.message.transactions] == [
            ("till", 105),
            ("__shared:appl", 0),
        ]
        assert (await world.do(MALLORY, Api.LIST_GROUPS, groups.ListGroupsRequest())).groups == []

    run(tmp_path, scenario)


def test_a_page_does_not_begin_with_a_topic_that_cannot_be_described(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        request = topics.MetadataRequest([], True, "secret", 0)
        assert [t.name for t in (await world.do(ADMIN, Api.METADATA, request)).topics] == ["secret"]
        assert (await world.do(MALLORY, Api.METADATA, request)).topics == []
        everything = msgspec.structs.replace(request, topics=None)
        assert (await world.do(MALLORY, Api.METADATA, everything)).topics == []

    run(tmp_path, scenario)


def test_the_first_write_creates_a_topic_if_its_principal_may(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.grant(
            ALICE, [(Op.WRITE, topic("new-")), (Op.DESCRIBE, topic("new-"))], pattern=PatternType.PREFIXED
        )
        request = topics.MetadataRequest(["new-1", "secret"], create_missing=True)
        answer = await world.ask(ALICE, Api.METADATA, request)
        assert [(t.name, t.error_code) for t in answer.message.topics] == [("new-1", 103), ("secret", 103)]
        assert "new-1" not in world.broker.partitions.topics
        await world.grant(ALICE, [(Op.CREATE, topic("new-"))], pattern=PatternType.PREFIXED)
        answer = await world.ask(ALICE, Api.METADATA, request)
        assert [(t.name, t.error_code) for t in answer.message.topics] == [("new-1", 0), ("secret", 103)]

    run(tmp_path, scenario)


def test_a_right_that_is_taken_away_counts_for_a_fetch_that_waits(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.grant(ALICE, [(Op.READ, topic("secret"))])
        fetch = m.FetchRequest(20_000, 1, 1 << 20, 0, [m.FetchPartition("secret", 1, 0, 1 << 20)])
        waiting = asyncio.ensure_future(world.ask(ALICE, Api.FETCH, fetch))
        while world.broker.partitions.fetches.waiting_count == 0:
            await asyncio.sleep(0)
        await world.revoke_all()
        produce = m.ProduceRequest(1, 1_000, [m.ProducePartition("secret", 1, len(BATCH))])
        await world.do(ADMIN, Api.PRODUCE, produce, BATCH)
        answer = await waiting
        assert [(r.error_code, r.length_bytes) for r in answer.message.results] == [(103, 0)]

    run(tmp_path, scenario)


def test_without_acls_the_setting_decides(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        ends = m.ListOffsetsRequest([m.ListOffsetsPartition("secret", 0, -1)])
        assert item_codes((await world.ask(MALLORY, Api.LIST_OFFSETS, ends)).message) == [0]
        await world.grant(ALICE, [(Op.READ, topic("secret"))])
        assert item_codes((await world.ask(MALLORY, Api.LIST_OFFSETS, ends)).message) == [103]

    run(tmp_path, scenario, **{"allow.everyone.if.no.acl.found": True})


def test_an_acl_that_cannot_be_read_may_be_a_denial(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.grant(ALICE, [(Op.READ, topic("secret"))])
        ends = m.ListOffsetsRequest([m.ListOffsetsPartition("secret", 0, -1)])
        assert item_codes((await world.ask(ALICE, Api.LIST_OFFSETS, ends)).message) == [0]
        await world.broker.security_records.change({record("odd"): b'["something","newer"]'})
        assert item_codes((await world.ask(ALICE, Api.LIST_OFFSETS, ends)).message) == [103]
        assert item_codes((await world.ask(ADMIN, Api.LIST_OFFSETS, ends)).message) == [0]
        await world.broker.security_records.change({record("odd"): None})
        assert item_codes((await world.ask(ALICE, Api.LIST_OFFSETS, ends)).message) == [0]

    run(tmp_path, scenario)


def test_an_acl_of_a_refused_name_denies_no_other_user(tmp_path: Path) -> None:
    old = b'["topic","literal","secret","User: admin","*","Read","Deny"]'

    async def scenario(world: World) -> None:
        await world.grant(ALICE, [(Op.READ, topic("secret"))])
        await world.broker.security_records.change({record("old"): old})
        ends = m.ListOffsetsRequest([m.ListOffsetsPartition("secret", 0, -1)])
        assert item_codes((await world.ask(ALICE, Api.LIST_OFFSETS, ends)).message) == [0]
        create = acls.CreateAclsRequest([acls.AclEntry("topic", "literal", "t", "User: admin", "*", "Read", "Deny")])
        assert "begins or ends with a space" in text_of(await world.ask(ADMIN, Api.CREATE_ACLS, create))
        delete = acls.DeleteAclsRequest([acls.AclFilterEntry(principal="User: admin")])
        assert [a.name for a in (await world.do(ADMIN, Api.DELETE_ACLS, delete)).deleted] == ["secret"]

    run(tmp_path, scenario)


def test_acls_are_added_listed_and_removed(tmp_path: Path) -> None:
    entry = acls.AclEntry("TOPIC", "Prefixed", "pub", "User:alice", "::ffff:10.0.0.7", "describe_configs", "allow")
    stored = acls.AclEntry("topic", "prefixed", "pub", "User:alice", "10.0.0.7", "DescribeConfigs", "Allow")
    other = acls.AclEntry("topic", "literal", "public", "User:*", "*", "All", "Deny")

    async def scenario(world: World) -> None:
        create = acls.CreateAclsRequest([entry, other, entry])
        assert (await world.do(ADMIN, Api.CREATE_ACLS, create)).created == 2
        assert (await world.do(ADMIN, Api.CREATE_ACLS, create)).created == 0
        found = await world.do(ADMIN, Api.DESCRIBE_ACLS, acls.DescribeAclsRequest(acls.AclFilterEntry()))
        assert sorted(found.acls, key=str) == sorted([stored, other], key=str)

        async def listed(**wanted: str) -> list[str]:
            request = acls.DescribeAclsRequest(acls.AclFilterEntry(**wanted))
            return sorted(a.name for a in (await world.do(ADMIN, Api.DESCRIBE_ACLS, request)).acls)

        assert await listed(pattern_type="match", name="public") == ["pub", "public"]
        assert await listed(pattern_type="literal", name="public") == ["public"]
        assert await listed(principal="User:alice") == ["pub"]
        assert await listed(permission="deny") == ["public"]
        for principal in ("*", "User:", "User", "Group:alice", "alice"):
            assert await listed(principal=principal) == [], "Kafka compares the texts"
        assert await listed(host="example.org") == []
        assert await listed(resource_type="group") == []
        wrong = acls.CreateAclsRequest([other, msgspec.structs.replace(entry, operation="ClusterAction")])
        assert "does not exist for resource type topic" in text_of(await world.ask(ADMIN, Api.CREATE_ACLS, wrong))
        delete = acls.DeleteAclsRequest([acls.AclFilterEntry(principal="User:alice")])
        gone = await world.do(ADMIN, Api.DELETE_ACLS, delete)
        assert (gone.deleted, gone.more) == ([stored], False)
        assert world.broker.security_records.of_kind(RecordKind.ACLS).keys() == world.broker.access.acls.keys()  # type: ignore[union-attr]
        assert await listed() == ["public"]

    run(tmp_path, scenario)


def test_acls_survive_a_restart(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        await world.grant(ALICE, [(Op.READ, topic("secret"))])

    run(tmp_path, first)

    async def second() -> None:
        world = await World.begin(tmp_path)
        ends = m.ListOffsetsRequest([m.ListOffsetsPartition("secret", 0, -1)])
        assert item_codes((await world.ask(ALICE, Api.LIST_OFFSETS, ends)).message) == [0]
        assert item_codes((await world.ask(MALLORY, Api.LIST_OFFSETS, ends)).message) == [103]
        await world.close()

    asyncio.run(second())


def test_a_broker_without_an_authorizer_keeps_no_acls(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        answer = await world.ask(MALLORY, Api.DESCRIBE_ACLS, acls.DescribeAclsRequest(acls.AclFilterEntry()))
        assert answer.error_code == 108
        assert 'authorizer = "acl"' in text_of(answer)

    run(tmp_path, scenario, authorizer="")


def test_the_local_socket_is_for_authenticated_peers_on_the_same_host(tmp_path: Path) -> None:
    """A peer that is not known by its address authenticates there, too."""

    async def scenario(world: World) -> None:
        request = m.HandshakeRequest("tests", "1", "10.0.0.7:5")
        assert (await world.do(ALICE, Api.HANDSHAKE, request)).local_socket == ""
        world.put_peers_on_its_host()
        assert (await world.do(ANONYMOUS, Api.HANDSHAKE, request)).local_socket == "sparklog-123"
        assert (await world.do(ALICE, Api.HANDSHAKE, request)).local_socket == "sparklog-123"

    run(tmp_path, scenario)


@for_each("wrong", ["admin", "User:", "Group:a", "User:*"])
def test_super_users_are_principals(wrong: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"super\.users"):
        make_config({"super.users": wrong})


def test_a_peer_learns_its_operations_on_resources_whether_they_exist_or_not(tmp_path: Path) -> None:
    request = acls.AllowedOperationsRequest(
        [acls.ResourceEntry(kind, name) for kind, name in (("topic", "secret"), ("topic", "nosuch"), ("group", "crew"))]
    )
    read = 1 << 3 | 1 << 8

    async def scenario(world: World) -> None:
        await world.grant(ALICE, [(Op.READ, topic("secret")), (Op.READ, topic("nosuch"))])
        assert (await world.do(ALICE, Api.ALLOWED_OPERATIONS, request)).operations == [read, read, 0]
        every_of_topics = sum(1 << n for n in (3, 4, 5, 6, 7, 8, 10, 11))
        answer = await world.do(ADMIN, Api.ALLOWED_OPERATIONS, request)
        assert answer.operations == [every_of_topics, every_of_topics, sum(1 << n for n in (3, 6, 8, 10, 11))]
        wrong = acls.AllowedOperationsRequest([acls.ResourceEntry("nonsense", "x")])
        assert (await world.ask(ALICE, Api.ALLOWED_OPERATIONS, wrong)).error_code == InvalidRequestError.code

    run(tmp_path, scenario)
