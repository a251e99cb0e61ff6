"""The sink: tasks that gather rows, writers, leases, and the Python process of a task."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_sparklog import DefaultSource
from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.options.options import parse_sink_options
from pyspark_sparklog.sink import leases, publication, writer
from pyspark_sparklog.sink.publication import Publisher, SinkCommitMessage, TaskPlace
from pyspark_sparklog.sink.sink_task import SPREAD_BYTES, SinkTask
from pyspark_sparklog.sink.writer import SparklogStreamWriter, stream_writer
from pyspark_sparklog.worker_process import FREEZES_MAX, ImportedObjects

from sparklog.client.transactions.lease_keeper import LEASE_MS, Process, driver_of
from sparklog.client.transactions.shared_transaction import LastCommit, SharedTransaction, TransactionOutcome
from sparklog.errors import InvalidConfigError
from sparklog.security.client_security import SecuritySettings
from sparklog.settings import MIB
from tests.support.waiting import until

VALUES = pa.array([b"v" * 1000] * 300, pa.binary())
BATCH_BYTES = pa.record_batch({"value": VALUES}).nbytes


def _task(*, envelope: bool = True, keyed: bool = False, **options: Any) -> SinkTask:
    given = {"topic": "t", "sparklog.bootstrap.servers": "127.0.0.1:1"} | options
    publisher = Publisher(ClusterAddress("127.0.0.1:1"), 1, 1, -1)
    return SinkTask(parse_sink_options(given, streaming=False), envelope, keyed, publisher)


def _pieces(task: SinkTask, columns: dict[str, Any], batches: int) -> list[int]:
    """Batches in each piece."""
    rows: Iterator[pa.RecordBatch] = iter([pa.record_batch(columns)] * batches)
    return [piece.data.num_rows // len(VALUES) for piece in task._gather_by_topic(rows)]


NO_KEYS = pa.nulls(len(VALUES), pa.binary())


@pytest.mark.parametrize("columns", [{"value": VALUES}, {"key": NO_KEYS, "value": VALUES}])
def test_rows_that_may_go_anywhere_are_gathered_to_one_batch(columns: dict[str, Any]) -> None:
    near = round(MIB / BATCH_BYTES)
    assert _pieces(_task(), columns, 2 * near + 1) == [near, near, 1]


def test_the_batch_size_decides() -> None:
    assert _pieces(_task(**{"sparklog.batch.size.bytes": "1"}), {"value": VALUES}, 3) == [1, 1, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "columns",
    [
        {"key": VALUES, "value": NO_KEYS},
        {"value": VALUES, "partition": pa.array([0] * len(VALUES), pa.int32())},
    ],
)
def test_rows_that_name_their_partitions_are_gathered_for_several(columns: dict[str, Any]) -> None:
    count = -(-SPREAD_BYTES // pa.record_batch(columns).nbytes)
    assert _pieces(_task(), columns, count + 1) == [count, 1]


def test_a_keyed_topic_has_rows_for_several_partitions() -> None:
    count = -(-SPREAD_BYTES // BATCH_BYTES)
    assert _pieces(_task(envelope=False, keyed=True), {"value": VALUES}, count + 1) == [count, 1]
    assert _pieces(_task(envelope=False), {"value": VALUES}, 4) == [3, 1]


# Which of the writers that Spark asks for asks the broker, and when


GIVEN = {"sparklog.bootstrap.servers": "127.0.0.1:1", "topic": "t", "checkpointLocation": "/c"}
VALUE = StructType([StructField("value", BinaryType())])
TRANSACTION = SharedTransaction("query", 7, "run", 40)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests to a missing broker."""
    made: list[str] = []

    def check(*_: Any, **__: Any) -> Any:
        made.append("topic")
        return writer._Kind(envelope=False, keyed=True)

    def draw_fencing_token(*_: Any) -> int:
        made.append("fencing token")
        return 40 + len(made)

    def end(*_: Any, **__: Any) -> TransactionOutcome:
        made.append("end")
        return TransactionOutcome(True, LastCommit(7, ""))

    monkeypatch.setattr(writer, "_check", check)
    monkeypatch.setattr(publication, "draw_fencing_token", draw_fencing_token)
    monkeypatch.setattr(publication, "end_shared_transaction", end)
    return made


def stream_writer_of(source: DefaultSource) -> SparklogStreamWriter:
    made = source.streamWriter(VALUE, overwrite=False)
    assert isinstance(made, SparklogStreamWriter)
    return made


def test_the_one_that_writes_asks_at_once(asked: list[str]) -> None:
    made = stream_writer_of(DefaultSource(GIVEN))
    assert asked == ["topic", "fencing token"]
    task = pickle.loads(pickle.dumps(made))._task
    assert task == made._task and (task.envelope, task.keyed, task.publisher.fencing_token) == (False, True, 42)
    assert asked == ["topic", "fencing token"]


def test_the_committing_writer_sends_no_other_request(asked: list[str]) -> None:
    sent = pickle.loads(pickle.dumps(DefaultSource(GIVEN)))
    place = TaskPlace("query", "run", 7, 0, 0)
    stream_writer_of(sent).commit([SinkCommitMessage(place, TRANSACTION, producer_id=3)], 7)
    stream_writer_of(sent).abort([SinkCommitMessage(place, TRANSACTION, producer_id=3)], 7)
    assert asked == ["end", "end"]
    with pytest.raises(InvalidConfigError, match="complete"):
        sent.streamWriter(VALUE, overwrite=True)


def test_should_spark_write_with_it_all_tasks_get_one_fencing_token(asked: list[str]) -> None:
    made = stream_writer(GIVEN, VALUE, overwrite=False, ends_only=True)
    assert asked == []
    first, second = (pickle.loads(pickle.dumps(made)) for _ in range(2))
    assert asked == ["topic", "fencing token"]
    assert first._task == second._task and first._task.publisher.fencing_token == 42 and first._task.keyed
    assert first._task.options == parse_sink_options(GIVEN, streaming=True)


# The driver's side of leases: one keeper for all batch writes of a process


def test_one_keeper_gets_all_leases_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "keeper"
    program.write_text(f'#!/bin/sh\necho "$$ $3" >> {tmp_path}/starts\nexec cat >> {tmp_path}/lines\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(leases, "renew_shared_transaction", lambda *_, **__: True)
    keepers = leases.LeaseKeepers()
    address = ClusterAddress("127.0.0.1:1", SecuritySettings({}))

    def starts() -> list[tuple[int, int]]:
        lines = (tmp_path / "starts").read_text().splitlines()
        return [(int(pid), int(driver)) for pid, driver in map(str.split, lines)]

    def keep(app_id: str) -> None:
        assert keepers.keep(address, SharedTransaction(app_id, 0, "run", 7), 1_000) == LEASE_MS
        until(lambda: app_id in (tmp_path / "lines").read_text(), "the keeper has the lease", passing=(OSError,))

    keep("first")
    keep("second")
    ((pid, driver),) = starts()
    own = driver_of(os.getpid())
    assert own is not None and driver == own.pid
    assert os.getsid(pid) == pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: Process.from_pid(pid) is None, "the keeper has ended")
    keep("third")
    assert len(starts()) == 2
    lines: list[Any] = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [line[1] for line in lines] == ["first", "second", "third"]
    os.close(keepers._pipe)  # the second one ends


# The imports of a Spark process are taken out of garbage collection, once


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element per freeze; nothing of the test's own process is frozen."""
    made: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: made.append(len(sys.modules)))
    return made


def test_a_process_that_spark_does_not_reuse_stays_unchanged(
    freezes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    ImportedObjects().freeze()
    assert not freezes


def test_frozen_again_only_after_more_imports(freezes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    imported = ImportedObjects()
    imported.freeze()
    imported.freeze()
    assert len(freezes) == 1
    monkeypatch.setitem(sys.modules, "made_for_this_test", types.ModuleType("made_for_this_test"))
    imported.freeze()
    assert len(freezes) == 2


def test_code_that_makes_modules_for_ever_does_not_freeze_for_ever(
    freezes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    imported = ImportedObjects()
    for i in range(2 * FREEZES_MAX):
        monkeypatch.setitem(sys.modules, f"made_for_this_test_{i}", types.ModuleType("made_for_this_test"))
        imported.freeze()
    assert len(freezes) == FREEZES_MAX
