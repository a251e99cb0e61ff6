"""Spark on partitions with files from elsewhere: a hostile batch fails its task with a typed error or is read as it was
sent; honest rows come back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sparklog.format.batch import decode_header
from tests.campaigns.fuzz.cases import ENVELOPE_ID, Case
from tests.campaigns.fuzz.child import Answer
from tests.campaigns.fuzz.log_targets import Found, Reading
from tests.campaigns.fuzz.oracle import judge
from tests.campaigns.fuzz.planted import HONEST_ROWS
from tests.campaigns.fuzz.planted_broker import PlantedBroker
from tests.campaigns.fuzz.reader_campaign import plantable

CASES = 8


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PlantedBroker, list[Case]]]:
    envelopes = (c for c in plantable(itertools.count()) if c.form.schema_id == ENVELOPE_ID)
    cases = list(itertools.islice(envelopes, CASES))
    broker = PlantedBroker(tmp_path_factory.mktemp("planted"), cases)
    yield broker, cases
    broker.stop()


def read(spark: Any, address: str, topic: str, partition: int, start: int, end: int) -> dict[int, tuple[Any, ...]]:
    """Key and value by offset."""
    bounds = {"startingOffsets": start, "endingOffsets": end}
    options = {name: json.dumps({topic: {str(partition): offset}}) for name, offset in bounds.items()}
    assign = json.dumps({topic: [partition]})
    frame = spark.read.format("sparklog").option("sparklog.bootstrap.servers", address).option("assign", assign)
    rows = frame.options(**options).load().select("offset", "key", "value").collect()
    return {r.offset: tuple(None if v is None else bytes(v) for v in (r.key, r.value)) for r in rows}


def test_spark_reads_the_sent_rows_or_fails_with_a_typed_error(
    spark: Any, planted: tuple[PlantedBroker, list[Case]]
) -> None:
    broker, cases = planted
    outcomes = set()
    for case in cases:
        place = broker.place_of(case)
        behind = decode_header(case.stamped()).next_offset
        end = behind + 2 * HONEST_ROWS
        rows = read(spark, broker.broker.address, *place, 0, HONEST_ROWS)
        rows |= read(spark, broker.broker.address, *place, behind, end)
        refused = []
        try:
            rows |= read(spark, broker.broker.address, *place, 0, end)
        except Exception as e:  # noqa: BLE001  # Spark has classes of its own for it
            refused.append(str(e))
            assert "CorruptBatch" in str(e), f"{case.name}: {e}"
        outcomes.add(bool(refused))
        found = Found([Reading("spark", (0, 1), rows)], refused, {})
        problem = judge("reader", case, Answer("value", found)) or broker.problem()
        assert not problem, f"{case.name}: {problem}"
    assert outcomes == {True, False}
