"""Queries of format("sparklog") go on at the copies of their topics, with a checkpoint that was moved there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.client.admin.checkpoint_move import move_checkpoint
from sparklog.client.local import LocalBroker
from sparklog.client.net.cluster import cluster
from sparklog.mirror.worker.worker import MirrorWorker
from tests.support.cases import in_gate

START_S = 300
WAIT_S = 240


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    directory = tmp_path_factory.mktemp("copy")
    with sparklog.start_local(directory, timeout_s=START_S, settings={"mirror.worker.enable": False}) as local:
        yield local


class Move:
    """Queries at a cluster with topics `orders-N…`, and their continuation at the copy of the topics. All values are
    numbers; every third one is in an aborted transaction, so that the offsets have gaps."""

    def __init__(self, spark: Any, source: LocalBroker, target: LocalBroker, topic: str, directory: Path) -> None:
        self.spark = spark
        self.source, self.target = source, target
        self.topic = topic
        self.directory = directory
        self.sent: list[int] = []
        with sparklog.Admin(source.bootstrap_servers) as admin:
            for name in (topic, f"{topic}-late"):
                admin.create_topic(name, 2)

    def send(self, local: LocalBroker, numbers: range) -> None:
        for name in (self.topic, f"{self.topic}-late"):
            with sparklog.Producer(local.bootstrap_servers, transactional_id=f"t-{name}") as producer:
                producer.init_transactions()
                for third in range(3):
                    producer.begin_transaction()
                    for n in numbers:
                        if n % 3 == third:
                            producer.send(name, b"%d" % (n if third else -n - 1), partition=n % 2)
                    (producer.commit_transaction if third else producer.abort_transaction)()
        self.sent += [n for n in numbers if n % 3]

    def mirror(self) -> None:
        """Copy the topics up to their present ends."""
        with sparklog.Admin(self.target.bootstrap_servers) as admin:
            if self.topic not in admin.list_topics():
                url = f"sparklog://{self.source.bootstrap_servers}"
                admin.create_mirror(self.topic, source=url, topics=f"{self.topic}.*")
        worker = MirrorWorker(self.target.bootstrap_servers)
        assert worker.run_once([self.topic]) == {}
        worker.close()

    def promote(self) -> None:
        with sparklog.Admin(self.target.bootstrap_servers) as admin:
            admin.promote_mirror(self.topic)

    def rows(self, local: LocalBroker, **options: str) -> Any:
        options = {"subscribe": self.topic, "startingOffsets": "earliest"} | options
        if "subscribePattern" in options:
            del options["subscribe"]
        reader = self.spark.readStream.format("sparklog").options(**options)
        frame = reader.option("sparklog.bootstrap.servers", local.bootstrap_servers).load()
        return frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS n", "timestamp")

    def checkpoint(self, name: str, at: LocalBroker) -> Path:
        return self.directory / f"{name}-{'new' if at is self.target else 'old'}"

    def run(self, name: str, at: LocalBroker, start: Callable[[LocalBroker], Any]) -> None:
        writer = start(at).option("checkpointLocation", str(self.checkpoint(name, at)))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)

    def move(self, name: str) -> Any:
        old, new = self.checkpoint(name, self.source), self.checkpoint(name, self.target)
        return move_checkpoint(cluster(self.target.bootstrap_servers), str(old), str(new), timeout_ms=60_000)

    def forget_commit(self, name: str) -> None:
        """Make the last micro-batch one that was planned and has run, and whose commit the driver has not noted."""
        commits = self.checkpoint(name, self.source) / "commits"
        last = max(int(p.name) for p in commits.iterdir() if p.name.isdecimal())
        for file in (str(last), f".{last}.crc"):
            (commits / file).unlink(missing_ok=True)


@pytest.fixture
def move(spark: Any, broker: LocalBroker, target: LocalBroker, topic_name: Any, tmp_path: Path) -> Move:
    return Move(spark, broker, target, topic_name("orders"), tmp_path)


class Forms:
    """Forms of queries, and their results."""

    def __init__(self, move: Move, sinks: sparklog.LocalBroker) -> None:
        self._move = move
        self._sinks = sinks
        self._directory = move.directory

    def pattern(self, at: LocalBroker) -> Any:
        return self._each_batch(self._move.rows(at, subscribePattern=f"{self._move.topic}.*"), "pattern")

    def union(self, at: LocalBroker) -> Any:
        late = self._move.rows(at, subscribe=f"{self._move.topic}-late")
        return self._each_batch(self._move.rows(at).unionByName(late), "union")

    def sums(self, at: LocalBroker) -> Any:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own short name

        def write(batch: Any, _: int) -> None:
            rows = sorted([row.k, row.many, row.total] for row in batch.collect())
            (self._directory / "sums.json").write_text(json.dumps(rows))

        keyed = self._move.rows(at).withColumn("k", F.expr("n % 4"))
        grouped = keyed.groupBy("k").agg(F.count("*").alias("many"), F.sum("n").alias("total"))
        return grouped.writeStream.outputMode("complete").foreachBatch(write)

    def sink(self, at: LocalBroker) -> Any:
        """Write into a topic of a cluster that is not mirrored."""
        rows = self._move.rows(at).selectExpr("CAST(n AS STRING) AS value")
        options = {"sparklog.bootstrap.servers": self._sinks.bootstrap_servers, "topic": f"out-{self._move.topic}"}
        return rows.writeStream.format("sparklog").options(**options)

    def _each_batch(self, rows: Any, name: str) -> Any:
        """Write a file for each micro-batch: a repetition replaces it."""
        folder = self._directory / f"{name}-batches"
        folder.mkdir(exist_ok=True)

        def write(batch: Any, batch_id: int) -> None:
            (folder / f"{batch_id:05}").write_text(json.dumps([row.n for row in batch.collect()]))

        return rows.writeStream.foreachBatch(write)

    def result(self, name: str) -> Any:
        if name == "sums":
            return json.loads((self._directory / "sums.json").read_text())
        if name == "sink":
            table = sparklog.read_table(self._sinks.bootstrap_servers, f"out-{self._move.topic}")
            return sorted(int(value) for value in table.column("value").to_pylist())
        files = (self._directory / f"{name}-batches").iterdir()
        return sorted(n for file in files for n in json.loads(file.read_text()))

    def expected(self, name: str) -> Any:
        numbers = sorted(self._move.sent)
        if name == "sums":
            keys = sorted({n % 4 for n in numbers})
            return [[k, len(own := [n for n in numbers if n % 4 == k]), sum(own)] for k in keys]
        return sorted(numbers * 2) if name in ("pattern", "union") else numbers


SETS = {"gate": ("sums", "sink"), "several-sources": ("union", "pattern")}


@pytest.mark.parametrize("chosen", in_gate(SETS, "gate"))
def test_each_record_is_stored_once_over_the_move(move: Move, broker: LocalBroker, chosen: str) -> None:
    """A query goes on at its commit, and with the batch that it has planned: before the promotion, and after it."""
    forms, names = Forms(move, broker), SETS[chosen]
    move.send(broker, range(20))
    for name in names:
        move.run(name, broker, getattr(forms, name))
    move.send(broker, range(20, 30))
    for name in names:
        move.run(name, broker, getattr(forms, name))
        move.forget_commit(name)
    move.send(broker, range(30, 40))
    move.mirror()
    for name in names:
        assert move.move(name).is_planned
        move.run(name, move.target, getattr(forms, name))
        assert forms.result(name) == forms.expected(name), name
    move.promote()
    move.send(move.target, range(40, 50))
    for name in names:
        move.run(name, move.target, getattr(forms, name))
        assert forms.result(name) == forms.expected(name), name


@pytest.mark.nightly
def test_a_batch_read_passes_over_the_gaps_of_a_copy(move: Move, broker: LocalBroker) -> None:
    move.send(broker, range(12))
    move.mirror()
    read = move.spark.read.format("sparklog").option("sparklog.bootstrap.servers", move.target.bootstrap_servers)
    rows = read.option("subscribe", move.topic).load().selectExpr("CAST(CAST(value AS STRING) AS INT) AS n", "offset")
    found = rows.collect()
    assert sorted(row.n for row in found) == move.sent
    assert max(row.offset for row in found) >= len(found) // 2  # aborted records and markers took offsets


@pytest.mark.nightly
def test_the_old_checkpoint_itself_is_refused_by_the_query(move: Move, broker: LocalBroker) -> None:
    forms = Forms(move, broker)
    move.send(broker, range(6))
    move.run("union", broker, forms.union)
    move.mirror()
    shutil.copytree(move.checkpoint("union", broker), move.checkpoint("union", move.target))
    with pytest.raises(Exception, match="deleted and created again"):
        move.run("union", move.target, forms.union)
