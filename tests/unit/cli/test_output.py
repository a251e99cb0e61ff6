"""Output of commands: rows as text and in files, and the formats of files."""

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
import typer

from sparklog.cli import console
from sparklog.cli.consume import OutputFormat as Consumed
from sparklog.cli.destination import destination
from sparklog.cli.file_format import ENDINGS, delimiter_of, file_format
from sparklog.cli.output import FileWriter, JsonWriter, TableWriter
from sparklog.cli.produce import InputFormat
from sparklog.cli.sql.format import OutputFormat as Queried
from sparklog.errors import InvalidQueryError
from sparklog.export import writers as sql_writers
from sparklog.export.printable import cells, printable
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


def test_only_the_matching_rows() -> None:
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


def test_times_of_any_year_have_a_text() -> None:
    number, far = 2**62, "+148108-07-06T14:00:27.387904Z"
    stamp, day = pa.timestamp("us", tz="UTC"), pa.date32()
    numbers = {
        "at": pa.array([number, 0, None], pa.int64()).view(stamp),
        "day": pa.array([0, None, 2**31 - 1], pa.int32()).view(day),
        "l": pa.ListArray.from_arrays(
            pa.array([0, 2, 2, 2], pa.int32()), pa.array([0, number], pa.int64()).view(stamp)
        ),
        "s": pa.StructArray.from_arrays([pa.array([1, 2, number], pa.int64()).view(stamp)], ["x"]),
        "m": pa.MapArray.from_arrays(
            pa.array([0, 1, 1, 1], pa.int32()), pa.array(["k"]), pa.array([number], pa.int64()).view(stamp)
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
    assert (third["at"], third["day"], third["s"]) == (None, "+5881580-07-11", {"x": far})


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    writer = TableWriter(envelope=True, metadata=False)
    writer.write(ENVELOPE, 2)  # type: ignore[arg-type]
    writer.close()
    shown = capsys.readouterr().out
    assert "grüße" in shown
    assert "101" in shown
    assert "headers" not in shown


def test_a_cell_has_120_characters_at_most() -> None:
    assert cells(pa.array(["x" * 120, "x" * 121])) == ["x" * 120, "x" * 119 + "…"]


@pytest.mark.parametrize("t", [pa.float32(), pa.float64()])
def test_numbers_that_are_not_finite_differ_from_null(t: Any) -> None:
    values = [float("nan"), float("inf"), -float("inf"), 1.5, None]
    column = pa.array(values, t)
    assert cells(column) == ["nan", "inf", "-inf", "1.5", ""]
    shown = ["NaN", "Infinity", "-Infinity", 1.5, None]
    assert printable(column) == shown
    assert printable(column.slice(3)) == [1.5, None]
    assert printable(pa.array([values], pa.list_(t))) == [shown]
    assert printable(pa.array([[("k", values[0])]], pa.map_(pa.string(), t))) == [{"k": "NaN"}]
    assert written(Batch("t", 0, 7, pa.record_batch({"x": column})), 5, envelope=False, metadata=False) == [
        {"x": value} for value in shown
    ]


@pytest.mark.parametrize("format", ["arrow", "parquet"])
@pytest.mark.parametrize("metadata", [False, True])
def test_files(tmp_path: Path, format: str, metadata: bool) -> None:
    path = tmp_path / f"x.{format}"
    with path.open("wb") as out:
        writer = FileWriter(out, format, ENVELOPE_SCHEMA, metadata=metadata, is_stream=False)
        writer.write(ENVELOPE, 1)  # type: ignore[arg-type]
        writer.write(ENVELOPE, 2)  # type: ignore[arg-type]
        writer.close()
    table = pq.read_table(path) if format == "parquet" else pa.ipc.open_file(str(path)).read_all()
    assert table.num_rows == 3
    assert ("_offset" in table.column_names) is metadata
    if metadata:
        assert table.column("_offset").to_pylist() == [100, 100, 101]


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path, link = tmp_path / "x", tmp_path / "link"
    link.symlink_to("x")
    for given in (path, link):
        path.write_bytes(b"before")
        for stop in (ValueError, KeyboardInterrupt):
            with pytest.raises(stop), destination(given) as out:
                out.write(b"half")
                out.flush()
                assert path.read_bytes() == b"before"
                raise stop
            assert path.read_bytes() == b"before"
        with destination(given) as out:
            out.write(b"whole")
        assert path.read_bytes() == b"whole" and link.is_symlink()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "x"]


def test_nested_values_of_sql_have_a_form_in_text() -> None:
    fine, last = pa.array([1_000_000_001], pa.timestamp("ns")), pa.array([2**31 - 1], pa.date32())
    at = ["1970-01-01T00:00:01"]
    for values, shown in ((fine, at), (last, ["+5881580-07-11"]), (pa.array([b"x"], pa.large_binary()), ["x"])):
        t = values.type
        nested = (
            (pa.ListArray.from_arrays([0, 1], values), [shown]),
            (pa.FixedSizeListArray.from_arrays(values, 1), [shown]),
            (pa.StructArray.from_arrays([values], ["a"]), [{"a": shown[0]}]),
            (pa.MapArray.from_arrays([0, 1], pa.array(["k"]), values, pa.map_(pa.string(), t)), [{"k": shown[0]}]),
        )
        for column, expected in nested:
            text = io.BytesIO()
            sql_writers.JsonWriter(text, pa.schema([("x", column.type)])).write(pa.record_batch({"x": column}))
            assert [json.loads(text.getvalue())["x"]] == expected, column.type
    with pytest.raises(InvalidQueryError, match=r"column 'x'.*month_day_nano_interval.*cast it.*epoch_us"):
        sql_writers.ParquetWriter(
            io.BytesIO(), pa.schema([("n", pa.int32()), ("x", pa.list_(pa.month_day_nano_interval()))])
        )


def test_a_file_that_cannot_be_created_is_named_as_typed(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "x.parquet"
    with pytest.raises(FileNotFoundError) as caught, destination(path):
        pass
    assert caught.value.filename == str(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    link = tmp_path / "given.json"
    link.symlink_to("/dev/full")
    for path in (Path("/dev/full"), link):
        for size in (1, 1 << 20):  # in the end, and at once
            with pytest.raises(OSError, match="No space left") as caught, destination(path) as out:
                out.write(b"x" * size)
            assert caught.value.filename == str(path)
    rows = pa.record_batch({"n": range(100_000)})
    with pytest.raises(OSError, match="No space left") as caught, destination(link) as out:
        writer = sql_writers.ParquetWriter(out, rows.schema)
        writer.write(rows)
        writer.close()
    assert caught.value.filename == str(link)


def test_unions_have_a_form_in_text() -> None:
    """Each row has a type of its own, at any depth."""
    nanos = pa.array([1_767_225_600_123_456_789] * 3, pa.timestamp("ns"))
    raw = pa.array([b"\xaa", b"a", None], pa.binary())
    days = pa.array([pa.MonthDayNano([0, 3, 0])] * 3)
    far = pa.array([2**60] * 3, pa.timestamp("us"))
    cases: list[tuple[Any, list[Any]]] = [
        (nanos, ["2026-01-01T00:00:00.123456"] * 3),
        (raw, [{"base64": "qg=="}, "a", None]),
        (days, ["P3D"] * 3),
        (far, [2**60] * 3),
    ]
    for number, (values, expected) in enumerate(cases):
        union = pa.UnionArray.from_sparse(pa.array([0] * 3, pa.int8()), [values, pa.nulls(3, pa.int32())])
        nested = pa.StructArray.from_arrays([union], ["u"])
        inner = pa.UnionArray.from_sparse(pa.array([0] * 3, pa.int8()), [nested])
        for column, form in ((union, "{}"), (nested, '{{"u":{}}}'), (inner, '{{"u":{}}}')):
            out = io.BytesIO()
            writer = sql_writers.JsonWriter(out, pa.schema([("c", column.type)]))
            writer.write(pa.record_batch([column], ["c"]))
            want = [json.loads(f'{{"c":{form.format(json.dumps(e))}}}') for e in expected]
            assert [json.loads(line) for line in out.getvalue().splitlines()] == want, number


def test_an_empty_result_is_a_file_with_a_schema(tmp_path: Path) -> None:
    with (tmp_path / "x.parquet").open("wb") as out:
        FileWriter(out, "parquet", ENVELOPE_SCHEMA, metadata=False, is_stream=False).close()
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


# Tables of the command line show texts of other users, and these stay text


HOSTILE = "\x1b[2J\x1b]0;title\x07g\nforged   Stable\r\u202e\x9b31m"


def test_names_cannot_command_the_terminal_or_look_like_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    table = console.table("group", "state")
    table.add_row(HOSTILE, "Stable")
    console.stdout().print(table)
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if "Stable" in line]
    assert len(rows) == 1
    assert r"\x1b[2J\x1b]0;title\x07g\nforged   Stable\r\u202e\x9b31m" in rows[0]
    assert all(line.isprintable() for line in shown.splitlines())


def test_other_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = console.table("Gruppe", "n", right=("n",))
    table.add_row("Grüße 東京", console.number(1234))
    console.stdout().print(table)
    assert "Grüße 東京" in (shown := capsys.readouterr().out)
    assert "1,234" in shown


# The rule of a file's ending and `--format`


COMMANDS = (Consumed, Queried, InputFormat)


def test_the_ending_decides() -> None:
    for name, formats, decided in (
        ("x.parquet", Consumed, Consumed.parquet),
        ("x.PARQUET", Queried, Queried.parquet),
        ("x.feather", Consumed, Consumed.arrow),
        ("x.json", Consumed, Consumed.json),
        ("x.ndjson", Queried, Queried.json),
        ("x.csv", Queried, Queried.csv),
        ("x.tsv", InputFormat, InputFormat.csv),
        ("x.jsonl", InputFormat, InputFormat.json),
        ("x.log", InputFormat, InputFormat.lines),
    ):
        assert file_format(Path(name), None, formats) is decided, name
    assert [delimiter_of(Path(n)) for n in ("x.csv", "x.TSV", "x")] == [",", "\t", ","]


def test_no_format_writes_a_file_that_is_named_after_another() -> None:
    """Each ending, with each format of each command: the format is one that the ending can have, or it is refused."""
    for formats in COMMANDS:
        for ending, possible in ENDINGS.items():
            for given in formats:
                name = {"json": "jsonl"}.get(given.value, given.value)
                if name in possible:
                    assert file_format(Path(f"a{ending}"), given, formats) is given
                    continue
                with pytest.raises(typer.BadParameter) as e:
                    file_format(Path(f"a{ending}"), given, formats)
                assert f"a{ending}" in e.value.message
                assert f"--format {given.value}" in e.value.message


def test_endings_that_a_command_does_not_know() -> None:
    for name in ("x.xlsx", "x.avro", "x.txt"):
        with pytest.raises(typer.BadParameter, match="json, csv, table, arrow, parquet"):
            file_format(Path(name), None, Consumed)
    assert file_format(Path("x.dat"), Consumed.json, Consumed) is Consumed.json
    for name in ("x.csv.gz", "x.parquet.zst"):
        with pytest.raises(typer.BadParameter, match="neither compressed"):
            file_format(Path(name), Consumed.parquet, Consumed)
    for path in (None, Path("x"), Path("-"), Path("/dev/stdout")):
        assert file_format(path, None, Consumed) is None
        assert file_format(path, Consumed.arrow, Consumed) is Consumed.arrow
