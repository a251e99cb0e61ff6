"""A topic as a Delta table: rounds of a worker beside a real broker."""

from __future__ import annotations

import datetime
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import sparklog
from sparklog.client.admin.admin import Admin
from sparklog.client.local import LocalBroker
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.transactions.shared_transaction import (
    Participant,
    SharedTransaction,
    draw_fencing_token,
    end_shared_transaction,
    join_shared_transaction,
)
from sparklog.environment import fault_points
from sparklog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRequestError,
    LakePausedError,
    LakeUnavailableError,
)
from sparklog.lake.delta_commit import DeltaCommitter
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.rules import PartitionEnds
from sparklog.lake.settings import LakeSettings
from sparklog.lake.small_files import FILES_MIN
from sparklog.lake.worker import verify
from sparklog.lake.worker.sync import LakeSync
from sparklog.lake.worker.topic_reader import TopicReader
from sparklog.lake.worker.verify import verify_lake
from sparklog.lake.worker.worker import LakeWorker
from sparklog.types import TopicPartition
from tests.support.cli import run_here
from tests.support.waiting import until

SCHEMA = "n BIGINT, zone STRING"


@pytest.fixture(scope="module")
def lake_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker without a worker of its own: rounds run when the test says so."""
    settings = {"lake.worker.enable": False, "log.retention.check.interval.ms": 50}
    with sparklog.start_local(tmp_path_factory.mktemp("lake-broker") / "data", settings=settings) as local:
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


@pytest.fixture
def lake(lake_admin: Admin, topic: str, tmp_path: Path) -> str:
    """A typed topic of three partitions with a table at `tmp_path / "table"`; its name."""
    lake_admin.create_topic(topic, partitions=3, schema=SCHEMA)
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    return topic


def send(broker: LocalBroker, topic: str, numbers: range, partition: int | None = None) -> None:
    with sparklog.Producer(broker.bootstrap_servers) as producer:
        producer.send_batch(topic, rows(numbers), partition=partition)


def rows(numbers: range) -> pa.Table:
    return pa.table({"n": list(numbers), "zone": [f"z{n % 5}" for n in numbers]})


def nothing(_: object) -> None:
    """Leave a result out."""


def table_rows(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
    return found


def assert_table_is_log(broker: LocalBroker, topic: str, path: Path) -> None:
    expected = sparklog.read_table(broker.bootstrap_servers, topic, include_metadata=True)
    columns = ["n", "zone", "_partition", "_offset", "_timestamp"]
    order = [("_partition", "ascending"), ("_offset", "ascending")]
    found = DeltaTable(path).to_pyarrow_table().select(columns).sort_by(order)
    assert found.to_pylist() == expected.select(columns).sort_by(order).to_pylist()


def test_the_table_has_the_rows_of_the_log(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    for start in (0, 100, 250):
        send(lake_broker, lake, range(start, start + 100))
        assert worker.run_once([lake]) == {}
        assert_table_is_log(lake_broker, lake, tmp_path / "table")
    found = lake_admin.describe_lake(lake)
    assert (found.lag, found.error, found.paused, found.version) == (0, "", "", 3)
    assert verify_lake(lake_admin, lake).problems == []


def test_an_envelope_topic_has_key_value_and_headers(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    lake_admin.create_topic(topic, partitions=2)
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    with sparklog.Producer(lake_broker.bootstrap_servers) as producer:
        for n in range(50):
            producer.send(topic, b"v%d" % n, key=b"k%d" % n, headers=[("h", b"x")])
    assert worker.run_once([topic]) == {}
    found = table_rows(tmp_path / "table")
    assert sorted(r["value"] for r in found) == sorted(b"v%d" % n for n in range(50))
    assert found[0]["headers"] == [{"key": "h", "value": b"x"}]
    assert list(found[0]) == ["key", "value", "headers", "_partition", "_offset", "_timestamp"]


def test_no_version_has_a_part_of_a_transaction(
    lake_broker: LocalBroker, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    """Producers with overlapping transactions hold the stable offsets of some partitions below records that are
    committed in others."""
    choose = random.Random(7)
    producers = [sparklog.Producer(lake_broker.bootstrap_servers, transactional_id=f"{lake}-{i}") for i in range(4)]
    committed: set[int] = set()
    is_open: dict[int, tuple[int, list[int]]] = {}
    numbers = iter(range(1_000_000))
    for producer in producers:
        producer.init_transactions()
    for _ in range(200):
        i = choose.randrange(len(producers))
        producer = producers[i]
        if i not in is_open:
            producer.begin_transaction()
            is_open[i] = next(numbers), choose.sample(range(3), 3)
        number, left = is_open[i]
        if left:
            producer.send_batch(lake, rows(range(number, number + 1)), partition=left.pop())
            producer.flush()
        elif choose.random() < 0.2:
            producer.abort_transaction()
            del is_open[i]
        else:
            producer.commit_transaction()
            committed.add(number)
            del is_open[i]
            assert worker.run_once([lake]) == {}
    for i in is_open:
        producers[i].abort_transaction()
    for producer in producers:
        producer.close()
    assert worker.run_once([lake]) == {}
    newest = DeltaTable(tmp_path / "table").version()
    assert newest > 10
    for version in range(newest + 1):
        found = [r["n"] for r in table_rows(tmp_path / "table", version)]
        assert all(found.count(n) == 3 for n in found), version
    assert {r["n"] for r in table_rows(tmp_path / "table")} == committed


def test_no_version_has_a_part_of_a_shared_transaction(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    """Two applications that always have a transaction open: each of three participants writes to one partition."""
    shared = lake_admin._cluster
    apps = [_Application(shared, f"{lake}-{i}") for i in range(2)]
    producer = sparklog.Producer(lake_broker.bootstrap_servers)
    numbers = 0
    for turn in range(16):
        first, second = apps[turn % 2], apps[1 - turn % 2]
        numbers += 1
        first.begin()
        order = (0, 1, 2) if turn % 4 < 2 else (2, 1, 0)
        for partition in order[:2]:
            first.write(producer, lake, numbers, partition)
        if second.is_open:
            second.end()
        first.write(producer, lake, numbers, order[2])
        assert worker.run_once([lake]) == {}
    for app in apps:
        if app.is_open:
            app.end()
    producer.close()
    assert worker.run_once([lake]) == {}
    newest = DeltaTable(tmp_path / "table").version()
    assert newest > 8  # open transactions do not hold the table back forever
    for version in range(newest + 1):
        found = [r["n"] for r in table_rows(tmp_path / "table", version)]
        assert all(found.count(n) == 3 for n in found), version
    assert {r["n"] for r in table_rows(tmp_path / "table")} == set(range(1, numbers + 1))


class _Application:
    """An application with shared transactions, as a Spark query is one."""

    def __init__(self, cluster: Any, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._token = draw_fencing_token(cluster)
        self._version = 0
        self._participants: list[int] = []
        self.is_open = False

    def begin(self) -> None:
        self._version += 1
        self._participants, self.is_open = [], True

    @property
    def _transaction(self) -> SharedTransaction:
        return SharedTransaction(self._name, self._version, "run", self._token)

    def write(self, producer: sparklog.Producer, topic: str, number: int, partition: int) -> None:
        participant = join_shared_transaction(self._cluster, self._transaction, timeout_ms=60_000)
        assert isinstance(participant, Participant)
        with producer.participation(participant):
            producer.send_batch(topic, rows(range(number, number + 1)), partition=partition)
        self._participants.append(participant.producer_id)

    def end(self) -> None:
        end_shared_transaction(
            self._cluster, self._transaction, committed=True, committed_participants=self._participants
        )
        self.is_open = False


def test_a_worker_that_wakes_up_late_makes_no_commit(
    lake_broker: LocalBroker, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    """The sequence of iceberg 16282: the old worker commits after the new one."""
    other = LakeWorker(lake_broker.bootstrap_servers)

    def overtake() -> None:
        send(lake_broker, lake, range(100, 150), partition=0)
        assert other.run_once([lake]) == {}

    send(lake_broker, lake, range(100), partition=0)
    for step in ("lake.files-written", "lake.before-commit"):
        fault_points.call_at(step, overtake)
        try:
            errors = worker.run_once([lake])
        finally:
            fault_points.disarm()
        assert "another worker has committed" in errors[lake]
        assert_table_is_log(lake_broker, lake, tmp_path / "table")
        send(lake_broker, lake, range(150, 200), partition=0)
    fault_points.call_at("lake.before-commit", lambda: nothing(other.run_once([lake])))
    try:
        assert worker.run_once([lake]) == {}  # the other one has run the same round
    finally:
        fault_points.disarm()
    assert_table_is_log(lake_broker, lake, tmp_path / "table")
    other.close()
    assert worker.run_once([lake]) == {}
    assert_table_is_log(lake_broker, lake, tmp_path / "table")


def test_a_worker_that_sleeps_after_its_read_does_not_pause_the_table(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    """The table has offsets then that the log did not have when it was asked."""

    class OvertakenLog(TopicReader):
        def ends(self, info: TopicInfo) -> dict[int, PartitionEnds]:
            found = super().ends(info)
            if not overtaken:
                overtaken.append(True)
                send(lake_broker, lake, range(100), partition=0)
                assert worker.run_once([lake]) == {}
            return found

    overtaken: list[bool] = []
    shared = lake_admin._cluster
    info = shared.topic(lake, refresh=True)
    result = LakeSync(OvertakenLog(shared, 10_000)).round(info, LakeSettings.of(info.configs), nothing)
    assert result.is_current
    assert_table_is_log(lake_broker, lake, tmp_path / "table")


def test_a_lost_answer_of_a_commit_adds_no_row_twice(
    lake_broker: LocalBroker, worker: LakeWorker, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparklog.lake.delta_errors import CommitConflictError

    commit = DeltaCommitter.commit

    def commit_without_answer(self: DeltaCommitter, *args: Any, **named: Any) -> None:
        commit(self, *args, **named)
        raise CommitConflictError("the connection was reset")

    send(lake_broker, lake, range(100))
    monkeypatch.setattr(DeltaCommitter, "commit", commit_without_answer)
    assert worker.run_once([lake]) == {}
    monkeypatch.undo()
    assert worker.run_once([lake]) == {}
    assert_table_is_log(lake_broker, lake, tmp_path / "table")


def test_users_change_the_table_meanwhile(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"

    def optimize() -> None:
        DeltaTable(path).optimize.compact()

    def delete() -> None:
        DeltaTable(path).delete("n = 3")

    def add_column() -> None:
        write_deltalake(
            path, pa.table({"mine": ["x"], "n": pa.array([None], pa.int64())}), mode="append", schema_mode="merge"
        )

    send(lake_broker, lake, range(30))
    assert worker.run_once([lake]) == {}
    for i, change in enumerate((optimize, delete, add_column)):
        send(lake_broker, lake, range(100 * (i + 1), 100 * (i + 1) + 30))
        fault_points.call_at("lake.before-commit", change)
        try:
            assert worker.run_once([lake]) == {}
        finally:
            fault_points.disarm()
    expected = [n for n in range(30) if n != 3] + [n for k in (100, 200, 300) for n in range(k, k + 30)]
    assert sorted(r["n"] for r in table_rows(path) if r["n"] is not None) == expected
    checked = verify_lake(lake_admin, lake)
    assert checked.problems == []
    assert any(r.startswith("1 rows have no _partition and _offset") for r in checked.remarks)


def test_a_compaction_on_an_old_version_is_taken_back(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    """delta-rs lets a compaction pass another one: the rows of files that the other has replaced are there twice."""
    path = tmp_path / "table"
    for start in range(0, 10 * (FILES_MIN - 1), 10):
        send(lake_broker, lake, range(start, start + 10), partition=0)
        assert worker.run_once([lake]) == {}
    before_merge = DeltaTable(path)
    send(lake_broker, lake, range(500, 510), partition=0)
    assert worker.run_once([lake]) == {}
    assert len(DeltaTable(path).file_uris()) < FILES_MIN, "the worker has merged files"
    assert_table_is_log(lake_broker, lake, path)
    DeltaTable(path).delete("n = 3")
    for by_worker in (True, False):
        if not by_worker:
            send(lake_broker, lake, range(600, 601), partition=0)
            assert worker.run_once([lake]) == {}
        stale = before_merge if by_worker else DeltaTable(path)
        if not by_worker:
            DeltaTable(path).optimize.compact()
        expected = DeltaTable(path).to_pyarrow_table().num_rows
        stale.optimize.compact()
        broken = DeltaTable(path)
        assert broken.to_pyarrow_table().num_rows > expected, "delta-rs compares compactions with each other now"
        read = sparklog.read_table(lake_broker.bootstrap_servers, lake, history=True)
        assert read.num_rows == expected, "readers take the version before"
        assert "was taken back" in worker.run_once([lake])[lake]
        assert DeltaTable(path).to_pyarrow_table().num_rows == expected
        undone = (path / "_delta_log" / f"{broken.version() + 1:020d}.json").read_text()
        assert '"undone"' in undone
        assert '"dataChange":true' not in undone
        assert worker.run_once([lake]) == {}
        assert verify_lake(lake_admin, lake).problems == []
    send(lake_broker, lake, range(700, 701), partition=0)
    assert worker.run_once([lake]) == {}
    stale = DeltaTable(path)
    for handle in (DeltaTable(path), stale):
        handle.optimize.compact()
    write_deltalake(path, pa.table({"n": pa.array([None], pa.int64())}), mode="append", schema_mode="merge")
    assert "a compaction that has added rows" in worker.run_once([lake])[lake]
    with pytest.raises(LakeUnavailableError, match="a compaction that has added rows"):
        sparklog.read_table(lake_broker.bootstrap_servers, lake, history=True)


def test_a_restored_table_pauses_and_goes_on_from_its_rows(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    for start in (0, 100):
        send(lake_broker, lake, range(start, start + 50))
        assert worker.run_once([lake]) == {}
    send(lake_broker, lake, range(200, 250))
    fault_points.call_at("lake.before-commit", lambda: nothing(DeltaTable(path).restore(1)))
    try:
        errors = worker.run_once([lake])
    finally:
        fault_points.disarm()
    assert "restored to version 1" in errors[lake]
    assert "restored to version 1" in lake_admin.describe_lake(lake).paused
    lake_admin.resume_lake(lake)
    assert "restored" in worker.run_once([lake])[lake]  # nothing was decided
    lake_admin.resume_lake(lake, from_table=True)
    assert worker.run_once([lake]) == {}
    assert_table_is_log(lake_broker, lake, path)


def test_a_merge_does_not_hide_that_a_table_was_restored(
    lake_broker: LocalBroker, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    for start in range(0, 120, 10):
        send(lake_broker, lake, range(start, start + 10), partition=0)
        if start == 110:
            fault_points.call_at("lake.before-merge", lambda: nothing(DeltaTable(path).restore(10)))
        try:
            assert worker.run_once([lake]) == {}
        finally:
            fault_points.disarm()
    assert "restored to version 10" in worker.run_once([lake])[lake]


def test_a_dropped_or_foreign_table_pauses(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    import shutil

    path = tmp_path / "table"
    send(lake_broker, lake, range(50))
    assert worker.run_once([lake]) == {}
    shutil.rmtree(path)
    assert "dropped" in worker.run_once([lake])[lake]
    assert not path.exists()
    with pytest.raises(LakePausedError, match="dropped or moved; use 'sparklog lake rebuild'"):
        verify_lake(lake_admin, lake)
    write_deltalake(path, pa.table({"a": [1]}))
    lake_admin.resume_lake(lake)
    assert "belongs to no topic" in worker.run_once([lake])[lake]
    with pytest.raises(sparklog.SparklogError, match="does not belong"):
        lake_admin.rebuild_lake(lake)
    shutil.rmtree(path)
    lake_admin.rebuild_lake(lake)
    assert worker.run_once([lake]) == {}
    assert_table_is_log(lake_broker, lake, path)
    write_deltalake(path, pa.table({"a": [1]}), mode="overwrite", schema_mode="overwrite")
    assert "no column _partition, _offset, _timestamp" in worker.run_once([lake])[lake]
    assert any("no column _partition" in p for p in verify_lake(lake_admin, lake).problems)
    with pytest.raises(LakePausedError, match="no column"):
        sparklog.read_table(lake_broker.bootstrap_servers, lake, history=True)
    lake_admin.rebuild_lake(lake)
    assert worker.run_once([lake]) == {}
    assert_table_is_log(lake_broker, lake, path)


def test_columns_arrive_before_their_rows_and_wider_ones_need_a_rebuild(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    lake_admin.create_topic(topic, schema="n INT, zone STRING")
    lake_admin.enable_lake(topic, location=str(path))
    send(lake_broker, topic, range(10))
    assert worker.run_once([topic]) == {}
    lake_admin.alter_schema(topic, add_columns="extra TIMESTAMP_NTZ, list ARRAY<STRUCT<a: INT>>")
    with sparklog.Producer(lake_broker.bootstrap_servers) as producer:
        producer.send_batch(topic, [{"n": 10, "zone": "z", "list": [{"a": 1}]}])
    assert worker.run_once([topic]) == {}
    found = {r["n"]: r["list"] for r in table_rows(path)}
    assert found[10] == [{"a": 1}]
    assert found[9] is None
    lake_admin.alter_schema(topic, widen_columns="n BIGINT")
    send(lake_broker, topic, range(2**40, 2**40 + 1))
    assert "'n' is int64 in the topic and int32 in the table" in worker.run_once([topic])[topic]
    lake_admin.rebuild_lake(topic)
    assert worker.run_once([topic]) == {}
    assert max(r["n"] for r in table_rows(path)) == 2**40
    assert len(table_rows(path)) == 12


def test_a_wider_column_is_refused_until_its_effect_on_the_table_is_accepted(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    """The rows that the log has deleted stay in the table."""
    path, servers = tmp_path / "table", lake_broker.bootstrap_servers
    lake_admin.create_topic(topic, schema="n INT, zone STRING")
    lake_admin.enable_lake(topic, location=str(path))
    send(lake_broker, topic, range(10))
    assert worker.run_once([topic]) == {}
    lake_admin.delete_records({TopicPartition(topic, 0): 10})
    change = ["topic", "alter", topic, "--widen", "n BIGINT", "--bootstrap-servers", servers]
    refused = run_here(*change)
    assert refused.returncode == 1
    assert "pauses when n becomes wider" in refused.stderr
    assert "--yes" in refused.stderr
    assert lake_admin.describe_topic(topic).schema.field("n").type == pa.int32()
    assert run_here(*change, "--yes").returncode == 0
    assert run_here(*change).returncode == 0  # nothing becomes wider
    send(lake_broker, topic, range(2**40, 2**40 + 1))
    assert "rebuild --keep-rows" in worker.run_once([topic])[topic]
    rebuilt = run_here("lake", "rebuild", topic, "--keep-rows", "--bootstrap-servers", servers)
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert worker.run_once([topic]) == {}
    assert sorted(r["n"] for r in table_rows(path)) == [*range(10), 2**40]
    assert verify_lake(lake_admin, topic, full=True).problems == []
    with pytest.raises(InvalidConfigError, match="no column of topic"):
        lake_admin.rebuild_lake(topic, keep_rows=True)


def test_columns_that_delta_cannot_hold_are_refused(lake_admin: Admin, topic: str, tmp_path: Path) -> None:
    lake_admin.create_topic(topic, schema=pa.schema([("wait", pa.duration("us")), ("a b", pa.int32())]))
    with pytest.raises(InvalidConfigError, match=r"'wait' .*interval.*'a b'"):
        lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    assert not (tmp_path / "table").exists()
    assert lake_admin.describe_topic(topic).setting("lake.location") == ""


def test_retention_and_deletion_wait_for_the_table(
    lake_broker: LocalBroker,
    lake_admin: Admin,
    worker: LakeWorker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs = {"segment.bytes": 4096, "retention.bytes": 4096, "file.delete.delay.ms": 0}
    lake_admin.create_topic(topic, schema=SCHEMA, configs=configs)
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    partition = TopicPartition(topic, 0)
    for start in range(0, 2_000, 200):
        send(lake_broker, topic, range(start, start + 200))
    with pytest.raises(InvalidRequestError, match="Delta table"):
        lake_admin.delete_records({partition: 100})
    assert lake_admin.list_offsets({partition: "earliest"})[partition].offset == 0
    assert worker.run_once([topic]) == {}
    until(lambda: lake_admin.list_offsets({partition: "earliest"})[partition].offset > 0)
    send(lake_broker, topic, range(2_000, 2_010))
    assert worker.run_once([topic]) == {}
    run = verify._Check.run

    def run_late(check: Any) -> None:
        lake_admin.delete_records({partition: -1})
        run(check)

    monkeypatch.setattr(verify._Check, "run", run_late)  # the check has an old start of the log
    assert verify_lake(lake_admin, topic).problems == []
    assert lake_admin.list_offsets({partition: "earliest"})[partition].offset == 2_010
    assert len(table_rows(tmp_path / "table")) == 2_010
    send(lake_broker, topic, range(2_010, 2_020))
    assert worker.run_once([topic]) == {}
    assert len(table_rows(tmp_path / "table")) == 2_020


def test_records_that_are_gone_stop_the_table_or_are_skipped(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    lake_admin.create_topic(topic, schema=SCHEMA, configs={"lake.hold.retention": False})
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    partition = TopicPartition(topic, 0)
    send(lake_broker, topic, range(10))
    assert worker.run_once([topic]) == {}
    send(lake_broker, topic, range(10, 20))
    lake_admin.delete_records({partition: 15})
    lake_admin.alter_topic(topic, {"lake.hold.retention": True})
    assert "offsets 10 to 14 of partition 0 were deleted" in worker.run_once([topic])[topic]
    lake_admin.alter_topic(topic, {"lake.hold.retention": False})
    lake_admin.resume_lake(topic)
    assert worker.run_once([topic]) == {}
    assert sorted(r["n"] for r in table_rows(tmp_path / "table")) == [*range(10), *range(15, 20)]


def test_small_files_are_merged_and_streams_do_not_see_it(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    for start in range(0, 100, 10):
        send(lake_broker, lake, range(start, start + 10), partition=0)
        assert worker.run_once([lake]) == {}
    path = tmp_path / "table"
    assert len(DeltaTable(path).file_uris()) < 8
    assert_table_is_log(lake_broker, lake, path)
    merges = [p for p in (path / "_delta_log").glob("*.json") if '"merged"' in p.read_text()]
    assert merges
    assert all('"dataChange":true' not in p.read_text() for p in merges)
    assert verify_lake(lake_admin, lake).problems == []


def test_small_files_of_a_restored_table_are_not_merged(
    lake_broker: LocalBroker, lake_admin: Admin, lake: str, tmp_path: Path
) -> None:
    """The merge would be the newest commit of a worker, and so hide the RESTORE from the next round."""
    path = tmp_path / "table"
    restore = [False]

    def after_round(topic: str, result: object) -> None:
        if restore[0]:
            DeltaTable(path).restore(FILES_MIN)

    worker = LakeWorker(lake_broker.bootstrap_servers, on_round=after_round)
    try:
        for i in range(FILES_MIN):
            send(lake_broker, lake, range(i, i + 1), partition=0)
            info, settings = worker.lake_topics([lake])[lake]
            assert worker._round(info, settings, worker._topic(info)) is not None
        send(lake_broker, lake, range(100), partition=0)
        restore[0] = True
        worker.run_once([lake])
        restore[0] = False
        assert "restored to version" in worker.run_once([lake])[lake]
        lake_admin.resume_lake(lake, from_table=True)
        assert worker.run_once([lake]) == {}
    finally:
        worker.close()
    assert_table_is_log(lake_broker, lake, path)


def test_verify_finds_rows_that_are_twice_missing_or_misplaced(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    send(lake_broker, lake, range(20), partition=0)
    assert worker.run_once([lake]) == {}
    write_deltalake(path, DeltaTable(path).to_pyarrow_table(), mode="append")
    assert any("more than once" in p for p in verify_lake(lake_admin, lake).problems)
    lake_admin.rebuild_lake(lake)
    assert worker.run_once([lake]) == {}
    next(path.glob("*.parquet")).unlink()
    for file in path.glob("*.parquet"):
        file.unlink()
    assert any("cannot be read" in p for p in verify_lake(lake_admin, lake).problems)


def test_rows_that_are_missing_beside_appends_of_others_are_a_problem(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    send(lake_broker, lake, range(20), partition=0)
    send(lake_broker, lake, range(20), partition=1)
    assert worker.run_once([lake]) == {}
    write_deltalake(path, pa.table({"n": pa.array([None], pa.int64())}), mode="append", schema_mode="merge")
    table = DeltaSnapshot.open(str(path))
    assert table is not None
    removed = [f for f in table.files() if f.partition == 0]
    DeltaCommitter(table).commit([], removed, {}, information={}, is_change=False)
    checked = verify_lake(lake_admin, lake)
    assert checked.problems == ["partition 0 lacks 20 rows, the first at offset 0"]
    DeltaTable(path).delete("n = 3")
    checked = verify_lake(lake_admin, lake)
    assert checked.problems == []
    assert any("the table's history has DELETE by other writers" in r for r in checked.remarks)


def test_two_witnesses_disagree(lake_broker: LocalBroker, worker: LakeWorker, lake: str, tmp_path: Path) -> None:
    """Rows beyond the table's transactions stop the worker: they would come twice."""
    path = tmp_path / "table"
    send(lake_broker, lake, range(20), partition=1)
    assert worker.run_once([lake]) == {}
    found = DeltaTable(path).to_pyarrow_table()
    shifted = found.set_column(found.schema.get_field_index("_offset"), "_offset", pa.array(range(20, 40)))
    write_deltalake(path, shifted, mode="append")
    send(lake_broker, lake, range(20, 40), partition=1)
    assert "has rows up to offset 39 in the table, but a transaction up to offset 19" in worker.run_once([lake])[lake]


def test_a_table_in_use_by_another_topic_is_refused(
    lake_admin: Admin, lake: str, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    other = topic_name()
    lake_admin.create_topic(other, schema=SCHEMA)
    with pytest.raises(InvalidConfigError, match="does not belong to topic"):
        lake_admin.enable_lake(other, location=str(tmp_path / "table"))
    with pytest.raises(InvalidConfigError, match=r"inside the Delta table at .*/table,"):
        lake_admin.enable_lake(other, location=str(tmp_path / "table" / "deep" / "other"))
    assert not (tmp_path / "table" / "deep").exists()
    lake_admin.disable_lake(lake)
    lake_admin.enable_lake(lake, location=str(tmp_path / "table"))  # its own goes on


def test_a_table_keeps_its_mode(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """Else an upserted table would be read as a history, or rows of before stay beside the newest ones."""
    for mode, other in (("append", "upsert"), ("upsert", "append")):
        name = topic_name()
        location = str(tmp_path / name)
        by = {"append": ["_partition"], "upsert": []}
        lake_admin.create_topic(name, 1, schema="id INT, n INT", key_columns=["id"])
        lake_admin.enable_lake(name, location=location, mode=mode, partition_by=by[mode])
        with pytest.raises(InvalidConfigError, match=f"made with mode {mode}"):
            lake_admin.enable_lake(name, location=location, mode=other, partition_by=by[other])
        with pytest.raises(InvalidConfigError, match=f"which was made with '{mode}'"):
            lake_admin.alter_topic(name, {"lake.mode": other, "lake.partition.by": ",".join(by[other])})
        lake_admin.disable_lake(name)
        with pytest.raises(InvalidConfigError, match=f"made with mode {mode}"):
            lake_admin.enable_lake(name, location=location, mode=other, partition_by=by[other])


def test_partitions_are_not_added_beneath_an_upserted_table(
    lake_admin: Admin, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    name = topic_name()
    lake_admin.create_topic(name, 1, schema="id INT, n INT", key_columns=["id"])
    with pytest.raises(InvalidConfigError, match="a column occurs twice"):
        lake_admin.enable_lake(name, location=str(tmp_path / name), mode="upsert", partition_by=["_partition"])
    lake_admin.enable_lake(name, location=str(tmp_path / name), mode="upsert")
    with pytest.raises(InvalidPartitionsError, match="keys would move"):
        lake_admin.add_partitions(name, 2)
    lake_admin.disable_lake(name)
    lake_admin.add_partitions(name, 2)
    with pytest.raises(InvalidConfigError, match="would bring deleted rows back"):
        lake_admin.enable_lake(name, location=str(tmp_path / name), mode="upsert")


def test_a_topic_whose_keys_moved_has_one_answer_to_latest(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    """An upserted table keeps no deletions, so that a deletion in a new partition would bring the old row back."""
    lake_admin.create_topic(topic, 1, schema="id INT, n INT", key_columns=["id"])
    with sparklog.Producer(lake_broker.bootstrap_servers) as producer:
        producer.send_batch(topic, [{"id": i, "n": i} for i in range(8)]).result(60)
        lake_admin.add_partitions(topic, 4)
        for i in range(4):
            producer.send_batch(topic, [{"id": i, "n": None}], partition=1 + i % 3).result(60)
    place = str(tmp_path / "upsert")
    with pytest.raises(InvalidConfigError, match="would bring deleted rows back"):
        lake_admin.enable_lake(topic, location=place, mode="upsert")
    assert not Path(place).exists()
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"))
    assert worker.run_once([topic]) == {}
    found = sparklog.read_table(lake_broker.bootstrap_servers, topic, latest=True)
    by_sql = sparklog.sql(lake_broker.bootstrap_servers, f'SELECT id FROM latest."{topic}"')
    assert sorted(found.column("id").to_pylist()) == [4, 5, 6, 7] == sorted(by_sql.column("id").to_pylist())


def test_a_broker_starts_a_worker_when_a_topic_has_a_table(tmp_path: Path) -> None:
    """No other set-up: a broker, `enable`, and the table is there; also after a kill of the worker."""
    with (
        sparklog.start_local(tmp_path / "data") as local,
        sparklog.Admin(local.bootstrap_servers) as own,
    ):
        own.create_topic("trips", schema=SCHEMA)
        own.enable_lake("trips", location=str(tmp_path / "table"), interval_ms=200)
        send(local, "trips", range(100))
        until(lambda: own.describe_lake("trips").lag == 0)
        (started,) = re.findall(r"lake-worker started, process (\d+)", local.log)
        os.kill(int(started), signal.SIGKILL)
        send(local, "trips", range(100, 200))
        until(lambda: own.describe_lake("trips").lag == 0)
        assert_table_is_log(local, "trips", tmp_path / "table")
    until(lambda: not Path(f"/proc/{started}").exists())


def test_a_partitioned_table(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    lake_admin.create_topic(topic, partitions=2, schema=SCHEMA)
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"), partition_by=["zone"])
    with sparklog.Producer(lake_broker.bootstrap_servers) as producer:
        zones = ["a b/ü", None, "x=y", "a b/ü", "100%", "x", "very long " * 40, "\n+:?#"]
        producer.send_batch(topic, pa.table({"n": range(len(zones)), "zone": zones}))
    assert worker.run_once([topic]) == {}
    assert_table_is_log(lake_broker, topic, tmp_path / "table")
    assert verify_lake(lake_admin, topic).problems == []


def test_polars_reads_the_values_of_partition_columns_which_it_takes_from_the_paths(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    lake_admin.create_topic(topic, partitions=1, schema="n BIGINT, `größe` STRING, day DATE, flag BOOLEAN")
    lake_admin.enable_lake(topic, location=str(tmp_path / "table"), partition_by=["größe", "day", "flag"])
    rows = [
        {"n": n, "größe": zone, "day": None if n == 1 else datetime.date(2026, 2, n + 1), "flag": flag}
        for n, (zone, flag) in enumerate(
            [("a b/ü", True), (None, False), ("x=y", None), ("100%", True), ("\n+:?#", True)]
        )
    ]
    with sparklog.Producer(lake_broker.bootstrap_servers) as producer:
        producer.send_batch(topic, rows)
    assert worker.run_once([topic]) == {}
    found = polars.read_delta(str(tmp_path / "table")).sort("n")
    assert found.select("n", "größe", "day", "flag").to_dicts() == rows


def test_files_of_a_compaction_that_doubles_rows_of_a_partitioned_table_are_taken_back(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, topic: str, tmp_path: Path
) -> None:
    """The table's log encodes the paths of other writers once more than the file system has them."""
    location = str(tmp_path / "table")
    lake_admin.create_topic(topic, partitions=1, schema="n BIGINT, zone STRING")
    lake_admin.enable_lake(topic, location=location, partition_by=["zone"])
    with sparklog.Producer(lake_broker.bootstrap_servers) as producer:
        for n in range(2):
            producer.send_batch(topic, pa.table({"n": [n], "zone": ["a b/ü=100%"]})).result(60)
            assert worker.run_once([topic]) == {}
    DeltaTable(location).optimize.compact()
    table = DeltaSnapshot.open(location)
    assert table is not None
    DeltaCommitter(table).undo_compaction()
    assert sorted(DeltaTable(location).to_pyarrow_table().column("n").to_pylist()) == [0, 1]
    assert_table_is_log(lake_broker, topic, tmp_path / "table")


def test_partitions_are_added(
    lake_broker: LocalBroker, lake_admin: Admin, worker: LakeWorker, lake: str, tmp_path: Path
) -> None:
    send(lake_broker, lake, range(20))
    assert worker.run_once([lake]) == {}
    lake_admin.add_partitions(lake, 5)
    send(lake_broker, lake, range(20, 40), partition=4)
    assert worker.run_once([lake]) == {}
    assert_table_is_log(lake_broker, lake, tmp_path / "table")


def test_other_writers_in_every_commit_are_an_error_that_is_tried_again(
    lake_broker: LocalBroker, lake_admin: Admin, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparklog.lake.delta_errors import CommitConflictError

    def refuse(self: DeltaCommitter, *args: Any, **named: Any) -> None:
        DeltaTable(tmp_path / "table").alter.set_table_description(f"after {self.table.version}")
        raise CommitConflictError("overtaken")

    send(lake_broker, lake, range(10))
    shared = lake_admin._cluster
    info = shared.topic(lake, refresh=True)
    rounds = LakeSync(TopicReader(shared, 10_000), pause_s=lambda _: None)
    monkeypatch.setattr(DeltaCommitter, "commit", refuse)
    with pytest.raises(LakeUnavailableError, match="conflicted with other writers"):
        rounds.round(info, LakeSettings.of(info.configs), lambda _: None)
    monkeypatch.undo()
    rounds.round(info, LakeSettings.of(info.configs), lambda _: None)
    assert_table_is_log(lake_broker, lake, tmp_path / "table")
