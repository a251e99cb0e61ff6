"""Long answers: every entry of a request is answered, and every page of the broker's answer arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from sparklog import errors
from sparklog.environment.memory_budget import MemoryBudget
from sparklog.environment.time_slices import LoopTimeSlices
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.backend.recent_checks import RecentChecks
from sparklog.gateway.backend.topics import TopicNames, Topics
from sparklog.gateway.groups.model import REBALANCE_TIMEOUT_MS_MAX
from sparklog.gateway.groups.runtime import Groups
from sparklog.gateway.handlers import (
    commits,
    configs,
    coordinators,
    group_admin,
    groups,
    metadata,
    offsets,
    topics,
    transactions,
)
from sparklog.gateway.handlers.entries import ENTRIES_MAX
from sparklog.kafka.wire.codec import encoder
from sparklog.kafka.wire.errors import Kafka, coordinator_code
from sparklog.kafka.wire.schema import RESPONSE
from sparklog.protocol import acl_messages as acls
from sparklog.protocol import group_messages as g
from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as t
from sparklog.protocol import transaction_messages as x
from sparklog.protocol.apis import Api
from sparklog.protocol.base import TOPICS_PER_REQUEST_MAX
from sparklog.settings import MIB

COUNT = ENTRIES_MAX + 3


class Broker:
    """Answers with `answers`, by API."""

    def __init__(self, answers: dict[Api, Callable[[Any], Any]]) -> None:
        self._answers = answers
        self.asked = 0

    async def ask(self, api: Api, message: Any, response: type) -> Any:
        self.asked += 1
        return self._answers[api](message)

    pages = BrokerConnection.pages


def answer_of(handler: Any, request: dict[str, Any], version: int, answers: dict[Api, Callable[[Any], Any]]) -> Any:
    broker = Broker(answers)

    async def go() -> Any:
        async def connection() -> Broker:
            return broker

        gateway = SimpleNamespace(
            topics=Topics(lambda: 0.0),
            groups=Groups(lambda: 0.0, MemoryBudget(MIB)),
            broker_id=0,
            addresses=lambda *_: {},
            time_slices=LoopTimeSlices(asyncio.get_running_loop(), clock=lambda: 0.0),
        )
        session = SimpleNamespace(gateway=gateway, broker=connection, listener=None, local=("h", 1))
        return await handler(session, request, version)

    found = asyncio.run(go())
    assert broker.asked <= ENTRIES_MAX + 10, "an entry beyond the limit costs the broker nothing"
    return found


def names() -> list[str]:
    return [f"n{i}" for i in range(COUNT)]


def unknown_group(_: Any) -> g.DescribeGroupsResponse:
    return g.DescribeGroupsResponse([g.GroupDetails(0, "n", "Empty", 0, "", [])])


def no_transaction(_: Any) -> x.DescribeTransactionsResponse:
    return x.DescribeTransactionsResponse([x.TransactionDetails(0, "n")])


LONG: dict[str, tuple[Any, dict[str, Any], int, dict[Api, Callable[[Any], Any]], Callable[[Any], list[Any]]]] = {
    "groups described": (
        group_admin.describe_groups,
        {"groups": names()},
        0,
        {Api.DESCRIBE_GROUPS: unknown_group},
        lambda a: a["groups"],
    ),
    "groups deleted": (
        group_admin.delete_groups,
        {"groups_names": names()},
        0,
        {Api.DELETE_GROUP: lambda _: g.DeleteGroupResponse(0)},
        lambda a: a["results"],
    ),
    "offsets": (
        commits.offset_fetch,
        {"groups": [{"group_id": n, "topics": None} for n in names()]},
        8,
        {Api.OFFSET_FETCH: lambda _: g.OffsetFetchResponse([])},
        lambda a: a["groups"],
    ),
    "coordinators": (
        coordinators.find_coordinator,
        {"key_type": 7, "coordinator_keys": names()},
        4,
        {},
        lambda a: a["coordinators"],
    ),
    "settings": (
        configs.describe_configs,
        {
            "resources": [{"resource_type": 4, "resource_name": n, "configuration_keys": None} for n in names()],
            "include_synonyms": False,
        },
        1,
        {},
        lambda a: a["results"],
    ),
    "settings changed": (
        configs.alter_configs,
        {
            "resources": [{"resource_type": 4, "resource_name": n, "configs": []} for n in names()],
            "validate_only": False,
        },
        1,
        {},
        lambda a: a["responses"],
    ),
    "topics deleted": (
        topics.delete_topics,
        {"topic_names": names()},
        1,
        {Api.DELETE_TOPIC: lambda _: t.DeleteTopicResponse("id")},
        lambda a: a["responses"],
    ),
    "partitions created": (
        topics.create_partitions,
        {
            "topics": [{"name": n, "count": 0, "assignments": None} for n in names()],
            "validate_only": False,
            "timeout_ms": 0,
        },
        1,
        {},
        lambda a: a["results"],
    ),
    "producers": (
        transactions.describe_producers,
        {"topics": [{"name": f"n{i}", "partition_indexes": list(range(100))} for i in range(COUNT // 100 + 1)]},
        0,
        {Api.DESCRIBE_PRODUCERS: lambda _: x.DescribeProducersResponse([])},
        lambda a: [p for topic in a["topics"] for p in topic["partitions"]][:COUNT],
    ),
    "transactions": (
        transactions.describe_transactions,
        {"transactional_ids": names()},
        0,
        {Api.DESCRIBE_TRANSACTIONS: no_transaction},
        lambda a: a["transaction_states"],
    ),
}


def test_entries_beyond_the_limit_are_answered_with_an_error() -> None:
    for name, (handler, request, version, answers, entries) in LONG.items():
        found = entries(answer_of(handler, request, version, answers))
        assert len(found) == COUNT, name
        assert {e["error_code"] for e in found[ENTRIES_MAX:]} == {Kafka.INVALID_REQUEST}, name


def test_any_number_of_topics_has_metadata() -> None:
    asked = [f"n{i}" for i in range(TOPICS_PER_REQUEST_MAX + 5)]

    def known(request: t.MetadataRequest) -> t.MetadataResponse:
        assert request.topics is not None and len(request.topics) <= TOPICS_PER_REQUEST_MAX
        return t.MetadataResponse("c", 0, [], [t.TopicState(0, n) for n in request.topics])

    request = {"topics": [{"name": n} for n in asked], "allow_auto_topic_creation": False}
    found = answer_of(metadata.metadata, request, 4, {Api.METADATA: known})
    assert [topic["name"] for topic in found["topics"]] == asked


def test_an_unknown_topic_id_gets_an_error_of_the_version() -> None:
    def none(request: t.MetadataRequest) -> t.MetadataResponse:
        return t.MetadataResponse("c", 0, [], [])

    for version, name in ((10, ""), (11, ""), (12, None)):
        request = {"topics": [{"name": None, "topic_id": UUID(int=7)}], "allow_auto_topic_creation": False}
        found = answer_of(metadata.metadata, request, version, {Api.METADATA: none})
        assert [(f["name"], f["error_code"]) for f in found["topics"]] == [(name, Kafka.UNKNOWN_TOPIC_ID)]
        encoder(RESPONSE, "Metadata", version)(found)


def test_names_of_ids_are_read_once_and_an_earlier_topic_has_none() -> None:
    first, second, absent = (UUID(int=i) for i in (1, 2, 3))
    present = {first: "t", second: "u"}
    requests: list[list[str]] = []

    def states(request: t.MetadataRequest) -> t.MetadataResponse:
        requests.append(request.topic_ids or [])
        states = [t.TopicState(0, name, topic_id=i.hex) for i, name in present.items() if i.hex in requests[-1]]
        return t.MetadataResponse("c", 0, [], states)

    async def names(session: Any, request: dict[str, Any], version: int) -> Any:
        found = TopicNames()
        connection = await session.broker()
        assert await found.names_of(connection, {first, absent}) == {first: "t"}
        assert await found.names_of(connection, {first, second}) == present
        assert requests == [[first.hex, absent.hex], [second.hex]]
        present.clear()
        present[absent] = "t"
        assert await found.names_of(connection, {absent}) == {absent: "t"}
        assert await found.names_of(connection, {first}) == {}

    answer_of(names, {}, 0, {Api.METADATA: states})


def test_a_member_without_a_rebalance_timeout_has_that_of_its_session() -> None:
    def joined(rebalance_timeout_ms: int) -> int:
        async def handler(session: Any, request: dict[str, Any], version: int) -> Any:
            session.client_id, session.peer_host, session.check_key = "c", "h", object()
            session.request = SimpleNamespace(release=lambda: None)
            session.gateway.checks = RecentChecks(lambda: 0.0)
            await groups.join_group(session, request, version)  # type: ignore[arg-type]
            group = session.gateway.groups.find("g")
            (member,) = group.members.values()
            session.gateway.groups.close()
            return member.rebalance_timeout_ms

        request = {
            "group_id": "g", "session_timeout_ms": 7_000, "rebalance_timeout_ms": rebalance_timeout_ms, "member_id": "",
            "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
        }  # fmt: skip

        def no_member(_: Any) -> Any:
            raise errors.UnknownMemberIdError("x")

        answers = {
            Api.FIND_COORDINATOR: lambda _: g.FindCoordinatorResponse(0, "h", 1),
            Api.GROUP_HEARTBEAT: no_member,
            Api.DESCRIBE_GROUPS: lambda _: g.DescribeGroupsResponse([g.GroupDetails(0, "g", "Empty", 0, "", [])]),
        }
        return int(answer_of(handler, request, 2, answers))

    assert [joined(ms) for ms in (-1, 0, 1, 9_000)] == [7_000, 7_000, 1, 9_000]
    assert joined(2**31 - 1) == REBALANCE_TIMEOUT_MS_MAX


def test_a_name_that_no_topic_can_have_is_refused_as_such() -> None:
    def known(request: t.MetadataRequest) -> t.MetadataResponse:
        assert request.topics == ["good"], "the broker is not asked to make the others"
        return t.MetadataResponse("c", 0, [], [t.TopicState(0, "good")])

    bad = ["a b", "$#!", "..", "", "n" * 250]
    request = {"topics": [{"name": n} for n in [*bad, "good"]], "allow_auto_topic_creation": True}
    found = answer_of(metadata.metadata, request, 4, {Api.METADATA: known})
    assert {a["name"]: a["error_code"] for a in found["topics"]} == {
        "good": Kafka.NONE,
        **dict.fromkeys(bad, Kafka.INVALID_TOPIC_EXCEPTION),
    }


def test_any_time_is_a_time_that_can_be_looked_up() -> None:
    def found(request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
        assert all(-5 <= p.timestamp_ms <= 2**62 for p in request.partitions)
        return m.ListOffsetsResponse([m.ListOffsetsResult(p.topic, p.partition, 0, -1, -1) for p in request.partitions])

    times = [-(2**63), -6, -5, -1, 0, 2**62, 2**63 - 1]
    partitions = [{"partition_index": i, "timestamp": time} for i, time in enumerate(times)]
    request = {"topics": [{"name": "t", "partitions": partitions}]}
    answer = answer_of(offsets.list_offsets, request, 7, {Api.LIST_OFFSETS: found})
    codes = [p["error_code"] for p in answer["topics"][0]["partitions"]]
    assert codes == [Kafka.UNSUPPORTED_VERSION] * 2 + [Kafka.NONE] * 5


def test_a_fenced_producer_gets_kafkas_error() -> None:
    for api, version, code in (
        ("Produce", 12, Kafka.INVALID_PRODUCER_EPOCH),
        ("TxnOffsetCommit", 5, Kafka.INVALID_PRODUCER_EPOCH),
        ("InitProducerId", 3, Kafka.INVALID_PRODUCER_EPOCH),
        ("InitProducerId", 4, Kafka.PRODUCER_FENCED),
        ("EndTxn", 1, Kafka.INVALID_PRODUCER_EPOCH),
        ("EndTxn", 5, Kafka.PRODUCER_FENCED),
    ):
        assert transactions.fenced_code(Kafka.PRODUCER_FENCED, api, version) is code, (api, version)
        assert transactions.transaction_error(errors.ProducerFencedError("x"), api, version) is code
        assert transactions.fenced_code(Kafka.INVALID_TXN_STATE, api, version) is Kafka.INVALID_TXN_STATE


def test_errors_of_a_coordinators_log_are_those_of_the_coordinator() -> None:
    expected = {Kafka.COORDINATOR_NOT_AVAILABLE, Kafka.NOT_COORDINATOR, Kafka.COORDINATOR_LOAD_IN_PROGRESS}
    for error in (
        errors.BrokerShuttingDownError,
        errors.BrokerNotAvailableError,
        errors.NotLeaderError,
        errors.FencedLeaderEpochError,
        errors.NotEnoughReplicasError,
        errors.NotEnoughReplicasAfterAppendError,
        errors.StorageFullError,
        errors.RequestTimedOutError,
        errors.CoordinatorLoadingError,
    ):
        assert coordinator_code(error("x")) in expected, error

        def failing(_: Any, error: type[errors.SparklogError] = error) -> Any:
            raise error("x")

        request = {"key_type": 0, "coordinator_keys": ["g"]}
        found = answer_of(coordinators.find_coordinator, request, 4, {Api.FIND_COORDINATOR: failing})
        assert found["coordinators"][0]["error_code"] in expected - {Kafka.NOT_COORDINATOR}, error
    assert coordinator_code(errors.GroupAuthorizationFailedError("x")) is Kafka.GROUP_AUTHORIZATION_FAILED


def test_all_pages_of_an_answer_arrive() -> None:
    def members(request: g.DescribeGroupsRequest) -> g.DescribeGroupsResponse:
        first = request.members_from
        member = g.GroupMember(f"m{first}", None, "", "", 1, [], [], [])
        more = first < 2
        return g.DescribeGroupsResponse(
            [g.GroupDetails(0, "n", "Stable", 1, "range", [member])], more, first + 1 if more else -1
        )

    found = answer_of(group_admin.describe_groups, {"groups": ["n"]}, 0, {Api.DESCRIBE_GROUPS: members})
    assert [m["member_id"] for m in found["groups"][0]["members"]] == ["m0", "m1", "m2"]

    def partitions(request: x.DescribeTransactionsRequest) -> x.DescribeTransactionsResponse:
        first = request.partitions_from
        summary = x.TransactionSummary("n", "plain", "Ongoing", 1, 0)
        details = x.TransactionDetails(0, "n", summary, [x.TransactionPartition(1, "t", first)])
        more = first < 2
        return x.DescribeTransactionsResponse([details], more, first + 1 if more else -1)

    request: dict[str, Any] = {"transactional_ids": ["n"]}
    found = answer_of(transactions.describe_transactions, request, 0, {Api.DESCRIBE_TRANSACTIONS: partitions})
    assert found["transaction_states"][0]["topics"] == [{"topic": "t", "partitions": [0, 1, 2]}]

    def producers(request: x.DescribeProducersRequest) -> x.DescribeProducersResponse:
        number = request.after + 1
        return x.DescribeProducersResponse([x.ProducerState(number, 0, 0, 0)], more=number < 2)

    request = {"topics": [{"name": "t", "partition_indexes": [0]}]}
    found = answer_of(transactions.describe_producers, request, 0, {Api.DESCRIBE_PRODUCERS: producers})
    assert [p["producer_id"] for p in found["topics"][0]["partitions"][0]["active_producers"]] == [0, 1, 2]


def test_a_metadata_request_creates_a_limited_number_of_topics() -> None:
    created: list[str] = []

    def answer(request: t.MetadataRequest) -> t.MetadataResponse:
        if request.create_missing:
            created.extend(request.topics or [])
        missing = errors.UnknownTopicOrPartitionError.code
        states = [t.TopicState(0 if name in created else missing, name) for name in request.topics or []]
        return t.MetadataResponse("c", 0, [], states)

    request = {"topics": [{"name": name} for name in names()], "allow_auto_topic_creation": True}
    found = answer_of(metadata.metadata, request, 4, {Api.METADATA: answer})
    assert created == names()[: t.AUTO_CREATED_MAX]
    codes = [topic["error_code"] for topic in found["topics"]]
    assert codes[: t.AUTO_CREATED_MAX] == [Kafka.NONE] * t.AUTO_CREATED_MAX
    assert set(codes[t.AUTO_CREATED_MAX :]) == {Kafka.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_slow_creation_is_answered_at_the_end_of_its_time() -> None:
    """Kafka's clients give up later, and would know nothing."""

    class SlowBroker:
        async def ask(self, api: Api, message: Any, response: type) -> Any:
            await asyncio.Event().wait()

    async def connection() -> SlowBroker:
        return SlowBroker()

    topic = {"name": "big", "num_partitions": 9, "replication_factor": -1, "assignments": [], "configs": []}
    request = {"topics": [topic], "validate_only": False, "timeout_ms": 1}
    (answer,) = asyncio.run(topics.create_topics(SimpleNamespace(broker=connection), request, 5))["topics"]  # type: ignore[arg-type]
    assert answer["error_code"] == Kafka.REQUEST_TIMED_OUT
    assert "may still be working on it" in str(answer["error_message"])


def test_clients_learn_their_operations_if_they_ask_for_them() -> None:
    operations = {
        Api.ALLOWED_OPERATIONS: lambda r: acls.AllowedOperationsResponse([8 + len(e.name) for e in r.resources])
    }
    group = {Api.DESCRIBE_GROUPS: unknown_group}
    for is_requested, expected in ((True, 9), (False, -(2**31))):
        request = {"groups": ["n"], "include_authorized_operations": is_requested}
        answer = answer_of(group_admin.describe_groups, request, 5, operations | group)
        assert answer["groups"][0]["authorized_operations"] == expected
    states = [t.TopicState(0, "t", "id"), t.TopicState(3, "gone")]
    described = {Api.METADATA: lambda _: t.MetadataResponse("c", 0, [], states)}
    request = {
        "topics": None,
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    answer = answer_of(metadata.metadata, request, 8, operations | described)
    assert [x.get("topic_authorized_operations") for x in answer["topics"]] == [9, None]
    assert answer["cluster_authorized_operations"] == 8 + len("kafka-cluster")
