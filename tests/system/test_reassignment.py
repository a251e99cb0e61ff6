"""Replicas move between real brokers, with restarts in the middle: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.client.local_zookeeper import has_java
from sparklog.errors import (
    BrokerNotAvailableError,
    EligibleLeadersNotAvailableError,
    InvalidConfigError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    NoReassignmentInProgressError,
)
from sparklog.types import TopicPartition
from tests.support.waiting import until_reached

pytestmark = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")

EVENTS = [TopicPartition("events", p) for p in range(3)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sparklog.LocalCluster]:
    settings = {
        "zookeeper.session.timeout.ms": 6_000,
        "replica.lag.time.max.ms": 10_000,
        "replica.fetch.backoff.ms": 100,
    }
    directory = tmp_path_factory.mktemp("cluster")
    with sparklog.start_local(directory, brokers=4, settings=settings) as made:
        assert isinstance(made, sparklog.LocalCluster)
        yield made


@pytest.fixture
def admin(cluster: sparklog.LocalCluster) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(cluster.bootstrap_servers) as opened:
        yield opened
        for name in opened.list_topics():
            opened.delete_topic(name)


def replicas(admin: sparklog.Admin, topic: str = "events") -> list[tuple[int, ...]]:
    return [p.replicas for p in admin.describe_topic(topic).partition_details]


def in_sync(admin: sparklog.Admin, topic: str = "events") -> list[tuple[int, ...]]:
    return [tuple(sorted(p.isr)) for p in admin.describe_topic(topic).partition_details]


def done(admin: sparklog.Admin) -> bool:
    return not admin.list_partition_reassignments()


def values(cluster: sparklog.LocalCluster, topic: str = "events") -> list[int]:
    table = sparklog.read_table(cluster.bootstrap_servers, topic)
    return sorted(int(v) for v in table.column("value").to_pylist())


def directories(cluster: sparklog.LocalCluster, broker: int, topic: str = "events") -> set[int]:
    """Return the partitions of which the broker has a directory, under any name."""
    found = cluster.brokers[broker - 1].data_dir.glob(f"{topic}-*")
    return {int(path.name.split(".")[0].rsplit("-", 1)[1]) for path in found}


def fill(cluster: sparklog.LocalCluster, first: int, count: int, size: int = 0) -> None:
    with sparklog.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for i in range(first, first + count):
            producer.send("events", value=str(i).encode().rjust(size, b"0"), partition=i % 3)
        producer.flush()


def test_partitions_move_to_other_brokers_and_leave_no_file_behind(
    cluster: sparklog.LocalCluster, admin: sparklog.Admin
) -> None:
    admin.create_topic("events", replica_assignment=[[1, 2], [2, 1], [1, 2]], configs={"min.insync.replicas": 2})
    fill(cluster, 0, 3_000)
    admin.alter_partition_reassignments({EVENTS[0]: [3, 4], EVENTS[1]: [2, 4], EVENTS[2]: [4, 3]})
    with pytest.raises(InvalidReplicaAssignmentError, match="9"):
        admin.alter_partition_reassignments({EVENTS[0]: [3, 9]})
    with pytest.raises(InvalidReplicaAssignmentError, match=r"1 replicas cannot keep min.insync.replicas = 2"):
        admin.alter_partition_reassignments({EVENTS[2]: [4]})
    until_reached(lambda: done(admin), "the reassignments")
    until_reached(lambda: replicas(admin) == [(3, 4), (2, 4), (4, 3)], "the new replicas")
    assert in_sync(admin) == [(3, 4), (2, 4), (3, 4)]
    assert [p.leader for p in admin.describe_topic("events").partition_details] == [3, 2, 4]
    fill(cluster, 3_000, 300)
    assert values(cluster) == list(range(3_300))
    until_reached(
        lambda: directories(cluster, 1) == set() and directories(cluster, 2) == {1}, "the old directories to go"
    )
    assert (directories(cluster, 3), directories(cluster, 4)) == ({0, 2}, {0, 1, 2})
    with pytest.raises(NoReassignmentInProgressError):
        admin.cancel_partition_reassignments([EVENTS[0]])
    admin.alter_partition_reassignments({EVENTS[0]: [1, 2]})  # back to where it was deleted a moment ago
    until_reached(lambda: done(admin) and replicas(admin)[0] == (1, 2), "the way back")
    assert values(cluster) == list(range(3_300))


@pytest.mark.nightly
def test_brokers_that_restart_in_the_middle_go_on(cluster: sparklog.LocalCluster, admin: sparklog.Admin) -> None:
    """The throttle prolongs the copies. The broker that is to get the partitions is killed, then one of those that have
    them is stopped, and its partitions are removed while it is down."""
    admin.create_topic("events", replica_assignment=[[1, 2], [1, 2], [1, 2]])
    fill(cluster, 0, 9_000, size=2_000)
    admin.alter_partition_reassignments({tp: [1, 3] for tp in EVENTS}, throttle_bytes=500_000)
    until_reached(
        lambda: any(0 < r.copied_bytes < r.total_bytes for r in admin.list_partition_reassignments()), "some copies"
    )
    assert admin.describe_cluster().throttle_bytes == 500_000
    assert [p.adding for p in admin.describe_topic("events").partition_details] == [(3,)] * 3
    fill(cluster, 9_000, 30)  # who is in sync is not slowed down
    cluster.brokers[2].kill()
    cluster.brokers[2].start()
    under_way = admin.list_partition_reassignments()
    assert [(r.topic_partition, r.adding, r.removing) for r in under_way] == [(tp, (3,), (2,)) for tp in EVENTS]
    cluster.brokers[1].stop()
    admin.alter_partition_reassignments({}, throttle_bytes=0)
    until_reached(lambda: done(admin), "the reassignments")
    assert replicas(admin) == [(1, 3)] * 3
    cluster.brokers[1].start()
    until_reached(lambda: directories(cluster, 2) == set(), "what broker 2 has lost meanwhile to go")
    assert values(cluster) == list(range(9_030))
    assert admin.describe_cluster().throttle_bytes == 0


@pytest.mark.torture
def test_brokers_are_killed_in_the_middle_of_many_moves(cluster: sparklog.LocalCluster, admin: sparklog.Admin) -> None:
    """Every move meets the SIGKILL of a broker that is to get the partitions, of one that has them, or of the
    controller. Acknowledged records stay, on the requested brokers."""
    chance = random.Random(20)
    admin.create_topic("events", replica_assignment=[[1, 2]] * 3)
    fill(cluster, 0, 9_000, size=2_000)
    written, here, killed = 9_000, {1, 2}, Counter[str]()
    for number in range(12):
        there = set(chance.sample(range(1, 5), 2))
        while there == here:
            there = set(chance.sample(range(1, 5), 2))
        admin.alter_partition_reassignments({tp: sorted(there) for tp in EVENTS}, throttle_bytes=300_000)
        until_reached(
            lambda: any(0 < r.copied_bytes < r.total_bytes for r in admin.list_partition_reassignments()), "copies"
        )
        controller = admin.describe_cluster().controller_id
        role = ("gets them", "has them", "controller")[number % 3]
        victims = {"gets them": there - here, "has them": here, "controller": {controller}}[role]
        victim = chance.choice(sorted(victims))
        cluster.brokers[victim - 1].kill()
        killed[role] += 1
        if number % 2:
            fill(cluster, written, 30)  # while it is away, and others take over
            written += 30
        cluster.brokers[victim - 1].start()
        admin.alter_partition_reassignments({}, throttle_bytes=0)
        until_reached(lambda: done(admin) and {frozenset(r) for r in replicas(admin)} == {frozenset(there)}, "the move")  # noqa: B023
        fill(cluster, written, 30)
        written += 30
        assert values(cluster) == list(range(written)), f"move {number}: killed {victim}, which {role}"
        here = there
    for gone in {1, 2, 3, 4} - here:
        until_reached(lambda: directories(cluster, gone) == set(), f"broker {gone} to drop what it has lost")  # noqa: B023
    print(f"12 moves, killed: {dict(killed)}; {written} records")


def test_a_reassignment_is_cancelled(cluster: sparklog.LocalCluster, admin: sparklog.Admin) -> None:
    admin.create_topic("events", replica_assignment=[[1, 2], [1, 2], [1, 2]])
    fill(cluster, 0, 3_000, size=2_000)
    admin.alter_partition_reassignments({tp: [3, 4] for tp in EVENTS}, throttle_bytes=10_000)
    until_reached(lambda: directories(cluster, 3) == {0, 1, 2}, "the new replicas")
    assert admin.cancel_partition_reassignments() == 3
    until_reached(lambda: replicas(admin) == [(1, 2)] * 3, "the old replicas")
    until_reached(lambda: directories(cluster, 3) == set() == directories(cluster, 4), "the copies to go")
    until_reached(lambda: admin.describe_cluster().throttle_bytes == 0, "the end of the throttle")  # it goes with them
    fill(cluster, 3_000, 30)
    assert values(cluster) == list(range(3_030))


def test_impossible_targets_are_refused_with_the_reason(cluster: sparklog.LocalCluster, admin: sparklog.Admin) -> None:
    with pytest.raises(InvalidReplicationFactorError, match="replication factor 5 with 4 brokers; use 1 to 4"):
        admin.create_topic("many", replication_factor=5)
    with pytest.raises(InvalidConfigError, match=r"min.insync.replicas = 3 with 2 replicas"):
        admin.create_topic("strict", replication_factor=2, configs={"min.insync.replicas": 3})
    with pytest.raises(InvalidConfigError, match=r"min.insync.replicas = 2 with 1 replicas"):
        admin.create_topic("strict", replica_assignment=[[1], [2]], configs={"min.insync.replicas": 2})
    strange: list[list[list[int]]] = [[[]], [[1, 1]], [[1, 2], [3]], [[7]]]
    for nonsense in strange:
        with pytest.raises(InvalidReplicaAssignmentError):
            admin.create_topic("nonsense", replica_assignment=nonsense)
    with pytest.raises(InvalidReplicaAssignmentError, match="3 partitions, but an assignment of 1"):
        admin.create_topic("nonsense", partitions=3, replica_assignment=[[1]])
    admin.create_topic("events", replication_factor=2)
    for asked in cluster.brokers:  # whoever is asked, the controller or not
        with (
            sparklog.Admin(asked.bootstrap_servers) as one,
            pytest.raises(
                InvalidConfigError, match=r"min.insync.replicas = 3 with 2 replicas, which can never be in sync"
            ),
        ):
            one.alter_topic("events", {"min.insync.replicas": 3})
    admin.alter_topic("events", {"min.insync.replicas": 2})
    assert admin.list_topics() == ["events"]


def test_a_cluster_without_zookeeper_has_no_controller(cluster: sparklog.LocalCluster, admin: sparklog.Admin) -> None:
    """An operator is told so, though records go on."""
    admin.create_topic("events", partitions=3, replication_factor=3, configs={"min.insync.replicas": 2})
    cluster.zookeeper.kill()
    try:
        until_reached(lambda: admin.describe_cluster().controller_id == -1, "the end of the sessions")
        fill(cluster, 0, 10)
    finally:
        cluster.zookeeper.start()
    until_reached(lambda: admin.describe_cluster().controller_id > 0, "a controller")
    fill(cluster, 10, 10)
    assert sorted(values(cluster)) == list(range(20))


@pytest.mark.nightly
def test_a_directory_is_one_brokers_of_one_cluster(cluster: sparklog.LocalCluster, tmp_path: Path) -> None:
    settings = {"zookeeper.connect": cluster.zookeeper.hosts + "/elsewhere", "zookeeper.session.timeout.ms": 2_000}
    with sparklog.start_local(tmp_path / "one", settings={**settings, "broker.id": 1}):
        pass
    with pytest.raises(BrokerNotAvailableError, match=r"belongs to broker 1 of cluster .*, but this broker is 2"):
        sparklog.start_local(tmp_path / "one", settings={**settings, "broker.id": 2})
    here = {**settings, "zookeeper.connect": cluster.zookeeper.hosts + "/sparklog", "broker.id": 1}
    with pytest.raises(BrokerNotAvailableError, match="belongs to broker 1 of cluster"):
        sparklog.start_local(tmp_path / "one", settings=here)
    with pytest.raises(BrokerNotAvailableError, match=r"another broker is registered as broker.id 1"):
        sparklog.start_local(tmp_path / "two", settings=here)
    late = {**here, "broker.id": 9, "zookeeper.session.timeout.ms": 5_000, "replica.lag.time.max.ms": 5_000}
    with pytest.raises(BrokerNotAvailableError, match=r"must be below replica.lag.time.max.ms"):
        sparklog.start_local(tmp_path / "nine", settings=late)


@pytest.mark.nightly
def test_the_same_id_on_an_empty_machine_inherits_the_partitions(
    cluster: sparklog.LocalCluster, admin: sparklog.Admin
) -> None:
    admin.create_topic("events", replica_assignment=[[4, 1], [1, 4], [4, 2]], configs={"min.insync.replicas": 2})
    fill(cluster, 0, 3_000)
    lost = cluster.brokers[3]
    lost.kill()
    shutil.rmtree(lost.data_dir)
    until_reached(
        lambda: 4 not in {p.leader for p in admin.describe_topic("events").partition_details}, "other leaders"
    )
    lost.start()
    until_reached(lambda: in_sync(admin) == [(1, 4), (1, 4), (2, 4)], "broker 4 to have everything again")
    fill(cluster, 3_000, 300)
    assert admin.elect_leaders("preferred") > 0
    until_reached(
        lambda: [p.leader for p in admin.describe_topic("events").partition_details] == [4, 1, 4], "its leaderships"
    )
    assert values(cluster) == list(range(3_300))


@pytest.mark.nightly
def test_an_unclean_election_on_request_loses_the_dead_brokers_own_records(
    cluster: sparklog.LocalCluster, admin: sparklog.Admin
) -> None:
    admin.create_topic("events", replica_assignment=[[1, 4], [2, 3], [3, 2]])
    tp = EVENTS[0]
    fill(cluster, 0, 30)
    cluster.brokers[3].kill()
    until_reached(lambda: admin.describe_topic("events").partition_details[0].isr == (1,), "broker 4 to leave the ISR")
    fill(cluster, 30, 3)
    cluster.brokers[0].kill()
    cluster.brokers[3].start()
    until_reached(lambda: admin.describe_topic("events").partition_details[0].leader == -1, "nobody to lead")
    with pytest.raises(EligibleLeadersNotAvailableError):
        admin.elect_leaders("preferred", [tp])
    assert admin.elect_leaders("unclean", [tp]) == 1
    until_reached(lambda: admin.describe_topic("events").partition_details[0].leader == 4, "broker 4 to lead")
    until_reached(lambda: len(values(cluster)) == 32, "what is left")  # 33 were acknowledged: one only by broker 1
    cluster.brokers[0].start()
    until_reached(lambda: in_sync(admin)[0] == (1, 4), "broker 1 to follow, without what it alone had")
    assert len(values(cluster)) == 32
    assert admin.elect_leaders("unclean") == 0
