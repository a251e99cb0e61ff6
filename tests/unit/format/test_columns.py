"""Names of columns, Spark's JSON of a schema, and keys of maps."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.rows import rows_of
from sparklog.client.producer.typed_rows import TypedTopic
from sparklog.errors import CorruptBatchError, InvalidConfigError, InvalidTopicError, SchemaMismatchError
from sparklog.format.batch import decode_header, encode_batch
from sparklog.format.column_names import column_list, column_names, shown_names
from sparklog.format.map_keys import require_distinct_keys
from sparklog.format.offset_column import check_new_rows
from sparklog.format.schema import fit_table, require_columns
from sparklog.format.schema_evolution import SchemaChange
from sparklog.format.spark_json import parse_spark_json
from tests.support.cases import for_each
from tests.support.clients import info


@given(st.lists(st.text(min_size=1) | st.text(alphabet=" ,`a\n", min_size=1)))
def test_any_names_can_be_written(names: list[str]) -> None:
    assert column_names(column_list(names)) == names


@given(st.text(alphabet=" ,`ab"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        names = column_names(text)
    except InvalidConfigError:
        return
    assert all(names)
    assert column_names(column_list(names)) == names


def test_names_as_they_are_written() -> None:
    for text, names in {
        "": [],
        " , ,": [],
        "a": ["a"],
        " a , b c,": ["a", "b c"],
        "`a,b`, ` c`,d`e": ["a,b", " c", "d`e"],
        "`a``b`": ["a`b"],
    }.items():
        assert column_names(text) == names
    for text in ("`a", "`a`b", "``", "a, `b``"):
        with pytest.raises(InvalidConfigError, match=r"--columns = .*backquote"):
            column_names(text, "--columns")


def test_names_in_an_error_message() -> None:
    assert shown_names(["a, b", "c", " d", "e f"]) == "`a, b`, c, ` d`, e f"
    schema = pa.schema([("a, b", pa.int64()), ("c", pa.int64())])
    with pytest.raises(InvalidTopicError, match=r"not in the schema \(columns: `a, b`, c"):
        require_columns(schema, ["a"], None)
    with pytest.raises(SchemaMismatchError, match="the topic's columns are `a, b`, c"):
        fit_table(pa.table({"x": [1], "y": [2]}), schema, "t")
    topic = info(schema)
    with pytest.raises(SchemaMismatchError, match="a row has at least one of `a, b`, c"):
        rows_of([{}], topic, None)
    with pytest.raises(SchemaMismatchError, match=r"typed \(columns `a, b`, c\): a row is a dict"):
        TypedTopic(topic, 1 << 20, []).checked(b"x", None, None, None, None)
    with pytest.raises(SchemaMismatchError, match="found `a, b`, c"):
        rows_of(pa.table({"a, b": [1], "c": [2]}), info(), None)
    moved = pa.schema([schema.field(1), schema.field(0)])
    with pytest.raises(InvalidTopicError, match="it is `a, b`, c"):
        SchemaChange(whole=moved).applied_to(schema, [], None)


# Spark's JSON form of a schema: types that a topic cannot hold are refused with the column's name


def spark_json(**types: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True} for n, t in types.items()]}


UDT = {"type": "udt", "class": "org.apache.spark.ml.linalg.VectorUDT"}


@for_each("unknown", ["variant", "interval year to month", "void", UDT])
def test_a_type_without_a_place_names_the_column(unknown: Any) -> None:
    for types, place in (
        ({"id": "long", "payload": unknown, "y": "string"}, "column 'payload'"),
        ({"all": {"type": "array", "elementType": unknown}}, "column 'all'"),
        ({"all": {"type": "map", "keyType": "string", "valueType": unknown}}, "column 'all'"),
        ({"all": spark_json(payload=unknown)}, "column 'all', field 'payload'"),
    ):
        with pytest.raises(InvalidTopicError) as caught:
            parse_spark_json(json.dumps(spark_json(**types)))
        said = str(caught.value)
        assert f"schema: {place} has the unknown type {unknown!r}, which a topic cannot hold" in said
        assert "\n" not in said


# A key is in a map once, in whatever way the map comes


TEXTS = pa.map_(pa.string(), pa.int32())
TWICE = pa.MapArray.from_arrays([0, 1, 3], pa.array(["a", "b", "b"]), pa.array([1, 2, 3], pa.int32()))
TOPIC = TopicInfo("t", "id", "typed", 1, 5, {5: pa.schema([("m", TEXTS)])}, (), None, {}, 0, ())


def test_a_key_twice_is_refused_at_any_depth() -> None:
    nan = float("nan")
    pairs: list[tuple[Any, list[Any]]] = [
        (pa.string(), ["a", "a"]),
        (pa.float64(), [0.0, -0.0]),
        (pa.float32(), [nan, nan]),
        (pa.binary(), [b"", b""]),
        (pa.decimal128(4, 2), [Decimal("1.50"), Decimal("1.5")]),
        (pa.struct([("x", pa.int8())]), [{"x": 1}, {"x": 1}]),
        (pa.struct([("x", pa.float64()), ("y", pa.string())]), [{"x": 0.0, "y": None}, {"x": -0.0, "y": None}]),
        (pa.struct([]), [{}, {}]),
        (pa.list_(pa.struct([("x", pa.int8())])), [[{"x": 1}, None], [{"x": 1}, None]]),
        (pa.list_(pa.int8(), 2), [[1, 2], [1, 2]]),
        (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [("a", 1)]]),
    ]
    for t, keys in pairs:
        column = pa.MapArray.from_arrays([0, 2], pa.array(keys, t), pa.array([1, 2]))
        nested = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1], column)], ["x"])
        for one in (column, nested, pa.chunked_array([column.slice(1), column])):
            with pytest.raises(pa.ArrowInvalid, match=r"has the key .* twice"):
                require_distinct_keys(one)


def test_other_keys_that_look_alike_are_distinct() -> None:
    pairs: list[tuple[Any, list[Any]]] = [
        (pa.struct([("x", pa.float64())]), [{"x": 0.0}, {"x": None}]),
        (pa.struct([("x", pa.int8()), ("y", pa.int8())]), [{"x": 1, "y": 2}, {"x": 2, "y": 1}]),
        (pa.list_(pa.list_(pa.int8())), [[[1], [2]], [[1, 2]]]),
        (pa.list_(pa.int8()), [[1, None], [1]]),
        (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [("a", 2)]]),
    ]
    for t, keys in pairs:
        require_distinct_keys(pa.MapArray.from_arrays([0, 2], pa.array(keys, t), pa.array([1, 2])))


def test_keys_without_an_object_in_python() -> None:
    far = pa.array([2**31 - 1, -(2**31), 2**31 - 1], pa.int32()).view(pa.date32())
    for keys in (far, pa.StructArray.from_arrays([far], ["day"])):
        require_distinct_keys(pa.MapArray.from_arrays([0, 2], keys.slice(0, 2), pa.array([1, 2])))
        with pytest.raises(pa.ArrowInvalid, match=r"has the key .*date32.* twice"):
            require_distinct_keys(pa.MapArray.from_arrays([0, 3], keys, pa.array([1, 2, 3])))


def test_values_that_no_row_has_do_not_count() -> None:
    require_distinct_keys(TWICE.slice(0, 1))
    hidden = pa.MapArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array(["a", "a", "a"]), pa.array([1, 2, 3]), mask=pa.array([True, False])
    )
    require_distinct_keys(hidden)


def test_no_door_takes_a_key_twice() -> None:
    pairs = [("b", 2), ("b", 3)]
    for data in (pa.table({"m": TWICE}), {"m": [[("a", 1)], pairs]}, [{"m": pairs}]):
        with pytest.raises(SchemaMismatchError, match=r"column 'm'.* has the key 'b' twice"):
            rows_of(data, TOPIC, 0)
    with pytest.raises(SchemaMismatchError, match=r"column 'm'.* has the key 'b' twice"):
        TypedTopic(TOPIC, 1 << 20, []).checked({"m": pairs}, None, None, None, None)
    for compression in ("none", "lz4"):
        batch = pa.record_batch({"m": TWICE.cast(TEXTS)})
        payload = memoryview(
            encode_batch(batch, schema_id=5, min_timestamp_ms=0, max_timestamp_ms=0, compression=compression)
        )
        with pytest.raises(CorruptBatchError, match=r"column 'm'.* has the key 'b' twice"):
            check_new_rows(payload, 0, decode_header(payload), batch.schema, 1 << 20)
