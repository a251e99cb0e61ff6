"""Mirrors into typed topics: rows with the source's offsets, and the topic of the records that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from typer.testing import CliRunner

import sparklog
from sparklog.cli.app import app
from sparklog.client.local import LocalBroker
from sparklog.client.net.cluster import cluster
from sparklog.client.refused import RefusedRecords, Values
from sparklog.environment import fault_points
from sparklog.errors import InvalidConfigError, PolicyViolationError
from sparklog.mirror.worker.verify import verify_mirror
from sparklog.mirror.worker.worker import MirrorWorker
from tests.support.mirror_steps import MIRROR_STEPS, REFUSED_STEPS
from tests.support.waiting import PATIENCE_S, START_S


@pytest.fixture(scope="module")
def source() -> Iterator[LocalBroker]:
    with sparklog.start_local(timeout_s=START_S, kafka=True) as local:
        yield local


def produce(source: LocalBroker, topic: str, values: list[Any], headers: Any = None) -> None:
    kafka = AdminClient({"bootstrap.servers": source.kafka_bootstrap_servers})
    if topic not in kafka.list_topics(timeout=PATIENCE_S).topics:
        kafka.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
    send = Producer({"bootstrap.servers": source.kafka_bootstrap_servers})
    for value in values:
        key, text = value if isinstance(value, tuple) else (None, value)
        send.produce(topic, text, key, 0, timestamp=1_000, headers=headers)
    assert send.flush(PATIENCE_S) == 0


def url(source: LocalBroker) -> str:
    return f"kafka://{source.kafka_bootstrap_servers}"


def run_once(target: LocalBroker, name: str) -> dict[str, str]:
    worker = MirrorWorker(target.bootstrap_servers)
    try:
        return worker.run_once([name])
    finally:
        worker.close()


def rows(target: LocalBroker, topic: str) -> dict[int, dict[str, Any]]:
    """Rows by offset."""
    tp = sparklog.TopicPartition(topic, 0)
    result: dict[int, dict[str, Any]] = {}
    with sparklog.Consumer(target.bootstrap_servers, isolation_level="read_committed") as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning([tp])
        end = consumer.end_offsets([tp])[tp]
        while consumer.position(tp) < end:
            for batch in consumer.poll_batches(1_000):
                result |= dict(zip(batch.offsets().tolist(), batch.data.to_pylist(), strict=True))
    return result


def refused(target: LocalBroker, admin: sparklog.Admin, topic: str) -> RefusedRecords:
    return RefusedRecords(cluster(target.bootstrap_servers, None), admin, topic)


def test_records_that_do_not_fit_are_refused_with_their_place_and_stored_after_they_are_mended(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin
) -> None:
    values: list[Any] = [
        (b"1", b'{"id":1,"item":"pen"}'),
        b'{"id":"many"}',
        b"no JSON",
        (b"k", b'{"id":4,"item":"ink","pieces":3}'),
        b'{"id":5}',
        None,
    ]
    produce(source, "orders", values)
    produce(source, "orders", [b'{"id":7}'], headers=[("trace", b"x")])
    admin.create_mirror(
        "typed",
        source=url(source),
        topics="orders",
        value_format="json",
        columns={"orders": "id BIGINT, item STRING"},
    )
    assert admin.describe_topic("orders").kind == "typed"
    assert run_once(target, "typed") == {}
    stored = {0: {"id": 1, "item": "pen"}, 4: {"id": 5, "item": None}}
    assert rows(target, "orders") == stored
    lost = rows(target, "orders.refused")
    assert list(lost) == [1, 2, 3, 5, 6] == [row["offset"] for row in lost.values()]
    reasons = [row["reason"] for row in lost.values()]
    assert "column 'id' is int64: \"many\" does not fit" in reasons[0]
    assert "pieces" in reasons[2] and "no value" in reasons[3] and "headers" in reasons[4]
    record = lost[3]
    assert (record["key"], record["value"], record["timestamp"].timestamp()) == (b"k", values[3][1], 1.0)
    assert lost[6]["headers"] == [{"key": "trace", "value": b"x"}]
    report = verify_mirror(cluster(target.bootstrap_servers, None), "typed")
    assert (report.differences, report.records) == (0, 7), report.problems
    (partition,) = admin.describe_mirrors()[0].topics[0].partitions
    assert (partition.lag, partition.refused) == (0, 5)
    with pytest.raises(PolicyViolationError, match="mirror promote typed orders"):
        refused(target, admin, "orders").retry(target.bootstrap_servers, None)

    assert admin.promote_mirror("typed") == ["orders"]
    unchanged = refused(target, admin, "orders").retry(target.bootstrap_servers, None)
    assert (unchanged.stored, unchanged.refused) == (0, 5)
    admin.alter_schema("orders", add_columns="pieces INT")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(fault_points.InjectedFault):
        patch.setattr(sparklog.Producer, "send_offsets_to_transaction", die)
        refused(target, admin, "orders").retry(target.bootstrap_servers, None)
    records = refused(target, admin, "orders")
    assert records.check().stored == 1
    result = records.retry(target.bootstrap_servers, None, Values(drops_headers=True))
    assert (result.stored, result.refused) == (2, 3)
    new = [row for offset, row in rows(target, "orders").items() if offset not in stored]
    assert new == [{"id": 4, "item": "ink", "pieces": 3}, {"id": 7, "item": None, "pieces": None}]
    again = refused(target, admin, "orders")
    assert again.retry(target.bootstrap_servers, None, Values(drops_headers=True)).stored == 0
    assert [row["offset"] for part in again.waiting() for row in part.to_pylist()] == [1, 2, 5]
    shown = CliRunner().invoke(
        app, ["refused", "show", "orders", "0", "2", "--bootstrap-servers", target.bootstrap_servers]
    )
    assert shown.exit_code == 0 and "no JSON" in shown.output and "reason" in shown.output


def die(*args: object) -> None:
    raise fault_points.InjectedFault


def test_keys_fill_key_columns_and_a_null_value_deletes(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin
) -> None:
    produce(source, "stock", [(b"pen", b'{"pieces":3}'), (b"pen", None), (b"ink", b'{"item":"pen","pieces":1}')])
    admin.create_mirror(
        "keyed",
        source=url(source),
        topics="stock",
        value_format="json",
        columns={".*": "item STRING, pieces INT"},
        key_columns={".*": ["item"]},
    )
    assert run_once(target, "keyed") == {}
    assert list(rows(target, "stock").values()) == [{"item": "pen", "pieces": 3}, {"item": "pen", "pieces": None}]
    (row,) = rows(target, "stock.refused").values()
    assert "ink" in row["reason"] and "key" in row["reason"]
    assert sorted(admin.delete_mirror("keyed")) == ["stock", "stock.refused"]


def test_too_many_refused_records_pause_the_topic_before_the_next_one(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin
) -> None:
    produce(source, "limited", [b"{}", b"a", b"{}", b"b", b"{}", b"c", b"{}"])
    admin.create_mirror(
        "limits", source=url(source), topics="limited", value_format="json", columns={".*": "n INT"}, refused_max=2
    )
    assert "offset 5 of partition 0 does not fit" in run_once(target, "limits")["limited"]
    assert (list(rows(target, "limited")), list(rows(target, "limited.refused"))) == ([0, 2, 4], [1, 3])
    admin.resume_mirror("limits")
    assert "mirror.refused.max" in run_once(target, "limits")["limited"]  # the count survives the worker
    admin.alter_topic("limited", {"mirror.refused.max": -1})
    admin.resume_mirror("limits")
    assert run_once(target, "limits") == {}
    assert (list(rows(target, "limited")), list(rows(target, "limited.refused"))) == ([0, 2, 4, 6], [1, 3, 5])
    admin.delete_mirror("limits")


def test_a_worker_that_dies_at_any_step_stores_each_record_once_as_a_row_or_refused(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin
) -> None:
    produce(source, "dies", [])
    admin.create_mirror("deaths", source=url(source), topics="dies", value_format="json", columns={".*": "n INT"})
    steps = [*MIRROR_STEPS, *REFUSED_STEPS]
    for step in steps:
        produce(source, "dies", [b'{"n":1}', b"bad"])
        fault_points.arm(f"{step}:raise")
        try:
            with pytest.raises(fault_points.InjectedFault):
                run_once(target, "deaths")
        finally:
            fault_points.disarm()
    assert run_once(target, "deaths") == {}
    assert list(rows(target, "dies")) == list(range(0, 2 * len(steps), 2))
    assert list(rows(target, "dies.refused")) == list(range(1, 2 * len(steps), 2))
    admin.delete_mirror("deaths")


def test_wrong_columns_are_refused_before_a_topic_is_created(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin
) -> None:
    produce(source, "columns", [b"{}"])

    def create(**options: Any) -> None:
        admin.create_mirror("wrong", source=url(source), topics="columns", **options)

    with pytest.raises(InvalidConfigError, match="needs the columns"):
        create(value_format="json")
    with pytest.raises(InvalidConfigError, match="name the format"):
        create(columns={".*": "n INT"})
    with pytest.raises(InvalidConfigError, match="use one of json"):
        create(value_format="xml", columns={".*": "n INT"})
    with pytest.raises(InvalidConfigError, match="has no columns"):
        create(value_format="json", columns={"others": "n INT"})
    with pytest.raises(sparklog.SparklogError, match="k"):
        create(value_format="json", columns={".*": "n INT"}, key_columns={".*": ["k"]})
    assert "columns" not in admin.list_topics()
