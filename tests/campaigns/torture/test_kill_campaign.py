"""kill -9 of a broker under load; see kill_campaign.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparklog.types import TopicPartition
from tests.campaigns.torture.kill_campaign import TOPICS, Ledger, Rows, run


@pytest.mark.crash
def test_every_acknowledged_record_survives_a_few_kills(tmp_path: Path) -> None:
    campaign = run(tmp_path, kills=2, seed=5)
    assert campaign.batches_acknowledged > 30


@pytest.mark.crash
@pytest.mark.torture
def test_every_acknowledged_record_survives_two_hundred_kills(tmp_path: Path) -> None:
    campaign = run(tmp_path, kills=200, seed=1)
    assert campaign.kills_while_starting > 10
    assert campaign.batches_unanswered > 200
    starts = [ledger.log_start for tp, ledger in campaign.ledgers.items() if tp.topic == "short"]
    assert min(starts) > 0, "retention has not run"
    assert set(TOPICS) == {tp.topic for tp in campaign.ledgers}


KEPT, STATE = TopicPartition("all", 0), TopicPartition("state", 0)


def rows_of(ids: dict[int, int], end: int | None = None, keys: list[bytes] | None = None) -> Rows:
    """Offset → id."""
    offsets = np.array(list(ids), np.int64)
    dead = np.zeros(len(ids), bool)
    log_end = max(ids, default=-1) + 1 if end is None else end
    return Rows(0, log_end, 0, offsets, np.array(list(ids.values()), np.int64), keys or [b"k"] * len(ids), dead)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({0: 10, 1: 11}, "ends below"),
        ({0: 10, 2: 12}, "missing"),
        ({0: 10, 1: 12, 2: 11}, "another record"),
        ({0: 10, 1: 11, 2: 12, 3: 99}, "never sent"),
        ({0: 10, 1: 11, 2: 12, 3: 12}, "there twice"),
        ({0: 10, 1: 11, 2: 12, 3: 20, 4: 20, 5: 20}, "3 times"),
    ],
)
def test_the_check_finds(found: dict[int, int], message: str) -> None:
    ledger = Ledger({0: 10, 1: 11, 2: 12})
    ledger.attempts[20] = 2
    ledger.check(KEPT, rows_of({0: 10, 1: 11, 2: 12, 3: 20, 4: 20}))
    ledger.seen = ledger.seen[:0]
    with pytest.raises(AssertionError, match=message):
        ledger.check(KEPT, rows_of(found))


def test_the_check_finds_a_log_that_was_another_one_before() -> None:
    ledger = Ledger({0: 10})
    ledger.attempts[20] = ledger.attempts[21] = 1
    ledger.check(KEPT, rows_of({0: 10, 1: 20}))
    with pytest.raises(AssertionError, match="has changed"):
        ledger.check(KEPT, rows_of({0: 10, 1: 21}))


def test_the_check_finds_a_resurrected_key_and_a_lost_value() -> None:
    ledger = Ledger({0: 10, 1: 11}, last_of_key={b"k": (1, True)})
    ledger.check(STATE, rows_of({}, end=2))
    ledger.check(STATE, rows_of({1: 11}, end=2))
    with pytest.raises(AssertionError, match="older than"):
        ledger.check(STATE, rows_of({0: 10}, end=2))
    ledger.last_of_key[b"k"] = (1, False)
    with pytest.raises(AssertionError, match="last value"):
        ledger.check(STATE, rows_of({}, end=2))
