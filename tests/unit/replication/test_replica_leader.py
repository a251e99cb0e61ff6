"""The leader's rules, one by one, against a log that is two numbers and a list of epochs."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from msgspec.structs import replace

from sparklog import errors
from sparklog.log.state.leader_epochs import EpochEnd, LeaderEpochs
from sparklog.replication.cluster_image import PartitionImage
from sparklog.replication.replica.leader import Leader
from sparklog.replication.replica.model import (
    Acknowledge,
    AlterOutcome,
    BeginEpoch,
    FetchAccepted,
    FetchDiverging,
    FetchRefused,
    FollowerFetch,
    LeaderEffect,
    LogGrowth,
    NewImage,
    ProposalResult,
    ProposeIsr,
    Refuse,
    ReplicaConfig,
    Resignation,
    SetHighWatermark,
    Tick,
    WaitForReplicas,
)
from tests.support.cases import for_each


@dataclass
class Log:
    log_end_offset: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)

    @property
    def durable_end_offset(self) -> int:
        return self.log_end_offset


ALIVE = {1: 11, 2: 12, 3: 13}
ALL_IN_SYNC = PartitionImage((1, 2, 3), 1, 5, 7, (1, 2, 3))


def image(
    partition: PartitionImage = ALL_IN_SYNC, *, eligible: dict[int, int] | None = None, least: int = 2
) -> NewImage:
    return NewImage(partition, eligible if eligible is not None else ALIVE, least)


def lead(log: Log, changed: NewImage | None = None) -> Leader:
    leader = Leader(1, 11, changed or image(), log, 0, ReplicaConfig(lag_max_ms=1_000))
    for effect in leader.become(0):
        if isinstance(effect, BeginEpoch):
            log.epochs.assign(effect.leader_epoch, effect.start_offset)
    return leader


def fetch(
    leader: Leader, replica: int, offset: int, now_ms: int = 0, *, epoch: int = 5, last: int = -1, life: int = 0
) -> list[LeaderEffect]:
    return leader.handle(FollowerFetch("f", replica, life or 10 + replica, epoch, offset, last), now_ms)


def append(leader: Leader, log: Log, count: int = 1) -> list[LeaderEffect]:
    log.log_end_offset += count
    return leader.handle(LogGrowth(), 0)


def only(effects: list[LeaderEffect], kind: type) -> list[LeaderEffect]:
    return [e for e in effects if isinstance(e, kind)]


def refusal(effects: list[LeaderEffect]) -> type:
    (effect,) = effects
    assert isinstance(effect, FetchRefused)
    return type(effect.error)


def test_an_epoch_begins_at_the_log_end_even_without_records() -> None:
    log = Log(log_end_offset=10, high_watermark=4, epochs=LeaderEpochs())
    assert Leader(1, 11, image(), log, 0).become(0) == [BeginEpoch(5, 10)]


def test_a_follower_acts_not_as_leader() -> None:
    with pytest.raises(ValueError, match="does not lead"):
        Leader(2, 12, image(), Log(), 0)


def test_the_high_watermark_is_the_smallest_end_of_the_isr_and_never_goes_back() -> None:
    log = Log()
    leader = lead(log)
    assert append(leader, log, 3) == []
    assert only(fetch(leader, 2, 3), SetHighWatermark) == []
    assert only(fetch(leader, 3, 2), SetHighWatermark) == [SetHighWatermark(2)]
    assert only(fetch(leader, 3, 1), SetHighWatermark) == []
    assert leader.high_watermark == 2


def test_producers_are_answered_when_the_high_watermark_reaches_them() -> None:
    log = Log()
    leader = lead(log)
    append(leader, log, 2)
    assert leader.handle(WaitForReplicas("p", 2), 0) == []
    fetch(leader, 2, 2)
    assert Acknowledge("p") in fetch(leader, 3, 2)
    assert leader.handle(WaitForReplicas("late", 1), 0) == [Acknowledge("late")]


def test_latest_is_not_available_before_the_epoch_start_is_committed() -> None:
    log = Log(log_end_offset=10, high_watermark=4)
    leader = lead(log)
    with pytest.raises(errors.OffsetNotAvailableError):
        leader.latest_offset()
    fetch(leader, 2, 10)
    fetch(leader, 3, 10)
    assert leader.latest_offset() == 10


@pytest.mark.parametrize(
    ("epoch", "life", "replica", "error"),
    [
        (4, 0, 2, errors.FencedLeaderEpochError),
        (6, 0, 2, errors.UnknownLeaderEpochError),
        (5, 9, 2, errors.StaleBrokerEpochError),
        (5, 0, 4, errors.UnknownTopicOrPartitionError),
    ],
)
def test_fetches_that_are_refused(epoch: int, life: int, replica: int, error: type) -> None:
    log = Log()
    leader = lead(log)
    append(leader, log)
    assert refusal(fetch(leader, replica, 1, epoch=epoch, life=life)) is error
    assert leader.followers[2].log_end_offset == -1


def test_out_of_range_names_the_bounds() -> None:
    log = Log(log_end_offset=10, log_start_offset=5, high_watermark=5)
    (refused,) = fetch(lead(log), 2, 3)
    assert isinstance(refused, FetchRefused)
    assert isinstance(refused.error, errors.OffsetOutOfRangeError)
    assert (refused.log_start_offset, refused.log_end_offset) == (5, 10)


def test_a_divergence_is_answered_without_a_change() -> None:
    log = Log(log_end_offset=10, epochs=LeaderEpochs([(0, 0), (3, 6)]))  # type: ignore[list-item]
    leader = lead(log)
    (answer,) = fetch(leader, 2, 9, last=2)
    assert answer == FetchDiverging("f", EpochEnd(0, 6), 0, 0)
    assert leader.followers[2].log_end_offset == -1
    (beyond,) = fetch(leader, 2, 12, last=3)
    assert beyond == FetchDiverging("f", EpochEnd(3, 10), 0, 0)
    assert isinstance(fetch(leader, 2, 10, last=3)[-1], FetchAccepted)


@pytest.mark.parametrize(
    ("mine", "theirs", "end"),
    [
        (((4, 6),), ((4, 6),), None),
        (((4, 6),), (), 4),
        ((), ((4, 6),), 4),
        (((4, 6),), ((4, 5),), 4),
        (((4, 6), (7, 8)), ((4, 6),), 7),
        (((1, 3), (4, 6)), ((0, 1), (4, 6)), None),  # below the leader's log start
        (((1, 4), (5, 6)), ((3, 4), (5, 6)), None),  # in both from its log start on
        (((8, 9),), (), None),  # the follower is not there yet
        (((6, 9),), ((6, 8),), None),
        ((), ((0, 6),), 3),  # it has lost its beginning, and begins behind that
        (((0, 6),), ((0, 6),), None),
        ((), ((0, 3),), None),
    ],
)
def test_a_follower_cuts_its_log_where_one_of_both_lacks_offsets_that_the_other_has(
    mine: tuple[tuple[int, int], ...], theirs: tuple[tuple[int, int], ...], end: int | None
) -> None:
    log = Log(log_end_offset=10, log_start_offset=3, gaps=mine, epochs=LeaderEpochs([(0, 0)]))  # type: ignore[list-item]
    leader = lead(log)
    start = theirs[0][1] if theirs and theirs[0][0] == 0 and len(theirs) == 1 else 0
    effects = leader.handle(FollowerFetch("f", 2, 12, 5, 8, 0, start, theirs), 0)
    if end is None:
        assert isinstance(effects[-1], FetchAccepted)
    else:
        assert effects == [FetchDiverging("f", EpochEnd(0, end), 0, 3)]
        assert leader.followers[2].log_end_offset == -1  # what it asks for says nothing of what it has


def test_a_late_follower_is_proposed_to_go_and_counts_until_that_is_confirmed() -> None:
    log = Log()
    leader = lead(log)
    append(leader, log)
    fetch(leader, 2, 1, 900)
    assert leader.handle(Tick(), 1_000) == [], "replica 3 was late for exactly the allowed time"
    (proposal,) = leader.handle(Tick(), 1_001)
    assert proposal == ProposeIsr(5, 7, ((1, 11), (2, 12)))
    assert leader.high_watermark == 0
    assert leader.maximal_isr == {1, 2, 3}
    shrunk = replace(ALL_IN_SYNC, isr=(1, 2), partition_epoch=8)
    assert SetHighWatermark(1) in leader.handle(ProposalResult(7, AlterOutcome.COMMITTED, shrunk), 1_600)


@pytest.mark.parametrize(
    ("outcome", "is_void"),
    [
        (AlterOutcome.INELIGIBLE, True),
        (AlterOutcome.NOT_ATTEMPTED, True),
        (AlterOutcome.UNKNOWN, False),
        (AlterOutcome.STALE, False),
    ],
)
def test_a_proposed_member_counts_until_it_is_refused(outcome: AlterOutcome, is_void: bool) -> None:
    log = Log()
    leader = lead(log, image(replace(ALL_IN_SYNC, isr=(1, 2))))
    (proposal,) = only(fetch(leader, 3, 0), ProposeIsr)
    append(leader, log)
    fetch(leader, 2, 1)
    assert leader.high_watermark == 0
    leader.handle(ProposalResult(7, outcome), 10)
    assert leader.maximal_isr == ({1, 2} if is_void else {1, 2, 3})
    assert (proposal in leader.handle(Tick(), 2_000)) is not is_void or is_void


def test_a_newer_partition_epoch_voids_a_proposal() -> None:
    log = Log()
    leader = lead(log, image(replace(ALL_IN_SYNC, isr=(1, 2))))
    fetch(leader, 3, 0)
    leader.handle(image(replace(ALL_IN_SYNC, isr=(1, 2), partition_epoch=8)), 0)
    assert leader.maximal_isr == {1, 2}
    leader.handle(ProposalResult(7, AlterOutcome.COMMITTED, replace(ALL_IN_SYNC, isr=(1, 2, 3))), 0)
    assert leader.maximal_isr == {1, 2}


@for_each("partition_epoch, in_sync", [(7, {1, 2, 3}), (6, {1, 2})])
def test_an_earlier_proposal_counts_in_its_partition_epoch_only(partition_epoch: int, in_sync: set[int]) -> None:
    proposed = ProposeIsr(5, partition_epoch, ((1, 11), (2, 12), (3, 13)))
    leader = Leader(1, 11, image(replace(ALL_IN_SYNC, isr=(1, 2))), Log(), 0, proposed=proposed)
    assert leader.maximal_isr == in_sync


def test_a_joining_replica_has_all_records_below_the_epoch_start() -> None:
    log = Log(log_end_offset=10, high_watermark=4)
    leader = lead(log, image(replace(ALL_IN_SYNC, isr=(1, 2))))
    assert only(fetch(leader, 3, 5), ProposeIsr) == []
    assert only(fetch(leader, 3, 10), ProposeIsr) == [ProposeIsr(5, 7, ((1, 11), (2, -1), (3, 13)))]


def test_a_joining_replica_has_deleted_the_deleted_records() -> None:
    log = Log(log_end_offset=10, log_start_offset=4, high_watermark=10)
    leader = lead(log, image(PartitionImage((1, 2, 3), 1, 5, 7, (1, 3))))
    behind = FollowerFetch("f", 2, 12, 5, 10, -1, log_start_offset=3)
    assert not only(leader.handle(behind, 0), ProposeIsr)
    assert only(leader.handle(msgspec.structs.replace(behind, log_start_offset=4), 0), ProposeIsr)


def test_a_member_that_the_controller_removes_joins_again_only_by_a_fetch() -> None:
    """The leader knows that the member had all records, and not that it lives."""
    log = Log()
    leader = lead(log)
    for replica in (2, 3):
        fetch(leader, replica, 0)
    append(leader, log)
    fetch(leader, 2, 1)
    assert leader.high_watermark == 0
    effects = leader.handle(image(replace(ALL_IN_SYNC, isr=(1, 2), partition_epoch=8)), 0)
    assert SetHighWatermark(1) in effects, "no acknowledgement waits for it"
    assert not [e for e in leader.handle(Tick(), 500) if isinstance(e, ProposeIsr)]
    assert [e.isr for e in fetch(leader, 3, 1, 600) if isinstance(e, ProposeIsr)] == [((1, 11), (2, 12), (3, 13))]


def test_a_life_that_is_not_the_registered_one_does_not_join() -> None:
    leader = lead(Log(), image(replace(ALL_IN_SYNC, isr=(1, 2)), eligible={1: 11, 2: 12}))
    assert refusal(fetch(leader, 3, 0)) is errors.StaleBrokerEpochError
    leader.handle(image(replace(ALL_IN_SYNC, isr=(1, 2), partition_epoch=8)), 0)
    assert only(leader.handle(Tick(), 1), ProposeIsr) == []
    assert only(fetch(leader, 3, 0), ProposeIsr) == [ProposeIsr(5, 8, ((1, 11), (2, -1), (3, 13)))]


@for_each("life", [-1, 0, 12, 14, 1 << 62])
@for_each("registered", [True, False])
def test_claims_of_an_unknown_life_do_not_count(life: int, registered: bool) -> None:
    """The life may be invented: records that it claims would be committed, and do not exist."""
    log = Log()
    leader = lead(log, image(eligible=ALIVE if registered else {1: 11, 2: 12}))
    append(leader, log, 5)
    fetch(leader, 2, 5)
    event = FollowerFetch("f", 3, life, 5, 5, -1)
    assert refusal(leader.handle(event, 0)) is errors.StaleBrokerEpochError
    assert (leader.high_watermark, leader.followers[3].log_end_offset) == (0, -1)
    leader.handle(image(replace(ALL_IN_SYNC, partition_epoch=8)), 0)
    assert leader.high_watermark == 0
    assert SetHighWatermark(5) in fetch(leader, 3, 5)


def test_a_follower_that_stops_goes_on_until_it_has() -> None:
    log = Log()
    leader = lead(log)
    append(leader, log)
    fetch(leader, 2, 1)
    fetch(leader, 3, 0)
    leader.handle(image(replace(ALL_IN_SYNC, partition_epoch=8), eligible={1: 11, 2: 12}), 0)
    assert SetHighWatermark(1) in fetch(leader, 3, 1)
    assert refusal(fetch(leader, 3, 1, life=14)) is errors.StaleBrokerEpochError


def test_below_min_insync_appends_are_refused_and_the_high_watermark_stands_still() -> None:
    log = Log()
    leader = lead(log, image(replace(ALL_IN_SYNC, isr=(1,))))
    with pytest.raises(errors.NotEnoughReplicasError):
        leader.check_append()
    assert append(leader, log) == []
    assert leader.high_watermark == 0
    leader.handle(image(replace(ALL_IN_SYNC, isr=(1, 2), partition_epoch=8)), 0)
    leader.check_append()
    assert SetHighWatermark(1) in fetch(leader, 2, 1)


def test_waiters_are_refused_when_another_leads() -> None:
    log = Log()
    leader = lead(log)
    append(leader, log)
    leader.handle(WaitForReplicas("p", 1), 0)
    (refused,) = leader.handle(image(replace(ALL_IN_SYNC, leader=2, leader_epoch=6, partition_epoch=8)), 0)
    assert isinstance(refused, Refuse)
    assert (type(refused.error), refused.leader, refused.leader_epoch) == (errors.NotLeaderError, 2, 6)
    assert refusal(fetch(leader, 2, 1)) is errors.NotLeaderError
    with pytest.raises(errors.NotLeaderError):
        leader.check_append()


def test_a_session_that_is_over_ends_leadership() -> None:
    leader = lead(Log())
    assert leader.handle(Resignation(), 0) == []
    (refused,) = leader.handle(WaitForReplicas("p", 0), 0)
    assert isinstance(refused, Refuse)


@pytest.mark.parametrize(("epochs_later", "known"), [(1, 3), (2, -1)])
def test_a_leader_elected_again_keeps_its_knowledge_unless_another_may_have_led(epochs_later: int, known: int) -> None:
    log = Log()
    leader = lead(log)
    append(leader, log, 3)
    fetch(leader, 2, 3)
    changed = replace(ALL_IN_SYNC, leader_epoch=5 + epochs_later, partition_epoch=8)
    assert BeginEpoch(5 + epochs_later, 3) in leader.handle(image(changed), 0)
    assert leader.followers[2].log_end_offset == known


def test_a_removed_and_added_replica_counts_by_its_later_fetches_only() -> None:
    """It may have begun with an empty log, and this leader has heard of both changes at once."""
    log = Log(log_end_offset=5)
    leader = lead(log, image(replace(ALL_IN_SYNC, isr=(1, 2))))
    fetch(leader, 2, 5)
    added = replace(ALL_IN_SYNC, leader_epoch=6, partition_epoch=9, isr=(1, 2), adding=(3,))
    leader.followers[3].log_end_offset, leader.followers[3].broker_epoch = 5, 13
    leader.handle(image(added), 0)
    assert (leader.followers[2].log_end_offset, leader.followers[3].log_end_offset) == (5, -1)
    assert refusal(fetch(leader, 3, 5, epoch=5)) is errors.FencedLeaderEpochError
    assert only(leader.handle(Tick(), 10), ProposeIsr) == []
    assert only(fetch(leader, 3, 0, 20, epoch=6), ProposeIsr) == []
    assert len(only(fetch(leader, 3, 5, 30, epoch=6), ProposeIsr)) == 1


def test_an_epoch_that_a_proposal_has_ended_begins_with_the_image() -> None:
    """The answer names the remaining members, but an epoch begins in the log, too, and only the image starts it
    there."""
    log = Log(log_end_offset=5)
    moving = replace(ALL_IN_SYNC, replicas=(1, 2, 3, 4), isr=(1, 2, 4), adding=(3,), removing=(4,))
    leader = lead(log, NewImage(moving, {**ALIVE, 4: 14}, 2))
    (proposal,) = only(fetch(leader, 3, 5), ProposeIsr)
    assert isinstance(proposal, ProposeIsr)
    done = replace(ALL_IN_SYNC, leader_epoch=6, partition_epoch=8)
    answered = ProposalResult(proposal.partition_epoch, AlterOutcome.COMMITTED, done)
    assert leader.handle(answered, 0) == []
    assert leader.partition == moving
    assert leader.maximal_isr == {1, 2, 3, 4}
    assert BeginEpoch(6, 5) in leader.handle(image(done), 0)
    assert leader.maximal_isr == {1, 2, 3}


def test_under_constant_load_a_follower_that_keeps_pace_stays() -> None:
    log = Log()
    leader = lead(log)
    for now in range(0, 3_000, 100):
        fetch(leader, 2, log.log_end_offset, now)
        fetch(leader, 3, max(0, log.log_end_offset - 1), now)
        append(leader, log)
    assert only(leader.handle(Tick(), 3_000), ProposeIsr) == []


def test_a_chasing_follower_holds_the_mark_only_while_it_can_join() -> None:
    log = Log()
    leader = lead(log, image(replace(ALL_IN_SYNC, isr=(1, 2)), eligible={1: 11, 2: 12}))
    fetch(leader, 3, 0)
    append(leader, log)
    assert SetHighWatermark(1) in fetch(leader, 2, 1)


def test_an_unclean_election_is_followed_up_before_the_isr_grows() -> None:
    log = Log()
    leader = Leader(1, 11, image(replace(ALL_IN_SYNC, isr=(1,), recovering=True), least=1), log, 0)
    assert ProposeIsr(5, 7, ((1, 11),), recovering=False) in leader.become(0)
    assert only(fetch(leader, 2, 0), ProposeIsr) == []


def test_the_low_watermark_waits_for_live_followers_only() -> None:
    log = Log(log_end_offset=10, log_start_offset=6, high_watermark=10)
    leader = lead(log, image(eligible={1: 11, 2: 12}))
    assert leader.low_watermark == 0
    leader.handle(FollowerFetch("f", 2, 12, 5, 10, -1, 6), 0)
    assert leader.low_watermark == 6


def test_a_sole_replica_whose_records_are_committed_waits_for_no_time() -> None:
    """A broker with thousands of such partitions does nothing for them while nothing happens."""
    alone = PartitionImage((1,), 1, 5, 7, (1,))
    log = Log(3, high_watermark=3)
    leader = Leader(1, 11, image(alone, least=1), log, 0)
    leader.become(0)
    assert not leader.waits_for_time
    leader.handle(ProposalResult(6, AlterOutcome.STALE), 0)
    assert not leader.waits_for_time

    class Unflushed(Log):
        durable_end_offset = 3

    unflushed = Unflushed(3, high_watermark=3)
    leader = Leader(1, 11, image(alone, least=1), unflushed, 0)
    leader.become(0)
    unflushed.log_end_offset = 4
    leader.handle(LogGrowth(), 0)
    assert leader.waits_for_time, "its record is not on the disk yet"
    recovering = replace(alone, recovering=True)
    leader = Leader(1, 11, image(recovering, least=1), log, 0)
    leader.become(0)
    assert leader.waits_for_time, "its proposal has no answer"
    leader.handle(ProposalResult(7, AlterOutcome.INELIGIBLE), 0)
    assert leader.waits_for_time, "it has to propose again"


def test_a_leader_waits_for_time_while_a_follower_lacks_records_or_is_out_of_sync() -> None:
    log = Log(3, high_watermark=3)
    leader = Leader(1, 11, image(), log, 0)
    leader.become(0)
    assert leader.waits_for_time, "no follower has fetched in this epoch"
    fetch(leader, 2, 3)
    assert leader.waits_for_time, "one follower has not"
    fetch(leader, 3, 3)
    assert not leader.waits_for_time
    log.log_end_offset = 4
    leader.handle(LogGrowth(), 0)
    assert leader.waits_for_time
    fetch(leader, 2, 4)
    fetch(leader, 3, 4)
    assert not leader.waits_for_time and leader.high_watermark == 4
    fetch(leader, 3, 2)
    assert leader.waits_for_time, "it has lost records"
    fetch(leader, 3, 4)
    leader.handle(NewImage(replace(ALL_IN_SYNC, isr=(1, 2), partition_epoch=8), {1: 11, 2: 12, 3: 13}, 1), 0)
    assert leader.waits_for_time, "a replica can join"
