"""Spark's JSON form of a schema (`df.schema.json()`) as an Arrow schema, without Spark."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pyarrow as pa

from sparklog.errors import InvalidTopicError
from sparklog.format.ddl import parse_ddl

_SPARK_TYPES = {
    "integer": "INT",
    "long": "BIGINT",
    "short": "SMALLINT",
    "byte": "TINYINT",
    "interval day to second": "INTERVAL DAY TO SECOND",
}
"""Names of types in Spark's JSON that differ from those of the DDL."""


def parse_spark_json(text: str) -> pa.Schema:
    """Return the Arrow schema for the JSON text of a Spark schema (`df.schema.json()`). Raises InvalidTopicError for
    other JSON, and for a type that a topic cannot have."""
    try:
        root = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as e:
        raise InvalidTopicError(f"schema: not JSON ({e})") from e
    if not isinstance(root, dict) or root.get("type") != "struct":
        raise InvalidTopicError('schema: Spark\'s JSON begins with {"type": "struct", …}: write df.schema.json() there')
    return pa.schema(list(_spark_type(root, "the schema")))


def _spark_type(described: Any, where: str) -> Any:
    try:
        if isinstance(described, str):
            with suppress(InvalidTopicError):  # whose position is not one in the given text
                return parse_ddl("x " + _SPARK_TYPES.get(described, described)).field(0).type
            raise _not_taken(where, described)
        kind = described["type"]
        if kind == "struct":
            inside = "" if where == "the schema" else f"{where}, "
            word = "field" if inside else "column"
            return pa.struct(
                [(f["name"], _spark_type(f["type"], f"{inside}{word} {f['name']!r}")) for f in described["fields"]]
            )
        if kind == "array":
            return pa.list_(pa.field("element", _spark_type(described["elementType"], where)))
        if kind == "map":
            return pa.map_(_spark_type(described["keyType"], where), _spark_type(described["valueType"], where))
    except (KeyError, TypeError, IndexError) as e:
        raise InvalidTopicError(f"schema: {where} is not Spark's JSON form ({e!r} is missing or wrong)") from e
    raise _not_taken(where, described)


def _not_taken(where: str, described: Any) -> InvalidTopicError:
    return InvalidTopicError(
        f"schema: {where} has the unknown type {described!r}, which a topic cannot hold: cast it before"
    )
