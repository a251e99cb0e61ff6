"""Hard cases of a copy of another cluster: large batches, segments in an object store, records that are gone, open
transactions, and a target whose leaders move."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.local_zookeeper import has_java
from sparklog.client.net.cluster import cluster
from sparklog.mirror.worker.verify import verify_mirror
from sparklog.mirror.worker.worker import MirrorWorker
from sparklog.settings import MIB
from sparklog.types import TopicPartition
from tests.support.waiting import PATIENCE_S, START_S, until, until_reached

TIERED = {
    "segment.bytes": 4_096,
    "retention.ms": -1,
    "remote.storage.enable": True,
    "local.retention.bytes": 0,
    "file.delete.delay.ms": 0,
}
RUN_ONCE = """
import sys
from sparklog.mirror.worker.worker import MirrorWorker
from tests.support.processes import peak_memory_bytes
print(MirrorWorker(sys.argv[1]).run_once(["large"]), peak_memory_bytes())
"""
BATCHES, BATCH_ROWS, PART = 24, 7, 200


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    settings = {
        "remote.log.manager.task.interval.ms": 20,
        "log.flush.interval.ms": 100,
        "log.retention.check.interval.ms": 20,
        "remote.log.storage.url": tmp_path_factory.mktemp("store").as_uri(),
    }
    with sparklog.start_local(timeout_s=START_S, settings=settings) as local:
        yield local


def url(source: LocalBroker) -> str:
    return f"sparklog://{source.bootstrap_servers}"


def stored(local: Any, topic: str) -> pa.Table:
    """All rows with their places and times."""
    table = sparklog.read_table(local.bootstrap_servers, topic, include_metadata=True)
    return table.sort_by([("_partition", "ascending"), ("_offset", "ascending")])


def send(local: LocalBroker, topic: str, numbers: range) -> None:
    with sparklog.Producer(local.bootstrap_servers, linger_ms=0) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number * 100, key=b"%d" % number, partition=0).result(PATIENCE_S)


def ends(admin: sparklog.Admin, topic: str, partitions: int = 1) -> list[int]:
    tps = [TopicPartition(topic, p) for p in range(partitions)]
    return [offset.offset for offset in admin.list_offsets(dict.fromkeys(tps, "latest")).values()]


def test_segments_in_the_object_store_and_lost_and_other_records(
    source: LocalBroker, source_admin: sparklog.Admin, target: LocalBroker, admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    source_admin.create_topic("tiered", 1, configs=TIERED)
    send(source, "tiered", range(60))
    folder = source.data_dir / "tiered-0"
    until(lambda: len(list(folder.glob("*.arrow"))) == 1, "local files are gone")
    assert source_admin.describe_topic("tiered").partition_details[0].local_log_start_offset > 0
    admin.create_mirror("tiered", source=url(source), topics="tiered")
    assert "remote.storage.enable" not in admin.describe_topic("tiered").configs
    assert worker.run_once(["tiered"]) == {}
    assert stored(target, "tiered").equals(stored(source, "tiered")) and ends(admin, "tiered") == [60]

    send(source, "tiered", range(60, 100))
    source_admin.delete_records({TopicPartition("tiered", 0): 90})
    assert worker.run_once(["tiered"]) == {}
    lost = next(mirror for mirror in admin.describe_mirrors() if mirror.name == "tiered").topics[0].partitions[0]
    assert (lost.lost, lost.end, lost.lag) == (30, 100, 0)
    rows = stored(target, "tiered")
    assert rows["_offset"].to_pylist() == [*range(60), *range(90, 100)]
    copied = rows.filter(pa.array([offset >= 90 for offset in rows["_offset"].to_pylist()]))
    assert copied.equals(stored(source, "tiered"))

    source_admin.delete_topic("tiered")
    source_admin.create_topic("tiered", 1)
    send(source, "tiered", range(200))
    assert "deleted and created again" in worker.run_once(["tiered"])["tiered"]
    assert stored(target, "tiered").equals(rows)


def test_transactions_that_are_open_while_they_are_mirrored(
    source: LocalBroker, source_admin: sparklog.Admin, target: LocalBroker, admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    source_admin.create_topic("open", 1)
    send(source, "open", range(3))
    with (
        sparklog.Producer(source.bootstrap_servers, transactional_id="aborts") as aborting,
        sparklog.Producer(source.bootstrap_servers, transactional_id="commits") as committing,
    ):
        for producer in (aborting, committing):
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("open", b"in a transaction", partition=0).result(PATIENCE_S)
        send(source, "open", range(3, 6))
        admin.create_mirror("open", source=url(source), topics="open")
        assert worker.run_once(["open"]) == {}
        assert ends(admin, "open") == [3]
        aborting.abort_transaction()
        assert worker.run_once(["open"]) == {}
        assert ends(admin, "open") == [4]
        committing.commit_transaction()
    assert worker.run_once(["open"]) == {}
    assert ends(admin, "open") == ends(source_admin, "open") == [10]
    rows = stored(target, "open")
    assert rows.equals(stored(source, "open")) and rows["_offset"].to_pylist() == [0, 1, 2, 4, 5, 6, 7]
    counted = sparklog.sql(target.bootstrap_servers, "SELECT count(*) AS n, max(_offset) AS last FROM open")
    assert counted.to_pylist() == [{"n": 7, "last": 7}]


@pytest.mark.nightly
def test_large_batches_and_many_columns_take_bounded_memory(
    source: LocalBroker, source_admin: sparklog.Admin, target: LocalBroker, admin: sparklog.Admin
) -> None:
    source_admin.create_topic("large", 4, "id BIGINT, data BINARY")
    kinds: list[tuple[str, Any, Any]] = [
        ("INT", pa.int32(), int), ("STRING", pa.string(), str), ("DOUBLE", pa.float64(), float), ("BIGINT", pa.int64(), int)
    ]  # fmt: skip
    source_admin.create_topic("wide", 2, ", ".join(f"c{i} {kinds[i % 4][0]}" for i in range(100)))
    chance = random.Random(1)
    with sparklog.Producer(source.bootstrap_servers, compression="none") as producer:
        for number in range(BATCHES):
            data = pa.array([chance.randbytes(1 << 20) for _ in range(BATCH_ROWS)], pa.binary())
            rows = {"id": pa.array(np.arange(BATCH_ROWS)), "data": data}
            producer.send_batch("large", pa.record_batch(rows), partition=number % 4)
            producer.flush()
        columns = {
            f"c{i}": pa.array([None if j % 7 == i % 7 else kinds[i % 4][2](j) for j in range(500)], kinds[i % 4][1])
            for i in range(100)
        }
        for number in range(20):
            producer.send_batch("wide", pa.record_batch(columns), partition=number % 2)
    admin.create_mirror("large", source=url(source), topics="large,wide")
    run = subprocess.run(
        [sys.executable, "-c", RUN_ONCE, target.bootstrap_servers], capture_output=True, text=True, check=True
    )
    errors, _, peak_bytes = run.stdout.rpartition(" ")
    assert (errors, int(peak_bytes) < 320 * MIB) == ("{}", True), run.stdout
    for topic in ("large", "wide"):
        assert stored(target, topic).equals(stored(source, topic)), topic
    report = verify_mirror(cluster(target.bootstrap_servers), "large")
    assert (report.records, report.problems) == (BATCHES * BATCH_ROWS + 10_000, [])


def send_part(producer: sparklog.Producer, numbers: Iterator[int]) -> None:
    for number in itertools.islice(numbers, PART):
        producer.send("moving", b"%d" % number, partition=number % 4)
    producer.flush()


def has_copied(admin: sparklog.Admin, count: int) -> bool:
    return sum(ends(admin, "moving", 4)) == count


@pytest.mark.nightly
@pytest.mark.skipif(not has_java(), reason="Java is needed for ZooKeeper")
def test_the_leaders_of_the_target_move_while_it_copies(
    source: LocalBroker, source_admin: sparklog.Admin, tmp_path: Path
) -> None:
    source_admin.create_topic("moving", 4)
    settings = {"mirror.worker.enable": False, "default.replication.factor": 3, "topic.min.insync.replicas": 2}
    with (
        sparklog.start_local(tmp_path / "target", brokers=3, settings=settings, timeout_s=START_S) as three,
        sparklog.Admin(three.bootstrap_servers) as admin,
    ):
        assert not isinstance(three, LocalBroker)
        admin.create_mirror("moving", source=url(source), topics="moving")
        worker = MirrorWorker(three.bootstrap_servers)
        thread = threading.Thread(target=worker.run)
        thread.start()
        count = PART * 2 * len(three.brokers)
        sent = iter(range(count))
        try:
            with sparklog.Producer(source.bootstrap_servers, linger_ms=0) as producer:
                for number, broker in enumerate(three.brokers):
                    send_part(producer, sent)
                    broker.kill()
                    send_part(producer, sent)
                    until_reached(partial(has_copied, admin, 2 * PART * (number + 1)), "all records")
                    broker.start()
        finally:
            worker.stop()
            thread.join()
            worker.close()
        assert stored(three, "moving").equals(stored(source, "moving"))
        report = verify_mirror(cluster(three.bootstrap_servers), "moving")
        assert (report.records, report.problems) == (count, [])
