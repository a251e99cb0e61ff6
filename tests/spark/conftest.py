"""One Spark session and one broker for all tests here: both are expensive to start."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.spark_settings import CHECKPOINT_FILES, published_settings

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)


def checkpoint_files(published: str) -> str:
    """The class under the name it has in this PySpark."""
    from pyspark import __version__

    return published.replace(".checkpointing.", ".") if __version__.startswith("4.0.") else published


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,2]")
        .appName("sparklog-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.pollingDelay", "10ms")
        .config(CHECKPOINT_FILES, checkpoint_files(published_settings()[CHECKPOINT_FILES]))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sparklog.LocalBroker]:
    with sparklog.start_local(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture(scope="session")
def admin(broker: sparklog.LocalBroker) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(broker.bootstrap_servers) as made:
        yield made


@pytest.fixture(scope="session")
def producer(broker: sparklog.LocalBroker) -> Iterator[sparklog.Producer]:
    with sparklog.Producer(broker.bootstrap_servers, linger_ms=0) as made:
        yield made


_numbers = itertools.count()


@pytest.fixture
def topic_name() -> Callable[[str], str]:
    """A name no other test uses."""
    return lambda prefix: f"{prefix}-{next(_numbers)}"


@pytest.fixture
def topic(admin: sparklog.Admin, topic_name: Callable[[str], str]) -> Callable[..., str]:
    """Creates a topic and returns its name; keyword arguments as Admin.create_topic's."""

    def create(prefix: str = "t", partitions: int = 1, **more: Any) -> str:
        name = topic_name(prefix)
        admin.create_topic(name, partitions=partitions, **more)
        return name

    return create


class Reads:
    """Builds reads against the broker: `reads.batch("t", startingOffsets=…)`."""

    def __init__(self, spark: Any, bootstrap_servers: str) -> None:
        self.spark = spark
        self.bootstrap_servers = bootstrap_servers

    def _options(self, topic: str | None, options: dict[str, Any]) -> dict[str, Any]:
        subscription = {"subscribe": topic} if topic else {}
        return {"sparklog.bootstrap.servers": self.bootstrap_servers} | subscription | options

    def batch(self, topic: str | None = None, schema: Any = None, **options: Any) -> Any:
        reader = self.spark.read.format("sparklog").options(**self._options(topic, options))
        return (reader if schema is None else reader.schema(schema)).load()

    def stream(self, topic: str | None = None, schema: Any = None, **options: Any) -> Any:
        reader = self.spark.readStream.format("sparklog").options(**self._options(topic, options))
        return (reader if schema is None else reader.schema(schema)).load()


@pytest.fixture
def reads(spark: Any, broker: sparklog.LocalBroker) -> Reads:
    return Reads(spark, broker.bootstrap_servers)


class Collected:
    """A foreachBatch sink that keeps the rows of every micro-batch on the driver."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Any]]] = []

    def __call__(self, frame: Any, batch_id: int) -> None:
        self.batches.append((batch_id, frame.collect()))

    @property
    def rows(self) -> list[Any]:
        return [row for _, rows in self.batches for row in rows]

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in self.batches]

    def values(self) -> list[str]:
        """The values of an envelope topic as text, sorted."""
        return sorted(bytes(row.value).decode() for row in self.rows)

    def run(self, frame: Any, checkpoint: Path | None = None, mode: str = "append") -> Collected:
        """Runs `frame` with Trigger.AvailableNow to its end; `mode`: Spark's output mode."""
        writer = frame.writeStream.foreachBatch(self).outputMode(mode).trigger(availableNow=True)
        if checkpoint is not None:
            writer = writer.option("checkpointLocation", str(checkpoint))
        query = writer.start()
        try:
            assert query.awaitTermination(90)
        finally:
            query.stop()
        return self


@pytest.fixture
def collected() -> Callable[[], Collected]:
    return Collected


@pytest.fixture
def send(producer: sparklog.Producer) -> Callable[..., None]:
    """Sends texts to one partition of an envelope topic and waits until they are stored."""

    def send_all(topic: str, *values: str, partition: int = 0, **more: Any) -> None:
        futures = [producer.send(topic, value=v.encode(), partition=partition, **more) for v in values]
        for future in futures:
            future.result(30)

    return send_all
