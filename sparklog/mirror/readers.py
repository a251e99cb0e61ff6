"""The formats of values that become columns, and the functions that read them."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparklog.errors import InvalidConfigError, LeaderNotAvailableError
from sparklog.format.key_format import SCHEMA_FORMATS
from sparklog.format.schema import canonical_schema
from sparklog.format.schema_evolution import SchemaChange, growth
from sparklog.kafka.values.fitting import ReadHeaders, ReadRows, ReadValues, read_json
from sparklog.kafka.values.header_ids import framed_parts
from sparklog.kafka.values.json_records import parse_rows
from sparklog.kafka.values.keys import Parse, RowForm
from sparklog.kafka.values.schemas import Schemas, SchemasNotLoadedError, key_subject, value_subject
from sparklog.mirror.definition import JSON, REGISTERED_FORMATS, VALUE_FORMATS

if TYPE_CHECKING:  # the parsers of schemas take long to load
    from sparklog.kafka.schemas.schema_types import Parsed


def value_reader(
    value_format: str, schemas: Schemas | None, rows_bytes_max: int, *, follows_registry: bool = False
) -> ReadValues:
    """Return the function that reads values of a format. `schemas`: those of the registry, which formats in
    REGISTERED_FORMATS need. `rows_bytes_max`: largest memory of the rows of one call. `follows_registry`: True for a
    topic that gets the columns of its newest schema: the function raises LeaderNotAvailableError as long as it lacks
    some. Raises InvalidConfigError."""
    if value_format == JSON:
        return read_json
    if value_format not in REGISTERED_FORMATS:
        raise InvalidConfigError(f"value format {value_format!r}: use one of {', '.join(VALUE_FORMATS)}")
    if schemas is None:
        raise InvalidConfigError(
            f"value format {value_format!r} needs a schema registry: name its address (--registry)"
        )
    read = partial(_read_framed, form=value_format, schemas=schemas, rows_bytes_max=rows_bytes_max)
    return partial(_read_following, read, schemas) if follows_registry else read


def _read_framed(
    keys: Any, values: Any, topic: RowForm, form: str, schemas: Schemas, rows_bytes_max: int
) -> pa.RecordBatch:
    """Read values, again if the subject has got a newer schema, which can have the fields that would be dropped."""
    from sparklog.kafka.values.framed_records import rows_of_framed  # late: the parsers of schemas take long to load

    try:
        return rows_of_framed(keys, values, topic, form, schemas, rows_bytes_max)
    except SchemasNotLoadedError:
        return rows_of_framed(keys, values, topic, form, schemas, rows_bytes_max)


def header_reader(value_format: str, schemas: Schemas | None) -> ReadHeaders | None:
    """Return the function that takes the ids of schemas from headers; None for a format without them."""
    if value_format not in REGISTERED_FORMATS or schemas is None:
        return None
    return partial(framed_parts, value_format=value_format, schemas=schemas)


def key_reader(topic: RowForm, schemas: Schemas | None, rows_bytes_max: int) -> Parse:
    """Return the function that reads keys that are no texts. `schemas`: those of the registry, which keys with a schema
    need. Raises InvalidConfigError."""
    if topic.key_format not in SCHEMA_FORMATS:
        return parse_rows
    if schemas is None:
        raise InvalidConfigError(
            f"the keys of topic {topic.name!r} have schemas ({topic.key_format}): name the registry (--registry)"
        )
    from sparklog.kafka.values.framed_keys import read_keys  # late, as above

    return lambda keys, columns, _: read_keys(keys, columns, topic, schemas, rows_bytes_max)


def with_forms(read: ReadRows, topic: RowForm, value_format: str, schemas: Schemas, rows_bytes_max: int) -> ReadRows:
    """Return a function that reads records, and refuses those that no consumer could read."""
    if value_format not in REGISTERED_FORMATS:
        return read
    from sparklog.kafka.values.framed_records import Target  # late, as above
    from sparklog.kafka.values.framed_rows import check_forms

    target = Target(topic.name, value_format, topic.schema, value_subject(topic.name))

    def read_readable(keys: Any, values: Any) -> pa.RecordBatch:
        rows = read(keys, values)
        check_forms(rows, values, target, schemas, rows_bytes_max)
        return rows

    return read_readable


def _read_following(read: ReadValues, schemas: Schemas, keys: Any, values: Any, topic: RowForm) -> pa.RecordBatch:
    """Read values, unless the topic lacks columns of the newest schema, which reading can have loaded. Raises
    LeaderNotAvailableError."""
    try:
        return read(keys, values, topic)
    finally:
        if missing_columns(schemas, topic.name, topic.schema) is not None:
            raise LeaderNotAvailableError(
                f"the newest schema of {value_subject(topic.name)!r} has columns that the topic {topic.name!r} gets soon"
            )


def missing_columns(schemas: Schemas, topic: str, columns: pa.Schema) -> SchemaChange | None:
    """Return the change by which a topic with `columns` gets those of its newest schema; None if it has them. Raises as
    `registered_columns`."""
    change = growth(columns, registered_columns(schemas, topic, columns.names))
    return None if change.add is None and change.widen is None else change


def registered_columns(schemas: Schemas, topic: str, present: Collection[str] = ()) -> pa.Schema:
    """Return the columns of the newest schema of a topic's values. `present`: names of the columns that the topic has,
    which renamed fields keep. Raises InvalidConfigError if the registry has none,
    SchemaMismatchError if a type has no column, and the registry's errors."""
    from sparklog.kafka.values.framed_records import columns_of_schema  # late, as above

    newest = schemas.newest(value_subject(topic))
    if newest is None:
        raise InvalidConfigError(
            f"topic {topic!r} has no columns: the registry has no subject {value_subject(topic)!r}; register its schema, "
            f"or name the columns (--ddl '{topic}=id BIGINT, …')"
        )
    return canonical_schema(columns_of_schema(newest[1], present))


def registered_key(schemas: Schemas, topic: str, form: str) -> tuple[int, Parsed]:
    """Return the newest schema of a topic's keys. `form`: the mirror's format of keys. Raises InvalidConfigError if the
    registry has none, or one of another format; and the registry's errors."""
    from sparklog.kafka.values.framed_keys import form_of_schema  # late, as above

    newest = schemas.newest(key_subject(topic))
    if newest is None:
        raise InvalidConfigError(
            f"the registry has no subject {key_subject(topic)!r}: register the schema of the keys, or leave the format of "
            "the keys out"
        )
    if form_of_schema(newest[1]) != form:
        raise InvalidConfigError(
            f"the newest schema of {key_subject(topic)!r} is of {form_of_schema(newest[1])}, but the format of the keys is "
            f"{form}"
        )
    return newest
