"""The audit log at work: one line per administrative act and per denial, in files that are rotated."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from sparklog_broker.security.audit_log import RotatedFile

from sparklog.environment.files import RealFiles
from sparklog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    StorageFullError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from sparklog.protocol import acl_messages as acls
from sparklog.protocol import messages as m
from sparklog.protocol import topic_messages as topics
from sparklog.protocol import transaction_messages as txn
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import DeleteGroupRequest
from sparklog.security.acls import Operation, Resource, ResourceType
from tests.support.transactions import plain, rows
from tests.unit.broker.security.access_world import ADMIN, ALICE, BATCH, HOST, MALLORY, World


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def brief(line: dict[str, Any]) -> tuple[str, ...]:
    return tuple(line[k] for k in ("kind", "principal", "api", "operation", "resource", "outcome"))


def test_acts_and_denials_have_a_line_each(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await World.begin(tmp_path, **{"audit.log.file": "audit.log"})
        await world.do(ADMIN, Api.CREATE_TOPIC, topics.CreateTopicRequest("t"))
        await world.ask(ADMIN, Api.CREATE_TOPIC, topics.CreateTopicRequest("t"))
        await world.ask(MALLORY, Api.DELETE_TOPIC, topics.DeleteTopicRequest("t"))
        await world.ask(
            MALLORY, Api.DELETE_RECORDS, m.DeleteRecordsRequest(1_000, [m.DeleteRecordsPartition("t", 0, -1)])
        )
        produce = m.ProduceRequest(1, 1_000, [m.ProducePartition("t", 0, len(BATCH))])
        await world.ask(MALLORY, Api.PRODUCE, produce, BATCH)
        await world.do(ADMIN, Api.PRODUCE, produce, BATCH)  # neither
        entry = acls.AclEntry("topic", "literal", "t", "User:alice", "*", "Read", "Allow")
        await world.do(ADMIN, Api.CREATE_ACLS, acls.CreateAclsRequest([entry]))
        await world.close()

    asyncio.run(scenario())
    found = lines(tmp_path / "audit.log")
    assert [brief(line) for line in found] == [
        ("act", "User:admin", "CREATE_TOPIC", "", "topic:t", "NONE"),
        ("act", "User:admin", "CREATE_TOPIC", "", "topic:t", "TOPIC_ALREADY_EXISTS"),
        ("denial", "User:mallory", "DELETE_TOPIC", "Delete", "topic:t", "TOPIC_AUTHORIZATION_FAILED"),
        ("denial", "User:mallory", "DELETE_RECORDS", "Delete", "topic:t", "TOPIC_AUTHORIZATION_FAILED"),
        ("denial", "User:mallory", "PRODUCE", "Write", "topic:t", "TOPIC_AUTHORIZATION_FAILED"),
        ("act", "User:admin", "CREATE_ACLS", "", "cluster:kafka-cluster", "NONE"),
    ]
    assert {(line["host"], line["listener"], line["client_id"]) for line in found} == {(HOST, "CLIENTS", "tests")}


def test_a_partial_denial_is_an_act_and_a_denial(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await World.begin(tmp_path, **{"audit.log.file": "audit.log"})
        for name in ("a", "b"):
            await world.do(ADMIN, Api.CREATE_TOPIC, topics.CreateTopicRequest(name))
        await world.grant(MALLORY, [(Operation.DELETE, Resource(ResourceType.TOPIC, "a"))])
        both = [m.DeleteRecordsPartition(name, 0, 0) for name in ("a", "b")]
        await world.ask(MALLORY, Api.DELETE_RECORDS, m.DeleteRecordsRequest(1_000, both))
        await world.ask(MALLORY, Api.DELETE_RECORDS, m.DeleteRecordsRequest(1_000, both[1:]))
        await world.close()

    asyncio.run(scenario())
    found = [brief(line) for line in lines(tmp_path / "audit.log") if line["principal"] == "User:mallory"]
    denied = ("denial", "User:mallory", "DELETE_RECORDS", "Delete", "topic:b", "TOPIC_AUTHORIZATION_FAILED")
    assert found == [denied, ("act", "User:mallory", "DELETE_RECORDS", "", "topic:a", "NONE"), denied]


def test_an_auto_created_topic_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = await World.begin(tmp_path, **{"audit.log.file": "audit.log", "auto.create.topics.enable": True})
        topic = Resource(ResourceType.TOPIC, "made")
        await world.grant(ALICE, [(Operation.CREATE, topic), (Operation.DESCRIBE, topic)])
        await world.grant(MALLORY, [(Operation.DESCRIBE, Resource(ResourceType.TOPIC, "other"))])
        await world.do(ALICE, Api.METADATA, topics.MetadataRequest(["made"], create_missing=True))
        await world.do(ALICE, Api.METADATA, topics.MetadataRequest(["made"], create_missing=True))
        await world.ask(MALLORY, Api.METADATA, topics.MetadataRequest(["other"], create_missing=True))
        monkeypatch.setattr(world.broker.topics, "create", failing)
        await world.ask(ADMIN, Api.METADATA, topics.MetadataRequest(["full"], create_missing=True))
        await world.close()

    async def failing(*_: Any, **__: Any) -> Any:
        raise StorageFullError("no room")

    asyncio.run(scenario())
    found = lines(tmp_path / "audit.log")
    assert [brief(line) for line in found] == [
        ("act", "User:alice", "CREATE_TOPIC", "", "topic:made", "NONE"),
        ("denial", "User:mallory", "METADATA", "Create", "topic:other", "TOPIC_AUTHORIZATION_FAILED"),
        ("act", "User:admin", "CREATE_TOPIC", "", "topic:full", "STORAGE_FULL"),
    ]
    assert [line["detail"] for line in found] == ["auto.create.topics.enable", "", "auto.create.topics.enable"]


def test_a_validation_makes_no_change_and_is_no_act(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await World.begin(tmp_path, **{"audit.log.file": "audit.log"})
        await world.do(ADMIN, Api.CREATE_TOPIC, topics.CreateTopicRequest("t", configs={"retention.ms": 5}))
        before = dict(world.broker.partitions.topics)
        new = topics.CreateTopicRequest("new", validate_only=True)
        await world.do(ADMIN, Api.CREATE_TOPIC, new)
        altered = topics.AlterTopicRequest("t", {"retention.ms": 7}, validate_only=True)
        answer = await world.do(ADMIN, Api.ALTER_TOPIC, altered)
        assert answer.topic.configs == {"retention.ms": 5}
        await world.do(ADMIN, Api.CREATE_PARTITIONS, topics.CreatePartitionsRequest("t", 9, validate_only=True))
        for api, wrong in (
            (Api.CREATE_TOPIC, topics.CreateTopicRequest("t", validate_only=True)),
            (Api.ALTER_TOPIC, topics.AlterTopicRequest("missing", {}, validate_only=True)),
            (Api.ALTER_TOPIC, topics.AlterTopicRequest("t", {"retention.ms": -7}, validate_only=True)),
            (Api.CREATE_PARTITIONS, topics.CreatePartitionsRequest("t", 1, validate_only=True)),
        ):
            assert (await world.ask(ADMIN, api, wrong)).error_code in (
                TopicAlreadyExistsError.code,
                UnknownTopicOrPartitionError.code,
                InvalidConfigError.code,
                InvalidPartitionsError.code,
            )
        assert world.broker.partitions.topics == before
        await world.close()

    asyncio.run(scenario())
    assert [line["api"] for line in lines(tmp_path / "audit.log")] == ["CREATE_TOPIC"]


def test_a_write_with_a_foreign_producer_id_is_a_denial(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await World.begin(tmp_path, **{"audit.log.file": "audit.log"})
        await world.do(ADMIN, Api.CREATE_TOPIC, topics.CreateTopicRequest("t"))
        await world.grant(MALLORY, [(Operation.WRITE, Resource(ResourceType.TOPIC, "t"))])
        made = await world.do(ADMIN, Api.INIT_PRODUCER_ID, txn.InitProducerIdRequest())
        data = plain(rows(b"evil", (made.producer_id, 0), 0))
        request = m.ProduceRequest(1, 1_000, [m.ProducePartition("t", 0, len(data))] * 2)
        await world.ask(MALLORY, Api.PRODUCE, request, data * 2)
        await world.close()

    asyncio.run(scenario())
    assert [brief(line) for line in lines(tmp_path / "audit.log")][1:] == [
        ("denial", "User:mallory", "PRODUCE", "Write", "topic:t", "INVALID_PRODUCER_ID_MAPPING")
    ]


def test_a_name_in_the_audit_log_is_no_second_line_and_no_second_resource(tmp_path: Path) -> None:
    names = ["g, topic:payroll", "g\\, topic:payroll", 'g"}\n{"kind":"act"', "g\u2028\x85\x1b[2J"]

    async def scenario() -> None:
        world = await World.begin(tmp_path, **{"audit.log.file": "audit.log"})
        for name in names:
            await world.ask(ADMIN, Api.DELETE_GROUP, DeleteGroupRequest(name))
        await world.close()

    asyncio.run(scenario())
    found = lines(tmp_path / "audit.log")
    assert [line["resource"] for line in found] == [
        r"group:g\, topic:payroll",
        r"group:g\\\, topic:payroll",
        'group:g"}\n{"kind":"act"',
        "group:g\u2028\x85\x1b[2J",
    ]
    assert (tmp_path / "audit.log").read_text().replace("\n", "").isprintable()


def test_denials_of_one_source_are_limited_and_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = await World.begin(tmp_path, **{"audit.log.file": str(tmp_path / "elsewhere.log")})
        for _ in range(100):
            await world.ask(MALLORY, Api.DELETE_GROUP, _delete())
        await world.close()

    asyncio.run(scenario())
    found = lines(tmp_path / "elsewhere.log")
    assert {line["kind"] for line in found} == {"denial"}
    assert 20 <= len(found) <= 60


def _delete() -> Any:
    return DeleteGroupRequest("g")


def test_the_file_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = RotatedFile(path, RealFiles(), max_bytes=100, backups=2)
    for i in range(10):
        file.append(b"%039d\n" % i)
    file.close()
    again = RotatedFile(path, RealFiles(), max_bytes=100, backups=2)
    again.append(b"%039d\n" % 10)
    again.close()
    found = {p.name: [int(line) for line in p.read_text().split()] for p in tmp_path.iterdir()}
    assert found == {"audit.log": [10], "audit.log.1": [8, 9], "audit.log.2": [6, 7]}


def test_a_file_for_logrotate_has_no_largest_size(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "audit.log", RealFiles(), max_bytes=0, backups=2)
    for i in range(3):
        file.append(b"%d\n" % i)
    file.close()
    assert [p.name for p in tmp_path.iterdir()] == ["audit.log"]


def test_a_file_that_logrotate_has_renamed_or_removed_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = RotatedFile(path, RealFiles(), max_bytes=1_000, backups=2)
    file.append(b"1\n")
    path.rename(tmp_path / "audit.log-1")
    file.append(b"2\n")
    path.unlink()
    file.append(b"3\n")
    file.append(b"4\n")
    file.close()
    found = {p.name: p.read_text().split() for p in tmp_path.iterdir()}
    assert found == {"audit.log": ["3", "4"], "audit.log-1": ["1"]}
