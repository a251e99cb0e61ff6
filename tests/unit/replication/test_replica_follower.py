"""The follower's rules: cuts, appends, and requests."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sparklog import errors
from sparklog.log.state.leader_epochs import EpochEnd, LeaderEpochs
from sparklog.replication.cluster_image import PartitionImage
from sparklog.replication.replica.follower import Follower
from sparklog.replication.replica.model import (
    AppendReplica,
    Batches,
    Fetch,
    FetchAnswer,
    FetchFailure,
    RefreshMetadata,
    RestartAt,
    SetHighWatermark,
    SetLogStart,
    TruncateTo,
)


@dataclass
class Log:
    log_end_offset: int = 10
    log_start_offset: int = 0
    high_watermark: int = 4
    gaps: tuple[tuple[int, int], ...] = ()
    epochs: LeaderEpochs = field(default_factory=lambda: LeaderEpochs([(0, 0), (2, 5)]))  # type: ignore[list-item]

    @property
    def durable_end_offset(self) -> int:
        return self.log_end_offset


LED_BY_2 = PartitionImage((1, 2), 2, 5, 7, (1, 2))


def test_no_record_is_cut_before_the_leaders_answer() -> None:
    follower = Follower(LED_BY_2, Log())
    assert follower.become(0) == [Fetch(1, 2, 5, 10, 0)]
    assert follower.last_epoch() == 2


def test_without_a_leader_no_request_is_sent_or_awaited() -> None:
    follower = Follower(PartitionImage((1, 2), -1, 5, 7, (2,)), Log(), first_fetch=3)
    assert follower.become(0) == []
    assert follower.handle(FetchAnswer(3, 5, 20, 0), 0) == []


def test_batches_are_appended_and_the_high_watermark_stays_within_the_log() -> None:
    follower = Follower(LED_BY_2, Log())
    follower.become(0)
    batches = Batches(10, 13, None)
    answer = FetchAnswer(1, 5, 20, 3, batches)
    assert follower.handle(answer, 7) == [
        AppendReplica(batches),
        SetHighWatermark(13),
        SetLogStart(3),
        Fetch(2, 2, 5, 13, 7),
    ]
    assert follower.handle(answer, 8) == []


def test_a_leader_that_knows_less_does_not_take_the_high_watermark_back() -> None:
    follower = Follower(LED_BY_2, Log())
    follower.become(0)
    assert follower.handle(FetchAnswer(1, 5, 2, 0), 0) == [Fetch(2, 2, 5, 10, 0)]


@pytest.mark.parametrize(
    ("leader", "cut"),
    [
        (EpochEnd(2, 8), 8),  # the same epoch, shorter at the leader
        (EpochEnd(2, 12), 10),
        (EpochEnd(1, 7), 5),  # an epoch that is not known here: the end of the largest smaller one, then again
        (EpochEnd(0, 3), 3),
    ],
)
def test_the_log_is_cut_where_the_epochs_part(leader: EpochEnd, cut: int) -> None:
    follower = Follower(LED_BY_2, Log())
    follower.become(0)
    effects = follower.handle(FetchAnswer(1, 5, 20, 0, diverging=leader), 0)
    assert effects[0] == TruncateTo(cut)
    assert effects[-1] == Fetch(2, 2, 5, cut, 0)
    assert (SetHighWatermark(cut) in effects) is (cut < 4)


def test_a_log_without_epochs_is_cut_to_the_leaders_end() -> None:
    follower = Follower(LED_BY_2, Log(epochs=LeaderEpochs()))
    follower.become(0)
    assert follower.handle(FetchAnswer(1, 5, 20, 0, diverging=EpochEnd(0, 6)), 0)[0] == TruncateTo(6)


@pytest.mark.parametrize(
    ("bounds", "first"), [((0, 6), TruncateTo(6)), ((15, 20), RestartAt(15)), ((2, 20), Fetch(2, 2, 5, 10, 0))]
)
def test_out_of_range_is_never_fatal(bounds: tuple[int, int], first: object) -> None:
    follower = Follower(LED_BY_2, Log())
    follower.become(0)
    effects = follower.handle(FetchFailure(1, errors.OffsetOutOfRangeError("x"), *bounds), 0)
    assert effects[0] == first
    assert isinstance(effects[-1], Fetch)


def test_a_log_that_the_leader_has_emptied_below_begins_anew() -> None:
    follower = Follower(LED_BY_2, Log(log_start_offset=8))
    follower.become(0)
    assert follower.handle(FetchAnswer(1, 5, 20, 0, diverging=EpochEnd(0, 6)), 0)[0] == RestartAt(5)


@pytest.mark.parametrize(
    ("error", "refreshes"),
    [
        (errors.FencedLeaderEpochError("x"), True),
        (errors.UnknownLeaderEpochError("x"), True),
        (errors.BrokerNotAvailableError("x"), False),
    ],
)
def test_failures_are_tried_again_after_a_while(error: errors.SparklogError, refreshes: bool) -> None:
    follower = Follower(LED_BY_2, Log())
    follower.become(0)
    effects = follower.handle(FetchFailure(1, error), 100)
    assert (RefreshMetadata() in effects) is refreshes
    assert effects[-1] == Fetch(2, 2, 5, 10, 120 if refreshes else 1_100)


def test_refusals_between_two_images_are_tried_again_ever_later() -> None:
    follower = Follower(LED_BY_2, Log())
    follower.become(0)

    def wait_ms(number: int) -> int:
        fetch = follower.handle(FetchFailure(number, errors.NotLeaderError("x")), 0)[-1]
        assert isinstance(fetch, Fetch)
        return fetch.at_ms

    waits = [wait_ms(n) for n in range(1, 20)]
    assert waits[:7] == [20, 40, 80, 160, 320, 640, 1_000] and set(waits[7:]) == {1_000}
    follower.handle(FetchAnswer(20, 5, 0, 0), 0)
    assert wait_ms(21) == 20


@pytest.mark.parametrize("answer", [FetchAnswer(1, 4, 20, 0), FetchAnswer(9, 5, 20, 0)])
def test_answers_of_another_epoch_or_fetch_are_dropped(answer: FetchAnswer) -> None:
    follower = Follower(LED_BY_2, Log())
    follower.become(0)
    assert follower.handle(answer, 0) == []


def test_the_numbers_of_fetches_go_on_in_the_next_epoch() -> None:
    follower = Follower(LED_BY_2, Log())
    follower.become(0)
    after = Follower(LED_BY_2, Log(), first_fetch=follower.last_fetch)
    after.become(0)
    assert after.handle(FetchAnswer(1, 5, 20, 0), 0) == []
