"""The readers of `DefaultSource`, from options and a schema."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from pyspark_sparklog.compatibility import check_read_limits
from pyspark_sparklog.options.option_names import warn_once
from pyspark_sparklog.options.option_table import OptionUse
from pyspark_sparklog.options.options import SourceOptions, no_headers, parse_source_options
from pyspark_sparklog.options.table_options import kept_with, of_new_table, of_read, readable
from pyspark_sparklog.schemas import ReadSchema, TopicShape, common_shape, full_schema, project, select
from pyspark_sparklog.source.catalog import Catalog, shapes_of
from pyspark_sparklog.source.reader import SparklogBatchReader
from pyspark_sparklog.source.stream_reader import SparklogStreamReader
from sparklog.errors import SchemaMismatchError
from sparklog.format.schema import ENVELOPE_SCHEMA, KIND_ENVELOPE


def infer_schema(values: Mapping[str, str]) -> StructType:
    """Return the schema of the topics that the options name. The schema of a table that Spark creates contains the
    table's options."""
    table = of_new_table(values)
    if table is not None:
        return kept_with(infer_schema(readable(table)), table)
    options = parse_source_options(values, streaming=None)
    check_read_limits(options.limits_batches)
    warn_once(options.remarks)
    full, _ = _full_schema(options, wait_ms=0)
    return (full if options.columns is None else select(full, options.columns)).spark()


def batch_reader(values: Mapping[str, str], schema: StructType) -> SparklogBatchReader:
    """Return the reader of a batch read whose rows have `schema`: the inferred one, or the user's."""
    values = of_read(values, schema, OptionUse.BATCH)
    options = parse_source_options(values, streaming=False)
    reported = parse_source_options(values, streaming=None).remarks
    warn_once(tuple(r for r in options.remarks if r not in reported))
    full, _ = _full_schema(options, wait_ms=0)
    return SparklogBatchReader(options, _picked_schema(options, full, schema))


def stream_reader(values: Mapping[str, str], schema: StructType) -> SparklogStreamReader:
    """Return the reader of a streaming query whose rows have `schema`: the inferred one, or the user's."""
    options = parse_source_options(of_read(values, schema, OptionUse.STREAM), streaming=True)
    check_read_limits(options.limits_batches)
    full, topics = _full_schema(options, wait_ms=options.broker_wait_ms)
    return SparklogStreamReader(options, _picked_schema(options, full, schema), topics)


def _picked_schema(options: SourceOptions, full: ReadSchema, schema: StructType) -> ReadSchema:
    """Return the columns of `full` that `schema` names. Raises SchemaMismatchError if `schema` does not fit the topics,
    or names other columns than the option `columns`."""
    picked = project(full, schema)
    if options.columns is not None and options.columns != tuple(schema.fieldNames()):
        raise SchemaMismatchError(
            f"the option columns ({', '.join(options.columns)}) and the given schema "
            f"({', '.join(schema.fieldNames())}) "
            "pick different columns: leave one of them out"
        )
    return picked


def _full_schema(options: SourceOptions, *, wait_ms: int) -> tuple[ReadSchema, dict[str, TopicShape]]:
    """Return all columns that a query can select, and the topics' shapes. While a pattern matches no topic, the columns
    are those of an envelope topic, as in Kafka's source.
    """
    catalog = Catalog(options.address, wait_ms, request_timeout_ms=options.request_timeout_ms)
    topics = shapes_of(catalog.topics(options.subscription, missing_is_error=True))
    shape = common_shape(topics) if topics else TopicShape(KIND_ENVELOPE, ENVELOPE_SCHEMA)
    if options.include_headers and shape.kind != KIND_ENVELOPE:
        raise no_headers(f"{options.subscription.describe()} names typed topics")
    full = full_schema(shape, include_headers=options.include_headers, include_metadata=options.include_metadata)
    return full, topics
