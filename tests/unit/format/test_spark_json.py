"""Spark's JSON form of a schema: types that a topic cannot hold are refused with the column's name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparklog.errors import InvalidTopicError
from sparklog.format.spark_json import parse_spark_json
from tests.support.cases import for_each


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
