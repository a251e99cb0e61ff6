"""Columns of a read: those of topics, the picked ones, and the agreement of Spark and Arrow about them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType
from pyspark_sparklog.schemas import (
    ReadSchema,
    TopicShape,
    changed_columns,
    common_shape,
    follow_schema,
    full_schema,
    join_schema,
    project,
    select,
)

from sparklog.errors import SchemaMismatchError
from sparklog.format.schema import ENVELOPE_SCHEMA, canonical_schema

ENVELOPE = TopicShape("envelope", ENVELOPE_SCHEMA)
EVERY_TYPE = canonical_schema(
    pa.schema(
        [
            ("bool", pa.bool_()),
            ("i8", pa.int8()),
            ("i16", pa.int16()),
            ("i32", pa.int32()),
            ("i64", pa.int64()),
            ("f32", pa.float32()),
            ("f64", pa.float64()),
            ("text", pa.string()),
            ("raw", pa.binary()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("lasted", pa.duration("us")),
            ("price", pa.decimal128(20, 4)),
            ("list", pa.list_(pa.int64())),
            ("map", pa.map_(pa.string(), pa.list_(pa.decimal128(5, 2)))),
            ("struct", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string())])))])),
        ]
    )
)
TYPED = TopicShape("typed", EVERY_TYPE)


def full(shape: TopicShape, headers: bool = False, metadata: bool = False) -> ReadSchema:
    return full_schema(shape, include_headers=headers, include_metadata=metadata)


def test_an_envelope_topic_has_the_schema_of_sparks_kafka_source() -> None:
    expected = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"
    )
    assert full(ENVELOPE).spark().simpleString() == expected + ">"
    assert full(ENVELOPE, headers=True).spark().simpleString() == (
        expected + ",headers:array<struct<key:string,value:binary>>>"
    )


@pytest.mark.parametrize("shape", [ENVELOPE, TYPED])
def test_batches_have_exactly_the_layout_spark_expects(shape: TopicShape) -> None:
    schema = full(shape, headers=True, metadata=True)
    assert to_arrow_schema(schema.spark(), timezone="UTC").equals(schema.arrow)
    assert all(f.nullable for f in schema.spark().fields)


def test_metadata_columns_come_after_a_typed_topics_own() -> None:
    names = full(TYPED, metadata=True).arrow.names
    assert names == [*EVERY_TYPE.names, "_topic", "_partition", "_offset", "_timestamp"]
    assert full(TYPED).arrow.names == EVERY_TYPE.names


def test_columns_are_picked_in_the_requested_order() -> None:
    picked = select(full(TYPED, metadata=True), ["_offset", "i64", "bool"])
    assert picked.arrow.names == ["_offset", "i64", "bool"]
    assert picked.stored_columns == ["i64", "bool"]


def test_an_envelopes_timestamp_is_read_from_the_log() -> None:
    assert full(ENVELOPE).stored_columns == ["key", "value", "timestamp"]
    assert select(full(ENVELOPE), ["offset"]).stored_columns == []


@pytest.mark.parametrize(
    ("shape", "name", "message"),
    [
        (TYPED, "i46", "did you mean 'i64'"),
        (TYPED, "_offset", "set includeMetadata"),
        (ENVELOPE, "headers", "set includeHeaders"),
        (ENVELOPE, "valeu", "did you mean 'value'"),
    ],
)
def test_a_missing_column_is_named(shape: TopicShape, name: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        select(full(shape), [name])


def test_a_users_schema_is_a_projection_by_name() -> None:
    wanted = StructType([StructField("text", StringType()), StructField("i64", LongType())])
    assert project(full(TYPED), wanted).arrow.names == ["text", "i64"]
    assert project(full(TYPED), full(TYPED).spark()) == full(TYPED)


def test_a_column_declared_not_null_is_kept_so() -> None:
    wanted = StructType([StructField("i64", LongType(), nullable=False)])
    projected = project(full(TYPED), wanted)
    assert projected.arrow == pa.schema([pa.field("i64", pa.int64(), nullable=False)])


def test_a_users_schema_that_does_not_fit_names_columns_and_types() -> None:
    wanted = StructType(
        [StructField("i64", IntegerType()), StructField("texd", StringType()), StructField("text", StringType())]
    )
    with pytest.raises(
        SchemaMismatchError, match=r"column 'i64' is bigint, the schema says int; no column 'texd'.*text"
    ):
        project(full(TYPED), wanted)
    with pytest.raises(SchemaMismatchError, match="no columns"):
        project(full(TYPED), StructType([]))


def test_topics_of_one_shape_can_be_read_together() -> None:
    assert common_shape({"a": TYPED, "b": TYPED}) == TYPED


def test_topics_that_differ_are_named() -> None:
    with pytest.raises(SchemaMismatchError, match=r"different kinds .*envelope: e; typed: a, b"):
        common_shape({"a": TYPED, "b": TYPED, "e": ENVELOPE})
    other = TopicShape("typed", pa.schema([("x", pa.int64())]))
    with pytest.raises(SchemaMismatchError, match=r"'a' and 'b'.*'x' is int64 and string"):
        common_shape({"a": other, "b": TopicShape("typed", pa.schema([("x", pa.string())]))})
    with pytest.raises(SchemaMismatchError, match="only the second has 'y'"):
        common_shape({"a": other, "b": TopicShape("typed", pa.schema([("x", pa.int64()), ("y", pa.int64())]))})


def test_topics_that_may_join_a_query_that_began_without_one() -> None:
    join_schema("t", ENVELOPE, {}, full(ENVELOPE))
    with pytest.raises(SchemaMismatchError, match="'t' is typed; the query began when no topic matched"):
        join_schema("t", TYPED, {}, full(ENVELOPE))
    with pytest.raises(SchemaMismatchError, match="topics of different kinds"):
        join_schema("t", TYPED, {"s": ENVELOPE}, full(ENVELOPE))


def test_a_running_query_follows_new_columns_but_not_wider_ones() -> None:
    began = TopicShape("typed", pa.schema([("id", pa.int32()), ("n", pa.int32())]))
    more = TopicShape("typed", pa.schema([*began.schema, ("c", pa.string())]))
    wider = TopicShape("typed", pa.schema([("id", pa.int32()), ("n", pa.int64()), ("c", pa.string())]))
    everything = full_schema(began, include_headers=False, include_metadata=True)
    assert everything.stored_layout == began.schema
    for now in (began, more):
        follow_schema("t", began, now, everything)
    follow_schema("t", began, wider, select(everything, ["id", "_offset"]))
    with pytest.raises(
        SchemaMismatchError, match=r"'n' is int64 now, it was int32 .* restart the query .*cast\(\"int\"\)"
    ):
        follow_schema("t", began, wider, everything)
    for other in (
        TopicShape("envelope", ENVELOPE_SCHEMA),
        TopicShape("typed", pa.schema([("id", pa.int32())])),
        TopicShape("typed", pa.schema([("id", pa.int32()), ("n", pa.string())])),
    ):
        with pytest.raises(SchemaMismatchError, match="created again with other columns"):
            follow_schema("t", began, other, everything)


def test_columns_that_have_changed_before_a_query_goes_on_are_named_with_the_way() -> None:
    first = pa.schema([("id", pa.int32()), ("n", pa.int32())])
    wider = pa.schema([("id", pa.int32()), ("n", pa.int64())])
    more = pa.schema([*wider, ("c", pa.string())])
    everything = full_schema(TopicShape("typed", more), include_headers=False, include_metadata=True)
    said = changed_columns("t", {3: first, 4: wider, 7: more}, everything)
    assert "'n' was int32 and is int64; 'c' is new" in said
    assert '.withColumn("n", col("n").cast("int")) and select() of the columns that it had' in said
    assert changed_columns("t", {3: first, 4: wider, 7: more}, select(everything, ["id", "_offset"])) == ""
    assert changed_columns("t", {7: more}, everything) == ""
    assert changed_columns("t", {1: ENVELOPE_SCHEMA}, full(ENVELOPE)) == ""


def test_the_layout_of_an_envelope_read_names_the_stored_timestamp() -> None:
    read = full_schema(TopicShape("envelope", ENVELOPE_SCHEMA), include_headers=True, include_metadata=False)
    assert set(read.stored_layout) == set(ENVELOPE_SCHEMA)
    assert select(read, ["offset"]).stored_layout == pa.schema([])
