"""Hostile records and texts of schemas: refused alone, or read as the format's library reads them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.campaigns.fuzz.schema_campaign import run_schemas
from tests.campaigns.fuzz.torture_share import first_seed, seconds_per_target

CASES = 150


def test_hostile_records_and_schemas(tmp_path: Path) -> None:
    outcome = run_schemas(range(CASES), tmp_path)
    assert not outcome.findings, str(outcome)
    assert min(outcome.refused, outcome.read) > CASES // 15, str(outcome)


@pytest.mark.torture
def test_many_hostile_records_and_schemas(tmp_path: Path) -> None:
    outcome = run_schemas(itertools.count(first_seed()), tmp_path, seconds=seconds_per_target())
    print("schemas", outcome)
    assert not outcome.findings, str(outcome)
