"""The state machine of producers (`producer_machine.py`), with all safeguards and with each of them switched off."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sparklog.log.producers.states import Safeguards
from tests.property.producer_machine import ProducerMachine
from tests.support.cases import for_each

QUIET = settings(
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_the_invariants_hold() -> None:
    run_state_machine_as_test(ProducerMachine, settings=settings(QUIET, max_examples=40))


@pytest.mark.torture
def test_the_invariants_hold_for_long() -> None:
    run_state_machine_as_test(
        ProducerMachine, settings=settings(QUIET, max_examples=3_000, stateful_step_count=80, derandomize=False)
    )


@pytest.mark.nightly
@for_each("name", [f.name for f in fields(Safeguards)])
def test_without_a_safeguard_something_breaks(name: str) -> None:
    class Weakened(ProducerMachine):
        safeguards = Safeguards(**{name: False})

    # the search ends with the first violation; what it tries depends on the modules that happen to be loaded
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(
            Weakened, settings=settings(QUIET, max_examples=10_000, phases=[Phase.generate], report_multiple_bugs=False)
        )
