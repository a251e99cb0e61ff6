"""From options and a schema to a reader: what `DefaultSource` hands out for reading."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark.sql.types import StructType

from pyspark_sparklog.catalog import Catalog, shapes_of
from pyspark_sparklog.options import SourceOptions, parse_source_options
from pyspark_sparklog.reader import SparklogBatchReader
from pyspark_sparklog.schemas import ReadSchema, TopicShape, common_shape, full_schema, project, select
from pyspark_sparklog.stream_reader import SparklogStreamReader
from sparklog.errors import SchemaMismatchError

log = logging.getLogger("pyspark_sparklog")


def infer_schema(given: Mapping[str, str]) -> StructType:
    """The schema of the topics that the options name."""
    options = parse_source_options(given, streaming=None)
    if options.ignored:
        log.warning("options without effect: %s", "; ".join(options.ignored))
    full, _ = _full_schema(options, wait_ms=0)
    return (full if options.columns is None else select(full, options.columns)).spark()


def batch_reader(given: Mapping[str, str], schema: StructType) -> SparklogBatchReader:
    """The reader of a batch read whose rows have `schema`: the inferred one, or the user's."""
    options = parse_source_options(given, streaming=False)
    full, _ = _full_schema(options, wait_ms=0)
    return SparklogBatchReader(options, _picked(options, full, schema))


def stream_reader(given: Mapping[str, str], schema: StructType) -> SparklogStreamReader:
    """The reader of a streaming query whose rows have `schema`: the inferred one, or the user's."""
    options = parse_source_options(given, streaming=True)
    full, topics = _full_schema(options, wait_ms=options.broker_wait_ms)
    return SparklogStreamReader(options, _picked(options, full, schema), topics)


def _picked(options: SourceOptions, full: ReadSchema, schema: StructType) -> ReadSchema:
    """The columns `schema` picks. Raises SchemaMismatchError if it does not fit or contradicts the option `columns`."""
    picked = project(full, schema)
    if options.columns is not None and options.columns != tuple(schema.fieldNames()):
        raise SchemaMismatchError(
            f"the option columns ({', '.join(options.columns)}) and the given schema ({', '.join(schema.fieldNames())}) "
            "pick different columns: leave one of them out"
        )
    return picked


def _full_schema(options: SourceOptions, *, wait_ms: int) -> tuple[ReadSchema, dict[str, TopicShape]]:
    """All columns there are to pick from, and the topics' shapes."""
    topics = shapes_of(Catalog(options.bootstrap_servers, wait_ms).topics(options.subscription, missing_is_error=True))
    full = full_schema(
        common_shape(topics), include_headers=options.include_headers, include_metadata=options.include_metadata
    )
    return full, topics
