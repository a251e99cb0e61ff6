"""Hostile batches against everything that reads a log: never a signal, never an untyped error, never an invented
value."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.campaigns.fuzz.campaign import BATCH_TARGETS, LOG_TARGETS, BatchTarget, run_batches
from tests.campaigns.fuzz.cases import FORMS, Case, honest_batch
from tests.campaigns.fuzz.torture_share import first_seed, seconds_per_target
from tests.support.cases import in_gate

SEEDS = {
    "decode": 200,
    "append": 200,
    "recovery": 40,
    "compaction": 40,
    "tiering": 40,
    "dump": 10,
    "verify": 10,
    "repair": 10,
}


def check_honest(reader: BatchTarget) -> None:
    """A reader that refuses everything would pass otherwise."""
    for form in FORMS:
        case = Case(0, form, (), honest_batch(form), 0)
        assert not reader.problem(case), case.name
        found = reader.ask(case).value
        compacted = form.how == "compacted"
        assert bool(found.refused) == (compacted and reader.name == "append"), (case.name, found.refused)
        assert found.facts.get("sound", True), case.name
        assert not found.facts.get("repaired"), case.name
        assert not {"compaction", "tiering"} & found.facts.keys(), found.facts


@pytest.mark.parametrize("name", in_gate(BATCH_TARGETS, *LOG_TARGETS))
def test_hostile_batches(name: str, tmp_path: Path) -> None:
    with BatchTarget(name, tmp_path) as target:
        check_honest(target)
        outcome = run_batches(target, range(SEEDS[name]))
    assert not outcome.findings, str(outcome)
    least = outcome.read if name == "repair" else min(outcome.refused, outcome.read)  # it puts lies aside
    assert least > SEEDS[name] // 50, str(outcome)


@pytest.mark.torture
@pytest.mark.parametrize("name", BATCH_TARGETS)
def test_many_hostile_batches(name: str, tmp_path: Path) -> None:
    with BatchTarget(name, tmp_path) as target:
        outcome = run_batches(target, itertools.count(first_seed()), seconds=seconds_per_target())
    print(name, outcome)
    assert not outcome.findings, str(outcome)
