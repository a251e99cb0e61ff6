"""Reading csv, jsonl, parquet, arrow and lines in blocks."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.cli.file_format import ENDINGS
from sparklog.cli.input import InputError, InputOptions, open_input
from sparklog.cli.input_lines import Refused, RefusedLines, blocks
from sparklog.errors import InvalidPartitionsError, MessageTooLargeError, SchemaMismatchError, SparklogError
from sparklog.export.printable import printable
from sparklog.export.writers import CsvWriter
from sparklog.format.ddl import parse_ddl
from sparklog.format.schema import ENVELOPE_SCHEMA
from tests.support.small_reads import SmallReads

SCHEMA = parse_ddl(
    "id BIGINT, name STRING, at TIMESTAMP, day DATE, price DECIMAL(8,2), ok BOOLEAN, local TIMESTAMP_NTZ"
)
CSV = b"""id,name,at,day,price,ok,local
1,"a, b",2024-03-01T12:30:00Z,2024-03-01,1.25,true,2024-03-01 12:30:00
2,,2024-03-01 13:30:00+01:00,,,,
3,"",2024-03-01 12:30:00,2024-03-02,99.00,false,2024-03-01 12:30:00
4,"two
lines",2024-03-01,2024-03-02,99.00,false,2024-03-01 12:30:00
"""
JSONL = b"""{"id": 1, "name": "a, b", "at": "2024-03-01T12:30:00Z", "day": "2024-03-01", "price": 1.25, "ok": true}
{"id": 2, "name": null, "at": "2024-03-01 12:30:00"}
{"id": 3, "name": "x", "at": null, "day": null, "price": "3.50"}
"""
NOON = dt.datetime(2024, 3, 1, 12, 30, tzinfo=dt.UTC)


def read(
    data: bytes, format: str, schema: pa.Schema | None = SCHEMA, *, block_bytes: int = 1 << 20, **options: Any
) -> pa.Table:
    file = SmallReads(data, block_bytes)
    chunks = list(open_input(None, file, format, InputOptions(schema, **options)).chunks)
    return pa.concat_tables([c.table for c in chunks])


def test_csv_takes_the_topics_types() -> None:
    table = read(CSV, "csv")
    assert table.schema.types == SCHEMA.types
    assert table.column("name").to_pylist() == ["a, b", None, "", "two\nlines"]
    assert table.column("at").to_pylist()[:3] == [NOON, NOON, NOON]
    assert table.column("at").to_pylist()[3] == dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
    assert table.column("price").null_count == 1


def test_csv_nulls_by_name() -> None:
    schema = parse_ddl("a INT, b STRING")
    assert read(b"a,b\nNA,NA\n", "csv", schema, null_values=("", "NA")).to_pylist() == [{"a": None, "b": None}]
    assert read(b"a,b\n1,NA\n", "csv", schema).to_pylist() == [{"a": 1, "b": "NA"}]
    with pytest.raises(InputError, match="--null-value 'NA'"):
        read(b"a,b\nNA,NA\n", "csv", schema)


def test_csv_of_an_envelope_topic_is_bytes() -> None:
    table = read(b"key,value\n1,007\n", "csv", None)
    assert table.to_pylist() == [{"key": b"1", "value": b"007"}]


def test_csv_of_an_envelope_topic_takes_times_without_a_zone_as_utc() -> None:
    text = b"value,timestamp\na,2024-03-01T12:30:00Z\nb,2024-03-01 13:30:00+01:00\nc,2024-03-01 12:30:00\nd,\n"
    assert read(text, "csv", None).column("timestamp").to_pylist() == [NOON, NOON, NOON, None]
    for wrong in (b"noon", b"1709296200000"):
        with pytest.raises(InputError, match="column 'timestamp' is timestamp"):
            read(b"value,timestamp\na," + wrong + b"\n", "csv", None)


def test_no_reader_changes_a_value_to_fit() -> None:
    """Both JSON readers (PyArrow's, and the one of schemas with a map) and CSV."""
    with_map = ", m MAP<STRING, INT>"
    tenth = pa.scalar(0.1, pa.float32()).as_py()
    for more in ("", with_map):
        schema = parse_ddl("n INT, f FLOAT, fs ARRAY<FLOAT>, s STRUCT<n: INT, f: FLOAT>, local TIMESTAMP_NTZ" + more)
        row = read(
            b'{"n": 1, "f": 0.1, "fs": [0.1], "s": {"n": 1, "f": 0.1}, "local": "2024-03-01T12:30"}\n', "jsonl", schema
        )
        stored = {"n": 1, "f": tenth, "fs": [tenth], "s": {"n": 1, "f": tenth}, "local": NOON.replace(tzinfo=None)}
        assert {k: v for k, v in row.to_pylist()[0].items() if k != "m"} == stored
        assert row.schema.equals(schema)
        for wrong in (
            *('"n": 1.5', '"s": {"n": 1.5}', '"f": 1e300', '"fs": [-1e39]', '"s": {"f": 1e39}', '"f": true'),
            *('"local": "2024-03-01T12:30:00Z"', '"local": "2024-03-01T12:30:00.0000005"'),
        ):
            with pytest.raises(InputError):
                read(b"{" + wrong.encode() + b"}\n", "jsonl", schema)
    with pytest.raises(InputError, match="column 'm' is map"):
        read(b'{"m": {"a": 1.5}}\n', "jsonl", parse_ddl("n INT" + with_map))
    schema = parse_ddl("f FLOAT, n INT")
    assert read(b"f,n\n0.1,1\n,1\ninf,1\n", "csv", schema).column("f").to_pylist() == [tenth, None, float("inf")]
    with pytest.raises(InputError, match=r"column 'f' is float: .* beyond the range of float"):
        read(b"f,n\n1e300,1\n", "csv", schema)


def test_jsonl_takes_the_topics_types() -> None:
    table = read(JSONL, "jsonl")
    assert table.column("at").to_pylist() == [NOON, NOON, None]
    assert table.column("day").to_pylist() == [dt.date(2024, 3, 1), None, None]
    assert [str(v) for v in table.column("price").to_pylist()] == ["1.25", "None", "3.50"]


def test_jsonl_nested() -> None:
    schema = parse_ddl("a ARRAY<INT>, s STRUCT<x: INT, y: STRING>")
    row = {"a": [1, 2], "s": {"x": 1, "y": "z"}}
    assert read(b'{"a": [1, 2], "s": {"x": 1, "y": "z"}}\n\n', "jsonl", schema).to_pylist() == [row]


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_blocks_give_the_same_rows(format: str) -> None:
    data = CSV if format == "csv" else JSONL
    whole = read(data, format)
    for block_bytes in (1, 50, 220):
        assert read(data, format, block_bytes=block_bytes).to_pylist() == whole.to_pylist()


def test_lines() -> None:
    table = read("ä\r\n\nlong line\nlast".encode(), "lines", None, block_bytes=4)
    assert table.column("value").to_pylist() == ["ä".encode(), b"", b"long line", b"last"]


def test_lines_with_keys() -> None:
    table = read(b"a:1:x\nb:2\n:3\n", "lines", None, key_separator=":")
    assert table.to_pylist() == [
        {"key": b"a", "value": b"1:x"},
        {"key": b"b", "value": b"2"},
        {"key": b"", "value": b"3"},
    ]
    with pytest.raises(InputError, match="line 2 has no key separator ':'"):
        read(b"a:1\nb\n", "lines", None, key_separator=":")


def test_a_line_without_end_is_refused() -> None:
    read_bytes = 0
    with pytest.raises(InputError, match="longer than 100 bytes: is this a text file"):
        for _, read_bytes in blocks(SmallReads(b"a\n" + b"x" * 1000, 64), line_bytes_max=100):
            assert read_bytes == 64
    assert read_bytes == 64


def test_empty_input_has_no_rows() -> None:
    for format in ("csv", "jsonl", "lines"):
        assert list(open_input(None, io.BytesIO(b""), format, InputOptions(SCHEMA)).chunks) == []


def test_errors_name_the_place() -> None:
    ints = parse_ddl("a INT, b INT")
    said = {
        ("csv", b"a,b\n1,1\n\nx,1\n"): "line 4, column 'a': int32: invalid value 'x'",
        ("csv", b"b,a\n1,9999999999\n"): "line 2, column 'a': int32: invalid value '9999999999'",
        ("csv", b'a,b\n1,"2\n3"\n'): "line 2, column 'b'",
        ("csv", b'a,b\n1,2\n1,"2\n3,4\n'): "line 3: a quoted field is not closed",
        ("csv", b'a,b\n1,"2'): "line 2: a quoted field is not closed",
        ("csv", b"a,b\n1,1\n1,2,3\n"): "line 3: CSV parse error: Expected 2 columns, got 3: 1,2,3",
        ("jsonl", b'{"a": 1}\n\n{"a": "x"}\n'): "line 3: column 'a' is int32: \"x\" does not fit",
        ("jsonl", b'{"a": 1}\n{"a": 1, "q": 2}\n'): "line 2: no column q (columns: a, b)",
        ("jsonl", b'{"a": 1}\n{"a": 9999999999}\n'): "line 2: column 'a' is int32: 9999999999 does not fit",
        ("jsonl", b'{"b": 1, "a": {"x": 1}}\n'): "line 1: column 'a' is int32: {\"x\":1} does not fit",
        ("jsonl", b'{"b": true}\n'): "line 1: column 'b' is int32: true does not fit",
        ("jsonl", b'{"a": 1}\n{"a": \n'): "line 2: not readable as JSON",
        ("jsonl", b"[1]\n"): "line 1: a line is one object",
    }
    for (format, text), message in said.items():
        with pytest.raises(InputError) as e:
            read(text, format, ints)
        assert str(e.value).startswith(message)
    with pytest.raises(InputError, match=r"line 4: column 'id' is int64: \"x\" does not fit"):
        read(JSONL + b'{"id": "x"}\n', "jsonl")
    with pytest.raises(InputError, match=r"line 1: column 'at' is timestamp.*write times as"):
        read(b'{"at": "yesterday"}\n', "jsonl")
    with pytest.raises(InputError, match=r"line 3: column 'at' is timestamp.*write times as"):
        read(b"id,at\n1,2024-03-01\n2,yesterday\n", "csv")
    with pytest.raises(InputError, match=r"line 2: column 'm' is map.*: 1 does not fit"):
        read(b"m\n1\n", "csv", parse_ddl("m MAP<STRING, INT>"))
    with pytest.raises(InputError, match=r"line 2: column 'm' is map.*, which is JSON in CSV: "):
        read(b"m\na:1\n", "csv", parse_ddl("m MAP<STRING, INT>"))
    with pytest.raises(InputError, match=r"line 2: column 'd' is duration.*write intervals as"):
        read(b"d\n1\n", "csv", parse_ddl("d INTERVAL DAY TO SECOND"))


def test_a_csv_without_a_line_of_names_is_refused() -> None:
    ints = parse_ddl("a INT, b INT")
    for text in (b"1,2\n3,4\n", b"1,2\n", b"1,2", b"\n1,2\n", b"a;b\n1;2\n"):
        with pytest.raises(InputError, match="names no column of the topic"):
            read(text, "csv", ints)
    with pytest.raises(InputError, match="no column 'aa': did you mean 'a'"):
        read(b"aa,b\n1,2\n", "csv", ints)
    with pytest.raises(InputError, match="names column 'a' twice"):
        read(b"a,a\n1,2\n", "csv", ints)
    with pytest.raises(InputError, match="names no column of the topic"):
        read(b"1,2\n", "csv", None)
    with pytest.raises(InputError, match="is not UTF-8"):
        read(b"\xff\xfe,2\n", "csv", ints)
    assert read(b'\xef\xbb\xbf"a",b\r\n1,2\r\n', "csv", ints).to_pylist() == [{"a": 1, "b": 2}]
    assert list(open_input(None, io.BytesIO(b"a,b\n"), "csv", InputOptions(ints)).chunks) == []


def test_refused_lines_are_skipped_and_written_to_a_file() -> None:
    ints = parse_ddl("a INT, b STRING")
    for format, text, lines in (
        ("csv", b'a,b\n1,x\ny,"two\nlines"\n3,z\n4,1,1\n\nw,\n6,end', [3, 6, 8]),
        ("jsonl", b'{"a": 1}\n{"a": "y"}\n\n{"a": 3}\n{\n{"c": 1}\n{"a": 6}', [2, 5, 6]),
    ):
        out = io.BytesIO()
        refused = RefusedLines(out)
        assert read(text, format, ints, refuse=refused).column("a").to_pylist() == [1, 3, 6]
        written = [json.loads(line) for line in out.getvalue().splitlines()]
        assert [row["line"] for row in written] == lines
        assert refused.count == 3
        assert all(row["reason"] for row in written)
        assert all(row["text"].encode() in text for row in written)
    refused = RefusedLines(None)
    assert read(b"k:1\nv\nk:2\n", "lines", None, key_separator=":", refuse=refused).num_rows == 2
    assert refused.count == 1


def test_the_rows_before_a_refused_line_come_before_the_error() -> None:
    """The command's error says that they are in the topic."""
    typed = parse_ddl("a INT, b STRING")
    for text, format, schema, separator in (
        ("k:1\nk:2\nbad\nk:3\n", "lines", None, ":"),
        ("a,b\n1,x\n2,y\nbad,z\n3,x\n", "csv", typed, None),
        ("a,b\n1,x\n2,y\n3,x,z\n3,x\n", "csv", typed, None),
        ("value,timestamp\n1,2026-11-28\n2,2026-11-28\n3,bad\n", "csv", None, None),
        ('{"a":1}\n{"a":2}\n{"a":"x"}\n{"a":3}\n', "jsonl", typed, None),
        ('{"a":1}\n{"a":2}\n{bad\n{"a":3}\n', "jsonl", typed, None),
    ):
        source, rows = (
            open_input(None, io.BytesIO(text.encode()), format, InputOptions(schema, key_separator=separator)),
            0,
        )
        with pytest.raises(InputError, match=r"line \d"):
            for chunk in source.chunks:
                rows += chunk.table.num_rows
        assert rows == 2, text


def test_lines_that_the_producer_refuses() -> None:
    """The errors of a table of rows name the line; the rows before it are accepted first, each once."""
    accepted: list[Any] = []

    def accept(table: pa.Table) -> None:
        rows = table.to_pylist()
        for number, row in enumerate(rows):
            for value in map(str, row.values()):
                if "odd" in value:
                    raise SchemaMismatchError(f"it is compacted, but row {number} has no key: add a key")
                if "far" in value:
                    raise InvalidPartitionsError(f"topic 't' has partitions 0 to 8, row {number} names 99")
                if "big" in value:
                    raise MessageTooLargeError("a record of 99 bytes")
        accepted.extend(rows)

    typed = parse_ddl("a INT, b STRING")
    objects = "".join(f'{{"a":1,"b":"{b}"}}\n' for b in ("x", "odd", "far", "big", "y"))
    for format, schema, separator, text, first in (
        ("csv", typed, None, "a,b\n1,x\n2,odd\n3,far\n4,big\n5,y\n", 2),
        ("csv", None, None, "key,value\n1,x\n2,odd\n3,far\n4,big\n5,y\n", 2),
        ("jsonl", typed, None, objects, 1),
        ("lines", None, None, "x\nodd\nfar\nbig\ny\n", 1),
        ("lines", None, ":", "1:x\n2:odd\n3:far\n4:big\n5:y\n", 1),
    ):
        accepted.clear()
        with pytest.raises(
            InputError, match=f"line {first + 1}: it is compacted, but the record has no key: add a key"
        ):
            read(text.encode(), format, schema, key_separator=separator, accept=accept)
        assert len(accepted) == 1, format
        accepted.clear()
        refused: list[Refused] = []
        table = read(text.encode(), format, schema, key_separator=separator, accept=accept, refuse=refused.append)
        assert accepted == table.to_pylist() and len(accepted) == 2, format
        assert [r.line - first for r in refused] == [1, 2, 3]
        assert [r.reason for r in refused[1:]] == [
            ": topic 't' has partitions 0 to 8, the record names 99",
            ": a record of 99 bytes",
        ]


def test_an_error_that_is_no_refusal_is_not_tried_again() -> None:
    calls = []

    def accept(table: pa.Table) -> None:
        calls.append(table.num_rows)
        raise SparklogError("the broker is away")

    with pytest.raises(SparklogError, match="away"):
        read(b"a\nb\n", "lines", None, accept=accept)
    assert calls == [2]


CELLS = st.text(alphabet='a",\n\r 5', max_size=6)


@settings(max_examples=300)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS, st.booleans()), max_size=12),
    bad=st.sets(st.integers(0, 11), max_size=3),
    block_bytes=st.integers(1, 40),
    stray=st.booleans(),
)
def test_csv_rows_are_the_same_in_blocks_of_any_size(
    rows: list[tuple[str, str, bool]], bad: set[int], block_bytes: int, stray: bool
) -> None:
    """Quotes, line ends inside quotes and empty lines anywhere; the lines of refused rows are exact."""
    schema = parse_ddl("n INT, a STRING, b STRING")
    text, line, wanted, refused_lines = io.StringIO(newline=""), 2, [], []
    text.write("n,a,b\n")
    for i, (a, b, blank) in enumerate(rows):
        if blank:
            text.write("\n")
            line += 1
        if stray:  # quotes inside of fields without quotes are text
            a = '5"' + "".join(c for c in a if c not in ",\n\r")
            cell = a
        else:
            cell = '"' + a.replace('"', '""') + '"'
        written = f"{'x' if i in bad else i},{cell}," + '"' + b.replace('"', '""') + '"\n'
        text.write(written)
        if i in bad:
            refused_lines.append(line)
        else:
            wanted.append({"n": i, "a": a, "b": b})
        line += written.count("\n")
    out = io.BytesIO()
    options = InputOptions(schema, refuse=RefusedLines(out))
    file = SmallReads(text.getvalue().encode(), block_bytes)
    found = [r for c in open_input(None, file, "csv", options).chunks for r in c.table.to_pylist()]
    assert found == wanted
    assert [json.loads(row)["line"] for row in out.getvalue().splitlines()] == refused_lines


HARD = """m MAP<STRING, INT>, k MAP<INT, DATE>, d INTERVAL DAY TO SECOND, b BINARY, l ARRAY<DATE>,
    s STRUCT<at: TIMESTAMP, n: TIMESTAMP_NTZ, p: DECIMAL(5,2), deep: ARRAY<BINARY>>, x DOUBLE"""


def test_jsonl_reads_the_output_of_consume() -> None:
    schema = parse_ddl(HARD)
    day = dt.date(2024, 3, 1)
    full = {
        "m": [("a", 1), ("b", None)],
        "k": [(7, day)],
        "d": dt.timedelta(days=1, seconds=2, microseconds=3),
        "b": b"\xff\x00",
        "l": [day, None],
        "s": {"at": NOON, "n": NOON.replace(tzinfo=None), "p": decimal.Decimal("1.50"), "deep": [b"text", b"\xfe"]},
        "x": 1.5,
    }
    batch = pa.RecordBatch.from_pylist([full, dict.fromkeys(full)], schema=schema)
    columns = [printable(column) for column in batch.columns]
    rows = [dict(zip(schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
    text = msgspec.json.Encoder(decimal_format="number").encode_lines(rows)
    assert read(text, "jsonl", schema).to_pylist() == batch.to_pylist()


def test_csv_reads_the_output_of_consume() -> None:
    schema = parse_ddl(
        "n INT, d INTERVAL DAY TO SECOND, l ARRAY<DOUBLE>, m MAP<INT, DATE>, s STRUCT<x: INT, at: TIMESTAMP>, x DOUBLE"
    )
    row = {
        "n": 1,
        "d": dt.timedelta(days=-1, microseconds=3),
        "l": [1.5, None, float("inf")],
        "m": [(7, dt.date(2024, 3, 1))],
        "s": {"x": 1, "at": NOON},
        "x": -float("inf"),
    }
    batch = pa.RecordBatch.from_pylist([row, {"n": 2}], schema=schema)
    out = io.BytesIO()
    writer = CsvWriter(out, schema)
    writer.write(batch)
    writer.close()
    assert read(out.getvalue(), "csv", schema).to_pylist() == batch.to_pylist()
    headers = b'value,headers,partition\nx,"[{""key"":""h"",""value"":""1""}]",\n'
    table = read(headers, "csv", None)
    assert table.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}]]
    assert table.column("headers").type == ENVELOPE_SCHEMA.field("headers").type
    with pytest.raises(
        InputError, match=r"line 1: an envelope topic takes no column 'offset'.*copy a topic as Parquet"
    ):
        read(b"partition,offset,value\n0,0,a\n", "csv", None)
    with pytest.raises(InputError, match="line 3, column 'partition': int32: invalid value 'x'"):
        read(b"value,partition\na,0\nb,x\n", "csv", None)


def test_csv_reads_bytes_only_where_consume_writes_them() -> None:
    """A text that contains the form of bytes, but does not begin with it, is a text."""
    schema = parse_ddl("b BINARY")
    batch = pa.record_batch({"b": pa.array([b'{"base64":"YQ=="}', b' {"base64":"YQ=="}', b"\xff", None], pa.binary())})
    out = io.BytesIO()
    writer = CsvWriter(out, schema)
    writer.write(batch)
    writer.close()
    assert read(out.getvalue(), "csv", schema).to_pylist() == batch.to_pylist()


def test_an_empty_line_of_a_single_column_is_a_null() -> None:
    """`consume` writes such lines. They are rows in blocks of any size, and in the search for a faulty line."""
    schema = parse_ddl("n INT")
    for size in (1, 3, 1 << 20):
        rows = read(b"n\n\n1\n\n\n2\n\n", "csv", schema, block_bytes=size).column("n").to_pylist()
        assert rows == [None, 1, None, None, 2, None]
    refused: list[Refused] = []
    rows = read(b"n\n\nx\n\n3\n", "csv", schema, refuse=refused.append).column("n").to_pylist()
    assert (rows, [r.line for r in refused]) == ([None, None, 3], [3])
    assert read(b"n,s\n\n1,a\n\n", "csv", parse_ddl("n INT, s STRING")).num_rows == 1


@pytest.mark.parametrize("more", ["", ", m MAP<STRING, INT>"])  # read by PyArrow, and line by line
def test_json_lines_change_no_number(more: str) -> None:
    columns = "x DOUBLE, f FLOAT, l ARRAY<FLOAT>, p DECIMAL(38,2), i BIGINT, s STRING, at TIMESTAMP"
    schema = parse_ddl(columns + more)
    text = b"""{"x": "NaN", "f": "-Infinity", "l": ["Infinity", 1.5], "s": "NaN"}
{"x": 0.1, "p": 12345678901234567890.12}
"""
    first, second = read(text, "jsonl", schema).to_pylist()
    assert first["x"] != first["x"]
    assert (first["f"], first["l"], first["s"]) == (-float("inf"), [float("inf"), 1.5], "NaN")
    assert (second["x"], second["p"]) == (0.1, decimal.Decimal("12345678901234567890.12"))
    for wrong, says in (
        (b'"x": 1e400', "column 'x'.*1[eE]\\+?400"),
        (b'"l": [1e400]', "column 'l'.*1[eE]\\+?400"),
        (b'"i": 9223372036854775808', "column 'i'.*9223372036854775808"),
        (b'"i": "5"', "column 'i'"),
        (b'"i": "NaN"', "column 'i'"),
        (b'"p": "NaN"', "column 'p'"),
        (b'"x": "nan"', "column 'x'"),
        (b'"x": 9007199254740993', "column 'x'.*9007199254740993"),
        (b'"p": " 1"', "column 'p'"),
        (b'"at": "2024-03-01 "', "column 'at'"),
        (b'"s": "\\ud800"', "column 's'.*ud800"),
        (b'"s": "\xff"', "not UTF-8"),
    ):
        with pytest.raises(InputError, match="line 2.*" + says):
            read(b'{"x": 1}\n{' + wrong + b"}\n", "jsonl", schema)
    for array in (b'[{"x": 1}]', b'[\n{"x": 1},\n{"x": 2}\n]'):
        with pytest.raises(InputError, match=r"line 1: a line is one object: .* turns an array into lines"):
            read(array, "jsonl", schema)


def test_csv_refuses_numbers_beyond_double() -> None:
    schema = parse_ddl("x DOUBLE, f FLOAT, s STRING")
    rows = read(b"x,f,s\ninf,-inf,1e400\n-Infinity,nan,a\n", "csv", schema).to_pylist()
    assert [(r["x"], r["s"]) for r in rows] == [(float("inf"), "1e400"), (-float("inf"), "a")]
    for name in ("x", "f"):
        for wrong in ("1e400", "-1e999"):
            with pytest.raises(InputError, match=f"line 3: column '{name}' is .* beyond the range of "):
                read(f"{name},s\ninf,a\n{wrong},a\n".encode(), "csv", schema)


def test_csv_reads_numbers_and_booleans_by_the_rules() -> None:
    """PyArrow reads hexadecimal numbers, and 1 as true."""
    schema = parse_ddl("n BIGINT, x DOUBLE, o BOOLEAN, s STRING")
    rows = read(b"n,x,o,s\n+5,9007199254740992,true,0x10\n007,,FALSE,\n", "csv", schema).to_pylist()
    assert rows == [
        {"n": 5, "x": 2.0**53, "o": True, "s": "0x10"},
        {"n": 7, "x": None, "o": False, "s": None},
    ]
    for wrong in (b"0x10,,,", b" 0X1f,,,", b",9007199254740993,,", b",-9007199254740993,,", b",,1,", b",,0,"):
        with pytest.raises(InputError, match="line 3"):
            read(b"n,x,o,s\n1,1,true,0x1\n" + wrong + b"\n", "csv", schema)


@pytest.mark.parametrize("text", ['"PT1.9999999S"', '"PT0.0000001S"', "1.5", "2", '"1.5"', '"P1M"'])
def test_intervals_have_microseconds_and_a_unit(text: str) -> None:
    schema = parse_ddl("d INTERVAL DAY TO SECOND")
    assert read(b'{"d": "PT1.999999S"}', "jsonl", schema).to_pylist() == [{"d": dt.timedelta(seconds=1.999999)}]
    cell = text.strip('"')
    for format, rows in (("jsonl", f'{{"d": {text}}}'), ("csv", f"d\n{cell}\n")):
        with pytest.raises(InputError, match=r"column 'd' is duration.* does not fit \(write intervals as P1DT2H"):
            read(rows.encode(), format, schema)


@pytest.mark.parametrize("time", ["2026-01-01T00:00:00.123456789Z", "01/02/2026"])
def test_errors_about_times_show_the_text_and_the_form(time: str) -> None:
    for more in ("", ", m MAP<STRING, INT>"):
        for t in ("TIMESTAMP", "TIMESTAMP_NTZ"):
            with pytest.raises(InputError, match=f"column 't'.*{time}.*, at most in microseconds") as e:
                read(f'{{"t": "{time}"}}'.encode(), "jsonl", parse_ddl(f"t {t}{more}"))
            assert "as a scalar" not in str(e.value)
    for t in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        with pytest.raises(InputError, match=f"column 't'.*{time}'.*, at most in microseconds") as e:
            read(f"t,n\n{time},1\n".encode(), "csv", parse_ddl(f"t {t}, n INT"))
        assert "assume_timezone" not in str(e.value)


def test_malformed_csv_is_refused_with_its_line() -> None:
    for text, line in ((b"a,b\r1,2\r", 1), (b"PAR1\x15\x04\r\x15\n", 1), (b"a,b\n1,2\n1\r2,x,3\n", 3)):
        with pytest.raises(InputError, match=f"line {line}: a carriage return outside of quotes"):
            read(text, "csv", parse_ddl("a INT, b INT"))


def test_a_null_value_in_quotes_is_explained() -> None:
    with pytest.raises(InputError, match=r"invalid value 'NA'; text in quotes is not null: leave the quotes out$"):
        read(b'a,b\n"NA",1\n', "csv", parse_ddl("a INT, b INT"), null_values=("", "NA"))


def test_refused_bytes_are_kept() -> None:
    out = io.BytesIO()
    read(b"a\nx\xff\n1\n", "csv", parse_ddl("a INT"), refuse=RefusedLines(out))
    assert json.loads(out.getvalue())["text"] == {"base64": "eP8="}


@pytest.mark.parametrize("ddl", ["x DOUBLE", "x DOUBLE, b BINARY"])
def test_a_byte_order_mark_before_json_lines_is_passed_over(ddl: str) -> None:
    assert read(b'\xef\xbb\xbf{"x": 1}\n{"x": 2}', "jsonl", parse_ddl(ddl)).column("x").to_pylist() == [1.0, 2.0]
    with pytest.raises(InputError, match="line 1: a row is one JSON object"):
        read(b"\xef\xbb\xbfnull", "jsonl", parse_ddl(ddl))


@pytest.mark.parametrize("line", ["null", " null ", "[]", "5", "true", '"text"', '{"x": 1} null', '{"x": 1}{"x": 2}'])
@pytest.mark.parametrize("ddl", ["x DOUBLE", "x DOUBLE, b BINARY"])  # read by PyArrow, and line by line
@pytest.mark.parametrize("before", [b"", b'\n{"x": 1}\n'])
def test_a_line_is_one_object(line: str, ddl: str, before: bytes) -> None:
    schema, refused = parse_ddl(ddl), list[Any]()
    text = before + line.encode() + b'\n {"x": 3}\r\n'
    with pytest.raises(InputError, match=f"line {before.count(10) + 1}"):
        read(text, "jsonl", schema)
    rows = read(text, "jsonl", schema, refuse=refused.append)
    assert rows.column("x").to_pylist() == [1.0] * bool(before) + [3.0]
    assert len(refused) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not readable as JSON"),
        ("[]", "a line is one object"),
        ('{"q": 1}', "no column q"),
        ('{"m": 5}', "'m' is map"),
        ('{"m": {"a": "x"}}', "'m' is map"),
        ('{"b": {"base64": "§"}}', "'b' is binary"),
        ('{"b": 7}', "'b' is binary"),
        ('{"l": "2024"}', "'l' is list"),
        ('{"l": ["no date"]}', "'l' is list"),
        ('{"s": {"zz": 1}}', "'s' is struct"),
        ('{"x": "text"}', "'x' is double"),
        ('{"d": "soon"}', "'d' is duration"),
    ],
)
def test_hard_json_errors(line: str, says: str) -> None:
    with pytest.raises(InputError) as e:
        read(b'{}\n{"x": 1}\n' + line.encode() + b"\n", "jsonl", parse_ddl(HARD))
    assert says in str(e.value)
    assert str(e.value).startswith("line 3")


def test_parquet_and_arrow(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(1000))})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=100)
    for name, make in (("t.arrow", pa.ipc.new_file), ("t.arrows", pa.ipc.new_stream)):
        with make(tmp_path / name, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
    for name in ("t.parquet", "t.arrow", "t.arrows"):
        format = ENDINGS[Path(name).suffix][0]
        source = open_input(tmp_path / name, io.BytesIO(), format, InputOptions(None))
        chunks = list(source.chunks)
        assert pa.concat_tables([c.table for c in chunks]).equals(table)
        assert source.total in (None, chunks[-1].done)
    stream = (tmp_path / "t.arrows").read_bytes()
    assert read(stream, "arrow", None).equals(table)


def test_content_that_contradicts_the_ending(tmp_path: Path) -> None:
    for ending, format in ((".parquet", "parquet"), (".arrow", "arrow")):
        path = tmp_path / f"x{ending}"
        path.write_bytes(b"nonsense that is long enough to be read")
        with pytest.raises(InputError, match=str(path)):
            list(open_input(path, io.BytesIO(), format, InputOptions(None)).chunks)
    with pytest.raises(InputError, match="cannot be read from stdin"):
        open_input(None, io.BytesIO(), "parquet", InputOptions(None))
