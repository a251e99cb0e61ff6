"""The stream of a source that makes rows of nothing, and what its sink notes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.benchmarks.ceiling import ROWS_PER_BATCH, DueRows, due_ns, note_delays, read_delays
from tests.benchmarks.latency import VALUE_BYTES
from tests.benchmarks.rows.latency import WARM_UP_SECONDS, _percentiles

BEGIN_NS = 1_750_000_000_123_456_789


def test_rows_carry_when_they_were_due_across_batches_and_slices() -> None:
    first, end, rate = 7, ROWS_PER_BATCH + 20, 2_000
    batches = list(DueRows(BEGIN_NS, rate, first, end).batches())
    assert [b.num_rows for b in batches] == [ROWS_PER_BATCH, end - first - ROWS_PER_BATCH]
    assert {len(v) for v in batches[1].column("value").to_pylist()} == {VALUE_BYTES}
    assert batches[0].column("key").null_count == ROWS_PER_BATCH
    expected = BEGIN_NS + np.arange(first, end) * 500_000
    assert np.concatenate([due_ns(b) for b in batches]).tolist() == expected.tolist()
    assert due_ns(batches[0].slice(11, 3)).tolist() == expected[11:14].tolist()


def test_no_rows_no_batches() -> None:
    assert list(DueRows(BEGIN_NS, 10, 5, 5).batches()) == []


def test_delays_of_several_tasks_are_kept_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "delays"
    note_delays(str(path), np.array([10, 20]), 25)
    note_delays(str(path), np.array([30]), 100)
    assert read_delays(path).tolist() == [[10, 15], [20, 5], [30, 70]]


def test_percentiles_leave_out_the_warm_up_and_what_may_not_have_come() -> None:
    second = 10**9
    due = np.arange(0, 8 * second + 1, second // 100)
    counted = (due >= WARM_UP_SECONDS * second) & (due < 7 * second)
    slow, usual = 10**12, 4_000_000
    delays = np.stack((due, np.where(counted, usual, slow)), axis=1)
    assert _percentiles(delays) == {"p50_ms": 4.0, "p99_ms": 4.0}


def test_a_run_that_is_too_short_has_no_percentiles() -> None:
    second = 10**9
    due = np.arange(0, 3 * second, second // 100)
    assert _percentiles(np.stack((due, due), axis=1)) == {}
