"""Every API asks before it does or tells anything: complete, and denied exactly where a need is not met."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sparklog.errors import TopicAuthorizationFailedError
from sparklog.protocol import group_messages as groups
from sparklog.protocol import lake_messages as lakes
from sparklog.protocol import messages as m
from sparklog.protocol import mirror_messages as mirrors
from sparklog.protocol import refused_messages as refused
from sparklog.protocol import schema_messages as schemas
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.permission_rules import ANY_TOPIC, Denial, Rule
from sparklog.protocol.permissions import Verdict, judge, required_operations
from sparklog.protocol.security_messages import DescribeUserScramCredentialsRequest
from sparklog.security.acls import CLUSTER, OPERATIONS, Operation, Resource, ResourceType
from sparklog.security.authorizer import Peer
from sparklog.security.principals import user
from sparklog.types import FENCING_TOKENS_ID, INTERNAL_TOPICS
from tests.golden.make_golden import REQUESTS, RESPONSES
from tests.support.cases import for_each

PEER = Peer(user("alice"), "10.0.0.1")
MORE_REQUESTS: list[tuple[Api, Message]] = [
    (Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest()),
    (Api.PRODUCE, m.ProduceRequest(-1, 1, [m.ProducePartition("flights", 0, 1)], "__shared:query")),
    (Api.ABORT_TRANSACTION, txn.AbortTransactionRequest("orders")),
    (Api.ALTER_TOPIC, topics.AlterTopicRequest("orders", {"kafka.key.schema": '{"id":1}'})),
    (Api.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest()),
]
EVERY_REQUEST = [*REQUESTS.items(), *MORE_REQUESTS]
UNPROTECTED = {
    Api.ALLOWED_OPERATIONS,
    Api.HANDSHAKE,
    Api.SASL_HANDSHAKE,
    Api.SASL_AUTHENTICATE,
    Api.LIST_GROUPS,
    Api.LIST_TRANSACTIONS,
}
"""HANDSHAKE and SASL's tell nothing about resources, and ALLOWED_OPERATIONS only the peer's own rights; the other two
name none, and their answers are filtered."""


class Rights:
    """Allows exactly the given needs. A need is (operation, resource); a resource may be a type, for any of it."""

    def __init__(self, *needs: tuple[Operation, Resource | ResourceType]) -> None:
        self.needs = set(needs)

    def allowed(self, peer: Peer, operation: Operation, resource: Resource) -> bool:
        assert peer == PEER
        return (operation, resource) in self.needs

    def allowed_by_type(self, peer: Peer, operation: Operation, resource_type: ResourceType) -> bool:
        return (operation, resource_type) in self.needs


def needs_of(rule: Rule, request: Message) -> list[tuple[Operation, Resource | ResourceType]]:
    return [(rule.operation, Resource(rule.resource_type, name)) for name in dict.fromkeys(rule.names(request))]


def all_needs(api: Api, request: Message) -> set[tuple[Operation, Resource | ResourceType]]:
    return set(itertools.chain.from_iterable(needs_of(rule, request) for rule in APIS[api].permissions))


def test_every_api_has_an_entry() -> None:
    assert set(APIS) == set(Api)
    assert {api for api, spec in APIS.items() if not spec.permissions} == UNPROTECTED
    assert {Api.LIST_GROUPS, Api.LIST_TRANSACTIONS} <= set(FILTERED)


def test_every_api_that_creates_deletes_or_alters_is_audited() -> None:
    changes = {Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS}
    assert {api for api, spec in APIS.items() if any(r.operation in changes for r in spec.permissions)} == {
        api for api, spec in APIS.items() if spec.is_audited
    } | {Api.REPORT_LAKE, Api.REPORT_MIRRORS, Api.PRODUCE, Api.SCHEMA_RECORDS}


@for_each("api", Api)
def test_rules_are_possible_and_those_for_items_come_last(api: Api) -> None:
    rules = APIS[api].permissions
    for rule in rules:
        assert rule.operation in OPERATIONS[rule.resource_type]
    denials = [rule.denial for rule in rules]
    assert denials == sorted(denials, key=lambda denial: denial is Denial.ITEM)
    for each, request in EVERY_REQUEST:
        if each is api:
            assert sum(rule.denial is Denial.ITEM and bool(rule.names(request)) for rule in rules) <= 1
    assert set(required_operations(api)) == {(r.resource_type, r.operation) for r in rules}


@pytest.mark.parametrize(("api", "request_"), EVERY_REQUEST)
def test_no_request_is_allowed_without_a_permission(api: Api, request_: Message) -> None:
    verdict = judge(api, request_, PEER, Rights())
    if api in UNPROTECTED:
        assert verdict == Verdict()
    elif verdict.error is None:
        rule = next(rule for rule in APIS[api].permissions if rule.names(request_))
        assert verdict.denied_items == frozenset(range(len(rule.names(request_))))
        assert verdict.denied_items
        assert verdict.item_error is not None
        assert verdict.item_error.code >= 103
    else:
        assert 103 <= verdict.error.code <= 106


def test_everybody_may_look_for_the_coordinator_of_fencing_tokens() -> None:
    """A Spark query draws a token before it knows its transactional id."""
    for transactional_id, is_allowed in ((FENCING_TOKENS_ID, True), ("orders", False)):
        verdict = judge(Api.FIND_COORDINATOR, groups.FindCoordinatorRequest(transactional_id, 1), PEER, Rights())
        assert (verdict == Verdict()) is is_allowed


@pytest.mark.parametrize(("api", "request_"), EVERY_REQUEST)
def test_a_request_is_allowed_with_exactly_its_permissions(api: Api, request_: Message) -> None:
    assert judge(api, request_, PEER, Rights(*all_needs(api, request_))) == Verdict()


@pytest.mark.parametrize(
    ("api", "request_", "rule"),
    [(api, request, rule) for api, request in EVERY_REQUEST for rule in APIS[api].permissions if rule.names(request)],
)
def test_every_single_need_counts(api: Api, request_: Message, rule: Rule) -> None:
    """The denial matrix: all rights but one."""
    for need in needs_of(rule, request_):
        verdict = judge(api, request_, PEER, Rights(*all_needs(api, request_) - {need}))
        if rule.denial is Denial.REQUEST:
            assert verdict.error is not None
            assert (
                verdict.error.code
                == {"topic": 103, "group": 104, "transactional-id": 105, "cluster": 106, "user": 106}[
                    rule.resource_type
                ]
            )
        else:
            _, resource = need
            assert isinstance(resource, Resource)
            expected = {i for i, name in enumerate(rule.names(request_)) if name == resource.name}
            assert verdict.error is None
            assert verdict.denied_items == expected
        others = {(operation, need[1]) for operation in Operation if operation is not need[0]} - {need}
        if rule.or_else is None:  # no other operation on the same resource does it
            again = judge(api, request_, PEER, Rights(*(all_needs(api, request_) - {need}) | others))
            assert (again.error is not None, again.denied_items) == (verdict.error is not None, verdict.denied_items)


@pytest.mark.parametrize(("api", "request_"), EVERY_REQUEST)
def test_the_alternatives(api: Api, request_: Message) -> None:
    for rule in APIS[api].permissions:
        if rule.or_else is not None and rule.names(request_):
            operation, what = rule.or_else
            instead = (operation, ResourceType.TOPIC if what == ANY_TOPIC else CLUSTER)
            assert judge(api, request_, PEER, Rights(instead)).error is None


TOPIC_REQUESTS: list[tuple[Api, Message]] = [
    (Api.METADATA, topics.MetadataRequest(["T"])),
    (Api.METADATA, topics.MetadataRequest(["T"], to_write=True)),
    (Api.CREATE_TOPIC, topics.CreateTopicRequest("T")),
    (Api.CREATE_PARTITIONS, topics.CreatePartitionsRequest("T", 2)),
    (Api.DELETE_TOPIC, topics.DeleteTopicRequest("T")),
    (Api.ALTER_TOPIC, topics.AlterTopicRequest("T")),
    (Api.ALTER_SCHEMA, topics.AlterSchemaRequest("T")),
    (Api.PRODUCE, m.ProduceRequest(1, 1, [m.ProducePartition("T", 0, 1)])),
    (Api.FETCH, m.FetchRequest(0, 0, 0, 0, [m.FetchPartition("T", 0, 0, 1)])),
    (Api.LIST_OFFSETS, m.ListOffsetsRequest([m.ListOffsetsPartition("T", 0, -1)])),
    (Api.OFFSETS_FOR_LEADER_EPOCH, m.OffsetsForLeaderEpochRequest([m.EpochPartition("T", 0, 0, 0)])),
    (Api.SNAPSHOT_OFFSETS, m.SnapshotOffsetsRequest("n", ["T"], "T", 0)),
    (Api.LOCATE_SEGMENTS, m.LocateSegmentsRequest("T", 0, 0, 1)),
    (Api.LOCATE_REMOTE, m.LocateRemoteRequest("T", 0, 0, 1)),
    (Api.DELETE_RECORDS, m.DeleteRecordsRequest(1, [m.DeleteRecordsPartition("T", 0, 1)])),
    (Api.DESCRIBE_PRODUCERS, txn.DescribeProducersRequest("T", 0)),
    (Api.REPORT_LAKE, lakes.ReportLakeRequest("T", "id", [])),
    (Api.DESCRIBE_LAKES, lakes.DescribeLakesRequest(["T"])),
    (Api.DESCRIBE_MIRRORS, mirrors.DescribeMirrorsRequest(["T"])),
    (Api.SCHEMA_RECORDS, schemas.SchemaRecordsRequest(0, "Write", ["T"])),
    (Api.STORE_REFUSED, refused.StoreRefusedRequest("T", 0)),
    (Api.GROUP_HEARTBEAT, groups.GroupHeartbeatRequest("g", topics=["T"])),
    (Api.OFFSET_COMMIT, groups.OffsetCommitRequest("g", [groups.CommittedOffset("T", 0, 1)])),
    (Api.OFFSET_FETCH, groups.OffsetFetchRequest("g", [groups.TopicPartitions("T", [0])])),
    (Api.TXN_OFFSET_COMMIT, groups.TxnOffsetCommitRequest("x", 1, 1, "g", [groups.CommittedOffset("T", 0, 1)])),
]


def test_internal_topics_are_tried_with_every_api_that_names_topics() -> None:
    named = {a for a, spec in APIS.items() if any(r.resource_type is ResourceType.TOPIC for r in spec.permissions)}
    assert {api for api, _ in TOPIC_REQUESTS} == named


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
@pytest.mark.parametrize(("api", "request_"), TOPIC_REQUESTS)
def test_internal_topics_are_for_the_cluster_alone(api: Api, request_: Message, topic: str) -> None:
    internal = msgspec.msgpack.decode(
        msgspec.msgpack.encode(request_).replace(b"\xa1T", bytes([0xA0 + len(topic)]) + topic.encode()),
        type=type(request_),
    )
    everything = {
        (operation, resource)
        for operation in Operation
        for resource in (
            Resource(ResourceType.TOPIC, topic),
            Resource(ResourceType.GROUP, "g"),
            Resource(ResourceType.TRANSACTIONAL_ID, "x"),
            CLUSTER,
        )
    }
    verdict = judge(api, internal, PEER, Rights(*everything - {(Operation.CLUSTER_ACTION, CLUSTER)}))
    assert verdict.error is not None or verdict.denied_items == {0}
    assert judge(api, internal, PEER, Rights(*everything)) == Verdict()


def test_a_denial_says_the_same_whether_the_resource_exists_or_not() -> None:
    """Nothing but the request goes into the verdict: existence cannot."""
    verdict = judge(Api.DELETE_TOPIC, topics.DeleteTopicRequest("secret"), PEER, Rights())
    assert str(verdict.error) == "Delete on the topic 'secret' is not allowed"
    verdict = judge(Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest(), PEER, Rights())
    assert "neither Write on any topic nor IdempotentWrite on the cluster is allowed" in str(verdict.error)
    verdict = judge(Api.FETCH, REQUESTS[Api.FETCH], PEER, Rights())
    assert str(verdict.item_error) == "Read on this topic is not allowed"


def test_each_denied_item_says_which_topic_it_is_about() -> None:
    request = m.FetchRequest(0, 1, 1, 0, [m.FetchPartition(name, 0, 0, 1) for name in ("mine", "theirs", "line\nend")])
    done = m.FetchResponse([m.FetchResult("mine", 0, 0)])
    error = TopicAuthorizationFailedError("Read on this topic is not allowed")
    items = APIS[Api.FETCH].item_results
    assert items is not None
    results = items.with_denials(request, done, frozenset({1, 2}), error)
    assert [(result.error_code, result.message) for result in results] == [
        (0, ""),
        (error.code, "Read on this topic is not allowed: 'theirs'"),
        (error.code, "Read on this topic is not allowed: 'line\\nend'"),
    ]


def test_shared_transactions_are_protected_by_the_applications_name() -> None:
    produce = MORE_REQUESTS[1][1]
    rights = Rights(
        (Operation.WRITE, Resource(ResourceType.TRANSACTIONAL_ID, "query")),
        (Operation.WRITE, Resource(ResourceType.TOPIC, "flights")),
    )
    assert judge(Api.PRODUCE, produce, PEER, rights).error is None
    assert judge(Api.JOIN_SHARED_TXN, REQUESTS[Api.JOIN_SHARED_TXN], PEER, rights).error is None


FILTERED = [api for api, spec in APIS.items() if spec.filter is not None]


def visible(api: Api, pieces: list[Any], sees: Callable[[ResourceType, str], bool]) -> list[Any]:
    answer_filter = APIS[api].filter
    assert answer_filter is not None
    return list(answer_filter.visible(pieces, sees))


def sees(*needs: tuple[ResourceType, str]) -> Callable[[ResourceType, str], bool]:
    return lambda resource_type, name: (resource_type, name) in needs


def pieces_of(api: Api) -> list[Any]:
    answer: Any = RESPONSES[api]
    lists: dict[Api, Callable[[], list[Any]]] = {
        Api.METADATA: lambda: [t.name for t in answer.topics],
        Api.OFFSET_FETCH: lambda: answer.offsets,
        Api.LIST_GROUPS: lambda: answer.groups,
        Api.DESCRIBE_GROUPS: lambda: [member for group in answer.groups for member in group.members],
        Api.LIST_TRANSACTIONS: lambda: answer.transactions,
        Api.DESCRIBE_TRANSACTIONS: lambda: [p for t in answer.transactions for p in t.partitions],
        Api.DESCRIBE_PRODUCERS: lambda: answer.producers,
    }
    return lists[api]()


@for_each("api", FILTERED)
def test_answers_show_only_resources_that_can_be_described(api: Api) -> None:
    """With no rights, no name of a resource is left in a piece; with all, it is as it was."""
    pieces = pieces_of(api)
    assert visible(api, pieces, lambda *_: True) == pieces
    left = msgspec.json.encode(visible(api, pieces, sees())).decode()
    hidden = {
        Api.METADATA: ["flights"],
        Api.OFFSET_FETCH: ["flights"],
        Api.LIST_GROUPS: ["readers"],
        Api.DESCRIBE_GROUPS: ["flights"],
        Api.LIST_TRANSACTIONS: ["orders"],
        Api.DESCRIBE_TRANSACTIONS: ["flights"],
        Api.DESCRIBE_PRODUCERS: ["orders"],
    }
    assert set(hidden) == set(FILTERED)
    before = msgspec.json.encode(pieces).decode()
    for name in hidden[api]:
        assert name in before
        assert name not in left


def test_describe_on_the_cluster_shows_all_groups() -> None:
    pieces = pieces_of(Api.LIST_GROUPS)
    assert visible(Api.LIST_GROUPS, pieces, sees(tuple(CLUSTER))) == pieces  # type: ignore[arg-type]
