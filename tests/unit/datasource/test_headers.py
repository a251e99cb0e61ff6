"""Topics with columns of their own have no headers: a request for them fails before anything is read or written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from pyspark_sparklog.sink.writer import batch_writer
from pyspark_sparklog.source.catalog import Catalog
from pyspark_sparklog.source.source import infer_schema

from sparklog.errors import InvalidConfigError

NUMBERS = StructType([StructField("n", LongType())])


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = SimpleNamespace(
        kind="typed", schema=pa.schema([("n", pa.int64())]), key_columns=(), partitions=1, schema_id=1, topic_id="id"
    )
    monkeypatch.setattr(Catalog, "topics", lambda *_, **__: {"t": topic})


def given(**more: str) -> dict[str, Any]:
    return {"sparklog.bootstrap.servers": "h:1"} | more


def test_of_a_read() -> None:
    with pytest.raises(InvalidConfigError, match=r"includeHeaders: subscribe t names typed topics"):
        infer_schema(given(subscribe="t", includeheaders="true"))
    assert infer_schema(given(subscribe="t", includeheaders="false")).names == ["n"]


def test_of_a_write() -> None:
    with pytest.raises(InvalidConfigError, match=r"includeHeaders: topic 't' is a typed topic"):
        batch_writer(given(topic="t", includeheaders="true"), NUMBERS, overwrite=False)
