"""`consume --output-format` and `--key`."""

from __future__ import annotations

import decimal
import io
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import typer

from sparklog.cli.key_filter import has_key, key_values
from sparklog.cli.output import CsvRecordWriter, select_rows
from sparklog.cli.record_text import TextWriter, parse_form
from sparklog.format.schema import ENVELOPE_SCHEMA

TRIPS = pa.schema([("zone", pa.string()), ("day", pa.date32()), ("minutes", pa.float64())])


class Batch(NamedTuple):
    """The interface that writers use of a ConsumedBatch."""

    data: Any
    topic: str = "t"
    partition: int = 3

    def offsets(self) -> Any:
        return np.arange(100, 100 + self.data.num_rows)

    def timestamps_ms(self) -> Any:
        return np.full(self.data.num_rows, 1_709_296_200_123)


class Topic(NamedTuple):
    """The facts of a TopicDescription that a key needs."""

    kind: str
    schema: Any
    key_columns: tuple[str, ...] = ()
    name: str = "t"


def rows(schema: pa.Schema, *values: dict[str, Any]) -> Batch:
    return Batch(pa.RecordBatch.from_pylist(list(values), schema=schema))


def text(form: str, batch: Batch, **options: Any) -> bytes:
    out = io.BytesIO()
    given: dict[str, Any] = {"envelope": True, "key_columns": ()} | options
    writer = TextWriter(out, parse_form(form), **given)
    writer.write(batch, batch.data.num_rows)  # type: ignore[arg-type]
    writer.close()
    return out.getvalue()


def test_records_in_a_form() -> None:
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    batch = rows(ENVELOPE_SCHEMA, {"key": b"k", "value": b"\xff\n", "headers": headers}, {"key": None, "value": None})
    assert text(r"%t %p %o %T\n", batch) == b"t 3 100 1709296200123\nt 3 101 1709296200123\n"
    assert text(r"%k=%s|%K,%S|%h\t%%\\", batch) == b"k=\xff\n|1,2|a=1,b=\t%\\" + b"=|-1,-1|\t%\\"
    for wrong in ("%z", "%", r"\q", "\\"):
        with pytest.raises(ValueError, match="is unknown: use %t"):
            parse_form(wrong)


def test_typed_rows_in_a_form() -> None:
    batch = rows(TRIPS, {"zone": "Harbour", "day": None, "minutes": 1.5}, {"zone": None, "day": None, "minutes": None})
    typed = {"envelope": False, "key_columns": ("zone",)}
    assert text(r"%k %s\n", batch, columns=["minutes"], **typed) == b'Harbour {"minutes":1.5}\n {"minutes":null}\n'
    two = {"envelope": False, "key_columns": ("zone", "day")}
    assert text(r"%k\n", batch, **two) == b'["Harbour",null]\n\n'
    assert text(r"%K %s\n", batch, envelope=False).startswith(b'-1 {"zone":"Harbour",')


def test_rows_with_a_key() -> None:
    batch = rows(TRIPS, {"zone": "A", "minutes": 1.0}, {"zone": None, "minutes": 1.0}, {"zone": "A", "minutes": 2.0})

    def hits(keys: tuple[str, ...], given: str) -> list[int]:
        mask = has_key(batch.data, key_values(Topic("typed", TRIPS, keys), given))  # type: ignore[arg-type]
        return np.flatnonzero(np.asarray(mask)).tolist()

    assert hits(("zone",), "A") == [0, 2]
    assert hits(("minutes",), "1") == [0, 1]
    assert hits(("zone", "minutes"), '["A", 2]') == [2]
    assert hits(("zone", "minutes"), "[null, 1]") == [1]
    for keys, wrong, message in (
        ((), "A", "no key columns"),
        (("minutes",), "A", "'A' is no number"),
        (("zone", "day"), "A", "JSON list"),
        (("zone", "day"), '["A"]', "JSON list"),
        (("zone", "day"), '["A", "x"]', "column 'day' is date32"),
    ):
        with pytest.raises(typer.BadParameter, match=message):
            key_values(Topic("typed", TRIPS, keys), wrong)  # type: ignore[arg-type]
    chosen = select_rows(batch, np.array([2]), ["zone"])  # type: ignore[arg-type]
    assert (chosen.data.to_pylist(), chosen.offsets().tolist()) == ([{"zone": "A"}], [102])


def test_keys_are_read_by_the_rules_for_values_as_text() -> None:
    price = decimal.Decimal("12345678901234567890.12")
    columns = {
        "price": pa.array([price], pa.decimal128(38, 2)),
        "n": pa.array([16], pa.int64()),
        "x": pa.array([float("nan")]),
        "span": pa.array([86_400_000_000], pa.duration("us")),
        "blob": pa.array([b"\xff"]),
        "plain": pa.array([b"5 {"]),
        "ok": pa.array([True]),
    }
    data = pa.table(columns)

    def is_hit(keys: tuple[str, ...], text: str) -> bool:
        return bool(has_key(data, key_values(Topic("typed", data.schema, keys), text))[0].as_py())  # type: ignore[arg-type]

    assert is_hit(("price", "n"), "[12345678901234567890.12, 16]")
    assert not is_hit(("price", "n"), "[12345678901234567890.13, 16]")
    for name, text in (
        ("x", "nan"),
        ("span", "P1D"),
        ("blob", '{"base64":"/w=="}'),
        ("plain", "5 {"),
        ("ok", "true"),
        ("n", "16.0"),
    ):
        assert is_hit((name,), text), name
    for name, text in (("n", "0x10"), ("ok", "1"), ("span", "1")):
        with pytest.raises(typer.BadParameter, match="--key"):
            is_hit((name,), text)


def test_csv_has_the_same_columns_in_each_batch() -> None:
    out = io.BytesIO()
    writer = CsvRecordWriter(out, ENVELOPE_SCHEMA, envelope=True, metadata=False, delimiter=",")
    for batch in (
        rows(ENVELOPE_SCHEMA, {"key": b"k", "value": b'a,"b"', "headers": None}),
        rows(ENVELOPE_SCHEMA, {"key": None, "value": b"v", "headers": [{"key": "h", "value": b"1"}]}),
    ):
        writer.write(batch, 1)  # type: ignore[arg-type]
    writer.close()
    lines = out.getvalue().decode().splitlines()
    assert lines[0].replace('"', "") == "partition,offset,timestamp,key,value,headers"
    assert lines[1].startswith("3,100,2024-03-01 12:30:00.123") and lines[1].endswith(',"k","a,""b""",')
    assert len(lines) == 3
    typed = io.BytesIO()
    plain = CsvRecordWriter(typed, TRIPS, envelope=False, metadata=True, delimiter="\t")
    plain.write(rows(TRIPS, {"zone": "A", "minutes": 1.0}), 1)  # type: ignore[arg-type]
    header = typed.getvalue().splitlines()[0].replace(b'"', b"")
    assert header == b"_topic\t_partition\t_offset\t_timestamp\tzone\tday\tminutes"
