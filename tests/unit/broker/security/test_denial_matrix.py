"""The denial matrix: every API × every resource that it needs, against a real dispatcher.

`REQUESTS_ABOUT` has a request for every API, about the resources of a `Names`; a new API without an entry fails the
tests. The expectations come from the table that the documentation comes from (`sparklog.protocol.permissions`).

A denied request changes nothing, tells nothing, and looks the same whether the resources exist or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparklog.protocol import acl_messages as acls
from sparklog.protocol import cluster_messages as cluster
from sparklog.protocol import group_messages as groups
from sparklog.protocol import lake_messages as lakes
from sparklog.protocol import messages as m
from sparklog.protocol import operation_messages as operation
from sparklog.protocol import quota_messages as quotas
from sparklog.protocol import security_messages as sasl
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.base import Message
from sparklog.protocol.messages import Api, encode
from sparklog.protocol.permissions import PERMISSIONS, Denial, Rule
from sparklog.security.acls import Operation, Permission, Resource, ResourceType
from tests.unit.broker.security.access_world import ADMIN, ALICE, BATCH, MALLORY, Answer, World, item_codes

CODES = {"topic": 103, "group": 104, "transactional-id": 105, "cluster": 106, "user": 106}
OPEN_TO_ALL = {
    Api.HANDSHAKE,
    Api.SASL_HANDSHAKE,
    Api.SASL_AUTHENTICATE,
    Api.LIST_GROUPS,
    Api.LIST_TRANSACTIONS,
}
"""APIs without names in the request; their answers are filtered."""


class Names(NamedTuple):
    """The names in a request. All have the same length in both, so answers can be compared byte by byte."""

    topic: str
    group: str
    transactional_id: str
    app: str


THERE = Names("secret", "crew", "till", "appl")
NOT_THERE = Names("nosuch", "none", "noid", "noap")


def _produce(n: Names) -> tuple[Message, bytes]:
    return m.ProduceRequest(1, 1_000, [m.ProducePartition(n.topic, 0, len(BATCH))], n.transactional_id), BATCH


ENTRY = acls.AclEntry("topic", "literal", "x", "User:mallory", "*", "All", "Allow")
REQUESTS_ABOUT: dict[Api, Callable[[Names], Message | tuple[Message, bytes]]] = {
    Api.HANDSHAKE: lambda n: m.HandshakeRequest("tests", "1"),
    Api.METADATA: lambda n: topics.MetadataRequest([n.topic], create_missing=True),
    Api.CREATE_TOPIC: lambda n: topics.CreateTopicRequest(n.topic, 1),
    Api.DELETE_TOPIC: lambda n: topics.DeleteTopicRequest(n.topic),
    Api.PRODUCE: _produce,
    Api.FETCH: lambda n: m.FetchRequest(5_000, 1, 1 << 20, 0, [m.FetchPartition(n.topic, 0, 0, 1 << 20)]),
    Api.LIST_OFFSETS: lambda n: m.ListOffsetsRequest([m.ListOffsetsPartition(n.topic, 0, -1)]),
    Api.OFFSETS_FOR_LEADER_EPOCH: lambda n: m.OffsetsForLeaderEpochRequest([m.EpochPartition(n.topic, 0, -1, 0)]),
    Api.LOCATE_SEGMENTS: lambda n: m.LocateSegmentsRequest(n.topic, 0, 0, 10),
    Api.DELETE_RECORDS: lambda n: m.DeleteRecordsRequest(1_000, [m.DeleteRecordsPartition(n.topic, 0, 1)]),
    Api.ALTER_TOPIC: lambda n: topics.AlterTopicRequest(n.topic, {"retention.ms": 5}),
    Api.ALTER_SCHEMA: lambda n: topics.AlterSchemaRequest(n.topic),
    Api.INIT_PRODUCER_ID: lambda n: txn.InitProducerIdRequest(n.transactional_id),
    Api.END_TXN: lambda n: txn.EndTxnRequest(n.transactional_id, 0, 0, True),
    Api.TXN_OFFSET_COMMIT: lambda n: groups.TxnOffsetCommitRequest(
        n.transactional_id, 0, 0, n.group, [groups.CommittedOffset(n.topic, 0, 1)]
    ),
    Api.JOIN_SHARED_TXN: lambda n: txn.JoinSharedTxnRequest(n.app, 1, "run", 0),
    Api.END_SHARED_TXN: lambda n: txn.EndSharedTxnRequest(n.app, 0, "run", 0, True),
    Api.LIST_TRANSACTIONS: lambda n: txn.ListTransactionsRequest(),
    Api.DESCRIBE_TRANSACTIONS: lambda n: txn.DescribeTransactionsRequest([n.transactional_id]),
    Api.ABORT_TRANSACTION: lambda n: txn.AbortTransactionRequest(n.transactional_id),
    Api.DESCRIBE_PRODUCERS: lambda n: txn.DescribeProducersRequest(n.topic, 0),
    Api.GROUP_HEARTBEAT: lambda n: groups.GroupHeartbeatRequest(n.group, "m1", -1, topics=[n.topic]),
    Api.OFFSET_COMMIT: lambda n: groups.OffsetCommitRequest(n.group, [groups.CommittedOffset(n.topic, 0, 1)]),
    Api.OFFSET_FETCH: lambda n: groups.OffsetFetchRequest(n.group, [groups.TopicPartitions(n.topic, [0])]),
    Api.LIST_GROUPS: lambda n: groups.ListGroupsRequest(),
    Api.DESCRIBE_GROUPS: lambda n: groups.DescribeGroupsRequest([n.group]),
    Api.DELETE_GROUP: lambda n: groups.DeleteGroupRequest(n.group),
    Api.FIND_COORDINATOR: lambda n: groups.FindCoordinatorRequest(n.group, 0),
    Api.RENEW_SHARED_TXN: lambda n: txn.RenewSharedTxnRequest(n.app, 0, "run"),
    Api.SNAPSHOT_OFFSETS: lambda n: m.SnapshotOffsetsRequest("shot", [n.topic], n.topic, 0),
    Api.CREATE_PARTITIONS: lambda n: topics.CreatePartitionsRequest(n.topic, 5),
    Api.LOCATE_REMOTE: lambda n: m.LocateRemoteRequest(n.topic, 0, 0, 10),
    Api.REPLICA_FETCH: lambda n: cluster.ReplicaFetchRequest(
        1, 1, 100, 1_000, 0, 0, [cluster.ReplicaFetchPartition(n.topic, 0, 0, 0, 0, 0, 0, 1_000)]
    ),
    Api.METADATA_FETCH: lambda n: cluster.MetadataFetchRequest(1, -1, -1, 100),
    Api.ALTER_PARTITION: lambda n: cluster.AlterPartitionRequest(
        1, 1, [cluster.IsrProposal(n.topic, 0, 0, 0, [cluster.IsrMember(1, 1)])]
    ),
    Api.CONTROLLED_SHUTDOWN: lambda n: cluster.ControlledShutdownRequest(1, 1),
    Api.DIRECTORY_FAILED: lambda n: cluster.DirectoryFailedRequest(1, 1, [cluster.OfflinePartition(n.topic, 0)]),
    Api.WRITE_TXN_MARKERS: lambda n: cluster.WriteTxnMarkersRequest(
        0, [cluster.TransactionMarker(n.topic, 0, 0, 0, True)]
    ),
    Api.ADD_PARTITIONS_TO_TXN: lambda n: cluster.AddPartitionsToTxnRequest(
        n.transactional_id, 0, 0, [cluster.TransactionPartitionName(n.topic, 0)]
    ),
    Api.HOLD_TRANSACTIONS: lambda n: cluster.HoldTransactionsRequest("h", 1),
    Api.LIST_COMMITS: lambda n: cluster.ListCommitsRequest(0, [cluster.CommitsFrom(n.topic, 0, 0)]),
    Api.FORWARD: lambda n: cluster.ForwardRequest(
        Api.CREATE_TOPIC, 4, encode(topics.CreateTopicRequest("mine")), "User:admin", "1"
    ),
    Api.FIND_TXN_OWNERS: lambda n: cluster.FindTxnOwnersRequest(n.topic, 0),
    Api.ALTER_PARTITION_REASSIGNMENTS: lambda n: operation.AlterPartitionReassignmentsRequest(
        [operation.ReassignmentTarget(n.topic, 0, [0])]
    ),
    Api.LIST_PARTITION_REASSIGNMENTS: lambda n: operation.ListPartitionReassignmentsRequest([n.topic]),
    Api.ELECT_LEADERS: lambda n: operation.ElectLeadersRequest(0, [operation.PartitionName(n.topic, 0)]),
    Api.CORDON_BROKER: lambda n: operation.CordonBrokerRequest(0, True),
    Api.ALTER_BROKER_CONFIGS: lambda n: operation.AlterBrokerConfigsRequest(0, {"num.partitions": 2}),
    Api.DESCRIBE_BROKER_CONFIGS: lambda n: operation.DescribeBrokerConfigsRequest(0),
    Api.DESCRIBE_CLUSTER: lambda n: operation.DescribeClusterRequest(),
    Api.DESCRIBE_LOG_DIRS: lambda n: operation.DescribeLogDirsRequest(),
    Api.REPORT_LAKE: lambda n: lakes.ReportLakeRequest(n.topic, "id", []),
    Api.DESCRIBE_LAKES: lambda n: lakes.DescribeLakesRequest([n.topic]),
    Api.ALTER_SECURITY_RECORDS: lambda n: cluster.AlterSecurityRecordsRequest(
        [cluster.SecurityRecordChange("users", "mallory", b"1")]
    ),
    Api.SASL_HANDSHAKE: lambda n: sasl.SaslHandshakeRequest("SCRAM-SHA-512"),
    Api.SASL_AUTHENTICATE: lambda n: sasl.SaslAuthenticateRequest(b"n,,n=mallory,r=1"),
    Api.ALTER_USER_SCRAM_CREDENTIALS: lambda n: sasl.AlterUserScramCredentialsRequest(
        [sasl.ScramCredentialDeletion("mallory", "SCRAM-SHA-512")], []
    ),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda n: sasl.DescribeUserScramCredentialsRequest(["mallory"]),
    Api.CREATE_ACLS: lambda n: acls.CreateAclsRequest([ENTRY]),
    Api.DELETE_ACLS: lambda n: acls.DeleteAclsRequest([acls.AclFilterEntry()]),
    Api.DESCRIBE_CLIENT_QUOTAS: lambda n: quotas.DescribeClientQuotasRequest(),
    Api.ALTER_CLIENT_QUOTAS: lambda n: quotas.AlterClientQuotasRequest(
        [quotas.QuotaAlteration("mallory", None, {"producer_byte_rate": 1e9})]
    ),
    Api.DESCRIBE_ACLS: lambda n: acls.DescribeAclsRequest(acls.AclFilterEntry()),
}
MORE_REQUESTS: list[tuple[Api, Callable[[Names], Message | tuple[Message, bytes]]]] = [
    (Api.DESCRIBE_USER_SCRAM_CREDENTIALS, lambda n: sasl.DescribeUserScramCredentialsRequest()),
    (Api.INIT_PRODUCER_ID, lambda n: txn.InitProducerIdRequest()),
    (Api.FIND_COORDINATOR, lambda n: groups.FindCoordinatorRequest(n.transactional_id, 1)),
    (Api.DESCRIBE_TRANSACTIONS, lambda n: txn.DescribeTransactionsRequest([f"__shared:{n.app}"])),
    (Api.PRODUCE, lambda n: (m.ProduceRequest(-1, 1_000, [m.ProducePartition(n.topic, 0, len(BATCH))]), BATCH)),
    (Api.DESCRIBE_PRODUCERS, lambda n: txn.DescribeProducersRequest("__transaction_state", 0)),
    (Api.FETCH, lambda n: m.FetchRequest(0, 0, 1 << 20, 0, [m.FetchPartition("__consumer_offsets", 0, 0, 1 << 20)])),
    (Api.ABORT_TRANSACTION, lambda n: txn.AbortTransactionRequest(None, n.topic, 0, 0)),
]
"""Other forms of requests of which the rules make a difference."""
CASES = [*REQUESTS_ABOUT.items(), *MORE_REQUESTS]
IDS = [f"{api.name}{'' if i < len(REQUESTS_ABOUT) else ' again'}" for i, (api, _) in enumerate(CASES)]


class Stage(NamedTuple):
    runner: asyncio.Runner
    world: World


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory: Path = tmp_path_factory.mktemp("matrix")

    async def build() -> World:
        world = await World.begin(directory)
        await world.furnish()
        return world

    with asyncio.Runner() as runner:
        world = runner.run(build())
        yield Stage(runner, world)
        runner.run(world.close())


def parts(made: Message | tuple[Message, bytes]) -> tuple[Message, bytes]:
    return made if isinstance(made, tuple) else (made, b"")


def needs_of(rule: Rule, request: Message) -> list[tuple[Operation, Resource]]:
    """Return the permissions that an ACL must allow; internal topics are the cluster's."""
    return [
        (Operation.CLUSTER_ACTION, Resource(ResourceType.CLUSTER, "kafka-cluster"))
        if rule.resource_type is ResourceType.TOPIC and name.startswith("__")
        else (rule.operation, Resource(rule.resource_type, name))
        for name in dict.fromkeys(rule.names(request))
    ]


def is_denied(api: Api, request: Message, rule: Rule, answer: Answer) -> bool:
    code = CODES[rule.resource_type]
    if rule.denial is Denial.REQUEST:
        return answer.error_code == code
    codes = item_codes(answer.message)
    return answer.error_code == 0 and len(codes) == len(rule.names(request)) and set(codes) == {code}


def rules_of(api: Api, request: Message) -> list[Rule]:
    return [rule for rule in PERMISSIONS[api] if rule.names(request)]


def test_every_api_is_in_the_matrix() -> None:
    assert set(REQUESTS_ABOUT) == set(Api)
    for api in Api:
        request, _ = parts(REQUESTS_ABOUT[api](THERE))
        assert bool(rules_of(api, request)) == (api not in OPEN_TO_ALL)


@pytest.mark.parametrize(("api", "about"), CASES, ids=IDS)
def test_who_may_nothing_changes_nothing_and_learns_nothing(
    stage: Stage, api: Api, about: Callable[[Names], Any]
) -> None:
    async def scenario() -> None:
        world = stage.world
        before = await world.state()
        there = await world.ask(MALLORY, api, *parts(about(THERE)))
        not_there = await world.ask(MALLORY, api, *parts(about(NOT_THERE)))
        assert await world.state() == before, "a denied request has changed something"
        rules = rules_of(api, parts(about(THERE))[0])
        if rules:
            assert is_denied(api, parts(about(THERE))[0], rules[0], there), there
        for existing, other in zip(THERE, NOT_THERE, strict=True):
            there = there._replace(data=there.data.replace(existing.encode(), other.encode()))
        assert (there.error_code, there.data) == (not_there.error_code, not_there.data), "existence shows"
        if api in OPEN_TO_ALL:
            assert not any(name.encode() in not_there.data for name in (*THERE, "idle", "public"))

    stage.runner.run(scenario())


def single_needs() -> list[Any]:
    found = []
    for (api, about), name in zip(CASES, IDS, strict=True):
        request, _ = parts(about(THERE))
        for rule in rules_of(api, request):
            found += [pytest.param(api, about, rule, id=f"{name}-{rule.operation}-{rule.resource_type}")]
    return found


@pytest.mark.parametrize(("api", "about", "rule"), single_needs())
def test_every_single_need_counts(stage: Stage, api: Api, about: Callable[[Names], Any], rule: Rule) -> None:
    """With all but one need, and with a denial on top of all, nothing is done; with all, it is not denied."""

    async def scenario() -> None:
        world = stage.world
        request, payload = parts(about(NOT_THERE))
        needs = {need for r in rules_of(api, request) for need in needs_of(r, request)}
        missing = set(needs_of(rule, request))
        try:
            await world.grant(MALLORY, needs - missing)
            before = await world.state()
            answer = await world.ask(MALLORY, api, request, payload)
            assert is_denied(api, request, rule, answer), answer
            assert await world.state() == before, "a denied request has changed something"
            await world.grant(MALLORY, missing)
            await world.grant(MALLORY, missing, permission=Permission.DENY)
            assert is_denied(api, request, rule, await world.ask(MALLORY, api, request, payload))
            assert is_denied(api, request, rules_of(api, request)[0], await world.ask(ALICE, api, request, payload))
        finally:
            await world.revoke_all()

    stage.runner.run(scenario())


@pytest.mark.parametrize(("api", "about"), CASES, ids=IDS)
def test_who_may_all_of_it_is_not_denied(tmp_path: Path, api: Api, about: Callable[[Names], Any]) -> None:
    """On a broker of its own: it is done."""

    async def scenario() -> None:
        world = await World.begin(tmp_path)
        try:
            request, payload = parts(about(NOT_THERE))
            await world.grant(MALLORY, [need for r in rules_of(api, request) for need in needs_of(r, request)])
            answer = await world.ask(MALLORY, api, request, payload)
            assert answer.error_code not in CODES.values(), answer
            if api is not Api.METADATA:  # to Describe is not to Create
                assert not set(item_codes(answer.message)) & set(CODES.values()), answer
            by_super_user = await world.ask(ADMIN, api, request, payload)
            assert by_super_user.error_code not in CODES.values()
            assert not set(item_codes(by_super_user.message)) & set(CODES.values()), by_super_user
        finally:
            await world.close()

    asyncio.run(scenario())
