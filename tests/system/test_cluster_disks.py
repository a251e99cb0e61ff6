"""Disks and deletions in a cluster of real brokers. A broker with a failed disk hands over the leaderships there, and
continues with its other disk, also after a restart. Records are deleted when all live replicas have deleted them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sparklog.client.local_zookeeper import has_java
from sparklog.errors import RequestTimedOutError
from sparklog.protocol import topic_messages as t
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
)
from tests.support.waiting import until_reached
from tests.system.cluster_processes import ClusterProcesses

pytestmark = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")

PARTITIONS = 6
DISK = "second-disk"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    first, second = tmp_path / "first-disk", tmp_path / DISK
    made = ClusterProcesses(tmp_path, {1: f'log.dirs = "{first},{second}"'})
    yield made
    made.close()


def deleted(cluster: ClusterProcesses, leader: int, before: int, timeout_ms: int) -> DeleteRecordsResult:
    request = DeleteRecordsRequest(timeout_ms, [DeleteRecordsPartition("events", 0, before)])
    with closing(cluster.connect(leader)) as connection:
        answer, _ = connection.request(Api.DELETE_RECORDS, request, DeleteRecordsResponse)
    return answer.results[0]


def test_a_failed_disk_hands_over_its_leaderships_and_records_are_deleted_everywhere(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    cluster.create(2, "events", PARTITIONS, min_insync_replicas=2)
    until_reached(lambda: cluster.in_sync("events", 3, asked=2), "all replicas")
    for partition in range(PARTITIONS):
        assert cluster.produce(cluster.leader_of("events", partition, asked=2), "events", partition, [b"1", b"2"]) == 0

    leader = cluster.leader_of("events", 0, asked=2)
    result = deleted(cluster, leader, 1, 20_000)
    assert (result.error_code, result.low_watermark) == (0, 1)
    on_disk = {int(p.name.rpartition("-")[2]) for p in (tmp_path / DISK).glob("events-*")}
    assert 0 < len(on_disk) < PARTITIONS

    led_before = {p for p in range(PARTITIONS) if cluster.leader_of("events", p, asked=2) == 1}
    shutil.rmtree(tmp_path / DISK)

    def handed_over() -> bool:
        states = cluster.partitions(2, "events")
        return all((1 not in s.isr and s.leader in (2, 3)) if s.partition in on_disk else True for s in states)

    until_reached(handed_over, "other leaders for what was on the disk")
    for state in cluster.partitions(2, "events"):
        if state.partition not in on_disk:
            assert sorted(state.isr) == [1, 2, 3]
            assert (state.leader == 1) == (state.partition in led_before)
    for partition in range(PARTITIONS):
        leader = cluster.leader_of("events", partition, asked=2)
        assert cluster.produce(leader, "events", partition, [b"3"]) == 2
    assert cluster.processes[1].process.poll() is None, "it goes on with its other disk"

    leader = cluster.leader_of("events", 0, asked=2)
    cluster.kill(3 if leader != 3 else 1)  # a replica is alive for the cluster and does not follow
    result = deleted(cluster, leader, 2, 100)
    assert result.error_code in (0, RequestTimedOutError.code)


@pytest.mark.nightly
def test_healthy_disks_continue_until_the_failed_one_returns(cluster: ClusterProcesses, tmp_path: Path) -> None:
    """Partitions with no other replica: those of the disk that is left are led, those of the other one wait for it."""
    request = t.CreateTopicRequest("alone", assignment=[[1]] * PARTITIONS)
    with closing(cluster.connect(1)) as connection:
        connection.request(Api.CREATE_TOPIC, request, t.CreateTopicResponse)
    until_reached(lambda: led_by_broker_1(cluster) == {*range(PARTITIONS)}, "its partitions")
    for partition in range(PARTITIONS):
        until_reached(lambda p=partition: cluster.read(1, "alone", p) == [], "broker 1 hears that it leads")  # type: ignore[misc]
        assert cluster.produce(1, "alone", partition, [b"1"]) == 0
    on_disk = {int(p.name.rpartition("-")[2]) for p in (tmp_path / DISK).glob("alone-*")}
    assert 0 < len(on_disk) < PARTITIONS

    cluster.kill(1)
    disk, aside = tmp_path / DISK, tmp_path / "not-mounted"
    disk.rename(aside)
    disk.write_bytes(b"")
    for _ in range(2):
        cluster.start(1)
        until_reached(
            lambda: led_by_broker_1(cluster) == {*range(PARTITIONS)} - on_disk, "what is on the disk that is left"
        )
        cluster.kill(1)
    disk.unlink()
    aside.rename(disk)
    cluster.configure(1, f'log.dirs = "{tmp_path / "first-disk"},{disk},{tmp_path / "third-disk"}"')
    cluster.start(1)
    until_reached(lambda: led_by_broker_1(cluster) == {*range(PARTITIONS)}, "all of them")
    for partition in range(PARTITIONS):
        until_reached(lambda p=partition: cluster.read(1, "alone", p) == [b"1"], "broker 1 hears that it leads")  # type: ignore[misc]
        assert cluster.produce(1, "alone", partition, [b"2"]) == 1


def led_by_broker_1(cluster: ClusterProcesses) -> set[int]:
    """Which partitions of "alone", as the others know."""
    return {state.partition for state in cluster.partitions(2, "alone") if state.leader == 1}
