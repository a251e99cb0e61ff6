"""Columns, files and small files of a lake's table."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from sparklog.client.producer.partitioner import partitions_for_columns
from sparklog.errors import InvalidConfigError, LakePausedError
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.lake import parquet_files
from sparklog.lake.columns import check_columns, check_partition_by, missing_columns, table_schema
from sparklog.lake.delta_reader import TableFile
from sparklog.lake.location import locations_above, normal_location
from sparklog.lake.newest_rows import is_deletion, newest_per_key, other_keys
from sparklog.lake.parquet_files import (
    DAYS_MAX,
    DAYS_MIN,
    DICTIONARY_BYTES_MAX,
    TEXT_STATISTIC_CHARS_MAX,
    DataFileWriter,
)
from sparklog.lake.small_files import FILES_MIN, files_to_merge
from tests.support.cases import for_each

POSITION = ["_partition", "_offset", "_timestamp"]


def test_columns_of_the_table() -> None:
    assert table_schema(ENVELOPE_SCHEMA, is_envelope=True).names == ["key", "value", "headers", *POSITION]
    assert table_schema(pa.schema([("a", pa.int8())]), is_envelope=False).names == ["a", *POSITION]


def test_every_column_that_delta_cannot_hold_is_named() -> None:
    nested = pa.struct([pa.field("x=1", pa.list_(pa.field("element", pa.duration("us"))))])
    with pytest.raises(InvalidConfigError, match=r"column 's.none' \(a struct without fields\)"):
        check_columns(pa.schema([("s", pa.struct([("none", pa.struct([]))]))]))
    with pytest.raises(InvalidConfigError, match=r"column 's.x=1'.*column 's.x=1.element'.*column 'm.value'"):
        check_columns(pa.schema([("s", nested), ("m", pa.map_(pa.string(), pa.duration("us"))), ("ok", pa.int8())]))


def test_columns_that_cannot_partition_a_table_are_refused() -> None:
    schema = pa.schema([("a", pa.int8()), ("f", pa.float64())])
    check_partition_by(["a"], schema)
    for columns in (["b"], ["f"], ["a", "a"]):
        with pytest.raises(InvalidConfigError, match=r"lake\.partition\.by"):
            check_partition_by(columns, schema)


def test_columns_are_added_and_others_pause() -> None:
    table = pa.schema([("a", pa.int32()), ("l", pa.list_(pa.field("element", pa.int8()))), ("mine", pa.string())])
    wanted = pa.schema([("a", pa.int32()), ("l", pa.list_(pa.field("item", pa.int8()))), ("b", pa.int8())])
    assert [f.name for f in missing_columns(wanted, table)] == ["b"]
    for other, message in (
        (pa.schema([("a", pa.int64())]), "'a' is int64 in the topic and int32"),
        (pa.schema([("A", pa.int32())]), "has the name 'a'"),
        (pa.schema([("c d", pa.int32())]), "Delta allows no ' ' in the name of column 'c d'"),
    ):
        with pytest.raises(LakePausedError, match=message):
            missing_columns(other, table)
    with pytest.raises(LakePausedError, match="NOT NULL"):
        missing_columns(pa.schema([]), pa.schema([pa.field("x", pa.int8(), nullable=False)]))


def test_locations() -> None:
    assert normal_location("s3://bucket/a/") == "s3://bucket/a"
    assert normal_location("file:///a/b%20c") == "/a/b c"
    assert normal_location("a") == str(Path("a").absolute())
    assert normal_location("/a b/c=d?#:e") == "/a b/c=d?#:e"
    odd = ("file://lake/trips", "~nobody-of-this-name/x", "/", "memory:///x")
    mistyped = ("s3:/bucket/a", "file:/a", " /a", "/a\n")
    for wrong in ("", "s3://", "ftp://host/a", *mistyped, "/a%20b", "file:///a%2520b", "C:\\a", "/a\0b", "/a\nb", *odd):
        with pytest.raises(InvalidConfigError, match=r"lake\.location"):
            normal_location(wrong)


def test_locations_above() -> None:
    assert locations_above("/lake/a/b") == ["/lake/a", "/lake"]
    assert locations_above("s3://bucket/lake/a/b") == ["s3://bucket/lake/a", "s3://bucket/lake"]
    assert locations_above("/lake") == locations_above("s3://bucket/a") == locations_above("s3://bucket") == []


SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("x", pa.float64()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
    ]
)


def rows(offsets: range, text: str | None = "a") -> pa.Table:
    n = len(offsets)
    at = datetime(2026, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)
    columns = [[text] * n, [date(2026, 1, 2)] * n, [at] * n, [float("nan")] * n, [1] * n, list(offsets), [at] * n]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def writer(directory: Path, partition_by: tuple[str, ...] = (), file_bytes: int = 1 << 30) -> DataFileWriter:
    files = SubTreeFileSystem(str(directory), LocalFileSystem())
    return DataFileWriter(files, SCHEMA, partition_by, file_bytes, name="00001", fsync=lambda _: None)


def test_a_column_of_distinct_values_has_a_small_dictionary(tmp_path: Path) -> None:
    made = writer(tmp_path)
    distinct = pa.array(np.random.default_rng(1).random(100_000))
    made.write(rows(range(100_000)).set_column(3, "x", distinct))
    (file,) = made.close()
    chunk = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0).column(3)
    assert {"PLAIN", "RLE_DICTIONARY"} <= set(chunk.encodings)
    assert 0 < chunk.data_page_offset - chunk.dictionary_page_offset <= DICTIONARY_BYTES_MAX + 1024


def test_dates_that_python_lacks_are_written_without_statistics(tmp_path: Path) -> None:
    far = pa.array([2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32())
    late = pa.array([2**62, -(2**62)], pa.int64()).cast(pa.timestamp("us", "UTC"))
    table = rows(range(2)).set_column(1, "day", far).set_column(2, "at", late)
    made = writer(tmp_path)
    made.write(table)
    (file,) = made.close()
    found = json.loads(file.statistics)
    assert not {"day", "at"} & {*found["minValues"], *found["maxValues"]}
    assert found["nullCount"]["day"] == found["nullCount"]["at"] == 0
    assert pq.read_table(tmp_path / file.path).column("day").combine_chunks() == far


def test_dates_that_readers_lack_become_null_in_a_partition_column(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One record of a producer would stop the table of its topic, or make it unreadable."""
    first, last = DAYS_MIN - 1, DAYS_MAX + 1
    days = pa.array([first, first + 1, last - 1, last, 2**31 - 1, None], pa.int32()).cast(pa.date32())
    by_day = writer(tmp_path, partition_by=("day",))
    by_day.write(rows(range(6)).set_column(1, "day", days))
    found = {f.partition_values["day"]: f.rows for f in by_day.close()}
    assert found == {None: 4, "0001-01-01": 1, "9999-12-31": 1}
    assert "3 dates of partition column 'day' are outside of the years 1 to 9999" in caplog.text


def test_statistics_are_true(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.write(rows(range(5, 9)))
    made.write(rows(range(9, 20), text=None))
    (file,) = made.close()
    found = json.loads(file.statistics)
    assert found["numRecords"] == file.rows == 15
    assert (found["minValues"]["_offset"], found["maxValues"]["_offset"]) == (5, 19)
    assert found["minValues"]["text"] == found["maxValues"]["text"] == "a"
    assert found["nullCount"]["text"] == 11
    assert found["minValues"]["day"] == "2026-01-02"
    assert found["maxValues"]["at"] == "2026-01-02T03:04:05.123456Z"
    assert "x" not in found["minValues"]  # NaN has no place in an order
    assert pq.read_table(tmp_path / file.path).num_rows == 15
    assert file.size_bytes == (tmp_path / file.path).stat().st_size


def test_a_column_without_a_largest_value_has_no_smallest_either(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.write(rows(range(2), text="a"))
    made.write(rows(range(2, 4), text="b" * (TEXT_STATISTIC_CHARS_MAX + 1)))
    (file,) = made.close()
    found = json.loads(file.statistics)
    assert not {"text"} & {*found["minValues"], *found["maxValues"]}
    assert found["nullCount"]["text"] == 0


def test_files_of_a_size_and_of_partition_values(tmp_path: Path) -> None:
    small = writer(tmp_path, file_bytes=1)
    for start in range(0, 30, 10):
        small.write(rows(range(start, start + 10)))
        small._flush()
    assert [json.loads(f.statistics)["minValues"]["_offset"] for f in small.close()] == [0, 10, 20]
    split = writer(tmp_path, partition_by=("text",))
    split.write(pa.concat_tables([rows(range(3), "a"), rows(range(3, 5), None), rows(range(5, 6), "b=ü/")]))
    found = {f.partition_values["text"]: f.rows for f in split.close()}
    assert found == {"a": 3, None: 2, "b=ü/": 1}


def file(first: int, size: int, partition: int = 0, name: str = "sparklog-") -> TableFile:
    return TableFile(f"{name}{partition}-{first}.parquet", size, 1, partition, first, first, {})


def test_small_neighbours_are_merged_smallest_first() -> None:
    small = [file(i, 1_000) for i in range(FILES_MIN)]
    assert files_to_merge(small, 1 << 20) == small
    assert files_to_merge(small[1:], 1 << 20) == []
    with_medium = [file(0, 500_000), *(file(i, 1_000) for i in range(1, FILES_MIN + 1))]
    assert files_to_merge(with_medium, 1 << 24) == with_medium[1:]
    apart = [*small[:4], file(10, 900_000), *(file(20 + i, 1_000) for i in range(4))]
    assert files_to_merge(apart, 1 << 20) == []  # a full file stands between them
    at_the_bound = [file(0, 1 << 19), *(file(i, 1_000) for i in range(1, FILES_MIN))]
    assert files_to_merge(at_the_bound, 1 << 20) == []  # half a full file is not merged
    below = [file(0, (1 << 19) - 1), *(file(i, 1_000) for i in range(1, FILES_MIN))]
    assert files_to_merge(below, 1 << 20) == below
    assert files_to_merge([file(i, 1_000, name="user-") for i in range(20)], 1 << 20) == []
    assert files_to_merge(small, 1 << 20, {small[3].path}) == []


def test_the_newest_row_of_each_key() -> None:
    table = pa.table({"k": ["a", "b", None, "a", None, "c"], "v": [1, 2, 3, 4, None, None]})
    newest = newest_per_key(table, ["k"])
    assert newest.to_pylist() == [{"k": "b", "v": 2}, {"k": "a", "v": 4}, {"k": None, "v": None}, {"k": "c", "v": None}]
    assert is_deletion(newest, ["k"], ["v"]).to_pylist() == [False, False, True, True]
    with_operation = pa.table({"k": ["a", "b", "c"], "v": [1, None, 3], "_op": ["u", "c", "d"]})
    assert is_deletion(with_operation, ["k"], ["v", "_op"]).to_pylist() == [False, True, True]
    assert is_deletion(pa.table({"k": ["a"]}), ["k"], []).to_pylist() == [False]


def test_rows_of_other_keys_stay() -> None:
    table = pa.table({"k": pa.array([1, None, 0, 4]), "d": ["x", "x", "y", None], "v": [1, 2, 3, 4]})
    left = other_keys(table, pa.table({"k": pa.array([None, 4], pa.int64()), "d": ["x", None]}), ["k", "d"])
    assert left is not None
    assert left.tolist() == [True, False, True, False]
    assert other_keys(table, pa.table({"k": [7], "d": ["x"]}), ["k", "d"]) is None


@for_each(
    "zero, key_type",
    [
        (False, pa.bool_()),
        ("", pa.string()),
        (b"", pa.binary()),
        (Decimal(0), pa.decimal128(10, 2)),
        (Decimal(0), pa.decimal128(38, 0)),
        *((0, t) for t in (pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.date32(), pa.timestamp("us", "UTC"))),
    ],
    ids=str,
)
def test_a_null_in_a_key_of_any_type_equals_null_only(zero: object, key_type: pa.DataType) -> None:
    table = pa.table({"k": pa.array([zero, None, zero], key_type)})
    for at, expected in ((1, [True, False, True]), (0, [False, True, False])):
        left = other_keys(table, table.slice(at, 1), ["k"])
        assert left is not None
        assert left.tolist() == expected


ODD_NUMBERS = np.array([0, 1 << 63, 0x7FF8 << 48, (0x7FF8 << 48) + 1, 0xFFF8 << 48, 0x3FF0 << 48], np.uint64).view(
    float
)
"""0.0, -0.0, three bit patterns of NaN, and 1.0."""


@for_each("key_type", [pa.float32(), pa.float64()], ids=str)
def test_zeros_are_one_key_and_so_are_nans(key_type: pa.DataType) -> None:
    keys = pa.array(ODD_NUMBERS).cast(key_type)
    table = pa.table({"k": keys, "v": np.arange(6)})
    assert newest_per_key(table, ["k"]).column("v").to_pylist() == [1, 4, 5]
    for row, same in enumerate(([0, 1], [0, 1], [2, 3, 4], [2, 3, 4], [2, 3, 4], [5])):
        left = other_keys(table, table.slice(row, 1), ["k"])
        assert left is not None
        assert np.flatnonzero(~left).tolist() == same
    chosen = partitions_for_columns([keys], 1_000).tolist()
    assert (len(set(chosen[:2])), len(set(chosen[2:5])), len(set(chosen))) == (1, 1, 3)


def test_many_keys() -> None:
    keys = np.random.default_rng(1).integers(0, 1_000, 20_000)
    table = pa.table({"k": keys, "v": np.arange(20_000)})
    expected = {int(k): int(v) for k, v in zip(keys, range(20_000), strict=True)}
    found = newest_per_key(table, ["k"]).to_pylist()
    assert {r["k"]: r["v"] for r in found} == expected
    assert [r["v"] for r in found] == sorted(expected.values())


def test_a_file_of_one_partition_value_grows_over_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no file of an upserted table would be full, and each commit would write all of them again."""
    monkeypatch.setattr(parquet_files, "ROW_GROUP_BYTES", 1)
    made = writer(tmp_path, ("text",))
    for at, text in enumerate("aabba"):
        made.write(rows(range(at, at + 1), text))
    made.write(rows(range(0)))
    files = made.close()
    assert [f.partition_values["text"] for f in files] == ["a", "b", "a"]
    assert [f.rows for f in files] == [2, 2, 1]
