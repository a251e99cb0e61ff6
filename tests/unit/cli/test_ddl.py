"""Spark DDL and Spark's schema JSON as Arrow schemas."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.cli.schema_source import load_schema
from sparklog.errors import InvalidTopicError
from sparklog.format.ddl import DEPTH_MAX, ddl_of, ddl_type, parse_ddl
from sparklog.format.schema import canonical_schema

EVERYTHING = """
    a INT, b STRING, c TIMESTAMP, d DECIMAL(10,2), e ARRAY<STRING>, s STRUCT<x: INT, y: ARRAY<DOUBLE>>,
    m MAP<STRING,INT>, `odd name` bigint NOT NULL COMMENT 'it is', `tick``ed` tinyint, n timestamp_ntz, f float, g double,
    h smallint, i boolean, j date, k binary, l decimal, o numeric(5), p varchar(10), q char(3),
    r map<int, struct<deep: map<string, array<array<date>>>>>, t interval day to second, u: long comment "x", v struct<>
"""


def test_every_type() -> None:
    schema = parse_ddl(EVERYTHING)
    assert schema.field("a").type == pa.int32()
    assert schema.field("c").type == pa.timestamp("us", tz="UTC")
    assert schema.field("d").type == pa.decimal128(10, 2)
    assert schema.field("l").type == pa.decimal128(10, 0)
    assert schema.field("o").type == pa.decimal128(5, 0)
    assert schema.field("odd name").type == pa.int64()
    assert schema.field("tick`ed").type == pa.int8()
    assert schema.field("t").type == pa.duration("us")
    assert schema.field("v").type == pa.struct([])
    assert schema.field("r").type.item_type.field("deep").type.item_type.value_type.value_type == pa.date32()
    assert all(f.nullable for f in schema)


def test_the_result_is_canonical() -> None:
    schema = parse_ddl(EVERYTHING)
    assert canonical_schema(schema).equals(schema)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a column name is expected"),
        ("a", "a type is expected"),
        ("a INT,", "a column name is expected"),
        ("a INT b INT", "',' or the end is expected"),
        ("a INTT", "did you mean INT?"),
        ("a GEOMETRY3", "the types are BOOLEAN"),
        ("a ARRAY<INT", "'>' is expected"),
        ("a ARRAY INT", "'<' is expected"),
        ("a MAP<INT>", "',' is expected"),
        ("a DECIMAL(99,2)", "1 to 38 digits"),
        ("a DECIMAL(3,4)", "1 to 38 digits"),
        ("a DECIMAL(x)", "a number is expected"),
        ("a INT NOT", "'NULL' is expected"),
        ("a INT COMMENT b", "a text in quotes"),
        ("'a' INT", "a column name is expected"),
        ('a INT, "order" INT', "a column name is expected (names are quoted as `order`)"),
        ("a VARCHAR", "'(' is expected"),
        ("a " + "ARRAY<" * (DEPTH_MAX + 1) + "INT" + ">" * (DEPTH_MAX + 1), "nested more than"),
    ],
)
def test_errors_name_the_expected_text(text: str, says: str) -> None:
    with pytest.raises(InvalidTopicError) as e:
        parse_ddl(text)
    assert says in str(e.value)


def test_errors_point_at_the_place() -> None:
    with pytest.raises(InvalidTopicError) as e:
        parse_ddl("a INT, b STRNG")
    _, text, pointer = str(e.value).splitlines()
    assert text[pointer.index("^")] == "S"


@given(st.text(alphabet="aINT ,<>()`'\":\\é0 ARRAYMPSTUC\n", max_size=60))
def test_any_text_gives_a_schema_or_the_one_error(text: str) -> None:
    with contextlib.suppress(InvalidTopicError):
        assert len(parse_ddl(text)) >= 1


_LEAVES = st.sampled_from(["INT", "STRING", "TIMESTAMP", "DECIMAL(7,3)", "DATE", "BINARY", "TIMESTAMP_NTZ", "TINYINT"])
_TYPES = st.recursive(
    _LEAVES,
    lambda t: st.one_of(
        t.map("ARRAY<{}>".format),
        st.tuples(_LEAVES, t).map(lambda kv: f"MAP<{kv[0]}, {kv[1]}>"),
        st.lists(t, min_size=1, max_size=3).map(
            lambda ts: "STRUCT<" + ", ".join(f"f{i}: {x}" for i, x in enumerate(ts)) + ">"
        ),
    ),
    max_leaves=6,
)


@given(_TYPES)
def test_printed_types_can_be_parsed_again(text: str) -> None:
    assert ddl_type(parse_ddl(f"c {text}").field(0).type) == text


def test_printed_columns_can_be_parsed_again() -> None:
    schema = canonical_schema(parse_ddl("id BIGINT, `a b` STRUCT<`x,y`: INT, z: ARRAY<STRING>>, `t``k` DECIMAL(7,3)"))
    assert canonical_schema(parse_ddl(ddl_of(schema))) == schema


def test_schema_files(tmp_path: Path) -> None:
    schema = parse_ddl("a INT, b STRING, c ARRAY<DOUBLE>, t TIMESTAMP")
    empty = schema.empty_table()
    pq.write_table(empty, tmp_path / "s.parquet")
    for name, make in (("s.arrow", pa.ipc.new_file), ("s.arrows", pa.ipc.new_stream)):
        with make(tmp_path / name, schema) as writer:
            writer.write_table(empty)
    fields = [
        {"name": "a", "type": "integer", "nullable": False, "metadata": {}},
        {"name": "b", "type": "string", "nullable": True, "metadata": {}},
        {"name": "c", "type": {"type": "array", "elementType": "double", "containsNull": True}},
        {"name": "t", "type": "timestamp"},
    ]
    (tmp_path / "s.json").write_text(json.dumps({"type": "struct", "fields": fields}))
    for name in ("s.arrow", "s.arrows", "s.json", "s.parquet"):
        assert canonical_schema(load_schema(str(tmp_path / name))).equals(schema), name


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("s.avsc", b"{}", "hold no Arrow or Spark schema"),
        ("s.csv", b"a,b", "hold no Arrow or Spark schema"),
        ("s.arrow", b"no arrow", "no arrow file"),
        ("s.parquet", b"no parquet", "no parquet file"),
        ("s.json", b"{", "not JSON"),
        ("s.json", b"[]", "df.schema.json()"),
        ("s.json", b'{"type": "struct", "fields": [{"name": "a"}]}', "not Spark's JSON form"),
        ("s.json", b'{"type": "struct", "fields": [{"name": "a", "type": "udt"}]}', "unknown type"),
        ("s.json", b'{"type": "struct", "fields": [{"name": "a", "type": {"type": "udt"}}]}', "cannot hold"),
    ],
)
def test_bad_schema_files(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidTopicError) as e:
        load_schema(str(tmp_path / name))
    assert says in str(e.value)


def test_a_missing_schema_file_is_named() -> None:
    with pytest.raises(InvalidTopicError, match=r"nowhere\.parquet"):
        load_schema("nowhere.parquet")
