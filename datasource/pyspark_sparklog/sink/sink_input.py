"""The input of a write: the DataFrame's columns are checked against the topic, and its batches converted for the log.

The rows of a typed topic must have the topic's columns, by name. For an envelope topic these rules hold:

=====================================  ================================================================================
column                                 rule
=====================================  ================================================================================
`value` (required), `key`, `headers`,  written, as by Spark's Kafka sink; `timestamp` is the record's time. A type that
`partition`, `topic`, `timestamp`      `_ENVELOPE_INPUT` does not list is an error. The option topic overrides `topic`
`offset`, `timestampType`, of the      left out without a remark, so that rows can be copied as they were read
types that a source gives
any other, of any type                 left out and named in a remark; an error with sparklog.strict.columns
=====================================  ================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_sparklog.schemas import TopicShape
from sparklog.errors import SchemaMismatchError
from sparklog.format.schema import ENVELOPE_SCHEMA, KIND_ENVELOPE, fit_column, fit_table
from sparklog.settings import did_you_mean

_ENVELOPE_INPUT: dict[str, tuple[Any, str]] = {
    "key": (pa.binary(), "string or binary"),
    "value": (pa.binary(), "string or binary"),
    "headers": (ENVELOPE_SCHEMA.field("headers").type, "array<struct<key:string,value:binary>>"),
    "timestamp": (ENVELOPE_SCHEMA.field("timestamp").type, "timestamp"),
    "topic": (pa.string(), "string"),
    "partition": (pa.int32(), "int"),
}
_IGNORED = {"offset": pa.int64(), "timestampType": pa.int32()}
"""Columns that only reads of envelope topics have. A write leaves them out, so that rows can be copied as read."""
_SOURCE_ONLY = ("offset", "timestampType", "_topic", "_partition", "_offset", "_timestamp")


class TopicBatch(NamedTuple):
    """Rows for one topic, in the log's columns (and `partition` if the rows name it)."""

    topic: str
    data: pa.RecordBatch | pa.Table


class ColumnFit(NamedTuple):
    """The mapping of a DataFrame's columns to the log. `names`: each column's name in the log, "" if it is left out.
    `dropped`: columns to name in a remark. `unchanged`: True if all columns keep their names."""

    names: tuple[str, ...]
    dropped: tuple[str, ...]
    unchanged: bool


def fit_input(schema: pa.Schema, topic: str | None, shape: TopicShape | None, *, strict: bool = False) -> ColumnFit:
    """Map the columns of rows to those of `topic`, which has `shape`. `topic` None: the column `topic` names it.

    Names are compared exactly, then without regard to case. With `strict` a column that an envelope topic does not have
    is an error. Raises SchemaMismatchError that names the columns and types.
    """
    if topic is not None and shape is not None and shape.kind != KIND_ENVELOPE:
        names = _spelt_as(schema.names, shape.schema.names)
        _check_typed(_rename_columns(schema, names), topic, shape)
        return ColumnFit(names, (), names == tuple(schema.names))
    names = _spelt_as(schema.names, _ENVELOPE_INPUT)
    if topic is None and "topic" not in names:
        raise SchemaMismatchError(
            'topic option required when no \'topic\' attribute is present: set .option("topic", "…") or add a column '
            "topic to the rows"
        )
    problems, places, dropped = [], [], []
    if "value" not in names:
        problems.append(f"Required attribute 'value' not found (columns: {', '.join(schema.names)})")
    for f in _rename_columns(schema, names):
        place = f.name
        if _IGNORED.get(f.name) == f.type:
            place = ""
        elif f.name not in _ENVELOPE_INPUT:
            place = ""
            dropped.append(f.name)
            if strict:
                problems.append(_unknown_column(f.name, _ENVELOPE_INPUT))
        elif not _accepts(f.name, f.type):
            kinds = _ENVELOPE_INPUT[f.name][1]
            problems.append(
                f"{f.name} attribute unsupported type {f.type}. {f.name} must be a(n) {kinds}: cast, rename or drop "
                "the column"
            )
        places.append(place)
    if problems:
        where = f"topic {topic!r}" if topic is not None else "an envelope topic"
        more = "" if topic is not None else "; for a typed topic set the option topic"
        raise SchemaMismatchError(f"the rows do not fit {where}: " + "; ".join(problems) + more)
    return ColumnFit(tuple(places), tuple(dropped), tuple(places) == tuple(schema.names))


def _spelt_as(names: Sequence[str], spellings: Iterable[str]) -> tuple[str, ...]:
    """Return `names` with the spelling of `spellings` where only the case differs. Raises SchemaMismatchError if two
    columns then have the same name."""
    exact = set(names)
    spelling = {w.lower(): w for w in spellings if w not in exact}
    result = tuple(spelling.get(g.lower(), g) for g in names)
    for name in spelling.values():
        if result.count(name) > 1:
            several = ", ".join(repr(g) for g in names if g.lower() == name.lower())
            raise SchemaMismatchError(
                f"columns {several} could each be the column {name!r}: rename or drop all but one"
            )
    return result


def _rename_columns(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([f.with_name(n) for f, n in zip(schema, names, strict=True)])


def in_log_columns(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return `batch` with its columns renamed to `names`; a column whose name is "" is left out."""
    kept = [(batch.column(i), name) for i, name in enumerate(names) if name]
    return pa.RecordBatch.from_arrays([c for c, _ in kept], names=[n for _, n in kept])


def _check_typed(schema: pa.Schema, topic: str, shape: TopicShape) -> None:
    if not len(schema):
        raise SchemaMismatchError(
            f"the rows do not fit topic {topic!r}: they have no columns, the topic has {', '.join(shape.schema.names)}"
        )
    surplus = [n for n in schema.names if n in _SOURCE_ONLY and shape.schema.get_field_index(n) < 0]
    if surplus:
        raise SchemaMismatchError(
            f"the rows do not fit topic {topic!r}: "
            + "; ".join(_unknown_column(n, shape.schema.names) for n in surplus)
        )
    fit_table(schema.empty_table(), shape.schema, topic)


def _unknown_column(name: str, names: Any) -> str:
    if name in _SOURCE_ONLY:
        return f"column {name!r} comes from reading and cannot be written: drop it"
    return f"unknown column {name!r}{did_you_mean(name, names)}"


def _accepts(name: str, value_type: Any) -> bool:
    if name in ("key", "value"):
        return bool(pa.types.is_string(value_type) or pa.types.is_binary(value_type) or pa.types.is_null(value_type))
    if name == "partition":
        return bool(pa.types.is_integer(value_type) and value_type.bit_width <= 32)
    if name == "timestamp":
        return bool((pa.types.is_timestamp(value_type) and value_type.tz) or pa.types.is_null(value_type))
    try:
        fit_column(pa.nulls(0, value_type), _ENVELOPE_INPUT[name][0])
    except pa.ArrowException:
        return False
    return True


def split_by_topic(batch: pa.RecordBatch, topic: str | None, *, envelope: bool) -> Iterator[TopicBatch]:
    """Yield the rows of `batch` per topic, in their order within a topic, without columns that the log does not have.

    `topic` None: the column `topic` names the topic of each row. Raises SchemaMismatchError for a null in it.
    """
    if not envelope and topic is not None:
        yield TopicBatch(topic, batch)
        return
    dropped = [n for n in ("topic", *_IGNORED) if n in batch.schema.names]
    data = batch.drop_columns(dropped) if dropped else batch
    if topic is not None:
        yield TopicBatch(topic, data)
        return
    names = batch.column(batch.schema.get_field_index("topic"))
    if names.null_count:
        row = pc.index(pc.is_null(names), True).as_py()
        raise SchemaMismatchError(
            f"the data contains a null topic, in {names.null_count} of {len(names)} rows (the first is row {row} of "
            "its batch): use the option topic for setting a default topic, fill the column, or filter those rows out"
        )
    encoded = names.dictionary_encode()
    topics = encoded.dictionary.to_pylist()
    if len(topics) == 1:
        yield TopicBatch(topics[0], data)
        return
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    for i, name in enumerate(topics):
        yield TopicBatch(name, data.take(pa.array(np.flatnonzero(indices == i))))


def names_partitions(batch: pa.RecordBatch) -> bool:
    """True if any row has a key or a partition number, which decides the row's partition."""
    schema = batch.schema
    return any(
        (i := schema.get_field_index(name)) >= 0 and batch.column(i).null_count < batch.num_rows
        for name in ("key", "partition")
    )
