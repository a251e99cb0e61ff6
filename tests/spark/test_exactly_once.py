"""The sink, exactly once: Spark's reactions to failures, and the readers' view of them.

The first half plays Spark's part by hand, for every order of events; in the second half a real query fails.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from pyspark_sparklog.sink import publication, sink_task
from pyspark_sparklog.sink.producers import ProducerPool
from pyspark_sparklog.sink.writer import SparklogStreamWriter, stream_writer

import sparklog
from sparklog.errors import ProducerFencedError, TransactionAbortedError
from sparklog.types import ISOLATION_LEVELS
from tests.spark import faulty_source
from tests.support.cases import in_gate

VALUE = StructType([StructField("value", StringType())])


def options(broker: sparklog.LocalBroker, **more: Any) -> dict[str, str]:
    return {"sparklog.bootstrap.servers": broker.bootstrap_servers} | more


def visible(broker: sparklog.LocalBroker, topic: str, isolation: str = "read_committed", **how: Any) -> list[str]:
    table = sparklog.read_table(broker.bootstrap_servers, topic, isolation_level=isolation, **how)
    return sorted(v.decode() for v in table.column("value").to_pylist())


def stored(broker: sparklog.LocalBroker, topic: str) -> list[str]:
    return visible(broker, topic, "read_uncommitted")


class Task:
    """The task context of one attempt."""

    def __init__(self, run: Run, batch_id: int, partition: int, attempt: int) -> None:
        self.properties = {
            "sql.streaming.queryId": run.query_id,
            "spark.jobGroup.id": run.run_id,
            "streaming.sql.batchId": str(batch_id),
        }
        self.place = (partition, attempt)

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)

    def partitionId(self) -> int:
        return self.place[0]

    def attemptNumber(self) -> int:
        return self.place[1]


class Run:
    """One run of a query's driver: makes a writer for each batch, runs attempts of its tasks, commits or aborts."""

    def __init__(self, query_id: str, run_id: str, given: dict[str, str], patch: pytest.MonkeyPatch) -> None:
        self.query_id = query_id
        self.run_id = run_id
        self.given = given
        self._patch = patch

    def writer(self) -> SparklogStreamWriter:
        return stream_writer(self.given, VALUE, overwrite=False)

    def attempt(
        self,
        writer: SparklogStreamWriter,
        batch_id: int,
        *values: str,
        partition: int = 0,
        attempt: int = 0,
        between: Callable[[], None] = lambda: None,
    ) -> Any:
        """Runs one attempt; `between` is called when it has joined and before it has sent anything."""

        def rows() -> Iterator[pa.RecordBatch]:
            big = "x" * 5_000_000  # more than is gathered: the first piece is sent before the second is asked for
            if values:
                yield pa.record_batch({"value": [*values, big]})
                between()
                yield pa.record_batch({"value": ["last of " + values[0]]})

        context, pool = Task(self, batch_id, partition, attempt), ProducerPool()
        with self._patch.context() as patch:
            patch.setattr(publication.TaskContext, "get", classmethod(lambda _: context))  # type: ignore[attr-defined]
            patch.setattr(sink_task, "producers", pool)  # attempts at the same time are processes of their own
            try:
                return writer.write(rows())
            finally:
                pool.close()

    def batch(self, batch_id: int, *values: str) -> None:
        """A whole batch of one task that goes well."""
        writer = self.writer()
        self.writer().commit([self.attempt(writer, batch_id, *values)], batch_id)


@pytest.fixture
def run(broker: sparklog.LocalBroker, topic: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Makes runs of one query that writes to one topic of four partitions, `run.topic`."""
    name = topic("out", partitions=4)
    made: list[Run] = []

    def make() -> Run:
        one = Run(f"query-of-{name}", f"run-{len(made)}", options(broker, topic=name), monkeypatch)
        made.append(one)
        return one

    make.topic = name  # type: ignore[attr-defined]
    return make


def short(values: list[str]) -> list[str]:
    return [v for v in values if len(v) < 100 and not v.startswith("last of")]


def test_no_record_is_visible_before_the_commit_and_all_after(run: Any, broker: sparklog.LocalBroker) -> None:
    one = run()
    writer = one.writer()
    messages = [one.attempt(writer, 0, f"a{i}", f"b{i}", partition=i) for i in range(3)]
    assert len(stored(broker, run.topic)) == 12
    assert visible(broker, run.topic) == visible(broker, run.topic, local="off") == []
    one.writer().commit(messages, 0)
    assert len(visible(broker, run.topic)) == len(visible(broker, run.topic, local="off")) == 12


def test_a_batch_that_is_committed_is_not_written_again(run: Any, broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    """The driver died between the decision and Spark's commit log; the batch is run again with other rows and tasks,
    and the checkpoint says that it is the same."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"in":{"0":2}}')
    (tmp_path / "metadata").write_text(json.dumps({"id": run().query_id}))
    one = run()
    one.given["checkpointLocation"] = str(tmp_path)
    one.batch(0, "a", "b")
    two = run()
    two.given["checkpointLocation"] = str(tmp_path)
    writer = two.writer()
    messages = [two.attempt(writer, 0, "other", partition=0), two.attempt(writer, 0, "rows", partition=1)]
    assert [m.producer_id for m in messages] == [-1, -1]
    two.writer().commit(messages, 0)
    two.batch(1, "c")
    assert short(stored(broker, run.topic)) == short(visible(broker, run.topic)) == ["a", "b", "c"]


def test_an_abort_after_the_commit_has_no_effect(run: Any, broker: sparklog.LocalBroker) -> None:
    one = run()
    messages = [one.attempt(one.writer(), 0, "a")]
    one.writer().commit(messages, 0)
    one.writer().abort(messages, 0)
    one.writer().commit(messages, 0)  # again: the same decision
    assert short(visible(broker, run.topic)) == ["a"]


def test_a_failed_attempt_stays_invisible_and_the_batch_can_be_run_again(
    run: Any, broker: sparklog.LocalBroker
) -> None:
    one = run()
    messages = [one.attempt(one.writer(), 0, "a"), None]
    one.writer().abort(messages, 0)
    with pytest.raises(TransactionAbortedError, match="run it again"):
        one.writer().commit(messages[:1], 0)
    run().batch(0, "b", "c")
    assert short(visible(broker, run.topic)) == ["b", "c"]


def test_only_one_attempt_of_a_task_counts(run: Any, broker: sparklog.LocalBroker) -> None:
    """Failed attempts and speculative copies have written, too; the driver names those it has accepted."""
    one = run()
    writer = one.writer()
    one.attempt(writer, 0, "a", attempt=0)
    winner = one.attempt(writer, 0, "a", attempt=1)
    one.attempt(writer, 0, "a", attempt=2)
    one.writer().commit([winner], 0)
    assert short(visible(broker, run.topic)) == short(visible(broker, run.topic, local="off")) == ["a"]
    assert short(stored(broker, run.topic)) == ["a", "a", "a"]


def test_a_speculative_copy_cannot_write_after_the_commit(run: Any, broker: sparklog.LocalBroker) -> None:
    one = run()
    writer = one.writer()

    def commit() -> None:
        one.writer().commit([one.attempt(writer, 0, "a", attempt=1)], 0)

    with pytest.raises(sparklog.SparklogError) as failed:
        one.attempt(writer, 0, "a", between=commit)
    assert not failed.value.retriable
    assert short(visible(broker, run.topic)) == ["a"]


def test_a_zombie_of_an_older_run_can_neither_write_join_nor_commit(run: Any, broker: sparklog.LocalBroker) -> None:
    old, new = run(), run()
    old_writer = old.writer()
    finished = old.attempt(old_writer, 0, "zombie", partition=1)
    with pytest.raises(sparklog.SparklogError) as failed:
        old.attempt(old_writer, 0, "zombie", between=lambda: new.batch(0, "a"))
    assert not failed.value.retriable
    with pytest.raises(ProducerFencedError, match="a newer run has taken over"):
        old.attempt(old_writer, 0, "zombie")
    for batch_id in (0, 1):
        with pytest.raises(ProducerFencedError, match="a newer run has taken over"):
            old.attempt(old.writer(), batch_id, "zombie")  # not even with a new fencing token
    with pytest.raises(ProducerFencedError):
        old.writer().commit([finished], 0)
    old.writer().abort([finished], 0)
    new.batch(1, "b")
    assert short(visible(broker, run.topic)) == ["a", "b"]


def test_a_batch_without_rows_writes_no_record_and_fences_an_older_run(run: Any, broker: sparklog.LocalBroker) -> None:
    old, new = run(), run()
    left = old.attempt(old.writer(), 0, "a")
    before = len(stored(broker, run.topic))
    writer = new.writer()
    new.writer().commit([new.attempt(writer, 0), new.attempt(writer, 0, partition=1)], 0)
    with pytest.raises(ProducerFencedError):
        old.writer().commit([left], 0)
    assert len(stored(broker, run.topic)) == before
    assert visible(broker, run.topic) == []
    new.batch(1, "b")
    assert short(visible(broker, run.topic)) == ["b"]


def test_a_failed_batch_of_which_no_task_reported_is_aborted(run: Any, admin: Any) -> None:
    """Or its records would hold up the readers until the timeout, if the query is not started again."""
    one = run()
    one.given["checkpointLocation"] = f"/checkpoints/{run.topic}"
    tps = [sparklog.TopicPartition(run.topic, p) for p in range(4)]

    def held_up() -> int:
        ends = [admin.list_offsets(dict.fromkeys(tps, "latest"), isolation_level=i) for i in ISOLATION_LEVELS]
        return sum(abs(ends[0][tp].offset - ends[1][tp].offset) for tp in tps)

    def fail() -> None:
        deadline = time.monotonic() + 30
        while not held_up():  # what is not on its way yet would be dropped
            assert time.monotonic() < deadline
            time.sleep(0.005)
        raise RuntimeError("in the middle")

    one.batch(0, "a")
    with pytest.raises(RuntimeError, match="in the middle"):
        one.attempt(one.writer(), 1, "b", between=fail)
    assert held_up() > 0
    one.writer().abort([None], 1)
    assert held_up() == 0
    run().batch(1, "b")


def test_messages_of_another_batch_are_refused(run: Any) -> None:
    one = run()
    message = one.attempt(one.writer(), 7, "a")
    with pytest.raises(sparklog.SparklogError, match="batch 7 reported for batch 8"):
        one.writer().commit([message], 8)
    one.writer().abort([message], 7)


# -- a real query


class Copy:
    """A query that copies a topic, with a fault in it if one is named, run after run with the same checkpoint."""

    def __init__(self, reads: Any, broker: sparklog.LocalBroker, source: str, target: str, directory: Path) -> None:
        self.reads = reads
        self.broker = broker
        self.source = source
        self.target = target
        self.directory = directory

    def run(self, fault: str | None = None, tasks: int | None = None, **more: Any) -> Exception | None:
        """Run to the end of the present records; returns the query's error."""
        given = options(self.broker, topic=self.target, checkpointLocation=str(self.directory / "checkpoint"), **more)
        if fault is not None:
            given |= {"fault": fault, "mark": str(self.directory / f"mark-{fault.replace(':', '-')}")}
        frame = self.reads.stream(self.source, startingOffsets="earliest").select("value", "partition")
        if tasks is not None:
            frame = frame.repartition(tasks)
        query = (
            frame.writeStream.format("sparklog" if fault is None else "sparklog-faulty")
            .options(**given)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        except Exception as e:  # noqa: BLE001  Spark's exceptions have no common base of their own
            return e
        return None


@pytest.fixture
def copy(spark: Any, reads: Any, topic: Any, send: Any, broker: sparklog.LocalBroker, tmp_path: Path) -> Copy:
    faulty_source.register(spark)
    source, target = topic("in", partitions=2), topic("out", partitions=2)
    send(source, "a", "b")
    send(source, "c", partition=1)
    return Copy(reads, broker, source, target, tmp_path)


def test_a_driver_that_fails_between_the_decision_and_sparks_own(copy: Copy, send: Any) -> None:
    error = copy.run("sink.after-commit:raise")
    assert "InjectedFault" in str(error)
    assert visible(copy.broker, copy.target) == ["a", "b", "c"], "decided, though Spark has aborted it after that"
    send(copy.source, "d", partition=1)
    assert copy.run(tasks=3) is None
    assert visible(copy.broker, copy.target) == stored(copy.broker, copy.target) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "fault",
    in_gate(["sink.after-write:raise", "sink.after-write:kill", "sink.after-join:kill"], "sink.after-write:kill"),
)
def test_a_task_that_fails_or_dies_is_tried_again(copy: Copy, fault: str) -> None:
    assert copy.run(fault) is None
    assert visible(copy.broker, copy.target) == ["a", "b", "c"]
    assert len(stored(copy.broker, copy.target)) > 3 or "join" in fault, "the lost attempt has written"


def test_a_failed_batch_is_run_again_with_other_tasks(copy: Copy, send: Any) -> None:
    assert "InjectedFault" in str(copy.run("sink.before-commit:raise"))
    assert visible(copy.broker, copy.target) == []
    send(copy.source, "d")
    assert copy.run(tasks=1) is None
    assert visible(copy.broker, copy.target) == ["a", "b", "c", "d"]
    assert stored(copy.broker, copy.target) == ["a", "a", "b", "b", "c", "c", "d"]


def test_at_least_once_is_an_option(copy: Copy) -> None:
    assert copy.run(**{"sparklog.delivery.guarantee": "at-least-once"}) is None  # type: ignore[arg-type]
    assert visible(copy.broker, copy.target) == ["a", "b", "c"]


# -- batch writes


def append(frame: Any, broker: sparklog.LocalBroker, source: str = "sparklog", **more: Any) -> None:
    frame.write.format(source).mode("append").options(**options(broker, **more)).save()


def test_a_batch_write_is_atomic(spark: Any, topic: Any, broker: sparklog.LocalBroker, tmp_path: Path) -> None:
    faulty_source.register(spark)
    a, b = topic("a"), topic("b")
    frame = spark.createDataFrame([(a, "1"), (b, "2")], "topic string, value string").repartition(2)
    with pytest.raises(Exception, match="InjectedFault"):
        append(frame, broker, "sparklog-faulty", fault="sink.before-commit:raise", mark=str(tmp_path / "mark"))
    assert stored(broker, a) + stored(broker, b) == ["1", "2"]
    assert visible(broker, a) + visible(broker, b) == []
    append(frame, broker)
    assert visible(broker, a) + visible(broker, b) == ["1", "2"]


def test_a_version_is_written_once(spark: Any, topic: Any, broker: sparklog.LocalBroker) -> None:
    name = topic()
    for version, value in ((1, "a"), (1, "again"), (3, "b"), (2, "late"), (4, "c")):
        frame = spark.sql(f"select '{value}' as value")
        append(frame, broker, topic=name, txnAppId=f"nightly-{name}", txnVersion=str(version))
    assert visible(broker, name) == stored(broker, name) == ["a", "b", "c"]


def test_each_batch_in_foreachbatch_is_written_once(
    reads: Any, topic: Any, send: Any, broker: sparklog.LocalBroker, tmp_path: Path
) -> None:
    source, target, other = topic("in"), topic("out"), topic("other")
    send(source, "a", "b")
    failing = [True]

    def write(frame: Any, batch_id: int) -> None:
        for name in (target, other):
            append(frame.select("value"), broker, topic=name, txnAppId=f"copy-{name}", txnVersion=str(batch_id))
            if failing:
                failing.pop()
                raise RuntimeError("between the two")

    def run() -> None:
        query = reads.stream(source, startingOffsets="earliest").writeStream.foreachBatch(write)
        started = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert started.awaitTermination(90)

    with pytest.raises(Exception, match="between the two"):
        run()
    run()
    assert visible(broker, target) == visible(broker, other) == ["a", "b"]


def test_a_part_of_a_transaction_that_an_open_one_holds_back_is_in_no_batch(
    broker: sparklog.LocalBroker, topic: Any, reads: Any, collected: Any, tmp_path: Path
) -> None:
    """A DataFrame and the micro-batches of a query get the transaction at once, when the older one ends."""
    name = topic(partitions=2)
    with (
        sparklog.Producer(broker.bootstrap_servers, transactional_id=f"{name}-open") as opened,
        sparklog.Producer(broker.bootstrap_servers, transactional_id=f"{name}-whole") as whole,
    ):
        opened.init_transactions()
        whole.init_transactions()
        opened.begin_transaction()
        opened.send(name, value=b"open", partition=0)
        opened.flush()
        whole.begin_transaction()
        for partition in range(2):
            whole.send(name, value=b"whole", partition=partition)
        whole.commit_transaction()
        stream = reads.stream(name, startingOffsets="earliest")
        frame = reads.batch(name)
        assert frame.count() == 0
        assert collected().run(stream, tmp_path).values() == []
        opened.abort_transaction()
        assert frame.count() == 2
        assert collected().run(stream, tmp_path).values() == ["whole", "whole"]
