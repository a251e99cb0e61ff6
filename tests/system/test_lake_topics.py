"""Topics of other kinds as Delta tables: compacted, tiered, cut by delete-records; and older versions of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import sparklog
from sparklog.client.admin.admin import Admin
from sparklog.client.local import LocalBroker
from sparklog.lake.small_files import FILES_MIN
from sparklog.lake.worker.verify import verify_lake
from sparklog.lake.worker.worker import LakeWorker
from sparklog.types import TopicPartition
from tests.support.waiting import until

SCHEMA = "id BIGINT, n BIGINT"
KEYS, ROUNDS = 50, 20
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.bytes": 4096}
TIERED = {"segment.bytes": 4096, "retention.ms": -1, "remote.storage.enable": True, "local.retention.bytes": 0}


@pytest.fixture(scope="module")
def lake_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker that cleans and tiers at once, without a worker of its own."""
    directory = tmp_path_factory.mktemp("lake-topics")
    settings = {
        "lake.worker.enable": False,
        "log.cleaner.backoff.ms": 20,
        "log.retention.check.interval.ms": 20,
        "log.flush.interval.ms": 100,
        "remote.log.manager.task.interval.ms": 20,
        "remote.log.storage.url": (directory / "tier").as_uri(),
    }
    with sparklog.start_local(directory / "data", settings=settings) as local:
        yield local


@pytest.fixture
def lake_admin(lake_broker: LocalBroker) -> Iterator[Admin]:
    with sparklog.Admin(lake_broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def worker(lake_broker: LocalBroker) -> Iterator[LakeWorker]:
    made = LakeWorker(lake_broker.bootstrap_servers)
    yield made
    made.close()


def send(broker: LocalBroker, topic: str, rounds: range, *, dead: int = 0) -> None:
    """Change every key in every round; the first `dead` keys are deleted in the last round."""
    with sparklog.Producer(broker.bootstrap_servers) as producer:
        for i in rounds:
            numbers = [None if k < dead and i == rounds[-1] else i * KEYS + k for k in range(KEYS)]
            producer.send_batch(topic, pa.table({"id": range(KEYS), "n": pa.array(numbers, pa.int64())}), partition=0)
            producer.flush()


def newest(rounds: int, *, dead: int) -> dict[int, int]:
    return {k: (rounds - 1) * KEYS + k for k in range(dead, KEYS)}


def log_rows(broker: LocalBroker, topic: str) -> int:
    return sparklog.read_table(broker.bootstrap_servers, topic).num_rows


def keyed(path: Path, version: int | None = None) -> dict[int, int]:
    table = DeltaTable(path, version=version).to_pyarrow_table()
    found = dict(zip(table.column("id").to_pylist(), table.column("n").to_pylist(), strict=True))
    assert len(found) == table.num_rows, "a key is there twice"
    return found


def test_a_compacted_topic(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """Compaction waits for the table. Afterwards the table has every change, or the newest row of each key; a table
    that is written again from the compacted log has the rows that are left."""
    witness = topic_name()
    lake_admin.create_topic(witness, schema=SCHEMA, key_columns=["id"], configs=COMPACT)
    for mode in ("append", "upsert"):
        topic, path = topic_name(), tmp_path / mode
        lake_admin.create_topic(topic, schema=SCHEMA, key_columns=["id"], configs=COMPACT)
        lake_admin.enable_lake(topic, location=str(path), mode=mode)
        send(lake_broker, topic, range(ROUNDS), dead=10)
        send(lake_broker, witness, range(ROUNDS), dead=10)
        until(lambda: log_rows(lake_broker, witness) < ROUNDS * KEYS // 2, "the cleaner has run")
        assert log_rows(lake_broker, topic) == ROUNDS * KEYS  # the table lacks them
        assert worker.run_once([topic]) == {}
        until(lambda t=topic: log_rows(lake_broker, t) < ROUNDS * KEYS // 2, "compaction goes on")  # type: ignore[misc]
        send(lake_broker, topic, range(ROUNDS, 2 * ROUNDS), dead=20)
        assert worker.run_once([topic]) == {}
        until(lambda t=topic: log_rows(lake_broker, t) < ROUNDS * KEYS, "compaction goes on")  # type: ignore[misc]
        assert verify_lake(lake_admin, topic).problems == []
        if mode == "upsert":
            assert keyed(path) == newest(2 * ROUNDS, dead=20)
        else:
            assert DeltaTable(path).to_pyarrow_table().num_rows == 2 * ROUNDS * KEYS
            history = sparklog.read_table(lake_broker.bootstrap_servers, topic, history=True)
            assert history.num_rows == 2 * ROUNDS * KEYS
        lake_admin.rebuild_lake(topic)
        assert worker.run_once([topic]) == {}
        assert verify_lake(lake_admin, topic).problems == []
        latest = sparklog.read_table(lake_broker.bootstrap_servers, topic, latest=True)
        assert dict(zip(*(latest.column(c).to_pylist() for c in ("id", "n")), strict=True)) == newest(40, dead=20)
        if mode == "upsert":
            assert keyed(path) == newest(2 * ROUNDS, dead=20)
        else:
            assert KEYS <= DeltaTable(path).to_pyarrow_table().num_rows < ROUNDS * KEYS


def test_a_tiered_topic(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    """The table is filled from segments that are in the object store only; local retention does not wait for it."""
    lake_admin.create_topic(topic, schema=SCHEMA, configs=TIERED)
    partition = TopicPartition(topic, 0)

    def local_start() -> int:
        return lake_admin.list_offsets({partition: "earliest_local"})[partition].offset

    sent = 0
    for _ in range(2):
        send(lake_broker, topic, range(sent, sent + ROUNDS))
        sent += ROUNDS
        if sent == ROUNDS:
            lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
        until(lambda n=sent * KEYS // 2: local_start() > n, "segments are in the store only")  # type: ignore[misc]
        assert worker.run_once([topic]) == {}
        table = DeltaTable(tmp_path / "table").to_pyarrow_table()
        assert sorted(table.column("n").to_pylist()) == list(range(sent * KEYS))
        assert verify_lake(lake_admin, topic).problems == []
    lake_admin.alter_topic(topic, {"retention.bytes": 1})
    until(lambda: lake_admin.list_offsets({partition: "earliest"})[partition].offset > sent * KEYS // 2, "retention")
    history = sparklog.read_table(lake_broker.bootstrap_servers, topic, history=True)
    assert history.column("n").to_pylist() == list(range(sent * KEYS))


def test_records_that_are_deleted_stay_in_the_table_and_in_its_older_versions(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    """Time travel: each version is the log at the time of its commit, through deletions and merges."""
    lake_admin.create_topic(topic, schema=SCHEMA)
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    partition = TopicPartition(topic, 0)
    ends: dict[int, int] = {}
    for i in range(FILES_MIN + 1):
        send(lake_broker, topic, range(i, i + 1))
        assert worker.run_once([topic]) == {}
        ends[lake_admin.describe_lake(topic).version] = (i + 1) * KEYS
        lake_admin.delete_records({partition: (i + 1) * KEYS - 10})
    assert log_rows(lake_broker, topic) == 10
    assert verify_lake(lake_admin, topic).problems == []
    for version, end in ends.items():
        rows = DeltaTable(tmp_path / "table", version=version).to_pyarrow_table()
        assert sorted(rows.column("n").to_pylist()) == list(range(end)), version
    history = sparklog.read_table(lake_broker.bootstrap_servers, topic, history=True)
    assert history.column("n").to_pylist() == list(range(max(ends.values())))
