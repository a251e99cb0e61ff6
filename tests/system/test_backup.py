"""Backups of a live broker, restored into another one."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog import Admin, Producer, TopicPartition
from sparklog.client.backup.backup import backup, newest_manifest
from sparklog.client.backup.manifest import Part, PartitionBackup, decode_manifest, kept_parts
from sparklog.client.backup.restore import restore
from sparklog.client.local import LocalBroker
from sparklog.client.local_cluster import start_cluster
from sparklog.client.local_zookeeper import has_java
from sparklog.client.start_local import start_local
from sparklog.errors import (
    CorruptBatchError,
    InvalidConfigError,
    InvalidRequestError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from sparklog.log.tiering.object_store import ObjectStore
from tests.support.cli import Result, run_here
from tests.support.s3 import s3_bucket

SCHEMA = pa.schema([("zone", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
AT = dt.datetime(2026, 11, 27, tzinfo=dt.UTC)


def contents(address: str, topic: str) -> list[Any]:
    table = sparklog.read_table(address, topic, include_metadata=True)
    return table.drop_columns(["_offset", "_timestamp"]).to_pylist()


def send(producer: Producer, topic: str, first: int, end: int) -> None:
    for i in range(first, end):
        producer.send(topic, {"zone": f"z{i % 5}", "at": AT, "n": i})


def test_a_live_broker_is_backed_up_step_by_step_and_restored(
    broker: LocalBroker, admin: Admin, topic: str, tmp_path: Path
) -> None:
    typed, plain, group = f"{topic}-typed", f"{topic}-plain", f"{topic}-g"
    admin.create_topic(typed, 2, SCHEMA, ["zone"], "at", {"retention.ms": "30d"})
    admin.create_topic(plain)
    tp = TopicPartition(plain, 0)
    store = ObjectStore((tmp_path / "store").as_uri())
    (tmp_path / "store").mkdir()
    address = broker.bootstrap_servers
    written: list[int] = []

    def copy(now_ms: int, part_bytes: int = 64 << 20) -> Any:
        written.clear()
        return backup(address, store, now_ms=now_ms, topics=[typed, plain], part_bytes=part_bytes,
                      report=lambda _, rows: written.append(rows))  # fmt: skip

    with Producer(address) as producer, Producer(address, transactional_id=topic) as transactions:
        transactions.init_transactions()
        transactions.begin_transaction()
        transactions.send(plain, b"aborted").result()
        transactions.abort_transaction()
        for start in range(0, 300, 50):
            send(producer, typed, start, start + 50)
            producer.flush()  # a stored batch of its own
        for i in range(20):
            producer.send(plain, b"%d" % i, key=b"k", headers=[("h", b"1")], timestamp_ms=1_000 + i)
        producer.flush()
        admin.alter_group_offsets(group, {tp: 12})  # behind 2 offsets of the aborted transaction and 10 records
        first = copy(1_000, part_bytes=2_000)
        assert sum(written) == 320
        assert max(len(p.parts) for p in first.topics[0].partitions) > 1
        for part in (part for p in first.topics[0].partitions for part in p.parts):
            assert pa.ipc.open_file(str(tmp_path / "store" / part.key)).num_record_batches == 1, part
        send(producer, typed, 300, 310)
        transactions.begin_transaction()
        transactions.send(plain, b"open")  # its end is not known at the cut
        transactions.flush()
        producer.flush()
        second = copy(2_000)
        assert sum(written) == 10  # the parts of the first backup are used again
        transactions.commit_transaction()
        admin.add_partitions(plain, 2)
        third = copy(3_000).topics[1].partitions
        assert third[0].end > second.topics[1].partitions[0].end
        assert (third[1].start, third[1].end, third[1].parts) == (0, 0, [])
    assert newest_manifest(store).created_ms == 3_000  # type: ignore[union-attr]
    expected = contents(address, typed)
    with start_local(data_dir=tmp_path / "new") as fresh, Admin(fresh.bootstrap_servers) as there:
        restored = restore(fresh.bootstrap_servers, store, second)
        assert sum(restored.values()) == 330
        assert contents(fresh.bootstrap_servers, typed) == expected
        assert there.describe_topic(typed).configs == {"retention.ms": 30 * 86_400_000, "kafka.key.format": "text"}
        assert there.describe_topic(typed).key_columns == ("zone",)
        values = sparklog.read_table(fresh.bootstrap_servers, plain)
        assert values.column("value").to_pylist() == [b"%d" % i for i in range(20)]
        assert values.column("timestamp").cast(pa.int64()).to_pylist() == [(1_000 + i) * 1000 for i in range(20)]
        assert there.list_group_offsets(group)[tp].offset == 10
        with pytest.raises(TopicAlreadyExistsError, match="nothing was restored"):
            restore(fresh.bootstrap_servers, store, second)
        with pytest.raises(InvalidRequestError, match="has no topic 'x'"):
            restore(fresh.bootstrap_servers, store, second, topics=["x"])
        there.delete_topic(plain)
        printed = run_here("restore", str(tmp_path / "store"), "--topic", plain, "-b", fresh.bootstrap_servers)
        assert "1 topics, 21 records restored" in printed.stdout, printed.stderr
        there.delete_topic(typed)
        damaged = tmp_path / "store" / second.topics[0].partitions[0].parts[0].key
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
        with pytest.raises(CorruptBatchError, match="is damaged"):
            restore(fresh.bootstrap_servers, store, second, topics=[typed])


@pytest.mark.nightly
def test_a_backup_in_s3(admin: Admin, broker: LocalBroker, topic: str, tmp_path: Path) -> None:
    """The commands, with the credentials of the environment."""
    pytest.importorskip("s3fs")
    admin.create_topic(topic, 2, SCHEMA, ["zone"], "at")
    with Producer(broker.bootstrap_servers) as producer, s3_bucket("copies") as environment:
        send(producer, topic, 0, 100)
        producer.flush()
        address, url = broker.bootstrap_servers, "s3://copies/nightly"

        def run(*arguments: str, to: str = address) -> Result:
            return run_here(*arguments, "-b", to, environment=environment)

        assert "100 records in 2 new objects" in run("backup", url, "-t", topic).stdout
        send(producer, topic, 100, 101)
        producer.flush()
        assert "; 1 records in 1 new objects" in run("backup", f"{url}/", "-t", topic).stdout
        missing = run("backup", "s3://no-such-bucket/x", "-t", topic).stderr
        assert "cannot write s3://no-such-bucket/x/data" in missing
        assert "holds no backup" in run("restore", "s3://copies/other").stderr
        with start_local(data_dir=tmp_path / "new") as fresh:
            restored = run("restore", url, to=fresh.bootstrap_servers).stdout
            assert "1 topics, 101 records restored" in restored
            assert contents(fresh.bootstrap_servers, topic) == contents(address, topic)


def test_a_url_that_cannot_be_used_is_named_as_the_argument(broker: LocalBroker) -> None:
    for arguments, named in (
        (["s4://bucket/x"], "URL = 's4://bucket/x' cannot be used"),
        (["memory://x", "--options", "{"], "--options is not JSON"),
        (["s3:/bucket/x"], "write s3://bucket/x for a URL, or ./s3:/bucket/x for a directory"),
        ([__file__], "is a file: name a directory or a URL"),
    ):
        error = run_here("backup", *arguments, "-b", broker.bootstrap_servers).stderr
        assert named in error
        assert "remote.log" not in error


def test_deleted_records_are_excluded(broker: LocalBroker, admin: Admin, topic: str, tmp_path: Path) -> None:
    store = ObjectStore(tmp_path.as_uri())
    admin.create_topic(topic)
    with Producer(broker.bootstrap_servers) as producer:
        for i in range(10):
            producer.send(topic, b"%d" % i)
    backup(broker.bootstrap_servers, store, now_ms=1, topics=[topic])
    admin.delete_records({TopicPartition(topic, 0): 4})
    manifest = backup(broker.bootstrap_servers, store, now_ms=2, topics=[topic])
    admin.delete_topic(topic)
    assert restore(broker.bootstrap_servers, store, manifest) == {TopicPartition(topic, 0): 6}
    with pytest.raises(UnknownTopicOrPartitionError):
        backup(broker.bootstrap_servers, store, now_ms=3, topics=[f"{topic}-none"])
    assert "holds no backup" in run_here("restore", str(tmp_path / "none"), "-b", broker.bootstrap_servers).stderr
    assert not (tmp_path / "none").exists()


def test_a_refused_restore_creates_no_topic_and_an_interrupted_one_names_its_topics(
    broker: LocalBroker, admin: Admin, topic: str, tmp_path: Path
) -> None:
    store, address = ObjectStore(tmp_path.as_uri()), broker.bootstrap_servers
    names = [f"{topic}-{i}" for i in range(3)]
    with Producer(address) as producer:
        for name in names:
            admin.create_topic(name)
            producer.send(name, b"x")
    manifest = backup(address, store, now_ms=1, topics=names)
    for name in names:
        admin.delete_topic(name)
    manifest.topics[2].configs["min.insync.replicas"] = 2
    with pytest.raises(InvalidConfigError, match=r"min\.insync\.replicas = 2") as refused:
        restore(address, store, manifest)
    assert "give the topics another value with --config" in refused.value.__notes__[0]
    assert not set(names) & set(admin.list_topics())
    part = tmp_path / manifest.topics[1].partitions[0].parts[0].key
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    printed = run_here("restore", tmp_path, "--config", "min.insync.replicas=1", "-b", address).stderr
    assert "is damaged" in printed
    assert f"records are missing in {names[1]!r}, {names[2]!r}, and no group has offsets" in printed
    assert f"complete: {names[0]!r}" in printed
    with pytest.raises(TopicAlreadyExistsError, match=rf"topics '{topic}-0', .* already exist; nothing was restored"):
        restore(address, store, manifest)


def test_parts_that_a_later_backup_uses_again() -> None:
    a, b, c = (Part(f"{i}", i * 10, i * 10 + 10, 10, 1, 1) for i in range(3))
    earlier = PartitionBackup(0, 30, [a, b, c])
    assert kept_parts(earlier, 0, 30) == [a, b, c]
    assert kept_parts(earlier, 5, 30) == [a, b, c]
    assert kept_parts(earlier, 10, 35) == [b, c]
    assert kept_parts(earlier, 0, 25) == [a, b]
    assert kept_parts(earlier, 30, 40) == kept_parts(None, 0, 5) == []
    assert kept_parts(PartitionBackup(0, 30, [a, c]), 0, 30) == [a]
    assert kept_parts(PartitionBackup(0, 30, [b]), 5, 30) == []
    for wrong, message in (
        (b"{", "not a backup"),
        (b'{"format":9,"created_ms":1,"topics":[],"groups":{}}', "format 9"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            decode_manifest(wrong, "x")


def test_a_store_by_its_url_and_other_settings(broker: LocalBroker, admin: Admin, topic: str) -> None:
    at, url = ("-b", broker.bootstrap_servers), f"memory://{topic}"
    configs = {"retention.ms": "30d", "lake.commit.interval.ms": 60_000, "kafka.key.format": ""}
    admin.create_topic(topic, 2, "value BINARY", ["value"], configs=configs)
    for last in (1_000, 1_010):
        with Producer(broker.bootstrap_servers) as producer:
            for i in range(0 if last == 1_000 else 1_000, last):
                producer.send(topic, {"value": b"%d" % i}, partition=i % 2)
        printed = run_here("backup", url, "--topic", topic, *at)
        assert f"{1_000 if last == 1_000 else 10:,} records in 2 new objects" in printed.stdout, (
            printed.stdout + printed.stderr
        )
    expected = contents(broker.bootstrap_servers, topic)
    admin.delete_topic(topic)
    refused = run_here("restore", url, "--config", "min.insync.replicas=2", *at)
    assert "min.insync.replicas = 2 with 1 replicas" in refused.stderr
    printed = run_here("restore", url, "--config", "segment.ms=1d", "--replication-factor", 1, *at)
    assert "1 topics, 1,010 records restored" in printed.stdout, printed.stdout + printed.stderr
    assert contents(broker.bootstrap_servers, topic) == expected
    assert admin.describe_topic(topic).configs == {"retention.ms": 30 * 86_400_000, "segment.ms": 86_400_000}


@pytest.mark.nightly
@pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")
def test_a_cluster_is_backed_up_without_one_of_its_brokers_and_restored_into_another(tmp_path: Path) -> None:
    store = ObjectStore((tmp_path / "store").as_uri())
    (tmp_path / "store").mkdir()
    settings = {"zookeeper.session.timeout.ms": 6_000}
    with start_cluster(3, tmp_path / "old", settings=settings) as old:
        address = old.bootstrap_servers
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topic("t", 6, replication_factor=3, configs={"min.insync.replicas": 2})
            for i in range(3_000):
                producer.send("t", b"%d" % i, partition=i % 6)
            producer.flush()
            admin.alter_group_offsets("g", {TopicPartition("t", p): 100 + p for p in range(6)})
            old.brokers[1].kill()
            for i in range(3_000, 3_100):
                producer.send("t", b"%d" % i, partition=i % 6)
            producer.flush()
            manifest = backup(address, store, now_ms=1, timeout_ms=120_000)
        expected = contents(address, "t")
    assert len(expected) == 3_100
    with start_local(brokers=3, data_dir=tmp_path / "new") as new, Admin(new.bootstrap_servers) as there:
        assert sum(restore(new.bootstrap_servers, store, manifest).values()) == 3_100
        assert contents(new.bootstrap_servers, "t") == expected
        described = there.describe_topic("t")
        assert [len(p.replicas) for p in described.partition_details] == [3] * 6
        assert described.configs == {"min.insync.replicas": 2}
        assert {tp.partition: o.offset for tp, o in there.list_group_offsets("g").items()} == {
            p: 100 + p for p in range(6)
        }
    with start_local(data_dir=tmp_path / "alone") as alone:
        found = restore(alone.bootstrap_servers, store, manifest, configs={"min.insync.replicas": None})
        assert sum(found.values()) == 3_100
        assert contents(alone.bootstrap_servers, "t") == expected
