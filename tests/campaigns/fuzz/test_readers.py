"""Consumers (by socket and by mapped files) and `read_table` on partitions with files from elsewhere."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.campaigns.fuzz.reader_campaign import run_readers
from tests.campaigns.fuzz.torture_share import first_seed, seconds_per_target

CASES = 10


@pytest.mark.parametrize("compacted", [False, True], ids=["kept", "compacted"])
def test_readers_of_hostile_files(tmp_path: Path, compacted: bool) -> None:
    """With `compacted` the broker's cleaner meets the batches, too."""
    outcome = run_readers(itertools.count(), tmp_path, count=CASES, compacted=compacted)
    assert not outcome.findings, str(outcome)
    assert min(outcome.refused, outcome.read) > CASES // 4, str(outcome)


@pytest.mark.torture
@pytest.mark.parametrize("compacted", [False, True], ids=["kept", "compacted"])
def test_readers_of_many_hostile_files(tmp_path: Path, compacted: bool) -> None:
    seeds = itertools.count(first_seed())
    outcome = run_readers(seeds, tmp_path, count=1 << 30, seconds=seconds_per_target(), compacted=compacted)
    print("readers", outcome)
    assert not outcome.findings, str(outcome)
