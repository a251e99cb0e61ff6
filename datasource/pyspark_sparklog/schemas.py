"""The schema of a read: columns of the topics, the choice of a user's schema or `columns`, Spark's and Arrow's types.

An envelope topic has exactly the columns of Spark's Kafka source; a typed topic has its own, after which
`includeMetadata` adds `_topic`, `_partition`, `_offset`, `_timestamp`. All columns are nullable unless a user's schema
declares them NOT NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.types import StructType

from pyspark_sparklog.compatibility import arrow_type_of
from sparklog.errors import SchemaMismatchError
from sparklog.format.schema import HEADER_TYPE, KIND_ENVELOPE, TIMESTAMP_TYPE
from sparklog.format.schema_evolution import is_evolution
from sparklog.settings import did_you_mean

STORED = "stored"
TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE_ID = "topic", "partition", "offset", "timestamp", "timestampType"


class OutputColumn(NamedTuple):
    """One column of a read's rows. `origin`: STORED (a column of that name in the log), or the name of a metadata
    field."""

    name: str
    type: Any
    origin: str


ENVELOPE_COLUMNS = (
    OutputColumn("key", pa.binary(), STORED),
    OutputColumn("value", pa.binary(), STORED),
    OutputColumn("topic", pa.string(), TOPIC),
    OutputColumn("partition", pa.int32(), PARTITION),
    OutputColumn("offset", pa.int64(), OFFSET),
    OutputColumn("timestamp", TIMESTAMP_TYPE, TIMESTAMP),
    OutputColumn("timestampType", pa.int32(), TIMESTAMP_TYPE_ID),
)
HEADERS_COLUMN = OutputColumn("headers", HEADER_TYPE, STORED)
METADATA_COLUMNS = (
    OutputColumn("_topic", pa.string(), TOPIC),
    OutputColumn("_partition", pa.int32(), PARTITION),
    OutputColumn("_offset", pa.int64(), OFFSET),
    OutputColumn("_timestamp", TIMESTAMP_TYPE, TIMESTAMP),
)


class TopicShape(NamedTuple):
    """The properties of a topic that decide its columns."""

    kind: str
    schema: pa.Schema


@dataclass(frozen=True)
class ReadSchema:
    """The columns of a read. `arrow`: the schema that its batches must have. `cheapest`: the stored column that is
    decoded if the read needs none."""

    kind: str
    columns: tuple[OutputColumn, ...]
    arrow: pa.Schema
    cheapest: str

    @property
    def stored_columns(self) -> list[str]:
        """Return the columns to read from the log, an envelope's timestamp included."""
        names = [c.name for c in self.columns if c.origin == STORED]
        if self.kind == KIND_ENVELOPE and any(c.origin == TIMESTAMP for c in self.columns):
            names.append("timestamp")
        return names

    @property
    def stored_layout(self) -> pa.Schema:
        """Schema of `stored_columns`, with the types that the read was planned with."""
        fields = [pa.field(c.name, c.type) for c in self.columns if c.origin == STORED]
        if self.kind == KIND_ENVELOPE and any(c.origin == TIMESTAMP for c in self.columns):
            fields.append(pa.field("timestamp", TIMESTAMP_TYPE))
        return pa.schema(fields)

    @property
    def decoded_columns(self) -> list[str]:
        """Return `stored_columns`; for a read of metadata only `cheapest`, because the rows have to be counted."""
        return self.stored_columns or [self.cheapest]

    def spark(self) -> StructType:
        """Return the schema for Spark."""
        return from_arrow_schema(self.arrow, prefer_timestamp_ntz=True)


def common_shape(topics: Mapping[str, TopicShape]) -> TopicShape:
    """Return the shape all `topics` (at least one) share. Raises SchemaMismatchError that names the different
    topics."""
    names = sorted(topics)
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(topics[name].kind, []).append(name)
    if len(kinds) > 1:
        parts = "; ".join(f"{kind}: {', '.join(of_kind)}" for kind, of_kind in sorted(kinds.items()))
        raise SchemaMismatchError(
            f"topics of different kinds cannot be read together ({parts}): use one query for each kind"
        )
    first = topics[names[0]]
    for name in names[1:]:
        if not topics[name].schema.equals(first.schema):
            raise SchemaMismatchError(
                f"topics {names[0]!r} and {name!r} cannot be read together, their columns differ "
                f"({_difference(first.schema, topics[name].schema)}): use one query for each"
            )
    return first


def _difference(a: pa.Schema, b: pa.Schema) -> str:
    for f in a:
        if b.get_field_index(f.name) < 0:
            return f"only the first has {f.name!r}"
        if b.field(f.name).type != f.type:
            return f"{f.name!r} is {f.type} and {b.field(f.name).type}"
    extra = [n for n in b.names if a.get_field_index(n) < 0]
    return f"only the second has {extra[0]!r}" if extra else "the order"


def join_schema(name: str, shape: TopicShape, topics: Mapping[str, TopicShape], read: ReadSchema) -> None:
    """Check that a running query of `topics`, with the columns `read`, can also read the new topic `name`. Raises
    SchemaMismatchError."""
    if not topics and shape.kind != read.kind:
        raise SchemaMismatchError(
            f"topic {name!r} is {shape.kind}; the query began when no topic matched, with the columns of envelope "
            "topics: restart the query to read this topic"
        )
    common_shape({**topics, name: shape})


def follow_schema(name: str, planned: TopicShape, now: TopicShape, read: ReadSchema) -> None:
    """Check that a running query can go on reading a topic whose shape was `planned` and is `now`. The query does not
    read columns that are new.

    Raises SchemaMismatchError if a column the query reads has become wider, or if `now` is no later version of
    `planned`.
    """
    if now == planned:
        return
    if now.kind != planned.kind or not is_evolution(planned.schema, now.schema):
        raise SchemaMismatchError(
            f"topic {name!r} was deleted and created again with other columns: restart the query to read it"
        )
    for f in read.stored_layout:
        current = now.schema.field(f.name).type
        if current != f.type:
            raise SchemaMismatchError(
                f"topic {name!r}: column {f.name!r} is {current} now, it was {f.type} when the query started: restart "
                "the query to continue with the new type. If the query keeps state with the column (groupBy, "
                f"dropDuplicates, max, a join), read it as before: {_cast(f)}"
            )


def changed_columns(name: str, schemas: Mapping[int, pa.Schema], read: ReadSchema) -> str:
    """Return a warning for a query that continues from a checkpoint: it names the columns of `read` that the topic's
    first schema lacks, or has with a narrower type. "" if there are none, and for envelope topics.
    """
    first = schemas[min(schemas)]
    layout = read.stored_layout
    widened = [f for f in layout if first.get_field_index(f.name) >= 0 and first.field(f.name).type != f.type]
    added = [f.name for f in layout if first.get_field_index(f.name) < 0]
    if read.kind == KIND_ENVELOPE or not (widened or added):
        return ""
    was = [f"{f.name!r} was {first.field(f.name).type} and is {f.type}" for f in widened]
    was += [f"{', '.join(map(repr, added))} {'is' if len(added) == 1 else 'are'} new"] if added else []
    ways = [_cast(first.field(f.name)) for f in widened]
    ways += ["select() of the columns that it had"] if added else []
    return (
        f"the columns of topic {name!r} have changed since its creation: {'; '.join(was)}. If Spark refuses this "
        "query's checkpoint (STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE or …_VALUE_…), its state has the earlier columns: "
        f"read those columns, with {' and '.join(ways)}"
    )


def _cast(before: pa.Field) -> str:
    """Return the expression that casts a widened column back to its earlier type."""
    spark = from_arrow_type(before.type).simpleString()
    return f'.withColumn("{before.name}", col("{before.name}").cast("{spark}"))'


def full_schema(shape: TopicShape, *, include_headers: bool, include_metadata: bool) -> ReadSchema:
    """Return all columns of topics of `shape`; `headers` (envelope) and metadata columns (typed) only as asked for."""
    if shape.kind == KIND_ENVELOPE:
        columns = ENVELOPE_COLUMNS + ((HEADERS_COLUMN,) if include_headers else ())
    else:
        columns = tuple(OutputColumn(f.name, f.type, STORED) for f in shape.schema)
        columns += METADATA_COLUMNS if include_metadata else ()
    fixed = [f.name for f in shape.schema if pa.types.is_primitive(f.type)]
    return _read_schema(shape.kind, columns, fixed[0] if fixed else shape.schema.names[0])


def _read_schema(
    kind: str, columns: tuple[OutputColumn, ...], cheapest: str, not_null: frozenset[str] = frozenset()
) -> ReadSchema:
    arrow = pa.schema([pa.field(c.name, c.type, nullable=c.name not in not_null) for c in columns])
    return ReadSchema(kind, columns, arrow, cheapest)


def select(schema: ReadSchema, names: Sequence[str]) -> ReadSchema:
    """Return the columns `names` of `schema`, in that order. Raises SchemaMismatchError for a name
    that is not there."""
    by_name = {c.name: c for c in schema.columns}
    unknown = [n for n in names if n not in by_name]
    if unknown:
        raise SchemaMismatchError(f"the topic has no column {unknown[0]!r}{_hint(unknown[0], by_name)}")
    return _read_schema(schema.kind, tuple(by_name[n] for n in names), schema.cheapest)


def project(schema: ReadSchema, requested: StructType) -> ReadSchema:
    """Return the columns a user's schema names, in its order.

    Raises SchemaMismatchError that names every column that is not there or has another type. A column declared NOT NULL
    is accepted; a null in it fails the read (`BatchAssembler`).
    """
    by_name = {c.name: c for c in schema.columns}
    spark = {f.name: f.dataType for f in schema.spark().fields}
    problems, not_null = [], set()
    for f in requested.fields:
        if f.name not in spark:
            problems.append(f"no column {f.name!r}{_hint(f.name, by_name)}")
            continue
        if f.dataType != spark[f.name]:
            declared, has = f.dataType.simpleString(), spark[f.name].simpleString()
            more = " (declare what is inside it nullable)" if declared == has else ""
            problems.append(f"column {f.name!r} is {has}, the schema says {declared}{more}")
        if not f.nullable:
            not_null.add(f.name)
    if not requested.fields:
        problems.append("the schema has no columns")
    if problems:
        raise SchemaMismatchError("the given schema does not fit the topic: " + "; ".join(problems))
    return _read_schema(
        schema.kind, tuple(by_name[f.name] for f in requested.fields), schema.cheapest, frozenset(not_null)
    )


def _hint(name: str, names: Iterable[str]) -> str:
    if name in {c.name for c in METADATA_COLUMNS}:
        return " (set includeMetadata to true)"
    if name == HEADERS_COLUMN.name:
        return " (set includeHeaders to true)"
    return did_you_mean(name, names)


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark hands over a DataFrame of `schema`, with UTC timestamps.

    Raises SchemaMismatchError for a type that Spark cannot convert to Arrow.
    """
    fields = []
    for f in schema.fields:
        try:
            arrow = arrow_type_of(f.dataType)
        except Exception as e:
            raise SchemaMismatchError(
                f"column {f.name!r} of type {f.dataType.simpleString()} cannot be written: drop or cast it ({e})"
            ) from e
        fields.append(pa.field(f.name, arrow))
    return pa.schema(fields)
