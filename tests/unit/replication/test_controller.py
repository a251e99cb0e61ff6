"""The controller's decisions, driven as its shell would: every write succeeds unless a test says otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from sparklog import errors
from sparklog.replication.cluster_image import BrokerImage, ClusterImage, PartitionImage, TopicImage, Version
from sparklog.replication.controller.controller import Controller
from sparklog.replication.controller.model import (
    AddPartitions,
    AlterConfig,
    AlterPartition,
    AlterSchema,
    Answer,
    BrokersChanged,
    ControlledShutdown,
    Cordon,
    CreateTopic,
    DeleteTopic,
    DirectoryFailed,
    DirectoryFull,
    Effect,
    Elect,
    ElectionKind,
    ElectionResult,
    IsrChange,
    Publish,
    Reassign,
    Refuse,
    Reload,
    Resign,
    SessionLost,
    Tick,
    Write,
    WriteOutcome,
    WriteResult,
)
from sparklog.replication.controller.write_parts import CHUNK_PARTITIONS, WRITE_PARTITIONS_MAX
from sparklog.types import TopicPartition
from tests.unit.replication.controllersupport import TP, Cluster

MIN_2 = {"min_insync_replicas": 2}


def test_a_new_topic_begins_above_the_epochs_of_all_deleted_ones() -> None:
    cluster = Cluster()
    cluster.create([[1, 2], [2, 3]])
    assert {p.leader_epoch for p in cluster.image.topics["t"].partitions} == {0}
    for _ in range(3):  # each election raises an epoch
        cluster.stop(1)
        cluster.start(1)
        cluster.stop(2)
        cluster.start(2)
    highest = max(p.leader_epoch for p in cluster.image.topics["t"].partitions)
    assert highest > 2
    cluster.ask(DeleteTopic("d", "t", "id"))
    cluster.create([[1, 2]])
    topic = cluster.image.topics["t"]
    assert topic.first_leader_epoch == topic.partitions[0].leader_epoch == highest + 1
    cluster.ask(AddPartitions("a", "t", 2, assignment=[[2, 3]]))
    assert [p.leader_epoch for p in cluster.image.topics["t"].partitions] == [highest + 1] * 2
    cluster.ask(DeleteTopic("d", "t", "id"))
    cluster.ask(CreateTopic("c", TopicImage("other", "other", ()), assignment=[[1]]))
    cluster.ask(DeleteTopic("d", "other", "other"))
    cluster.create([[1, 2]])
    assert cluster.partition().leader_epoch == highest + 3, "the newest deletion stands for all earlier ones"


def test_a_topic_is_placed_led_and_published() -> None:
    cluster = Cluster()
    topic = cluster.ask(CreateTopic("c", TopicImage("t", "id", ()), 6, 3, start=1))
    assert topic.name == "t"
    assert [p.leader for p in cluster.image.topics["t"].partitions] == [2, 3, 1, 2, 3, 1]
    assert all(p.isr == p.replicas for p in cluster.image.topics["t"].partitions)
    assert isinstance(cluster.seen[-2], Publish)
    again = cluster.ask(CreateTopic("c", TopicImage("t", "id", ())))
    assert isinstance(again, errors.TopicAlreadyExistsError)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (CreateTopic("x", TopicImage("u", "id", ()), 1, 4), errors.InvalidReplicationFactorError),
        (CreateTopic("x", TopicImage("u", "id", ()), 0, 1), errors.InvalidPartitionsError),
        (CreateTopic("x", TopicImage("u", "id", ()), assignment=[[9]]), errors.InvalidReplicaAssignmentError),
        (AddPartitions("x", "t", 1), errors.InvalidPartitionsError),
        (AddPartitions("x", "u", 2), errors.UnknownTopicOrPartitionError),
        (AddPartitions("x", "t", 2, assignment=[[1]]), errors.InvalidReplicaAssignmentError),
        (DeleteTopic("x", "u"), errors.UnknownTopicOrPartitionError),
        (DeleteTopic("x", "t", "other"), errors.UnknownTopicOrPartitionError),
        (DeleteTopic("x", "t", "id", {"mirror.name": "old"}), errors.UnknownTopicOrPartitionError),
        (AlterConfig("x", "u", {}), errors.UnknownTopicOrPartitionError),
        (ControlledShutdown("x", 1, 9), errors.StaleBrokerEpochError),
    ],
)
def test_refused_requests_make_no_change(request_: Any, error: type) -> None:
    cluster = Cluster()
    cluster.create([[1, 2]])
    before = cluster.image
    assert isinstance(cluster.ask(request_), error)
    assert cluster.image == before


def test_topics_grow_change_and_go() -> None:
    cluster = Cluster()
    cluster.create([[1, 2]])
    assert len(cluster.ask(AddPartitions("x", "t", 3)).partitions) == 3
    cluster.ask(AlterConfig("x", "t", {"min.insync.replicas": 2}))
    cluster.ask(AlterSchema("x", "t", 7, b"schema"))
    topic = cluster.image.topics["t"]
    configs = {"min.insync.replicas": 2, "partitions.added": True}
    assert (topic.configs, topic.schemas) == (configs, {7: b"schema"})
    cluster.ask(AlterConfig("x", "t", {"min.insync.replicas": None}))
    assert cluster.image.topics["t"].configs == {"partitions.added": True}
    assert cluster.ask(DeleteTopic("x", "t")).topic_id == "id"
    assert cluster.image.topics == {}


def test_the_first_of_the_assignment_that_is_in_sync_and_alive_leads() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]])
    cluster.propose(1, [1, 3])
    cluster.stop(1)
    assert (cluster.partition().leader, cluster.partition().isr) == (3, (3,))
    assert (cluster.partition().leader_epoch, cluster.partition().partition_epoch) == (1, 2)


def test_the_last_replica_standing_does_not_lead_after_a_crash_another_that_has_everything_does() -> None:
    """KIP-966: ISR {1,2,3}, min.insync 2. Two leave, the last one crashes: the committed records are on the others."""
    cluster = Cluster()
    cluster.create([[1, 2, 3]], **MIN_2)
    cluster.stop(2)
    cluster.stop(3)
    assert (cluster.partition().isr, cluster.partition().elr) == ((1,), (3,))
    cluster.stop(1)
    assert (cluster.partition().leader, cluster.partition().isr, cluster.partition().elr) == (-1, (), (1, 3))
    cluster.start(1, clean=False)
    assert (cluster.partition().leader, cluster.partition().elr) == (-1, (3,))
    cluster.start(2)
    assert cluster.partition().leader == -1
    cluster.start(3)
    assert (cluster.partition().leader, cluster.partition().isr) == (3, (3,))


@pytest.mark.parametrize(("configs", "leads"), [({}, False), ({"flush_mode": "group"}, True)])
def test_after_a_crash_only_flushed_data_are_trusted(configs: dict[str, Any], leads: bool) -> None:
    cluster = Cluster()
    cluster.create([[1, 2]], **configs)
    cluster.stop(2)
    cluster.stop(1)
    cluster.start(1, clean=False)
    assert (cluster.partition().leader == 1) is leads


def test_the_only_replica_leads_after_a_crash() -> None:
    """Nobody else has more than it."""
    cluster = Cluster()
    cluster.create([[1]])
    cluster.stop(1)
    epoch = cluster.partition().leader_epoch
    cluster.start(1, clean=False)
    assert (cluster.partition().leader, cluster.partition().isr) == (1, (1,))
    assert cluster.partition().leader_epoch > epoch


@pytest.mark.parametrize("configs", [{}, {"flush_mode": "group"}])
def test_an_empty_machine_with_an_old_id_leads_no_partition(configs: dict[str, Any]) -> None:
    """Flushed data of the old machine are not on the new one."""
    cluster = Cluster()
    cluster.create([[1]], **configs)
    cluster.stop(1)
    cluster.start(1, clean=False, empty=True)
    assert (cluster.partition().leader, cluster.partition().isr, cluster.partition().elr) == (-1, (), ())


def test_a_broker_vouches_for_lives_that_no_controller_has_seen_the_end_of() -> None:
    """Its session has ended twice while there was no controller, the process is the same."""
    cluster = Cluster()
    cluster.create([[1]])
    known = cluster.image.known[1]
    cluster.stop(1)
    lives = known + 100, known
    cluster.brokers[1] = BrokerImage(1, known + 200, clean_epochs=lives, flushed_epochs=lives)
    cluster.register()
    assert (cluster.partition().leader, cluster.partition().isr) == (1, (1,))


@pytest.mark.parametrize(("last_written", "isr"), [(0, (1,)), (-1, ())])
def test_a_life_without_writes_is_no_emptied_disk(last_written: int, isr: tuple[int, ...]) -> None:
    """The broker died before its life was noted."""
    cluster = Cluster()
    cluster.create([[1, 2]], flush_mode="group")
    before = cluster.image.known[1]
    cluster.stop(2)
    cluster.stop(1)
    for epoch in (before + 100, before + 200):
        last = before if last_written >= 0 else last_written
        cluster.brokers[1] = BrokerImage(1, epoch, flushed_epochs=(before,), last_written_epoch=last)
        cluster.register()
    assert cluster.partition().isr == isr


def test_an_unnoticed_restart_is_a_new_life_in_a_new_epoch() -> None:
    cluster = Cluster()
    cluster.create([[1, 2]], **MIN_2)
    before = cluster.partition()
    cluster.start(1, clean=False)
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2,))
    cluster.start(2)
    assert cluster.partition().leader == 2
    assert cluster.partition().leader_epoch >= before.leader_epoch + 3


def test_a_new_controller_sees_earlier_changes() -> None:
    first = Cluster()
    first.create([[1, 2, 3]])
    second = Cluster(image=replace(first.image, brokers={}))
    assert second.partition() == first.partition()
    second.start(1, clean=False)
    assert second.partition().leader == 2


def test_unclean_election_only_where_it_is_allowed() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]])
    cluster.propose(1, [1])
    cluster.stop(1)
    assert cluster.partition().leader == -1
    assert cluster.ask(Elect("e", ElectionKind.UNCLEAN, (TP,))) == {TP: None}
    assert cluster.partition() == PartitionImage((1, 2, 3), 2, 2, 3, (2,), recovering=True)
    assert isinstance(cluster.propose(2, [2, 3]), errors.InvalidRequestError)
    assert cluster.propose(2, [2]).recovering is False
    assert cluster.propose(2, [2, 3]).isr == (2, 3)


def test_where_it_is_allowed_the_last_leader_comes_first() -> None:
    cluster = Cluster()
    cluster.create([[2, 1, 3]], unclean_leader_election_enable=True)
    cluster.propose(2, [2])
    cluster.stop(1, 3)
    cluster.stop(2)
    cluster.start(2, clean=False)
    assert (cluster.partition().leader, cluster.partition().recovering) == (2, True)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"leader_epoch": 1}, errors.NotControllerError),
        ({"leader_epoch": -1}, errors.FencedLeaderEpochError),
        ({"partition_epoch": 9}, errors.InvalidUpdateVersionError),
        ({"isr": ((1, 11), (3, 12))}, errors.IneligibleReplicaError),
        ({"isr": ((1, 11), (2, 12), (9, 1))}, errors.InvalidRequestError),
        ({"isr": ((2, 12),)}, errors.InvalidRequestError),
    ],
)
def test_proposals_that_are_refused(changes: dict[str, Any], error: type) -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]])
    cluster.propose(1, [1, 2])
    before = cluster.partition()
    assert isinstance(cluster.propose(1, [1, 2, 3], **changes), error)
    assert cluster.partition() == before


def test_a_proposal_of_another_broker_or_a_former_life_is_refused() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]])
    assert isinstance(cluster.propose(2, [2, 3]), errors.FencedLeaderEpochError)
    stale = AlterPartition("a", 1, 5, (IsrChange(TP, 0, 0, ((1, 5),)),))
    assert isinstance(cluster.ask(stale), errors.StaleBrokerEpochError)


def test_a_repeated_proposal_is_answered_with_the_present_state() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]])
    done = cluster.propose(1, [1, 2])
    assert cluster.propose(1, [1, 2], partition_epoch=0) == done


def test_the_elr_ends_when_the_isr_is_large_enough_or_min_insync_lower() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]], **MIN_2)
    cluster.propose(1, [1])
    assert cluster.partition().elr == (2, 3)
    cluster.propose(1, [1, 3])
    assert cluster.partition().elr == ()
    cluster.propose(1, [1])
    cluster.ask(AlterConfig("x", "t", {"min.insync.replicas": 1}))
    assert cluster.partition().elr == ()


def test_a_controlled_shutdown_moves_leaders_and_reports_the_remaining_ones() -> None:
    cluster = Cluster()
    cluster.create([[1, 2], [1, 3]])
    cluster.propose(1, [1])
    assert cluster.ask(ControlledShutdown("s", 1, 11)) == 1
    assert cluster.partition().leader == 1
    moved = cluster.partition(TopicPartition("t", 1))
    assert (moved.leader, moved.isr) == (3, (3,))
    assert isinstance(cluster.propose(1, [1, 2], isr=((1, 11), (2, 0))), errors.IneligibleReplicaError)


def test_a_failed_disk_hands_its_partitions_over() -> None:
    cluster = Cluster()
    cluster.create([[1, 2], [1, 2]])
    cluster.ask(DirectoryFailed("d", 1, 11, (TP,)))
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2,))
    assert cluster.partition(TopicPartition("t", 1)).leader == 1
    cluster.stop(2)
    assert cluster.partition().leader == -1


def test_failed_and_full_disks_stay_recorded_after_a_refused_write() -> None:
    """The brokers repeat their reports to another controller only."""
    cluster = Cluster()
    cluster.create([[1, 2]])
    cluster.ask(DirectoryFailed("d", 1, 11, (TP,)))
    stored = cluster.image
    (write,) = cluster.controller.handle(CreateTopic("a", TopicImage("a", "a", ())), 0)
    assert isinstance(write, Write)
    assert cluster.controller.handle(WriteResult(write.tag, WriteOutcome.CONFLICT), 0)[-1] == Reload()
    cluster.tell(ElectionResult(stored))
    cluster.register()
    cluster.stop(2)
    assert cluster.partition().leader == -1, "the disk of broker 1 has failed"


def full(broker: int, *, is_full: bool = True) -> DirectoryFull:
    return DirectoryFull("f", broker, 10 + broker, (TP,), is_full)


def test_a_full_disk_hands_its_partitions_over_until_it_has_room() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]], **MIN_2)
    assert cluster.ask(full(1)) == 1
    after = cluster.partition()
    assert (after.leader, after.isr, after.elr, after.leader_epoch) == (2, (2, 3), (), 1)
    assert cluster.ask(full(1)) == 0, "it is told again and again"
    cluster.propose(2, [1, 2, 3])
    cluster.now_ms = 300_000
    cluster.tell(Tick())
    assert cluster.partition().leader == 2, "no preferred leader without room"
    refused = cluster.ask(Elect("e", ElectionKind.PREFERRED, (TP,)))[TP]
    assert isinstance(refused, errors.EligibleLeadersNotAvailableError) and "full" in str(refused)
    assert cluster.ask(full(1, is_full=False)) == 0
    cluster.now_ms = 600_000
    cluster.tell(Tick())
    assert cluster.partition().leader == 1


def test_a_full_disk_keeps_partitions_without_room_elsewhere() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]], **MIN_2)
    before = cluster.partition()
    cluster.propose(1, [1, 2])
    assert cluster.ask(full(1)) == 0, "one member alone is below min.insync.replicas"
    assert (cluster.partition().leader, cluster.partition().isr) == (1, (1, 2))
    cluster.propose(1, [1, 2, 3])
    cluster.ask(full(2))
    assert cluster.partition().isr == (1, 3), "a follower leaves the ISR, too: it would hold up acknowledgements"
    cluster.propose(1, [1, 2, 3])
    assert cluster.ask(full(3)) == cluster.ask(full(1)) == 0, "all are full"
    assert cluster.partition() == replace(before, partition_epoch=cluster.partition().partition_epoch)


def test_replicas_with_room_are_elected_first() -> None:
    cluster = Cluster()
    cluster.create([[1, 2, 3]])
    cluster.tell(full(2))
    cluster.propose(1, [1, 2, 3])
    cluster.stop(1)
    assert cluster.partition().leader == 3
    cluster.stop(3)
    assert cluster.partition().leader == 2, "a full one is better than none"


def test_a_full_disk_of_another_life_is_forgotten() -> None:
    cluster = Cluster()
    cluster.create([[1, 2]])
    cluster.ask(full(1))
    cluster.stop(1)
    cluster.start(1)
    cluster.propose(2, [1, 2])
    assert cluster.ask(Elect("e", ElectionKind.PREFERRED, (TP,))) == {TP: None}


def test_an_election_of_all_partitions_names_only_those_in_need() -> None:
    cluster = Cluster()
    cluster.create([[1, 2], [2, 1]])
    for kind in ElectionKind:
        assert isinstance(cluster.ask(Elect("e", kind, (TP,)))[TP], errors.ElectionNotNeededError)
        assert cluster.ask(Elect("f", kind)) == {}
    cluster.stop(2)
    led = TopicPartition("t", 1)
    refused = cluster.ask(Elect("g", ElectionKind.PREFERRED))
    assert list(refused) == [led] and isinstance(refused[led], errors.EligibleLeadersNotAvailableError)


def test_preferred_leaders_on_demand_and_with_time() -> None:
    cluster = Cluster()
    cluster.create([[1, 2], [1, 2]])
    cluster.stop(1)
    cluster.start(1)
    result = cluster.ask(Elect("e", ElectionKind.PREFERRED, (TP, TopicPartition("t", 9))))
    assert isinstance(result[TP], errors.EligibleLeadersNotAvailableError)
    assert isinstance(result[TopicPartition("t", 9)], errors.UnknownTopicOrPartitionError)
    cluster.propose(2, [1, 2])
    cluster.now_ms = 1_000
    cluster.tell(Tick())
    assert cluster.partition().leader == 2
    cluster.now_ms = 300_000
    cluster.tell(Tick())
    assert cluster.partition().leader == 1
    assert cluster.partition(TopicPartition("t", 1)).leader == 2


def test_a_reassignment_goes_step_by_step() -> None:
    cluster = Cluster(4)
    cluster.create([[1, 2]])
    assert cluster.ask(Reassign("r", {TP: (3, 4)})) == {TP: None}
    p = cluster.partition()
    assert (p.replicas, p.adding, p.removing, p.isr) == ((3, 4, 1, 2), (3, 4), (1, 2), (1, 2))
    cluster.propose(1, [1, 2, 3])
    assert cluster.partition().leader == 1
    done = cluster.propose(1, [1, 2, 3, 4])
    assert (done.replicas, done.leader, done.isr, done.adding, done.removing) == ((3, 4), 3, (3, 4), (), ())


def test_a_reassignment_can_be_cancelled() -> None:
    cluster = Cluster(4)
    cluster.create([[1, 2]])
    cluster.ask(Reassign("r", {TP: (3, 4)}))
    cluster.propose(1, [1, 2, 3])
    assert cluster.ask(Reassign("r", {TP: None})) == {TP: None}
    p = cluster.partition()
    assert (p.replicas, p.leader, p.isr, p.adding, p.removing) == ((1, 2), 1, (1, 2), (), ())
    assert isinstance(cluster.ask(Reassign("r", {TP: None}))[TP], errors.NoReassignmentInProgressError)


def test_a_refused_reassignment_names_its_partition() -> None:
    cluster = Cluster(2)
    cluster.create([[1], [1]])
    other = TopicPartition(TP.topic, 1)
    refused = cluster.ask(Reassign("r", {TP: (9,), other: (2, 2)}))
    assert [type(e) for e in refused.values()] == [errors.InvalidReplicaAssignmentError] * 2
    assert [str(e).partition(";")[0] for e in refused.values()] == [f"{TP}: [9]", f"{other}: [2, 2]"]


def test_a_second_reassignment_replaces_the_first() -> None:
    cluster = Cluster(4)
    cluster.create([[1, 2]])
    cluster.ask(Reassign("r", {TP: (3, 2)}))
    cluster.ask(Reassign("r", {TP: (4, 2)}))
    cluster.propose(1, [1, 2, 4])
    assert (cluster.partition().replicas, cluster.partition().leader) == ((4, 2), 4)


def test_a_replica_that_is_removed_ends_the_leader_epoch_and_one_that_is_added_does_not() -> None:
    """It may be added again, empty, while its fetches of before are still on their way."""
    cluster = Cluster(4)
    cluster.create([[1, 2, 3]])
    epoch = cluster.partition().leader_epoch
    cluster.ask(Reassign("r", {TP: (1, 2)}))
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == (1, epoch + 1)
    cluster.ask(Reassign("r", {TP: (1, 2, 3)}))
    cluster.ask(Reassign("r", {TP: None}))
    assert (cluster.partition().replicas, cluster.partition().leader_epoch) == ((1, 2), epoch + 2)
    cluster.ask(Reassign("r", {TP: (2, 1, 4)}))
    assert cluster.propose(1, [1, 2, 4]).leader_epoch == epoch + 2


def test_no_answer_comes_before_the_write_and_later_events_are_one_write() -> None:
    controller = Controller()
    controller.handle(ElectionResult(ClusterImage(Version(1, 0))), 0)
    (write,) = controller.handle(BrokersChanged({1: BrokerImage(1, 11)}), 0)
    assert isinstance(write, Write)
    for name in "ab":
        assert controller.handle(CreateTopic(name, TopicImage(name, name, ())), 0) == []
    publish, following = controller.handle(WriteResult(write.tag, WriteOutcome.OK, Version(1, 5)), 0)
    assert isinstance(publish, Publish)
    assert isinstance(following, Write)
    assert set(following.delta.topics) == {"a", "b"}
    _, a, b = controller.handle(WriteResult(following.tag, WriteOutcome.OK, Version(1, 6)), 0)
    assert isinstance(a, Answer)
    assert isinstance(b, Answer)
    assert controller.image is not None
    assert controller.image.version == (1, 6)


@pytest.mark.parametrize(("outcome", "last"), [(WriteOutcome.FENCED, Resign()), (WriteOutcome.CONFLICT, Reload())])
def test_a_failed_write_drops_the_image_and_refuses_all_waiting_requests(outcome: WriteOutcome, last: Effect) -> None:
    controller = Controller()
    controller.handle(ElectionResult(ClusterImage(Version(1, 0))), 0)
    (write,) = controller.handle(BrokersChanged({1: BrokerImage(1, 11)}), 0)
    assert isinstance(write, Write)
    controller.handle(CreateTopic("a", TopicImage("a", "a", ())), 0)
    refused, ended = controller.handle(WriteResult(write.tag, outcome), 0)
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, errors.NotControllerError)
    assert ended == last
    (refused,) = controller.handle(CreateTopic("b", TopicImage("a", "a", ())), 0)
    assert isinstance(refused, Refuse)


def test_a_lost_session_ends_it() -> None:
    cluster = Cluster()
    cluster.tell(SessionLost())
    assert cluster.seen[-1] == Resign()
    assert cluster.controller.image is None


def test_a_change_that_is_too_large_is_several_writes_the_brokers_epochs_last() -> None:
    cluster = Cluster()
    count = WRITE_PARTITIONS_MAX + CHUNK_PARTITIONS + 1
    cluster.create([[1, 2]] * count)
    before = len(cluster.seen)
    cluster.stop(1)
    writes = [e for e in cluster.seen[before:] if isinstance(e, Write)]
    assert len(writes) == 2
    assert writes[0].delta.brokers == {}
    assert list(writes[-1].delta.brokers) == [1]
    assert sum(len(w.delta.partitions) for w in writes) == count
    assert all(p.leader == 2 for p in cluster.image.topics["t"].partitions)


def test_an_older_delta_does_not_change_an_image() -> None:
    cluster = Cluster()
    cluster.create([[1]])
    publish = next(e for e in reversed(cluster.seen) if isinstance(e, Publish))
    assert cluster.image.apply(publish.delta, Version(0, 9_999_999)) is cluster.image


def test_the_throttle_ends_with_the_last_reassignment() -> None:
    cluster = Cluster(4)
    cluster.create([[1, 2], [1, 2]])
    cluster.ask(Reassign("r", {TP: (3,), TopicPartition("t", 1): (4,)}, throttle_bytes=1_000))
    cluster.tell(Tick())
    assert cluster.image.throttle_bytes == 1_000
    cluster.propose(1, [1, 2, 3])
    cluster.ask(Reassign("r", {}, throttle_bytes=2_000))
    cluster.tell(Tick())
    assert cluster.image.throttle_bytes == 2_000
    cluster.ask(Reassign("r", {TopicPartition("t", 1): None}))
    assert cluster.image.throttle_bytes == 0
    cluster.ask(Reassign("r", {}, throttle_bytes=3_000))  # there is nothing that it could slow down
    assert cluster.image.throttle_bytes == 0


def test_as_many_replicas_as_brokers() -> None:
    """The requesting broker may not know yet that a broker has gone."""
    cluster = Cluster(4)
    cluster.stop(4)
    cluster.ask(Cordon("c", 1, cordoned=True))
    for name in ("u", "__transaction_state"):
        made = cluster.ask(CreateTopic("c", TopicImage(name, name, ()), 1, 3, or_fewer=True))
        assert sorted(made.partitions[0].replicas) == [2, 3]
        assert made.configs == {}
    cluster.ask(Cordon("c", 1, cordoned=False))
    made = cluster.ask(CreateTopic("c", TopicImage("__consumer_offsets", "o", ()), 1, 3, or_fewer=True))
    assert sorted(made.partitions[0].replicas) == [1, 2, 3]
    assert made.configs == {"min.insync.replicas": 2}
    refused = cluster.ask(CreateTopic("c", TopicImage("v", "v", ()), 1, 4))
    assert isinstance(refused, errors.InvalidReplicationFactorError)


def test_an_internal_topic_is_guarded_when_it_has_three_replicas_at_last() -> None:
    """It was made by the first broker of the cluster, with one replica."""
    cluster = Cluster()
    name = "__consumer_offsets"
    assignment = [[1], [1]]
    cluster.ask(CreateTopic("c", TopicImage(name, "id", (), configs={"a": 1}), assignment=assignment))
    cluster.create([[1, 2, 3]])
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    cluster.ask(Reassign("r", {first: (1, 2, 3), second: (1, 2, 3)}))

    def copied(tp: TopicPartition) -> dict[str, Any]:
        before = cluster.partition(tp)
        isr = tuple((m, cluster.brokers[m].broker_epoch) for m in (1, 2, 3))
        change = IsrChange(tp, before.leader_epoch, before.partition_epoch, isr)
        cluster.ask(AlterPartition("a", 1, cluster.brokers[1].broker_epoch, (change,)))
        cluster.tell(Tick())
        return dict(cluster.image.topics[name].configs)

    assert copied(first) == {"a": 1}, "the other one could not be written to"
    assert copied(second) == {"a": 1, "min.insync.replicas": 2}
    assert cluster.partition(first).isr == cluster.partition(second).isr == (1, 2, 3)
    assert cluster.image.topics["t"].configs == {}


def test_no_new_replicas_on_a_cordoned_broker() -> None:
    cluster = Cluster(3)
    cluster.create([[1, 2]])
    assert cluster.ask(Cordon("c", 3, cordoned=True)) == {3}
    for number in range(6):
        made = cluster.ask(CreateTopic("c", TopicImage(f"n{number}", f"i{number}", ()), 3, 2, start=number))
        assert {r for p in made.partitions for r in p.replicas} == {1, 2}
    refused = cluster.ask(CreateTopic("c", TopicImage("n", "i", ()), 1, 3))
    assert isinstance(refused, errors.InvalidReplicationFactorError)
    assert "cordoned" in str(refused)
    assert isinstance(cluster.ask(Reassign("r", {TP: (3, 1)}))[TP], errors.InvalidReplicaAssignmentError)
    assert cluster.ask(Cordon("c", 3, cordoned=False)) == set()
    assert cluster.ask(Reassign("r", {TP: (3, 1)})) == {TP: None}


def test_a_reassignment_does_not_take_replicas_that_have_to_be_in_sync() -> None:
    cluster = Cluster(4)
    cluster.create([[1, 2, 3]], min_insync_replicas=2)
    refused = cluster.ask(Reassign("r", {TP: (4,)}))[TP]
    assert isinstance(refused, errors.InvalidReplicaAssignmentError)
    assert "min.insync.replicas = 2" in str(refused)
    assert cluster.ask(Reassign("r", {TP: (4, 1)})) == {TP: None}


def test_while_it_is_reassigned_a_partition_needs_no_more_replicas_in_sync_than_before() -> None:
    cluster = Cluster(3)
    cluster.create([[1]], min_insync_replicas=2)
    cluster.ask(Reassign("r", {TP: (2,)}))
    p = cluster.partition()
    assert cluster.image.min_insync(cluster.image.topics["t"], len(p.target)) == 1
    assert (p.isr, p.elr) == ((1,), ())


def _calls_of(work: Callable[[], object]) -> int:
    """Number of Python functions that `work` calls."""
    count = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_a_tick_looks_at_no_partition_of_an_image_at_rest() -> None:
    costs = []
    for partitions in (1, 200):
        c = Cluster()
        c.create([[1, 2, 3]] * partitions)
        c.tell(Tick())
        costs.append(_calls_of(partial(c.tell, Tick())))
    assert costs[0] == costs[1]
