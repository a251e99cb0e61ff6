"""A stream from a topic's history, killed again and again, and the comparison of its output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.campaigns.torture import seam_campaign


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_few_kills_across_the_seam(tmp_path: Path) -> None:
    outcome = seam_campaign.run(tmp_path, kills=4, seed=4)
    assert outcome.log_start > 0


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_fifty_kills_across_the_seam(tmp_path: Path) -> None:
    outcome = seam_campaign.run(tmp_path, kills=50, seed=1)
    assert outcome.repeated_batches > 0


def test_the_comparison_finds_the_faults(tmp_path: Path) -> None:
    whole = {"000001-a": [0, 1, 2], "000002-a": [3, 4]}
    cases = {
        "whole": (whole | {"000002-b": [4, 3]}, ""),
        "twice": (whole | {"000003-a": [4]}, "in several batches"),
        "missing": ({"000001-a": [0, 1, 2], "000002-a": [3]}, "not delivered"),
        "foreign": (whole | {"000003-a": [7]}, "no producer has committed"),
        "another": (whole | {"000002-b": [3]}, "differ"),
    }
    for name, (files, message) in cases.items():
        directory = tmp_path / name
        directory.mkdir()
        for file, numbers in files.items():
            rows = {"_partition": [0] * len(numbers), "_offset": numbers, "n": numbers}
            pq.write_table(pa.table(rows), directory / f"{file}.parquet")
        if message:
            with pytest.raises(AssertionError, match=message):
                seam_campaign.check(directory, np.arange(5))
        else:
            assert seam_campaign.check(directory, np.arange(5)) == (5, 2, 1)
