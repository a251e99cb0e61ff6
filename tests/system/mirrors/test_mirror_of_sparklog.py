"""A copy in another place: one cluster mirrors the topics of another, and takes over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.net.cluster import cluster
from sparklog.errors import InvalidConfigError, PolicyViolationError
from sparklog.mirror.worker.verify import verify_mirror
from sparklog.mirror.worker.worker import MirrorWorker
from sparklog.types import OffsetAndMetadata, TopicPartition
from tests.support.cases import for_each
from tests.support.waiting import PATIENCE_S, START_S

NEEDS_GATEWAY = True


@pytest.fixture(scope="module")
def source() -> Iterator[LocalBroker]:
    with sparklog.start_local(timeout_s=START_S, settings={"log.cleaner.backoff.ms": 20}) as local:
        yield local


def url(source: LocalBroker) -> str:
    return f"sparklog://{source.bootstrap_servers}"


def send(local: LocalBroker, topic: str, rows: list[Any], **settings: Any) -> None:
    with sparklog.Producer(local.bootstrap_servers, **settings) as producer:
        for row in rows:
            producer.send(topic, row)


def in_transactions(local: LocalBroker, topic: str, rows: list[Any]) -> None:
    """Each row in a transaction of its own; every second one is aborted."""
    with sparklog.Producer(local.bootstrap_servers, transactional_id=f"t-{topic}") as producer:
        producer.init_transactions()
        for number, row in enumerate(rows):
            producer.begin_transaction()
            producer.send(topic, row)
            (producer.abort_transaction if number % 2 else producer.commit_transaction)()


def stored(local: LocalBroker, topic: str) -> str:
    """All rows with their places and times, as a text in which NaN equals NaN."""
    table = sparklog.read_table(local.bootstrap_servers, topic, include_metadata=True)
    return "\n".join(map(repr, table.sort_by([("_partition", "ascending"), ("_offset", "ascending")]).to_pylist()))


def ends(admin: sparklog.Admin, topic: str) -> list[int]:
    tps = [TopicPartition(topic, p) for p in range(admin.describe_topic(topic).partitions)]
    found = admin.list_offsets(dict.fromkeys(tps, "latest"))
    return [found[tp].offset for tp in tps]


def verified(target: LocalBroker, mirror: str) -> tuple[int, list[str]]:
    report = verify_mirror(cluster(target.bootstrap_servers), mirror)
    return report.records, report.problems


def test_columns_offsets_and_transactions_are_the_same_until_the_copy_takes_over(
    source: LocalBroker,
    target: LocalBroker,
    source_admin: sparklog.Admin,
    admin: sparklog.Admin,
    worker: MirrorWorker,
) -> None:
    source_admin.create_topic(
        "accounts", 2, "id INT, name STRING, at TIMESTAMP, sum FLOAT", ["id"], "at", {"retention.ms": -1}
    )
    send(source, "accounts", [{"id": i, "name": f"n{i}", "sum": i / 3} for i in range(100)])
    source_admin.alter_schema("accounts", add_columns="city STRING")
    in_transactions(source, "accounts", [{"id": i, "name": "in a transaction", "city": "Bern"} for i in range(6)])
    source_admin.alter_schema("accounts", widen_columns="sum DOUBLE")
    send(source, "accounts", [{"id": 7, "sum": float("nan")}, {"id": 8, "sum": -0.0}], compression="zstd")
    tp = TopicPartition("accounts", 0)
    source_admin.alter_group_offsets("readers", {tp: OffsetAndMetadata(5, "note")})

    admin.create_mirror("copy", source=url(source), topics="accounts", groups="readers")
    assert worker.run_once() == {}
    assert admin.describe_topic("accounts").schema == source_admin.describe_topic("accounts").schema
    assert stored(target, "accounts") == stored(source, "accounts")
    assert ends(admin, "accounts") == ends(source_admin, "accounts")
    assert admin.list_group_offsets("readers") == {tp: OffsetAndMetadata(5, "note")}
    assert verified(target, "copy") == (105, [])
    with pytest.raises(PolicyViolationError, match="mirror promote copy accounts"):
        send(target, "accounts", [{"id": 1}], linger_ms=0)

    source_admin.alter_schema("accounts", add_columns="note STRING")
    source_admin.add_partitions("accounts", 3)
    send(source, "accounts", [{"id": i, "note": "new"} for i in range(40)])
    assert worker.run_once() == {}
    assert stored(target, "accounts") == stored(source, "accounts")
    assert admin.describe_topic("accounts").setting("partitions.added") is True

    assert admin.promote_mirror("copy") == ["accounts"]
    note = "after the failover"
    for local in (source, target):
        send(local, "accounts", [{"id": 3, "note": note}])
    placed = [text for local in (source, target) for text in stored(local, "accounts").splitlines() if note in text]
    assert len(placed) == 2 and len({re.sub("'_timestamp'.*", "", text) for text in placed}) == 1


def test_the_key_schema_of_the_source_comes_after_the_topic(
    source: LocalBroker, target: LocalBroker, source_admin: sparklog.Admin, admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    source_admin.create_topic("keyed", 3, "id BIGINT, name STRING", ["id"], configs={"kafka.key.format": "avro"})
    admin.create_mirror("keyed-copy", source=url(source), topics="keyed")
    assert worker.run_once() == {}
    assert "kafka.key.schema" not in admin.describe_topic("keyed").configs
    source_admin.alter_topic("keyed", {"kafka.key.schema": '{"id":7,"schema":"\\"long\\""}'})
    send(source, "keyed", [{"id": i} for i in range(30)])
    assert worker.run_once() == {}
    assert admin.describe_topic("keyed").configs == source_admin.describe_topic("keyed").configs | {
        name: value for name, value in admin.describe_topic("keyed").configs.items() if name.startswith("mirror.")
    }
    admin.promote_mirror("keyed-copy")
    send(target, "keyed", [{"id": i, "name": "promoted"} for i in range(30)])
    places = sparklog.read_table(target.bootstrap_servers, "keyed", include_metadata=True).to_pylist()
    assert len({(row["id"], row["_partition"]) for row in places}) == 30, "equal keys are in one partition"


@for_each("stamp", ["CreateTime", "LogAppendTime"])
def test_envelope_topics_keep_times_headers_tombstones_and_removed_records(
    source: LocalBroker,
    target: LocalBroker,
    source_admin: sparklog.Admin,
    admin: sparklog.Admin,
    worker: MirrorWorker,
    stamp: str,
) -> None:
    name = f"events-{stamp}"
    settings = {"cleanup.policy": "compact", "segment.bytes": 4_096, "min.cleanable.dirty.ratio": 0.01}
    source_admin.create_topic(name, 1, configs={**settings, "message.timestamp.type": stamp})
    with sparklog.Producer(source.bootstrap_servers, linger_ms=0) as producer:
        for i in range(60):
            value = None if i % 9 == 0 else b"v%d" % i
            producer.send(name, value, key=b"k%d" % (i % 7), headers=[("h", b"%d" % i)]).result(PATIENCE_S)
    admin.create_mirror(f"copy-{stamp}", source=url(source), topics=name)
    assert worker.run_once() == {}
    assert verified(target, f"copy-{stamp}")[1] == []
    assert ends(admin, name) == ends(source_admin, name) == [60]
    assert stored(target, name).splitlines()[-3:] == stored(source, name).splitlines()[-3:]
    kafka = KafkaConsumer(
        {"bootstrap.servers": target.kafka_bootstrap_servers, "group.id": name, "auto.offset.reset": "earliest"}
    )
    kafka.subscribe([name])
    message = kafka.poll(PATIENCE_S)
    assert message is not None and message.error() is None
    kafka.close()


def test_options_for_kafkas_values_are_refused(source: LocalBroker, admin: sparklog.Admin) -> None:
    with pytest.raises(InvalidConfigError, match="keep their own columns"):
        admin.create_mirror("c", source=url(source), topics="t", value_format="json", columns={".*": "id INT"})
