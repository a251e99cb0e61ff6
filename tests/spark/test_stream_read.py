"""`spark.readStream.format("sparklog")`: triggers, limits, restarts, new and lost topics."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.spark_settings import CHECKPOINT_FILES


def wait_until(condition: Callable[[], bool], query: Any, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < deadline, f"not reached in {timeout_s} s: {query.status}"
        time.sleep(0.02)


def test_available_now_twice_reads_everything_once(
    reads: Any, topic: Any, send: Any, collected: Any, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    send(name, "a", "b")
    send(name, "c", partition=1)
    first = collected().run(reads.stream(name, startingOffsets="earliest"), tmp_path)
    assert first.values() == ["a", "b", "c"]
    send(name, "d", partition=1)
    second = collected().run(reads.stream(name, startingOffsets="earliest"), tmp_path)
    assert second.values() == ["d"]
    third = collected().run(reads.stream(name, startingOffsets="earliest"), tmp_path)
    assert third.values() == []


@pytest.mark.nightly
def test_checkpoints_go_from_one_file_manager_to_the_other(
    spark: Any, reads: Any, topic: Any, send: Any, collected: Any, tmp_path: Path
) -> None:
    """The settings that conf/spark-defaults.conf advises can be set for an existing query, and taken back."""
    name, published = topic(), spark.conf.get(CHECKPOINT_FILES)
    sparks_own = published.replace("FileSystemBased", "FileContextBased")
    try:
        for run, manager in enumerate([sparks_own, published, sparks_own, published]):
            spark.conf.set(CHECKPOINT_FILES, manager)
            send(name, "always", f"run {run}")
            rows = reads.stream(name, startingOffsets="earliest").dropDuplicates(["value"])
            seen = collected().run(rows, tmp_path).values()
            assert seen == (["always", "run 0"] if run == 0 else [f"run {run}"])
    finally:
        spark.conf.set(CHECKPOINT_FILES, published)


def test_default_trigger_goes_on_and_stops_and_restarts_exactly(
    reads: Any, topic: Any, send: Any, collected: Any, tmp_path: Path
) -> None:
    name = topic()
    send(name, "before")
    sink = collected()

    def start() -> Any:
        return reads.stream(name).writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path)).start()

    query = start()
    # "latest" is wherever the log ends when the query begins: only then does what is sent count
    wait_until(lambda: query.lastProgress is not None, query)
    send(name, "1", "2")
    wait_until(lambda: len(sink.rows) >= 2, query)
    send(name, "3")
    # foreachBatch is called before a batch counts as done: a clean stop waits for that
    query.processAllAvailable()
    query.stop()
    send(name, "4")
    query = start()
    query.processAllAvailable()
    query.stop()
    assert sink.values() == ["1", "2", "3", "4"]
    assert [r.offset for r in sink.rows] == [1, 2, 3, 4]


def test_processing_time_trigger_and_progress(reads: Any, topic: Any, send: Any, collected: Any) -> None:
    name = topic()
    send(name, "a")
    sink = collected()
    query = (
        reads.stream(name, startingOffsets="earliest")
        .writeStream.foreachBatch(sink)
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        wait_until(lambda: len(sink.rows) == 1, query)
        send(name, "b")
        wait_until(lambda: len(sink.rows) == 2, query)
        wait_until(lambda: (query.lastProgress or {}).get("numInputRows") == 0 or len(query.recentProgress) > 1, query)
        source = query.recentProgress[-1]["sources"][0]
        latest = source["latestOffset"]
        latest = json.loads(latest) if isinstance(latest, str) else latest
        assert latest[name] == {"0": 2}
    finally:
        query.stop()
    assert sink.values() == ["a", "b"]


def test_a_topic_that_appears_later_is_read_from_its_beginning(
    reads: Any, topic_name: Any, admin: sparklog.Admin, send: Any, collected: Any
) -> None:
    first, second = topic_name("later-a"), topic_name("later-b")
    admin.create_topic(first, partitions=1)
    send(first, "old")
    sink = collected()
    query = reads.stream(subscribePattern="later-.*", startingOffsets="latest").writeStream.foreachBatch(sink).start()
    try:
        wait_until(lambda: query.lastProgress is not None, query)
        admin.create_topic(second, partitions=2)
        send(second, "new0")
        send(second, "new1", partition=1)
        send(first, "more")
        wait_until(lambda: len(sink.rows) >= 3, query)
    finally:
        query.stop()
    assert sink.values() == ["more", "new0", "new1"]


def test_a_recreated_topic(
    reads: Any, topic: Any, send: Any, admin: sparklog.Admin, collected: Any, tmp_path: Path
) -> None:
    name = topic("again")
    send(name, "a", "b", "c")
    collected().run(reads.stream(name, startingOffsets="earliest"), tmp_path)
    admin.delete_topic(name)
    admin.create_topic(name, partitions=1)
    send(name, "x", "y", "z", "new")
    with pytest.raises(
        Exception, match=f"{name} partition 0, offsets from 3 on: the topic was deleted and created again"
    ):
        collected().run(reads.stream(name, startingOffsets="earliest"), tmp_path)
    found = collected().run(reads.stream(name, startingOffsets="earliest", failOnDataLoss="false"), tmp_path)
    assert found.values() == ["new", "x", "y", "z"]
    assert collected().run(reads.stream(name, startingOffsets="earliest"), tmp_path).values() == []


def test_a_typed_topic_with_a_projection(reads: Any, topic: Any, producer: sparklog.Producer, collected: Any) -> None:
    import pyarrow as pa

    schema = pa.schema([("origin", pa.string()), ("delay", pa.float64())])
    name = topic(schema=schema)
    producer.send_batch(name, pa.table({"origin": ["JFK", "EWR", None], "delay": [1.0, None, 3.0]})).result(30)
    found = collected().run(reads.stream(name, schema="delay double", startingOffsets="earliest"))
    assert [r.delay for r in found.rows] == [1.0, None, 3.0]


def test_the_aggregate_of_a_stream(reads: Any, topic: Any, send: Any, spark: Any) -> None:
    name = topic(partitions=2)
    for p in range(2):
        send(name, *["x"] * (5 + p), partition=p)
    query = (
        reads.stream(name, startingOffsets="earliest")
        .groupBy("partition")
        .count()
        .writeStream.format("memory")
        .queryName("counts")
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(90)
    assert {tuple(r) for r in spark.table("counts").collect()} == {(0, 5), (1, 6)}


def test_broker_killed_and_started_again_while_a_query_runs(spark: Any, collected: Any, tmp_path: Path) -> None:
    from tests.spark.conftest import Reads

    broker = sparklog.start_local(tmp_path / "data")
    sink = collected()
    try:
        with sparklog.Admin(broker.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=1)
        with sparklog.Producer(broker.bootstrap_servers) as p:
            p.send("t", value=b"a").result(30)
        frame = Reads(spark, broker.bootstrap_servers).stream("t", startingOffsets="earliest")
        query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "c")).start()
        try:
            wait_until(lambda: len(sink.rows) == 1, query)
            address = broker.bootstrap_servers
            broker.kill()
            broker = sparklog.start_local(tmp_path / "data", listen=address)
            with sparklog.Producer(broker.bootstrap_servers) as p:
                p.send("t", value=b"b").result(30)
            wait_until(lambda: len(sink.rows) == 2, query)
            assert query.isActive
        finally:
            query.stop()
    finally:
        broker.stop()
    assert sink.values() == ["a", "b"]


def test_a_broker_that_stays_away_ends_the_query_with_a_clear_error(spark: Any, collected: Any, tmp_path: Path) -> None:
    from tests.spark.conftest import Reads

    sink = collected()
    with sparklog.start_local(tmp_path / "data") as broker:
        with sparklog.Admin(broker.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=1)
        options = {"startingOffsets": "earliest", "sparklog.broker.wait.ms": "300"}
        query = Reads(spark, broker.bootstrap_servers).stream("t", **options).writeStream.foreachBatch(sink).start()
        try:
            wait_until(lambda: query.lastProgress is not None, query)
            broker.kill()
            with pytest.raises(Exception, match=r"(?s)no broker at .*gave up after 0.3 s \(sparklog.broker.wait.ms\)"):
                query.awaitTermination(60)
        finally:
            query.stop()


def test_the_group_follows_the_checkpoint(
    reads: Any, topic: Any, send: Any, collected: Any, broker: sparklog.LocalBroker, tmp_path: Path
) -> None:
    from sparklog.client.net.cluster import cluster
    from sparklog.protocol.apis import Api
    from sparklog.protocol.group_messages import OffsetFetchRequest, OffsetFetchResponse

    def committed(group: str) -> dict[int, int]:
        request = OffsetFetchRequest(group)
        answer = cluster(broker.bootstrap_servers).request(Api.OFFSET_FETCH, request, OffsetFetchResponse)
        return {o.partition: o.offset for o in answer.offsets}

    name = topic(partitions=2)
    send(name, "a", "b")
    send(name, "c", partition=1)
    with_group = {"startingOffsets": "earliest", "group.id": f"follows-{name}"}
    assert collected().run(reads.stream(name, **with_group), tmp_path).values() == ["a", "b", "c"]
    assert committed(with_group["group.id"]) == {0: 2, 1: 1}
    send(name, "d", partition=1)
    assert collected().run(reads.stream(name, **with_group), tmp_path).values() == ["d"]
    assert committed(with_group["group.id"]) == {0: 2, 1: 2}


def test_a_running_query_reads_added_partitions_from_their_beginning(
    reads: Any, topic: Any, send: Any, collected: Any, broker: sparklog.LocalBroker, tmp_path: Path
) -> None:
    """Also with startingOffsets=latest, and when they had records before the query saw them; a restart goes on."""
    name = topic(partitions=1)
    sink = collected()

    def start() -> Any:
        return reads.stream(name).writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path)).start()

    query = start()
    try:
        wait_until(lambda: query.lastProgress is not None, query)
        send(name, "old")
        wait_until(lambda: sink.values() == ["old"], query)
        with sparklog.Admin(broker.bootstrap_servers) as admin:
            admin.add_partitions(name, 3)
        send(name, "new", partition=2)
        wait_until(lambda: sink.values() == ["new", "old"], query)
        query.processAllAvailable()  # the batch counts as done: a restart does not run it again
    finally:
        query.stop()
    with sparklog.Admin(broker.bootstrap_servers) as admin:
        admin.add_partitions(name, 4)
    send(name, "while it was away", partition=3)
    query = start()
    try:
        wait_until(lambda: sink.values() == ["new", "old", "while it was away"], query)
    finally:
        query.stop()
