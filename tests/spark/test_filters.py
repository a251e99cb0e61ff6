"""Queries with filters on one DataFrame after the other, with Spark's filter pushdown switched on."""

from __future__ import annotations

from typing import Any

import pyspark
import pytest

SETTING = "spark.sql.python.filterPushdown.enabled"


@pytest.mark.skipif(pyspark.__version__.startswith("4.0."), reason="Spark 4.0 has no such setting")
def test_no_query_sees_the_filters_of_another(reads: Any, topic: Any, send: Any, spark: Any) -> None:
    name = topic(partitions=2)
    for p in range(2):
        send(name, *[f"{p}{i}" for i in range(5)], partition=p)
    spark.conf.set(SETTING, "true")
    try:
        frame = reads.batch(name)
        assert frame.where("offset = 4 and partition = 0").count() == 1
        assert frame.where("offset > 3 or partition = 1").count() == 6
        assert frame.count() == 10
    finally:
        spark.conf.set(SETTING, "false")
