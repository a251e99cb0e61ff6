"""A share of the tests of Kafka's clients, by their authors, against the gateway; `make gateway-suites` runs all."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.campaigns.gateway_suites.__main__ import SUITES, lacks, short_pattern

RECORDS = 2_000


@pytest.mark.nightly
@pytest.mark.timeout(2400)  # librdkafka and its runner are compiled first
@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_a_share_of_the_suite_passes(suite: ModuleType, tmp_path: Path) -> None:
    missing = lacks(suite)
    if missing:
        pytest.skip(f"{', '.join(missing)} is missing")
    verdict, output = suite.verify(tmp_path, RECORDS, short_pattern(suite))
    assert verdict.is_good, f"{verdict.report(suite.__name__)}\n{output[-20_000:]}"
