"""Sources with names, by which a checkpoint finds their positions: sources are added, removed, and return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.readwriter import DataStreamReader

SETTINGS = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}

pytestmark = pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="sources have names since Spark 4.2")


@pytest.fixture(autouse=True)
def source_evolution(spark: Any) -> Iterator[None]:
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name in SETTINGS:
        spark.conf.unset(name)


@pytest.fixture
def source(spark: Any, broker: Any) -> Any:
    def build(topic: str, name: str) -> Any:
        reader = spark.readStream.format("sparklog").option("sparklog.bootstrap.servers", broker.bootstrap_servers)
        return reader.name(name).option("subscribe", topic).option("startingOffsets", "earliest").load()

    return build


def test_sources_come_and_go_on_one_checkpoint(
    source: Any, topic: Any, send: Any, collected: Any, tmp_path: Path
) -> None:
    tea, coffee = topic("tea"), topic("coffee", partitions=2)

    def step(*names: str) -> list[str]:
        sources = [source({"tea": tea, "coffee": coffee}[name], name) for name in names]
        frame = sources[0] if len(sources) == 1 else sources[0].union(sources[1])
        values: list[str] = collected().run(frame.groupBy("value").count(), tmp_path, "update").values()
        return values

    send(tea, "t1")
    assert step("tea") == ["t1"]
    send(tea, "t2")
    send(coffee, "c1", partition=1)
    assert step("coffee", "tea") == ["c1", "t2"], "an added source is read from its start, the others go on"
    send(tea, "t3")
    send(coffee, "c2")
    assert step("coffee") == ["c2"], "a removed source is not read, and state stays"
    assert step("tea", "coffee") == ["t3"], "a source that returns goes on"


@pytest.mark.nightly
def test_a_name_belongs_to_a_topic(source: Any, topic: Any, send: Any, collected: Any, tmp_path: Path) -> None:
    """Another name is a new source. Another topic under the name is a loss of data, with the usual switch."""
    tea, coffee = topic("tea"), topic("coffee")
    send(tea, "t1")
    send(coffee, "c1")
    assert collected().run(source(tea, "hot"), tmp_path).values() == ["t1"]
    assert collected().run(source(tea, "warm"), tmp_path).values() == ["t1"]
    with pytest.raises(Exception, match="topics were removed from the subscription"):
        collected().run(source(coffee, "hot"), tmp_path)
    with pytest.raises(Exception, match="DUPLICATE_SOURCE_NAMES"):
        collected().run(source(tea, "hot").union(source(coffee, "hot")), tmp_path / "other")
