"""Power cuts at every call of a scripted life of two logs, and at random ones; see power_cut.py."""

from __future__ import annotations

import random

import pytest

from tests.simulation.power_cut import command, run
from tests.support.seeds import SEED_BASE

SCRIPT = 0
CHUNKS = 16


def run_case(seed: int, cut: int | None, loss: int) -> tuple[int, int]:
    try:
        return run(seed, cut, loss)
    except Exception as e:
        raise AssertionError(f"fails: {command(seed, cut, loss)}") from e


@pytest.fixture(scope="module")
def calls() -> int:
    """Return the number of the script's calls without a power cut."""
    count, repairs = run_case(SCRIPT, None, 0)
    assert (count > 400, repairs) == (True, 0)
    return count


def test_a_power_cut_before_every_31st_call_loses_no_flushed_record_and_invents_none(calls: int) -> None:
    for cut in range(0, calls, 31):
        run_case(SCRIPT, cut, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_power_cut_before_every_third_call_loses_no_flushed_record_and_invents_none(chunk: int, calls: int) -> None:
    """Cut the power before every third call, from an offset that changes with the date."""
    for cut in range(3 * chunk + SEED_BASE // 1_000 % 3, calls, 3 * CHUNKS):
        run_case(SCRIPT, cut, 0)


@pytest.mark.torture
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_power_cut_before_every_call_loses_no_flushed_record_and_invents_none(chunk: int, calls: int) -> None:
    for cut in range(chunk, calls, CHUNKS):
        for loss in range(2):
            run_case(SCRIPT, cut, loss)


def test_the_same_seeds_give_the_same_run() -> None:
    said: list[list[str]] = [[], []]
    for lines in said:
        run(3, 290, 1, lines.append)
    assert said[0] == said[1]
    assert any("power cut" in line for line in said[0])


def test_the_campaign_finds_a_flush_that_does_not_reach_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.testing._sim_files.SimFile.sync", lambda self: None)
    failed = 0
    for cut in range(20, 400, 20):
        try:
            run(SCRIPT, cut, 0)
        except Exception:  # noqa: BLE001  (whatever it is: found)
            failed += 1
    assert failed > 3


def test_the_campaign_finds_a_directory_that_is_never_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.testing._sim_files.SimFiles.sync_directory", lambda self, path: None)
    failed = 0
    for cut in range(20, 400, 20):
        try:
            run(SCRIPT, cut, 0)
        except Exception:  # noqa: BLE001
            failed += 1
    assert failed > 3


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_scripts_with_many_losses(seed: int) -> None:
    calls, _ = run_case(seed, None, 0)
    for cut in random.Random(seed).sample(range(calls), 200):
        run_case(seed, cut, cut)
