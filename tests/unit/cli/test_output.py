"""Output of `consume`."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparklog.cli.output import FileWriter, JsonWriter, TableWriter
from sparklog.export.printable import printable
from sparklog.format.schema import ENVELOPE_SCHEMA


class Batch(NamedTuple):
    """The part of a ConsumedBatch that the writers use."""

    topic: str
    partition: int
    base_offset: int
    data: pa.RecordBatch

    def timestamps_ms(self) -> Any:
        return np.full(self.data.num_rows, 1_709_296_200_123, np.int64)

    def offsets(self) -> Any:
        return self.base_offset + np.arange(self.data.num_rows)


ENVELOPE = Batch(
    "events",
    3,
    100,
    pa.RecordBatch.from_pylist(
        [
            {"key": b"k", "value": "grüße".encode(), "headers": [{"key": "h", "value": b"1"}]},
            {"key": None, "value": b"\xff\x00", "headers": None},
        ],
        schema=ENVELOPE_SCHEMA,
    ),
)


def written(batch: Batch, rows: int, **options: Any) -> list[dict[str, Any]]:
    out = io.BytesIO()
    writer = JsonWriter(out, **options)
    writer.write(batch, rows)  # type: ignore[arg-type]
    writer.close()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_envelope_json() -> None:
    first, second = written(ENVELOPE, 2, envelope=True, metadata=False)
    assert first == {
        "partition": 3,
        "offset": 100,
        "timestamp": "2024-03-01T12:30:00.123000Z",
        "key": "k",
        "value": "grüße",
        "headers": [{"key": "h", "value": "1"}],
    }
    assert second["value"] == {"base64": "/wA="}
    assert second["key"] is None
    assert second["offset"] == 101


def test_only_the_wanted_rows() -> None:
    assert len(written(ENVELOPE, 1, envelope=True, metadata=False)) == 1


def test_typed_json_has_the_columns_and_metadata_on_demand() -> None:
    row = {
        "d": decimal.Decimal("1.20"),
        "day": dt.date(2024, 3, 1),
        "at": dt.datetime(2024, 3, 1, 12, tzinfo=dt.UTC),
        "m": [("a", b"\xff")],
        "l": [1, None],
        "s": {"x": b"text"},
        "none": None,
    }
    types = {
        "d": pa.decimal128(5, 2),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "m": pa.map_(pa.string(), pa.binary()),
        "l": pa.list_(pa.int64()),
        "s": pa.struct([("x", pa.binary())]),
        "none": pa.string(),
    }
    batch = Batch("t", 0, 7, pa.RecordBatch.from_pylist([row], schema=pa.schema(types)))
    expected = {
        "d": 1.2,
        "day": "2024-03-01",
        "at": "2024-03-01T12:00:00Z",
        "m": {"a": {"base64": "/w=="}},
        "l": [1, None],
        "s": {"x": "text"},
        "none": None,
    }
    assert written(batch, 1, envelope=False, metadata=False) == [expected]
    (with_metadata,) = written(batch, 1, envelope=False, metadata=True)
    assert with_metadata == {
        "_topic": "t",
        "_partition": 0,
        "_offset": 7,
        "_timestamp": "2024-03-01T12:30:00.123000Z",
        **expected,
    }


def test_what_python_has_no_object_for_is_shown_as_its_number() -> None:
    far = 2**62
    stamp, day = pa.timestamp("us", tz="UTC"), pa.date32()
    numbers = {
        "at": pa.array([far, 0, None], pa.int64()).view(stamp),
        "day": pa.array([0, None, 2**31 - 1], pa.int32()).view(day),
        "l": pa.ListArray.from_arrays(pa.array([0, 2, 2, 2], pa.int32()), pa.array([0, far], pa.int64()).view(stamp)),
        "s": pa.StructArray.from_arrays([pa.array([1, 2, far], pa.int64()).view(stamp)], ["x"]),
        "m": pa.MapArray.from_arrays(
            pa.array([0, 1, 1, 1], pa.int32()), pa.array(["k"]), pa.array([far], pa.int64()).view(stamp)
        ),
    }
    first, second, third = written(Batch("t", 0, 7, pa.record_batch(numbers)), 3, envelope=False, metadata=False)
    assert first == {
        "at": far,
        "day": "1970-01-01",
        "l": ["1970-01-01T00:00:00Z", far],
        "s": {"x": "1970-01-01T00:00:00.000001Z"},
        "m": {"k": far},
    }
    assert (second["at"], second["day"], second["l"], second["m"]) == ("1970-01-01T00:00:00Z", None, [], {})
    assert (third["at"], third["day"], third["s"]) == (None, 2**31 - 1, {"x": far})


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    writer = TableWriter(envelope=True, metadata=False)
    writer.write(ENVELOPE, 2)  # type: ignore[arg-type]
    writer.close()
    shown = capsys.readouterr().out
    assert "grüße" in shown
    assert "101" in shown
    assert "headers" not in shown


@pytest.mark.parametrize("format", ["arrow", "parquet"])
@pytest.mark.parametrize("metadata", [False, True])
def test_files(tmp_path: Path, format: str, metadata: bool) -> None:
    path = tmp_path / f"x.{format}"
    writer = FileWriter(str(path), format, ENVELOPE_SCHEMA, metadata=metadata)
    writer.write(ENVELOPE, 1)  # type: ignore[arg-type]
    writer.write(ENVELOPE, 2)  # type: ignore[arg-type]
    writer.close()
    table = pq.read_table(path) if format == "parquet" else pa.ipc.open_file(str(path)).read_all()
    assert table.num_rows == 3
    assert ("_offset" in table.column_names) is metadata
    if metadata:
        assert table.column("_offset").to_pylist() == [100, 100, 101]


def test_an_empty_result_is_a_file_with_a_schema(tmp_path: Path) -> None:
    FileWriter(str(tmp_path / "x.parquet"), "parquet", ENVELOPE_SCHEMA, metadata=False).close()
    assert pq.read_table(tmp_path / "x.parquet").column_names == ENVELOPE_SCHEMA.names


def test_intervals_of_sql_are_written_as_durations_are() -> None:
    intervals = [(0, 1, 0), (0, 0, -1_000), (0, 0, 10**18), (3, -2, 1_500_000_000), (1, 0, 0), (0, 2**31 - 1, 0), None]
    column = pa.array([v and pa.MonthDayNano(v) for v in intervals], pa.month_day_nano_interval())
    assert printable(column) == [
        "P1D",
        "-PT0.000001S",
        "P11574DT6400S",
        "P3M-2DT1.5S",
        "P1M0D",
        "P2147483647D",
        None,
    ]
