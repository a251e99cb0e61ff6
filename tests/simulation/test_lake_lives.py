"""Lives of lake workers: no row twice, none missing, no part of a transaction; without a safeguard one of these."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.lake_world import LIVES_GATE, LIVES_TORTURE, ViolationError, World


def test_no_promise_is_broken() -> None:
    counts: Counter[str] = Counter()
    for seed in range(LIVES_GATE):
        counts += World(seed).run()
    assert all(counts[what] for what in ("commits", "crashes", "lost answers", "users", "restores", "rows", "stops"))


def test_a_seed_gives_one_life() -> None:
    assert World(3).run() == World(3).run()


def test_a_safeguard_that_is_off_is_noticed() -> None:
    for safeguard in ("exact_version", "whole_transactions"):
        with pytest.raises(ViolationError):
            for seed in range(300):
                World(seed, **{safeguard: False}).run()


@pytest.mark.torture
def test_many_lives() -> None:
    for seed in range(LIVES_TORTURE):
        World(seed).run()
