"""Mirrors at work: a source that speaks Kafka's protocol (a broker with its gateway), and a cluster that copies it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.net.cluster import cluster
from sparklog.environment import fault_points
from sparklog.errors import InvalidConfigError, OffsetOutOfRangeError, PolicyViolationError
from sparklog.mirror.batches import ENVELOPE_WRITER
from sparklog.mirror.worker.log_side import LogSide, PlacedAppend
from sparklog.mirror.worker.verify import verify_mirror
from sparklog.mirror.worker.worker import MirrorWorker
from tests.support.mirror_steps import MIRROR_STEPS
from tests.support.waiting import PATIENCE_S, START_S, until

KILLS = 10
Record = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]
"""Offset, key, value, headers and timestamp."""

NEEDS_GATEWAY = True


@pytest.fixture(scope="module")
def source() -> Iterator[LocalBroker]:
    settings = {"log.cleaner.backoff.ms": 20}  # compacts at once
    with sparklog.start_local(timeout_s=START_S, kafka=True, settings=settings) as local:
        yield local


def url(source: LocalBroker) -> str:
    return f"kafka://{source.kafka_bootstrap_servers}"


def create_topic(source: LocalBroker, name: str, partitions: int = 1, **configs: str) -> None:
    kafka = AdminClient({"bootstrap.servers": source.kafka_bootstrap_servers})
    for future in kafka.create_topics([NewTopic(name, partitions, 1, config=configs)]).values():
        future.result(PATIENCE_S)


def producer(source: LocalBroker, **more: Any) -> Producer:
    return Producer({"bootstrap.servers": source.kafka_bootstrap_servers, **more})


def records(local: LocalBroker, topic: str, partition: int = 0) -> list[Record]:
    """All committed records of a partition."""
    tp = sparklog.TopicPartition(topic, partition)
    result: list[Record] = []
    with sparklog.Consumer(local.bootstrap_servers, isolation_level="read_committed") as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning([tp])
        end = consumer.end_offsets([tp])[tp]
        while consumer.position(tp) < end:
            for r in consumer.poll(1_000):
                headers = tuple((h[0], h[1]) for h in r.headers or ())
                result.append((r.offset, r.key, r.value, headers, r.timestamp_ms))
    return result


def reported(admin: sparklog.Admin) -> tuple[int, int, str, bool]:
    """End at the source, lag and error of a mirror's first partition by the workers' reports, and if there is one."""
    (mirror,) = admin.describe_mirrors(asks_source=False)
    topic = mirror.topics[0]
    return topic.partitions[0].source_end, topic.partitions[0].lag, topic.error, topic.is_reported


def end_of(local: LocalBroker, topic: str, partition: int = 0) -> int:
    tp = sparklog.TopicPartition(topic, partition)
    with sparklog.Admin(local.bootstrap_servers) as opened:
        return opened.list_offsets({tp: "latest"})[tp].offset


def test_records_keep_their_offsets_and_a_topic_is_read_only_until_its_promotion(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    create_topic(source, "orders", 2, **{"retention.ms": "-1"})
    send = producer(source)
    for i in range(60):
        headers: Any = [("a", b"1"), ("a", b"2"), ("none", None)] if i % 3 == 0 else None
        send.produce("orders", b"v%d" % i if i % 5 else None, b"k%d" % i if i % 4 else None, i % 2, headers=headers)
    send.flush(PATIENCE_S)
    ending = producer(source, **{"transactional.id": "mirrored"})
    ending.init_transactions(PATIENCE_S)
    for commits in (True, False):
        ending.begin_transaction()
        ending.produce("orders", b"in a transaction", partition=0)
        ending.flush(PATIENCE_S)
        (ending.commit_transaction if commits else ending.abort_transaction)(PATIENCE_S)

    created = admin.create_mirror("orders-mirror", source=url(source), topics="orders", groups="readers.*")
    assert [(t.topic, len(t.partitions)) for t in created.topics] == [("orders", 2)]
    assert created.lag > 0 and reported(admin) == (-1, -1, "", False)
    assert admin.describe_topic("orders").setting("retention.ms") == -1
    assert worker.run_once() == {}
    assert reported(admin) == (end_of(source, "orders"), 0, "", True)
    for partition in (0, 1):
        assert records(target, "orders", partition) == records(source, "orders", partition) != []
        assert end_of(target, "orders", partition) == end_of(source, "orders", partition)

    refusal = pytest.raises(PolicyViolationError, match="mirror promote orders-mirror orders")
    with sparklog.Producer(target.bootstrap_servers) as own, refusal:
        own.send("orders", b"x").result()
    refused: list[KafkaError | None] = []
    theirs = producer(target)
    theirs.produce("orders", b"x", on_delivery=lambda error, _: refused.append(error))
    theirs.flush(PATIENCE_S)
    assert refused[0] is not None and refused[0].code() == KafkaError.POLICY_VIOLATION
    transactional = producer(target, **{"transactional.id": "refused"})
    transactional.init_transactions(PATIENCE_S)
    transactional.begin_transaction()
    transactional.produce("orders", b"x")
    with pytest.raises(KafkaException):
        transactional.commit_transaction(PATIENCE_S)

    group = Consumer({"bootstrap.servers": source.kafka_bootstrap_servers, "group.id": "readers-1"})
    group.commit(offsets=[KafkaPartition("orders", 0, 7)], asynchronous=False)
    group.close()
    assert admin.promote_mirror("orders-mirror") == ["orders"]
    tp = sparklog.TopicPartition("orders", 0)
    assert admin.list_group_offsets("readers-1") == {tp: sparklog.OffsetAndMetadata(7, "", -1)}
    with sparklog.Producer(target.bootstrap_servers) as own:
        assert own.send("orders", b"x", partition=0).result().offset == end_of(source, "orders", 0)
    assert admin.describe_mirrors() == []
    with pytest.raises(InvalidConfigError, match="exist here already"):
        admin.create_mirror("orders-mirror", source=url(source), topics="orders")


def test_codecs_append_times_and_compacted_records_are_equal_offset_by_offset(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    headers: Any = [("a", b"1"), ("a", b"2"), ("empty", b""), ("none", None)]
    create_topic(source, "kept-codecs", 1, **{"max.message.bytes": "2000000"})
    create_topic(source, "kept-times", 1, **{"message.timestamp.type": "LogAppendTime"})
    compacts = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "8192"}
    create_topic(source, "kept-keys", 1, **compacts)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        send = producer(source, **{"compression.type": codec, "linger.ms": 50})
        for i in range(100):
            send.produce("kept-codecs", b"%d " % i * 50, codec, headers=headers if i % 2 else None)
            send.produce("kept-codecs", b"", b"")
        assert send.flush(PATIENCE_S) == 0
    send = producer(source, **{"linger.ms": 50})
    for i in range(100):
        send.produce("kept-times", b"%d" % i, timestamp=1_000)
    for _ in range(40):
        for key in range(50):
            send.produce("kept-keys", b"x" * 20, b"%d" % key)
        assert send.flush(PATIENCE_S) == 0
    until(lambda: len(records(source, "kept-keys")) < 1_000)

    admin.create_mirror("keeper", source=url(source), topics="kept-.*")
    assert worker.run_once(["keeper"]) == {}
    for topic in ("kept-codecs", "kept-times"):
        assert records(target, topic) == records(source, topic) != []
        assert end_of(target, topic) == end_of(source, topic)
    assert min(r[-1] for r in records(target, "kept-times")) > 1_000
    here, there = ({r[0]: r for r in records(local, "kept-keys")} for local in (target, source))
    assert all(here[offset] == there[offset] for offset in here.keys() & there.keys())
    assert {r[1] for r in here.values()} == {r[1] for r in there.values()} == {b"%d" % key for key in range(50)}
    assert end_of(target, "kept-keys") == end_of(source, "kept-keys") == 2_000
    report = verify_mirror(cluster(target.bootstrap_servers, None), "keeper")
    assert (report.differences, report.partitions) == (0, 3) and report.records > 1_100
    admin.delete_mirror("keeper")


def test_a_mirror_goes_on_where_the_log_ends_and_follows_new_partitions_and_topics(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    create_topic(source, "grows-1")
    send = producer(source)
    send.produce("grows-1", b"first")
    send.flush(PATIENCE_S)
    admin.create_mirror("growing", source=url(source), topics="grows-.*")
    assert worker.run_once(["growing"]) == {}
    kafka = AdminClient({"bootstrap.servers": source.kafka_bootstrap_servers})
    for future in kafka.create_partitions([NewPartitions("grows-1", 3)]).values():
        future.result(PATIENCE_S)
    create_topic(source, "grows-2")
    send = producer(source)  # the first one does not know the new partitions yet
    for partition in range(3):
        send.produce("grows-1", b"later", partition=partition)
    send.produce("grows-2", b"new")
    send.flush(PATIENCE_S)
    assert worker.run_once(["growing"]) == {}
    for topic, partition in (("grows-1", 0), ("grows-1", 1), ("grows-1", 2), ("grows-2", 0)):
        assert records(target, topic, partition) == records(source, topic, partition) != []
    assert sorted(admin.delete_mirror("growing")) == ["grows-1", "grows-2"]


def test_deleted_records_are_a_gap_and_another_topic_of_the_name_is_a_pause(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    create_topic(source, "short")
    send = producer(source)
    tp = sparklog.TopicPartition("short", 0)

    def produce(count: int) -> None:
        for i in range(count):
            send.produce("short", b"%d" % i)
        send.flush(PATIENCE_S)

    with sparklog.Admin(source.bootstrap_servers) as its_admin:
        produce(5)
        its_admin.delete_records({tp: 2})
        admin.create_mirror("short-lived", source=url(source), topics="short")
        assert worker.run_once() == {}
        assert records(target, "short") == records(source, "short")
        assert [r[0] for r in records(target, "short")] == [2, 3, 4]
        produce(5)
        its_admin.delete_records({tp: 8})
        assert worker.run_once() == {}
        assert [r[0] for r in records(target, "short")] == [2, 3, 4, 8, 9]
        (mirror,) = admin.describe_mirrors()
        assert mirror.topics[0].partitions[0].lost == 3 and mirror.lag == 0
        its_admin.delete_topic("short")
    create_topic(source, "short")
    produce(20)
    assert "deleted and created again" in worker.run_once()["short"]
    (mirror,) = admin.describe_mirrors()
    assert mirror.topics[0].state == "paused" and "created again" in mirror.topics[0].reason
    with pytest.raises(InvalidConfigError, match="is paused"):
        admin.promote_mirror("short-lived")
    assert admin.promote_mirror("short-lived", now=True) == ["short"]
    assert [r[0] for r in records(target, "short")] == [2, 3, 4, 8, 9]


def test_two_workers_store_each_record_once(source: LocalBroker, target: LocalBroker, admin: sparklog.Admin) -> None:
    create_topic(source, "shared")
    send = producer(source, **{"linger.ms": 0})
    admin.create_mirror("twice", source=url(source), topics="shared")
    workers = [MirrorWorker(target.bootstrap_servers) for _ in range(2)]
    stop = threading.Event()

    def run(one: MirrorWorker) -> None:
        while not stop.is_set():
            one.run_once(["twice"])

    threads = [threading.Thread(target=run, args=(one,)) for one in workers]
    for thread in threads:
        thread.start()
    try:
        for i in range(300):
            send.produce("shared", b"%d" % i)
            if i % 10 == 0:
                send.flush(PATIENCE_S)
        send.flush(PATIENCE_S)
        until(lambda: end_of(target, "shared") == 300)
    finally:
        stop.set()
        for thread, one in zip(threads, workers, strict=True):
            thread.join()
            one.close()
    assert records(target, "shared") == records(source, "shared")
    admin.delete_mirror("twice")


def test_a_worker_that_dies_at_any_step_stores_each_record_once(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin
) -> None:
    create_topic(source, "survives", 2)
    send = producer(source, **{"transactional.id": "survivor"})
    send.init_transactions(PATIENCE_S)
    admin.create_mirror("survivors", source=url(source), topics="survives")

    def produce(commits: bool) -> None:
        send.begin_transaction()
        for partition in (0, 1):
            send.produce("survives", b"x", partition=partition)
        send.flush(PATIENCE_S)
        (send.commit_transaction if commits else send.abort_transaction)(PATIENCE_S)

    def run() -> dict[str, str]:
        one = MirrorWorker(target.bootstrap_servers)
        try:
            return one.run_once(["survivors"])
        finally:
            one.close()

    for step in MIRROR_STEPS:
        produce(commits=True)
        produce(commits=False)
        fault_points.arm(f"{step}:raise")
        try:
            with pytest.raises(fault_points.InjectedFault):
                run()
        finally:
            fault_points.disarm()
    assert run() == {}
    for partition in (0, 1):
        assert records(target, "survives", partition) == records(source, "survives", partition) != []
        assert end_of(target, "survives", partition) == end_of(source, "survives", partition)
    admin.delete_mirror("survivors")


@pytest.mark.nightly
def test_workers_that_are_killed_all_the_time_store_each_record_once(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin
) -> None:
    create_topic(source, "killed", 2)
    send = producer(source, **{"transactional.id": "killed"})
    send.init_transactions(PATIENCE_S)
    admin.create_mirror("killed-often", source=url(source), topics="killed")
    choose = Random(7)

    def worker_process() -> subprocess.Popen[bytes]:
        fault = {"SPARKLOG_FAULT": f"{choose.choice(MIRROR_STEPS)}:{choose.randrange(1, 4)}:kill"}
        command = [
            sys.executable,
            "-m",
            "sparklog.cli",
            "mirror",
            "run",
            "--bootstrap-servers",
            target.bootstrap_servers,
        ]
        return subprocess.Popen(command, env=os.environ | fault, stderr=subprocess.DEVNULL)

    workers = [worker_process() for _ in range(2)]
    deaths = 0
    try:
        for number in count():
            if deaths >= KILLS:
                break
            send.begin_transaction()
            for partition in (0, 1):
                send.produce("killed", b"%d" % number, partition=partition)
            send.flush(PATIENCE_S)
            (send.abort_transaction if number % 3 == 0 else send.commit_transaction)(PATIENCE_S)
            for i, one in enumerate(workers):
                if one.poll() is not None:
                    assert one.returncode == -signal.SIGKILL
                    workers[i], deaths = worker_process(), deaths + 1
    finally:
        for one in workers:
            one.kill()
            one.wait()
    last = MirrorWorker(target.bootstrap_servers)
    assert last.run_once(["killed-often"]) == {}
    last.close()
    for partition in (0, 1):
        assert records(target, "killed", partition) == records(source, "killed", partition) != []
        assert end_of(target, "killed", partition) == end_of(source, "killed", partition)
    admin.delete_mirror("killed-often")


def test_the_broker_appends_at_offsets_only_for_a_mirror_and_only_at_the_end(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin
) -> None:
    create_topic(source, "fenced")
    admin.create_mirror("fence", source=url(source), topics="fenced")
    admin.create_topic("plain")
    log_side = LogSide(cluster(target.bootstrap_servers, None))
    fenced, plain = sparklog.TopicPartition("fenced", 0), sparklog.TopicPartition("plain", 0)
    gap = PlacedAppend(0, ENVELOPE_WRITER.gap(0, 5, 3))
    outcomes = log_side.append({fenced: gap, plain: gap})
    assert outcomes[fenced] is None and isinstance(outcomes[plain], PolicyViolationError)
    assert isinstance(log_side.append({fenced: gap})[fenced], OffsetOutOfRangeError)
    assert log_side.ends([fenced])[fenced][:3] == (0, 5, 3)
    with pytest.raises(InvalidConfigError, match="exists already"):
        admin.alter_topic("plain", {"mirror.name": "fence", "mirror.source": url(source)})
    admin.delete_mirror("fence")


def test_a_broker_starts_a_worker_that_copies_records_and_groups(source: LocalBroker) -> None:
    create_topic(source, "followed")
    send = producer(source)
    send.produce("followed", b"first")
    send.flush(PATIENCE_S)
    group = Consumer({"bootstrap.servers": source.kafka_bootstrap_servers, "group.id": "followers"})
    group.commit(offsets=[KafkaPartition("followed", 0, 1)], asynchronous=False)
    group.close()
    tp = sparklog.TopicPartition("followed", 0)
    with sparklog.start_local(timeout_s=START_S) as local, sparklog.Admin(local.bootstrap_servers) as admin:
        admin.create_mirror("follower", source=url(source), topics="followed", groups="followers")
        until(lambda: end_of(local, "followed") == 1)
        until(lambda: "followers" in [g.group_id for g in admin.list_groups()])
        send.produce("followed", b"second")
        send.flush(PATIENCE_S)
        until(lambda: end_of(local, "followed") == 2)
        assert records(local, "followed") == records(source, "followed")
        assert admin.list_group_offsets("followers")[tp].offset == 1
        until(lambda: reported(admin) == (2, 0, "", True))
        admin.pause_mirror("follower", "a break")
        assert admin.describe_mirrors()[0].topics[0].reason == "a break"
        admin.resume_mirror("follower")
        assert admin.promote_mirror("follower") == ["followed"]
