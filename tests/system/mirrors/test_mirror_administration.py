"""The administration of mirrors with a source and a copy at work: definitions, pauses, promotions, absent topics."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest

import sparklog
from sparklog.client.admin import mirror_admin
from sparklog.client.admin.mirror_plan import open_source
from sparklog.client.local import LocalBroker
from sparklog.client.net.cluster import cluster
from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidConfigError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from sparklog.mirror.definition import mirrored_topic
from sparklog.mirror.worker.verify import verify_mirror
from sparklog.mirror.worker.worker import MirrorWorker
from tests.support.waiting import START_S


@pytest.fixture(scope="module")
def source() -> Iterator[LocalBroker]:
    with sparklog.start_local(timeout_s=START_S) as local:
        yield local


def url(source: LocalBroker) -> str:
    return f"sparklog://{source.bootstrap_servers}"


def send(local: LocalBroker, topic: str, partition: int, count: int) -> None:
    with sparklog.Producer(local.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition)


def values(local: LocalBroker, topic: str) -> list[tuple[Any, ...]]:
    table = sparklog.read_table(local.bootstrap_servers, topic, include_metadata=True)
    return sorted((row["_partition"], row["_offset"], row["value"]) for row in table.to_pylist())


def test_topics_of_one_mirror_have_one_definition(
    source: LocalBroker, admin: sparklog.Admin, source_admin: sparklog.Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        source_admin.create_topic(name)
    admin.create_mirror("one", source=url(source), topics="first", groups=".*")
    with pytest.raises(InvalidConfigError, match=r"mirror\.topics = 'first' instead of 'second'"):
        admin.create_mirror("one", source=url(source), topics="second", groups=".*")
    with pytest.raises(InvalidConfigError, match=r"with mirror\.groups = '\.\*' instead of ''; use another name"):
        admin.create_mirror("one", source=url(source), topics="first")
    assert admin.list_topics() == ["first"]
    admin.create_mirror("one", source=url(source), topics="first", groups=".*")  # a repetition
    monkeypatch.setattr(mirror_admin, "require_topics", lambda *_: ["first"])  # two mirrors at the same moment
    with pytest.raises(InvalidConfigError, match="another mirror has created them in the same moment"):
        admin.create_mirror("two", source=url(source), topics="first")
    admin.delete_mirror("one")


def test_promotion_waits_for_partitions_that_the_source_has_added(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, source_admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    source_admin.create_topic("grown", 1)
    send(source, "grown", 0, 3)
    admin.create_mirror("grow", source=url(source), topics="grown")
    assert worker.run_once() == {}
    source_admin.add_partitions("grown", 3)
    send(source, "grown", 2, 5)
    with pytest.raises(RequestTimedOutError, match="grown-1 of the source does not exist here yet"):
        admin.promote_mirror("grow", timeout_ms=1)
    assert worker.run_once() == {}
    assert admin.promote_mirror("grow") == ["grown"]
    assert values(target, "grown") == values(source, "grown") and len(values(target, "grown")) == 8


def test_partitions_that_only_the_copy_has_stop_no_mirror(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, source_admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    source_admin.create_topic("wide", 1)
    send(source, "wide", 0, 3)
    admin.create_mirror("wider", source=url(source), topics="wide")
    admin.add_partitions("wide", 3)
    assert worker.run_once() == {}
    described = admin.describe_mirrors()[0]
    assert (described.lag, described.topics[0].error, described.error) == (0, "", "")
    assert verify_mirror(cluster(target.bootstrap_servers), "wider").problems == []
    source_admin.add_partitions("wide", 2)
    send(source, "wide", 1, 4)
    assert worker.run_once() == {}
    assert values(target, "wide") == values(source, "wide")
    assert admin.promote_mirror("wider") == ["wide"]
    send(target, "wide", 2, 1)


def test_a_paused_or_deleted_mirror_gets_no_topics(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, source_admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    source_admin.create_topic("still-1")
    admin.create_mirror("stop", source=url(source), topics="still-.*")
    admin.pause_mirror("stop")
    source_admin.create_topic("still-2")
    assert worker.run_once() == {"still-1": "paused: paused by a user"}
    assert "still-2" not in admin.list_topics()
    admin.resume_mirror("stop")
    assert worker.run_once() == {} and "still-2" in admin.list_topics()

    configs = {name: info.configs for name, info in cluster(target.bootstrap_servers).topic_infos().items()}
    mirrored = mirrored_topic("still-1", configs["still-1"])
    assert mirrored is not None
    assert admin.delete_mirror("stop") == ["still-1", "still-2"]
    opened = open_source(mirrored.definition, 30_000)
    worker._create_new_topics(mirrored.definition, opened)  # the step of a worker that began before the deletion
    assert not {"still-1", "still-2"} & set(admin.list_topics())


def test_topics_that_the_source_has_lost_are_named(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, source_admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    for name in ("lost", "kept"):
        source_admin.create_topic(name)
        send(source, name, 0, 2)
    admin.create_mirror("losing", source=url(source), topics="lost,kept")
    assert worker.run_once() == {}
    source_admin.delete_topic("lost")
    report = verify_mirror(cluster(target.bootstrap_servers), "losing")
    assert report.records == 2 and "no topic 'lost'" in report.problems[0] and len(report.problems) == 1
    with pytest.raises(InvalidConfigError, match=r"the source has no topic 'lost'.*promote losing lost --now"):
        admin.promote_mirror("losing", ["lost"])
    source_admin.create_topic("lost")
    with pytest.raises(InvalidConfigError, match=r"deleted and created again at the source.*lost --now"):
        admin.promote_mirror("losing", ["lost"])
    assert admin.promote_mirror("losing", ["lost"], now=True) == ["lost"]
    with pytest.raises(InvalidConfigError, match="topic 'lost' is promoted already"):
        admin.promote_mirror("losing", ["lost"])
    assert len(values(target, "lost")) == 2
    admin.delete_mirror("losing")


def test_records_behind_an_open_transaction_are_counted_and_promotion_waits_for_its_end(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, source_admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    source_admin.create_topic("held")
    send(source, "held", 0, 3)
    with sparklog.Producer(source.bootstrap_servers, transactional_id="hanging") as hanging:
        hanging.init_transactions()
        hanging.begin_transaction()
        hanging.send("held", b"open").result()
        send(source, "held", 0, 5)
        admin.create_mirror("holding", source=url(source), topics="held")
        assert worker.run_once() == {}
        (partition,) = admin.describe_mirrors()[0].topics[0].partitions
        assert (partition.source_end, partition.lag, partition.held) == (3, 0, 6)
        reported = admin.describe_mirrors(["held"], asks_source=False)[0].topics[0]
        assert [p.held for p in reported.partitions] == [6]
        report = verify_mirror(cluster(target.bootstrap_servers), "holding")
        assert (report.records, report.held, report.problems) == (3, 6, [])
        with pytest.raises(RequestTimedOutError, match=r"lacks 6 offsets, which wait there for the end of an open"):
            admin.promote_mirror("holding", timeout_ms=1)
        hanging.abort_transaction()
    assert worker.run_once() == {}
    assert admin.promote_mirror("holding") == ["held"]
    assert values(target, "held") == values(source, "held") and len(values(target, "held")) == 8


def test_a_pause_or_a_deletion_ends_the_wait_of_a_promotion(
    source: LocalBroker, target: LocalBroker, admin: sparklog.Admin, source_admin: sparklog.Admin
) -> None:
    source_admin.create_topic("waited")
    send(source, "waited", 0, 2)
    here = cluster(target.bootstrap_servers)

    def promote(sleep: Callable[[float], object]) -> None:
        limits: Any = {"now": False, "request_timeout_ms": 30_000, "timeout_ms": 600_000, "sleep": sleep}
        mirror_admin.promote_mirror(admin, here, here.topic_infos(), "waiting", None, **limits)

    admin.create_mirror("waiting", source=url(source), topics="waited")
    with pytest.raises(InvalidConfigError, match="topic 'waited' is paused: a break"):
        promote(lambda _: admin.pause_mirror("waiting", "a break"))
    admin.resume_mirror("waiting")
    with pytest.raises(UnknownTopicOrPartitionError, match="'waited' was deleted here during its promotion"):
        promote(lambda _: admin.delete_mirror("waiting"))


def test_a_source_that_is_away_or_of_another_kind_is_named(admin: sparklog.Admin) -> None:
    with pytest.raises(BrokerNotAvailableError) as failure:
        admin.create_mirror("away", source="sparklog://127.0.0.1:1", topics="a")
    assert str(failure.value).startswith("the source sparklog://127.0.0.1:1 does not answer: no broker at 127.0.0.1:1")
    assert "SPARKLOG_BOOTSTRAP_SERVERS" not in str(failure.value)
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=lambda: server.accept()[0].close()).start()
        with pytest.raises(BrokerNotAvailableError, match=r"does not answer: .* its address begins with kafka://"):
            admin.create_mirror("away", source=f"sparklog://127.0.0.1:{server.getsockname()[1]}", topics="a")
