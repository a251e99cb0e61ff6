"""The comparison of a mirror's rows with those of its source."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.metadata.store import ENVELOPE_SCHEMA_ID
from sparklog.mirror.worker import verify
from sparklog.mirror.worker.verify import MirrorVerification, comparable_rows
from sparklog.types import TopicPartition
from tests.simulation.mirror_world import TOPIC, SimulatedSource

YEAR_10000_US = 253_402_300_800_000_000


def test_times_after_the_year_9999_are_compared() -> None:
    time = pa.array([YEAR_10000_US, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    date = pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32())
    long = pa.array([2**62, 0], pa.int64()).cast(pa.duration("us"))
    nested = pa.StructArray.from_arrays([time, date, long], ["time", "date", "long"])
    places = pa.MapArray.from_arrays([0, 1, 1], pa.array(["a"]), pa.ListArray.from_arrays([0, 1], nested.slice(0, 1)))
    rows = comparable_rows(pa.table({"n": pa.array([1, 2]), "time": time, "nested": nested, "places": places}))
    last = {"time": YEAR_10000_US, "date": 2**31 - 1, "long": 2**62}
    assert rows[0] == {"n": 1, "time": YEAR_10000_US, "nested": last, "places": [("a", [last])]}
    assert rows[1] == {"n": 2, "time": None, "nested": {"time": None, "date": 0, "long": 0}, "places": []}


def checked(source: SimulatedSource, monkeypatch: pytest.MonkeyPatch, ends_here: Any) -> MirrorVerification:
    """The comparison of a mirror that has the records of its source, with the leaders at the beginning."""
    monkeypatch.setattr(verify, "RETRY_S", 0.0)
    info, report = SimpleNamespace(schema=ENVELOPE_SCHEMA, name=TOPIC), MirrorVerification("m")
    info.inflated_bytes_max, info.schemas, info.is_compacted = 1 << 20, {ENVELOPE_SCHEMA_ID: ENVELOPE_SCHEMA}, False
    check: Any = verify._TopicCheck
    one = check(SimpleNamespace(), source, source.topics(), info, None, 1_000, report)

    def rows_here(tp: TopicPartition, start: int, end: int, columns: object) -> dict[int, Any]:
        copied = source.committed().items()
        return {o: {"value": value} for o, value in copied if start <= o < end}

    monkeypatch.setattr(one, "_rows_here", rows_here)
    monkeypatch.setattr(verify, "mirrored_ends", ends_here)
    one.run(TopicPartition(TOPIC, 0), 1.0)
    return report


def test_a_change_of_the_leader_at_the_source_does_not_end_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SimulatedSource(Random(1))
    source.put([b"a", b"b"])

    def ends_here(cluster: object, tps: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, Any]:
        source.elect(is_clean=True)
        source.is_silent = True
        return {tps[0]: SimpleNamespace(start=0, end=2)}

    report = checked(source, monkeypatch, ends_here)
    assert (report.records, report.problems) == (2, [])


def test_records_that_come_during_the_comparison_are_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SimulatedSource(Random(1))

    def ends_here(cluster: object, tps: list[TopicPartition], timeout_ms: int) -> dict[TopicPartition, Any]:
        source.put([b"a record that the mirror copies at once"])
        return {tps[0]: SimpleNamespace(start=source.end, end=source.end)}

    report = checked(source, monkeypatch, ends_here)
    assert report.problems == [] and report.partitions == 1
