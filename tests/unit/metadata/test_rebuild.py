"""A lost metadata store is made anew from the partitions' directories."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.config import load_config
from typer.testing import CliRunner

from sparklog.cli.app import app
from sparklog.environment.files import RealFiles
from sparklog.errors import LogCorruptError, StorageError
from sparklog.format.batch import encode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.format.schema_evolution import SchemaChange
from sparklog.format.topic_record import TOPIC_FILE, decode_topic, encode_topic
from sparklog.metadata.local_coordination import METADATA_FILE
from sparklog.metadata.rebuild import KEPT_FOREVER, PRODUCER_IDS_SKIPPED, rebuild, topic_record
from sparklog.metadata.store import Topic, TopicSpec
from sparklog.security.acl_records import acl_of
from sparklog.security.acls import CLUSTER_NAME, OPERATIONS, Resource, ResourceType
from sparklog.security.authorizer import AclAuthorizer, Peer
from sparklog.security.principals import user
from sparklog.security.records import RecordId, RecordKind
from tests.support.brokers import started
from tests.support.logs import records
from tests.support.metadata import read_store, write_security

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def with_broker(data: Path, scenario: Callable[[Broker], Awaitable[None]]) -> None:
    async def run() -> None:
        broker = await started(load_config(None, data_dir=str(data), listen="127.0.0.1:0"))
        try:
            await scenario(broker)
        finally:
            await broker.close()

    asyncio.run(run())


def typed_batch(broker: Broker, topic: str, *, producer_id: int = -1) -> bytearray:
    found = broker.partitions.topics[topic]
    rows = pa.record_batch([pa.array([1]), pa.array([0], SCHEMA.field("at").type)], schema=SCHEMA)
    producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0} if producer_id >= 0 else {}
    return bytearray(
        encode_batch(rows, schema_id=min(found.schemas), min_timestamp_ms=0, max_timestamp_ms=0, **producer)  # type: ignore[arg-type]
    )


async def fill(broker: Broker) -> None:
    await broker.topics.create(TopicSpec("events", 3, configs={"retention.ms": 1_000_000}))
    await broker.topics.create(TopicSpec("typed", 2, schema=SCHEMA, key_columns=("id",), timestamp_column="at"))
    await broker.topics.create(TopicSpec("empty", 1, schema=SCHEMA, owner="User:alice"))
    for number in range(3):
        broker.partitions.get("events", number).log.appender.append(records(2))
    broker.partitions.get("typed", 1).log.appender.append(
        typed_batch(broker, "typed", producer_id=await broker.storage.new_producer_id())
    )
    await broker.topics.alter_schema("typed", SchemaChange(add=pa.schema([("more", pa.string())])))
    await broker.topics.alter("events", {"segment.bytes": 1_000_000})


@pytest.fixture
def lost(tmp_path: Path) -> tuple[Path, dict[str, Topic], str]:
    """A data directory with three topics and without its metadata.db; and the lost content."""
    data = tmp_path / "data"
    with_broker(data, fill)
    stored = read_store(data / METADATA_FILE)
    (data / METADATA_FILE).unlink()
    return data, stored.topics, stored.cluster_id


def run(data: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["log", "rebuild-metadata", "--data-dir", str(data), *arguments])
    return result.exit_code, result.output


def test_everything_is_as_it_was(lost: tuple[Path, dict[str, Topic], str]) -> None:
    data, topics, cluster_id = lost
    with pytest.raises(StorageError, match="rebuild-metadata --data-dir"):
        with_broker(data, lambda _: asyncio.sleep(0))
    assert not (data / METADATA_FILE).exists(), "no empty one hides the loss"
    code, output = run(data)
    assert (code, "dry run" in output) == (1, True)
    assert not (data / METADATA_FILE).exists()
    code, output = run(data, "--yes")
    assert code == 0, output
    assert "unknown" not in output
    stored = read_store(data / METADATA_FILE)
    assert stored.topics == topics
    assert {topic.name: topic.owner for topic in stored.topics.values()} == {
        "events": "", "typed": "", "empty": "User:alice",
    }  # fmt: skip
    assert stored.cluster_id == cluster_id
    assert stored.producer_ids_end == 1 + PRODUCER_IDS_SKIPPED
    assert stored.schema_ids_end > max(i for t in topics.values() for i in t.schemas)

    async def check(broker: Broker) -> None:
        assert [broker.partitions.get("events", p).log.log_end_offset for p in range(3)] == [2, 2, 2]
        assert broker.partitions.get("typed", 1).log.log_end_offset == 1

    with_broker(data, check)
    code, output = run(data, "--yes")
    assert (code, "is sound" in output) == (1, True)
    code, output = run(data, "--yes", "--force")
    assert code == 0
    assert len(list(data.glob(f"{METADATA_FILE}.*.old"))) == 1


def test_new_topics_begin_above_the_epochs_of_the_directories(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def create_again(broker: Broker) -> None:
        for _ in range(3):
            await broker.topics.create(TopicSpec("again"))
            await broker.topics.delete("again")
        await broker.topics.create(TopicSpec("again"))
        await broker.topics.create(TopicSpec("kept"))
        epoch = broker.cluster.image.topics["kept"].first_leader_epoch
        broker.partitions.get("kept", 0).log.appender.append(records(2), leader_epoch=epoch)

    with_broker(data, create_again)
    before = read_store(data / METADATA_FILE).topics
    assert before["kept"].first_leader_epoch > 0
    highest = max(rebuild([data], RealFiles()).leader_epochs.values())
    (data / METADATA_FILE).unlink()
    assert run(data, "--yes")[0] == 0
    assert read_store(data / METADATA_FILE).topics == before, "commits for the earlier topics stay refused"

    async def create_another(broker: Broker) -> None:
        await broker.topics.delete("again")
        await broker.topics.create(TopicSpec("again"))
        await broker.topics.create(TopicSpec("other"))
        for name in ("again", "other"):
            assert broker.cluster.image.topics[name].first_leader_epoch > highest, name

    with_broker(data, create_another)


def test_the_first_topic_of_a_rebuilt_store_is_above_the_lost_ones(lost: tuple[Path, dict[str, Topic], str]) -> None:
    data, _, _ = lost
    highest = max(rebuild([data], RealFiles()).leader_epochs.values())
    assert run(data, "--yes")[0] == 0

    async def create(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("first"))
        assert broker.cluster.image.topics["first"].first_leader_epoch > highest + 1, "a topic had epoch + 1 since"

    with_broker(data, create)


def test_without_topic_json_the_segments_decide(lost: tuple[Path, dict[str, Topic], str]) -> None:
    data, topics, _ = lost
    for path in data.rglob(TOPIC_FILE):
        path.unlink()
    found = rebuild([data], RealFiles())
    by_name = {t.name: t for t in found.topics}
    assert sorted(by_name) == ["events", "typed"]
    assert dict(by_name["events"].schemas) == {1: ENVELOPE_SCHEMA}
    assert (by_name["events"].topic_id, by_name["events"].partitions) == (topics["events"].topic_id, 3)
    assert dict(by_name["events"].configs) == dict(KEPT_FOREVER), "nothing is deleted because settings are lost"
    first = min(topics["typed"].schemas)
    assert dict(by_name["typed"].schemas) == {first: topics["typed"].schemas[first]}
    assert "key columns" in found.unknown["typed"]
    assert all(any(what.startswith("owner (") for what in found.unknown[name]) for name in by_name)
    assert [path.name for path, _ in found.ignored] == ["empty-0"]


def test_a_damaged_store_is_replaced_and_kept(lost: tuple[Path, dict[str, Topic], str]) -> None:
    data, topics, _ = lost
    (data / METADATA_FILE).write_bytes(b"this is no database, not at all" * 100)
    with pytest.raises(StorageError, match="rebuild-metadata --data-dir"):
        with_broker(data, lambda _: asyncio.sleep(0))
    assert run(data, "--yes")[0] == 0
    (kept,) = data.glob(f"{METADATA_FILE}.*.old")
    assert kept.read_bytes().startswith(b"this is no database")
    assert read_store(data / METADATA_FILE).topics == topics


def test_a_missing_partition_is_missed_after_it_too(lost: tuple[Path, dict[str, Topic], str]) -> None:
    import shutil

    data, _, _ = lost
    shutil.rmtree(data / "events-2")
    code, output = run(data, "--yes")
    assert code == 0
    assert "the directories of partitions 2" in output

    async def check(broker: Broker) -> None:
        with pytest.raises(LogCorruptError, match="of the topic is missing"):
            broker.partitions.get("events", 2)
        assert broker.partitions.get("events", 1).log.log_end_offset == 2

    with_broker(data, check)


def test_a_copy_of_a_partition_under_another_name_is_skipped(lost: tuple[Path, dict[str, Topic], str]) -> None:
    data, topics, _ = lost
    shutil.copytree(data / "events-0", data / "events-7")
    code, output = run(data, "--yes")
    assert "events-7" in output
    assert "is another partition's" in output
    assert read_store(data / METADATA_FILE).topics == topics, (code, output)


def test_while_a_broker_runs_no_file_is_written(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def scenario(broker: Broker) -> None:
        await fill(broker)
        code, _ = await asyncio.to_thread(run, data, "--yes", "--force")
        assert code != 0
        assert not list(data.glob("*.old"))

    with_broker(data, scenario)


def test_a_damaged_topic_json_does_not_count(lost: tuple[Path, dict[str, Topic], str]) -> None:
    _, topics, _ = lost
    content = encode_topic(topic_record(topics["typed"]))
    found = decode_topic(content)
    assert found == topic_record(topics["typed"])
    assert decode_topic(content.replace(b'"more"', b'"mire"').replace(b"typed", b"tiped")) is None
    assert decode_topic(b"{") is None
    owned = encode_topic(topic_record(topics["empty"]))
    assert decode_topic(owned.replace(b"User:alice", b"User:alicf")) is None


def test_a_topic_json_without_owner_is_as_brokers_before_wrote_it(lost: tuple[Path, dict[str, Topic], str]) -> None:
    _, topics, _ = lost
    content = encode_topic(topic_record(topics["typed"]))
    assert b"owner" not in content
    found = decode_topic(content)
    assert found is not None
    assert found.owner == ""


SECURITY = {RecordId("acls", "a"): b"allows", RecordId("users", "alice"): b"salted"}


def _security_of(data: Path) -> dict[RecordId, bytes]:
    return dict(read_store(data / METADATA_FILE).security)


def test_users_and_acls_come_from_the_old_store_or_from_a_copy(
    lost: tuple[Path, dict[str, Topic], str], tmp_path: Path
) -> None:
    data, _, _ = lost
    copy = tmp_path / "copy.db"
    write_security(copy, SECURITY)
    assert run(data, "--security-from", str(tmp_path / "none"), "--yes")[0] != 0
    code, output = run(data, "--security-from", str(copy), "--yes")
    assert (code, _security_of(data)) == (0, SECURITY)
    assert "2 records" in output
    assert run(data, "--yes", "--force")[0] == 0  # from the one that it replaces
    assert _security_of(data) == SECURITY


@pytest.mark.parametrize("damage", ["", "this is no database"])
def test_lost_acls_open_no_access(lost: tuple[Path, dict[str, Topic], str], damage: str) -> None:
    """Not even where a resource without ACLs is for everybody."""
    data, _, _ = lost
    if damage:
        (data / METADATA_FILE).write_text(damage * 100)
    code, output = run(data, "--yes")
    assert code == 0
    assert "LOST" in output
    acls = [acl_of(value) for name, value in _security_of(data).items() if name.kind == RecordKind.ACLS]
    boss, other = user("boss"), user("other")
    authorizer = AclAuthorizer(acls, frozenset({boss}), True)
    for resource in ResourceType:
        name = CLUSTER_NAME if resource is ResourceType.CLUSTER else "anything"
        for operation in OPERATIONS[resource]:
            asked = operation, Resource(resource, name)
            assert authorizer.allowed(Peer(boss, "127.0.0.1"), *asked)
            assert not authorizer.allowed(Peer(other, "127.0.0.1"), *asked)
    (data / METADATA_FILE).unlink()
    assert run(data, "--yes", "--no-security")[0] == 0
    assert _security_of(data) == {}
