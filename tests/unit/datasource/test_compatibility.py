"""Differences between versions of PySpark, as far as one version shows them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import TimestampNTZType, TimestampType
from pyspark_sparklog import compatibility
from pyspark_sparklog.compatibility import arrow_type_of, check_read_limits
from pyspark_sparklog.source.source import infer_schema

from sparklog.errors import InvalidConfigError


def test_timestamps_come_in_utc() -> None:
    assert arrow_type_of(TimestampType()) == pa.timestamp("us", "UTC")
    assert arrow_type_of(TimestampNTZType()) == pa.timestamp("us")


def test_limits_that_an_old_spark_cannot_keep_are_refused_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    check_read_limits(has_limit=True)
    monkeypatch.setattr(compatibility, "READERS_RECEIVE_THEIR_START", False)
    check_read_limits(has_limit=False)
    read = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "maxOffsetsPerTrigger": "5"}
    with pytest.raises(InvalidConfigError, match=r"need PySpark 4\.2: .* does not pass the start of a micro-batch"):
        infer_schema(read)
