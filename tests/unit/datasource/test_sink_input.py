"""Accepted rows: columns compared with topics, and rows split by topic."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark_sparklog.schemas import TopicShape
from pyspark_sparklog.sink.sink_input import fit_input, in_log_columns, split_by_topic

from sparklog.errors import SchemaMismatchError
from sparklog.format.schema import ENVELOPE_SCHEMA
from tests.support.cases import for_each

ENVELOPE = TopicShape("envelope", ENVELOPE_SCHEMA)
TYPED = TopicShape("typed", pa.schema([("carrier", pa.string()), ("delay", pa.int32()), ("topic", pa.string())]))
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


@for_each(
    "columns",
    [
        {"value": pa.string()},
        {"value": pa.binary(), "key": pa.string(), "headers": HEADERS, "partition": pa.int32(), "topic": pa.string()},
        {"value": pa.binary(), "timestamp": pa.timestamp("us", "Europe/Paris")},
    ],
)
def test_rows_for_an_envelope_topic(columns: dict[str, pa.DataType]) -> None:
    fit_input(schema(**columns), "t", ENVELOPE)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": pa.string()}, "Required attribute 'value' not found"),
        ({"value": pa.int64()}, "value must be a.n. string or binary"),
        ({"value": pa.string(), "key": pa.int32()}, "key attribute unsupported type int32"),
        ({"value": pa.string(), "partition": pa.int64()}, "partition must be a.n. int"),
        ({"value": pa.string(), "topic": pa.int64()}, "topic attribute unsupported type int64"),
        ({"value": pa.string(), "headers": pa.string()}, "headers must be a.n. array<struct"),
        (
            {"value": pa.string(), "VALUE": pa.string(), "KEY": pa.string(), "Key": pa.string()},
            "'KEY', 'Key' could each be",
        ),
    ],
)
def test_rows_that_do_not_fit_an_envelope_topic(columns: dict[str, pa.DataType], message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        fit_input(schema(**columns), "t", ENVELOPE)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": pa.string(), "valu": pa.string()}, "unknown column 'valu': did you mean 'value'"),
        ({"value": pa.string(), "_offset": pa.int64()}, "'_offset' comes from reading .* drop it"),
        ({"value": pa.string(), "offset": pa.string()}, "'offset' comes from reading .* drop it"),
        ({"value": pa.string(), "timestampType": pa.list_(pa.int32())}, "'timestampType' comes from reading"),
    ],
)
def test_further_columns_are_dropped_unless_the_option_is_strict(columns: dict[str, pa.DataType], message: str) -> None:
    fitted = fit_input(schema(**columns), "t", ENVELOPE)
    assert fitted.names == ("value", "") and fitted.dropped == (list(columns)[1],) and not fitted.unchanged
    with pytest.raises(SchemaMismatchError, match=message):
        fit_input(schema(**columns), "t", ENVELOPE, strict=True)


def test_a_column_with_a_meaning_is_of_its_type_or_refused() -> None:
    """Also `timestamp`: left out, records would have the time of the write, and nobody would know."""
    nothing = pa.null()
    accepted = {
        "value": [pa.string(), pa.binary(), nothing],
        "key": [pa.string(), pa.binary(), nothing],
        "headers": [HEADERS, nothing],
        "timestamp": [pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Paris"), nothing],
        "topic": [pa.string(), nothing],
        "partition": [pa.int8(), pa.int16(), pa.int32()],
    }
    others = [
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("us"),
        pa.list_(pa.int32()),
        pa.duration("us"),
    ]
    others += [pa.struct([("a", pa.int32())]), pa.map_(pa.string(), pa.string()), pa.decimal128(10, 2), pa.string()]
    for name, types in accepted.items():
        columns = {"value": pa.binary()}
        for t in types:
            fitted = fit_input(schema(**columns | {name: t}), "t", ENVELOPE)
            assert not fitted.dropped and "" not in fitted.names
        for t in set(others) - set(types):
            for strict in (False, True):
                with pytest.raises(SchemaMismatchError, match=f"{name} attribute unsupported type"):
                    fit_input(schema(**columns | {name: t}), "t", ENVELOPE, strict=strict)
    for t in (*others, pa.int32()):
        fitted = fit_input(schema(value=pa.binary(), extra=t, offset=t, timestampType=t), "t", ENVELOPE)
        silent = {"offset": pa.int64(), "timestampType": pa.int32()}
        assert fitted.names == ("value", "", "", "")
        assert fitted.dropped == ("extra", *(n for n, of_source in silent.items() if t != of_source))


def test_columns_go_by_their_names_without_regard_to_case() -> None:
    batch = pa.record_batch({"VALUE": ["v"], "Key": ["k"], "extra": [1], "topic": ["a"]})
    fitted = fit_input(batch.schema, None, None)
    assert fitted.names == ("value", "key", "", "topic") and fitted.dropped == ("extra",)
    (part,) = split_by_topic(in_log_columns(batch, fitted.names), None, envelope=True)
    assert (part.topic, part.data.to_pydict()) == ("a", {"value": ["v"], "key": ["k"]})
    typed = fit_input(schema(DELAY=pa.int32(), carrier=pa.string()), "t", TYPED)
    assert typed.names == ("delay", "carrier") and not typed.unchanged
    # the one that is spelt so goes first
    assert fit_input(schema(value=pa.string(), VALUE=pa.int64()), "t", ENVELOPE).names == ("value", "")
    assert fit_input(schema(value=pa.string(), key=pa.string()), "t", ENVELOPE).unchanged


def test_without_a_topic_the_write_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="topic option required when no 'topic' attribute is present"):
        fit_input(schema(value=pa.string()), None, None)
    fit_input(schema(value=pa.string(), topic=pa.string()), None, None)
    with pytest.raises(SchemaMismatchError, match="for a typed topic set the option topic"):
        fit_input(schema(carrier=pa.string(), topic=pa.string()), None, None)


def test_rows_for_a_typed_topic_fit_by_name() -> None:
    fit_input(schema(delay=pa.int64(), carrier=pa.string()), "t", TYPED)
    with pytest.raises(SchemaMismatchError, match=r"'t'.*column 'delay' is string, the topic has int32"):
        fit_input(schema(delay=pa.string()), "t", TYPED)
    with pytest.raises(SchemaMismatchError, match="they have no columns, the topic has carrier, delay, topic"):
        fit_input(schema(), "t", TYPED)
    with pytest.raises(SchemaMismatchError, match="unknown column 'origin'"):
        fit_input(schema(delay=pa.int32(), origin=pa.string()), "t", TYPED)
    with pytest.raises(SchemaMismatchError, match="'_offset' comes from reading"):
        fit_input(schema(delay=pa.int32(), _offset=pa.int64()), "t", TYPED)


def test_rows_are_split_by_their_topic_in_order() -> None:
    batch = pa.record_batch({"topic": ["a", "b", "a"], "value": ["1", "2", "3"]})
    split = dict(split_by_topic(batch, None, envelope=True))
    assert {t: d.column("value").to_pylist() for t, d in split.items()} == {"a": ["1", "3"], "b": ["2"]}
    assert all(d.schema.names == ["value"] for d in split.values())


def test_the_option_goes_before_the_column() -> None:
    batch = pa.record_batch({"topic": ["a", None], "value": ["1", "2"]})
    [(topic, data)] = split_by_topic(batch, "z", envelope=True)
    assert (topic, data.column("value").to_pylist()) == ("z", ["1", "2"])


def test_a_typed_topics_own_column_topic_is_data() -> None:
    batch = pa.record_batch({"topic": ["a", None], "carrier": ["1", "2"]})
    assert list(split_by_topic(batch, "t", envelope=False)) == [("t", batch)]


def test_a_null_topic_says_so() -> None:
    batch = pa.record_batch({"topic": pa.array(["a", None], pa.string()), "value": ["1", "2"]})
    with pytest.raises(SchemaMismatchError, match=r"the data contains a null topic, in 1 of 2 rows .*row 1"):
        list(split_by_topic(batch, None, envelope=True))


def test_rows_as_an_envelope_source_gives_them_can_be_copied() -> None:
    read = pa.table({"value": [b"v"], "partition": pa.array([1], pa.int32()), "offset": [7], "timestampType": [0]})
    fit_input(read.schema, "copy", ENVELOPE)
    (part,) = split_by_topic(read.to_batches()[0], "copy", envelope=True)
    assert part.data.to_pydict() == {"value": [b"v"], "partition": [1]}
