"""The forms of a topic's columns in a call: an Arrow schema, Spark's schema or DDL, or names with their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from sparklog.format.ddl import parse_ddl
from sparklog.format.spark_json import parse_spark_json


class SparkStructType(Protocol):
    """PySpark's `StructType`, which is not imported here."""

    def json(self) -> str: ...
    def fieldNames(self) -> list[str]: ...  # noqa: N802 - Spark's name


class ArrowSchema(Protocol):
    """A schema of another library that speaks Arrow's C interface."""

    def __arrow_c_schema__(self) -> object: ...


Columns = pa.Schema | SparkStructType | ArrowSchema | str | Mapping[str, Any]


def arrow_schema_of(argument: str, schema: Any) -> pa.Schema:
    """Return the Arrow schema of `schema`.

    Raises InvalidTopicError (a DDL string or a StructType that a topic cannot have), TypeError (not a schema).
    """
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        return parse_ddl(schema)
    try:
        if isinstance(schema, Mapping):
            return pa.schema(list(schema.items()))
        if hasattr(schema, "__arrow_c_schema__"):
            return pa.schema(schema)
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise TypeError(f"{argument} = {schema!r:.200}: the names and Arrow types of columns are needed ({e})") from e
    if callable(getattr(schema, "json", None)) and hasattr(schema, "fieldNames"):
        return parse_spark_json(schema.json())
    raise TypeError(
        f"{argument} is a {type(schema).__name__}: a pyarrow.Schema (or what has __arrow_c_schema__), a Spark "
        "StructType, a DDL string such as 'zone STRING, minutes DOUBLE', or {name: Arrow type} is needed"
    )
