"""Lives of mirrors of a source that does everything a source can do; and the same lives without a safeguard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparklog.mirror.copying import AbortedBatches
from sparklog.mirror.refused import RefusedLog
from sparklog.mirror.rules import Go
from sparklog.mirror.typed import TypedConversion
from sparklog.mirror.worker import sync
from sparklog.mirror.worker.sync import MirrorSync
from tests.simulation import mirror_world
from tests.simulation.mirror_world import COLUMNS, TP, Life, SimulatedLog, Violation, live
from tests.support.cases import for_each

SEEDS, STEPS = 60, 40


def test_lives_store_each_committed_record_once_or_pause() -> None:
    lives = [live(seed, STEPS) for seed in range(SEEDS)]
    reasons = [life.paused for life in lives if life.paused]
    assert any("created again" in reason for reason in reasons)
    assert any("unclean election" in reason for reason in reasons)
    assert any(life.lost for life in lives)
    assert sum(len(life.log.values) for life in lives if not life.paused) > 1_000


def test_lives_that_copy_a_sparklog_cluster_store_each_committed_record_once_or_pause() -> None:
    lives = [live(seed, STEPS, is_of_sparklog=True) for seed in range(SEEDS)]
    assert sum(len(life.log.values) for life in lives if not life.paused) > 1_000
    assert any("unclean election" in life.paused for life in lives) and any(life.lost for life in lives)


def test_a_copy_that_keeps_aborted_batches_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_world, "AbortedBatches", lambda p, first, last: AbortedBatches(p, first, -1))
    assert finds_violation(lambda seed: live(seed, STEPS, is_of_sparklog=True))


def test_lives_of_a_typed_topic_store_each_record_as_a_row_or_as_a_refused_record() -> None:
    lives = [live(seed, STEPS, is_typed=True) for seed in range(SEEDS)]
    complete = [life for life in lives if not life.paused]
    assert sum(len(life.log.values) for life in complete) > 500
    assert sum(len(life.log.refused) for life in complete) > 200


def test_a_limit_of_the_rate_delays_fetches() -> None:
    life = Life(0)
    life.source.put([b"x" * 1_000])
    worker = life.worker(bytes_per_second=100)
    life.round_of(worker)
    assert life.log.end == 1 and worker.throttled_s > 0
    life.source.put([b"y"])
    life.round_of(worker)
    assert life.log.end == 1
    life.now_s += worker.throttled_s
    life.round_of(worker)
    assert life.log.end == 2


@for_each("is_lasting", [False, True])
def test_a_deposed_leader_that_answers_for_a_while_pauses_no_topic(is_lasting: bool) -> None:
    life = Life(0)
    source: Any = life.source
    source.put([b"a"])
    life.round(0)
    topics, bounds = source.topics(), source.bounds({}, [TP])
    source.elect(is_clean=True)
    source.put([b"b", b"c"])
    life.wait()
    life.round(0)
    assert life.log.end == 3
    source.topics, source.bounds = lambda names=None: topics, lambda *_: bounds
    for _ in range(20 if is_lasting else 2):
        life.wait()
        life.round(0)
    assert bool(life.paused) == is_lasting
    del source.topics, source.bounds
    life.settle()
    assert bool(life.paused) == is_lasting


def finds_violation(run: Callable[[int], object]) -> bool:
    for seed in range(SEEDS):
        try:
            run(seed)
        except Violation:
            return True
    return False


@pytest.mark.parametrize("safeguard", ["judge_topic", "judge_epoch"])
def test_lives_without_a_judgement_break_a_promise(safeguard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allow: Any = lambda *_: Go()  # noqa: E731
    monkeypatch.setattr(sync, safeguard, allow)
    assert finds_violation(lambda seed: live(seed, STEPS))


def test_lives_without_the_check_of_the_logs_end_break_a_promise() -> None:
    assert finds_violation(lambda seed: live(seed, STEPS, checks_end=False))


def typed_life(seed: int, **checks: bool) -> object:
    return live(seed, STEPS, is_typed=True, **checks)


def test_typed_lives_without_the_check_of_the_refused_logs_end_break_a_promise() -> None:
    assert finds_violation(lambda seed: typed_life(seed, checks_refused_end=False))


def test_typed_lives_that_append_the_gap_before_the_refused_records_break_a_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused_first, append = MirrorSync._append_refused, MirrorSync._append

    def append_then_refuse(self: MirrorSync, appends: Any) -> bool:
        has_grown = append(self, appends)
        refused_first(self, appends)
        return has_grown

    monkeypatch.setattr(MirrorSync, "_append_refused", lambda self, appends: appends)
    monkeypatch.setattr(MirrorSync, "_append", append_then_refuse)
    assert finds_violation(typed_life)


# -- what random lives reach seldom, step by step

OLD, NEW = min(COLUMNS), max(COLUMNS)
FITS, FITS_NEW, UNFIT = b'{"a":"x"}', b'{"a":"x","b":1}', b'{"a":0}'


def an_election_after_a_stored_refused_row(life: Life) -> None:
    life.source.put([FITS, UNFIT])
    life.log.fault = "after-refused"
    life.round(0, OLD)
    life.source.elect_shorter(0)
    life.source.put([FITS, FITS, FITS])


def columns_are_added_before_the_gap_of_a_refused_record_is_stored(life: Life) -> None:
    life.source.put([FITS, FITS_NEW, FITS])
    life.log.fault = "after-refused"
    life.round(0, OLD)
    life.round(1, NEW)


def a_late_worker_refuses_records_that_fit_newer_columns(life: Life) -> None:
    life.source.put([FITS])
    life.round(0, OLD)
    life.source.put([FITS, FITS_NEW])
    life.round(1, NEW)
    life.round(0, OLD)


def a_late_worker_knows_offsets_that_were_decided_before(life: Life) -> None:
    life.source.put([FITS, FITS])
    life.log.fault = "after-refused"
    life.round(0, NEW)
    life.source.is_silent = True
    life.round(0, OLD)  # judges, and gets no records
    life.round(1, NEW)
    life.source.put([FITS, FITS_NEW])
    life.round(1, NEW)
    life.wait()
    life.round(0, OLD)


def a_late_worker_begins_after_a_batch_with_newer_columns(life: Life) -> None:
    life.source.put([FITS])
    life.round(1, NEW)
    life.source.is_silent = True
    life.round(0, OLD)
    life.source.put([FITS_NEW])
    life.round(1, NEW)
    life.wait()
    life.round(0, OLD)


Scenario = Callable[[Life], None]
SCENARIOS: tuple[Scenario, ...] = (
    an_election_after_a_stored_refused_row,
    columns_are_added_before_the_gap_of_a_refused_record_is_stored,
    a_late_worker_refuses_records_that_fit_newer_columns,
    a_late_worker_knows_offsets_that_were_decided_before,
    a_late_worker_begins_after_a_batch_with_newer_columns,
)


def play(scenario: Scenario) -> Life:
    """Play a scenario, and let the mirror settle. Raises Violation."""
    life = Life(0, is_typed=True)
    scenario(life)
    life.settle(NEW)
    return life


@for_each("scenario", SCENARIOS)
def test_scenarios_of_typed_topics_keep_the_promises(scenario: Scenario) -> None:
    is_replaced = scenario is an_election_after_a_stored_refused_row
    assert ("unclean election" in play(scenario).paused) == is_replaced


def test_judging_the_topics_end_alone_loses_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "_kept_end", lambda end, refused: (end.end, end.epoch))
    with pytest.raises(Violation, match=r"missing|other records"):
        play(an_election_after_a_stored_refused_row)


def test_forgetting_stored_refused_rows_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = SimulatedLog.refused_logs

    def without_ahead(self: SimulatedLog, ends: Any) -> Any:
        return {tp: RefusedLog(log.start, log.end, log.epoch, log.count) for tp, log in logs(self, ends).items()}

    monkeypatch.setattr(SimulatedLog, "refused_logs", without_ahead)
    with pytest.raises(Violation, match="twice"):
        play(columns_are_added_before_the_gap_of_a_refused_record_is_stored)


@for_each(
    "attribute,scenario",
    [
        ("_fences", a_late_worker_refuses_records_that_fit_newer_columns),
        ("_decided_end", a_late_worker_knows_offsets_that_were_decided_before),
    ],
)
def test_a_record_is_stored_twice_without_the_fences_of_a_change_of_columns(
    attribute: str, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = TypedConversion.__init__

    def without(self: TypedConversion, *args: Any, **options: Any) -> None:
        create(self, *args, **options)
        setattr(self, attribute, None)

    with monkeypatch.context() as patch:
        patch.setattr(TypedConversion, "__init__", without)
        with pytest.raises(Violation, match="twice"):
            play(scenario)


def test_a_record_is_stored_twice_by_workers_that_do_not_wait_for_newer_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = TypedConversion.__init__

    def with_any_columns(self: TypedConversion, target: Any, *args: Any, schema_id: int, **options: Any) -> None:
        create(self, target, *args, schema_id=min(schema_id, target.schema_id), **options)

    monkeypatch.setattr(TypedConversion, "__init__", with_any_columns)
    with pytest.raises(Violation, match="twice"):
        play(a_late_worker_begins_after_a_batch_with_newer_columns)
