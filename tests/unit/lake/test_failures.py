"""Failures of a table's location: their texts, the lasting ones, and the files of a round that has failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sparklog.client.net.topic_info import TopicInfo
from sparklog.environment import fault_points
from sparklog.errors import (
    BrokerNotAvailableError,
    ClusterAuthorizationFailedError,
    InvalidConfigError,
    LakePausedError,
    LakeUnavailableError,
)
from sparklog.lake.delta_commit import DeltaCommitter
from sparklog.lake.delta_errors import CommitConflictError, check_clear_text, lasting_cause, text_of
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.parquet_files import DataFile
from sparklog.lake.rules import PartitionEnds
from sparklog.lake.settings import LakeSettings
from sparklog.lake.worker.round_files import RoundFiles
from sparklog.lake.worker.worker import STANDBY_INTERVALS, LakeWorker, _Topic
from tests.support.cases import for_each
from tests.unit.lake.model_log import ModelLog, run_round, settings_at

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
FULL = (
    "Generic LocalFileSystem error\n  \x1b[31m↳\x1b[0m Unable to copy data\n \x1b[31m↳\x1b[0m No space (os error 28)\n"
)
ANSWER = "Generic S3 error\n  \x1b[31m↳\x1b[0m Error performing PUT http://x: {}"


def test_the_text_of_an_error_has_all_its_causes() -> None:
    assert text_of(OSError(FULL)) == "Generic LocalFileSystem error: Unable to copy data: No space (os error 28)"
    assert text_of(OSError()) == "OSError"
    long = text_of(OSError("begin" + "x" * 10_000 + "end"))
    assert (long[:5], long[-3:], len(long) < 1_000) == ("begin", "end", True)


@for_each(
    "text, cause",
    [
        (FULL, "the disk is full"),
        ("Permission denied (os error 13)", "the worker lacks the right to the files"),
        ("Read-only file system (os error 30)", "the file system is read-only"),
        (ANSWER.format("400 Bad Request: <Code>ExpiredToken</Code>"), "expired credentials"),
        (ANSWER.format("403 Forbidden: <Code>InvalidAccessKeyId</Code>"), "wrong credentials"),
        (ANSWER.format("403 Forbidden: <Code>AccessDenied</Code>"), "the worker lacks the right"),
        (ANSWER.format("404 Not Found: <Code>NoSuchBucket</Code>"), "the bucket does not exist"),
        ("Unsupported table features required: [ClusteredTable]", "deltalake does not support the table's features"),
        ("Unsupported: Feature 'geospatial' is not supported", "deltalake cannot read a table with such a feature"),
        (ANSWER.format("503 Slow Down"), ""),
        ("Failed to commit transaction: 0", ""),
        ("Connection refused (os error 111)", ""),
    ],
)
def test_lasting_causes(text: str, cause: str) -> None:
    assert lasting_cause(OSError(text)) == cause
    try:
        raise LakeUnavailableError("the table cannot be reached") from OSError(text)
    except LakeUnavailableError as e:
        assert lasting_cause(e) == cause


def test_an_errno_is_a_lasting_cause() -> None:
    assert lasting_cause(OSError(errno.ENOSPC, "no space")) == "the disk is full"
    assert lasting_cause(OSError(errno.EINTR, "interrupted")) == ""


def test_an_endpoint_without_tls_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    check_clear_text("/a/directory")
    with pytest.raises(InvalidConfigError, match="AWS_ALLOW_HTTP=true"):
        DeltaSnapshot.open("s3://bucket/table")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    check_clear_text("s3://bucket/table")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:9000")
    check_clear_text("s3://bucket/table")


def files(path: Path) -> set[Path]:
    return set(path.rglob("*.parquet"))


@for_each("mode", ["append", "upsert"])
def test_a_full_disk_leaves_no_files(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step: a written file, its fsync, and the commit."""
    log, path = ModelLog(SCHEMA, partitions=2, keys=["id"]), tmp_path / mode
    settings = settings_at(path, mode=mode)
    log.rows = {0: [{"id": 1, "n": 1}], 1: [{"id": 2, "n": 2}]}
    run_round(log, settings)
    before = files(path)
    log.rows = {0: [{"id": 1, "n": 1}, {"id": 1, "n": 3}], 1: [{"id": 2, "n": 2}, {"id": 2, "n": 4}]}

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(FULL)

    steps: list[tuple[object, str, Any]] = [
        (os, "fsync", fail),
        (DeltaTable, "create_write_transaction", refuse),
    ]
    for owner, name, failure in steps:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failure)
            with pytest.raises((OSError, LakeUnavailableError)) as caught:
                run_round(log, settings)
        assert lasting_cause(caught.value) == "the disk is full"
        assert files(path) == before
    if mode == "append":
        fault_points.call_at("lake.file-written", fail)
        try:
            with pytest.raises(OSError, match="No space"):
                run_round(log, settings)
        finally:
            fault_points.disarm()
        assert files(path) == before
    run_round(log, settings)
    assert DeltaTable(path).to_pyarrow_table().num_rows == (4 if mode == "append" else 2)


def test_a_commit_that_fails_without_another_writer_pauses_with_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each round would write the files of the whole backlog again."""
    log = ModelLog(SCHEMA)
    log.rows[0] = [{"id": 1, "n": 1}]

    def fail(self: DeltaCommitter, *args: object, **named: object) -> None:
        raise CommitConflictError("the moon is full")

    monkeypatch.setattr(DeltaCommitter, "commit", fail)
    with pytest.raises(LakePausedError, match="no other writer has committed: the moon is full"):
        run_round(log, settings_at(tmp_path / "table"))


def test_a_commit_that_succeeded_before_its_error_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk can fail the checkpoint after the commit."""
    log, path = ModelLog(SCHEMA), tmp_path / "table"
    log.rows[0] = [{"id": 1, "n": 1}]
    commit = DeltaCommitter.commit

    def fail(self: DeltaCommitter, *args: Any, **named: Any) -> None:
        commit(self, *args, **named)
        raise CommitConflictError(FULL, "the disk is full")

    monkeypatch.setattr(DeltaCommitter, "commit", fail)
    assert run_round(log, settings_at(path)).next_offsets == {0: 1}
    assert DeltaTable(path).to_pyarrow_table().num_rows == 1


def test_a_lasting_failure_pauses_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = LakeWorker("127.0.0.1:1")
    paused: list[str] = []
    monkeypatch.setattr(worker, "_report", lambda *_, **__: None)
    monkeypatch.setattr(worker, "_pause", lambda name, reason: paused.append(reason))
    info: Any = SimpleNamespace(name="trips")
    for failure in (OSError(errno.ENOSPC, "no space"), LakeUnavailableError("the network is away")):

        def fail(*_: object, failure: Exception = failure) -> None:
            raise failure

        topic = _Topic(SimpleNamespace(round=fail), "id")  # type: ignore[arg-type]
        assert worker._round(info, settings_at(Path("/lake")), topic) is None
    worker.close()
    assert len(paused) == 1
    assert "the disk is full" in paused[0]
    assert "sparklog lake resume trips" in paused[0]


@for_each("mode", ["append", "upsert"])
def test_files_of_a_commit_that_succeeded_unseen_stay_when_another_writer_comes_next(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next version is this round's own, so it proves that the table has the files."""
    log, path = ModelLog(SCHEMA, keys=["id"]), tmp_path / mode
    log.rows[0] = [{"id": 1, "n": 1}, {"id": 2, "n": 1}]
    commit, attempts = DeltaCommitter.commit, []

    def lose_the_answer(self: DeltaCommitter, *args: Any, **named: Any) -> None:
        commit(self, *args, **named)
        attempts.append(args)
        if len(attempts) == 1:
            DeltaTable(path).alter.set_table_description("the next version")
            raise CommitConflictError("another writer has committed")

    monkeypatch.setattr(DeltaCommitter, "commit", lose_the_answer)
    run_round(log, settings_at(path, mode=mode))
    assert attempts
    assert sorted(r["id"] for r in DeltaTable(path).to_pyarrow_table().to_pylist()) == [1, 2]


def test_files_of_an_upsert_that_another_writer_overtook_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt writes the merged files again."""
    log, path = ModelLog(SCHEMA, keys=["id"]), tmp_path / "table"
    settings = settings_at(path, mode="upsert")
    log.rows[0] = [{"id": 1, "n": 1}, {"id": 2, "n": 1}]
    run_round(log, settings)
    log.rows[0].append({"id": 1, "n": 2})
    commit, overtaken = DeltaCommitter.commit, [0, 1, 2]

    def overtake(self: DeltaCommitter, *args: Any, **named: Any) -> None:
        if overtaken:
            DeltaTable(path).alter.set_table_description(f"turn {overtaken.pop()}")
        commit(self, *args, **named)

    monkeypatch.setattr(DeltaCommitter, "commit", overtake)
    run_round(log, settings)
    assert not overtaken
    assert len(files(path)) == 2  # the first file, and the one that has replaced it
    assert sorted(r["n"] for r in DeltaTable(path).to_pyarrow_table().to_pylist()) == [1, 2]


class LateLog(ModelLog):
    """A log whose answer for a round is older than the table that the round opens."""

    def __init__(self, other: ModelLog, late_rows: int) -> None:
        super().__init__(other.schema)
        self.rows = other.rows
        self.late_rows = late_rows

    def ends_and_topic(self, info: TopicInfo) -> tuple[dict[int, PartitionEnds], TopicInfo]:
        late, self.late_rows = self.late_rows, len(self.rows[0])
        return {0: PartitionEnds(0, late, late)}, self.newest(info.name)


def test_only_a_second_answer_of_the_log_proves_that_it_has_lost_records(tmp_path: Path) -> None:
    log, settings = ModelLog(SCHEMA), settings_at(tmp_path / "table")
    log.rows[0] = [{"id": i, "n": 1} for i in range(3)]
    run_round(log, settings)
    assert run_round(LateLog(log, 2), settings).next_offsets == {0: 3}
    log.rows[0].pop()
    with pytest.raises(LakePausedError, match="the log has lost records"):
        run_round(LateLog(log, 2), settings)


# A lake worker, without brokers


def test_a_worker_ends_at_a_refusal_and_waits_for_brokers_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, failures = (
        LakeWorker("127.0.0.1:1"),
        [ClusterAuthorizationFailedError("no"), BrokerNotAvailableError("away")],
    )

    def fail() -> None:
        raise failures.pop()

    monkeypatch.setattr(worker, "lake_topics", fail)
    monkeypatch.setattr("sparklog.lake.worker.worker.FAILURE_PAUSE_S", 0)
    with pytest.raises(ClusterAuthorizationFailedError):
        worker.run()
    assert not failures
    worker.close()


# The choice of topics by a lake worker


SETTINGS = LakeSettings.of({"lake.location": "/lake", "lake.commit.interval.ms": 10_000})


class Table:
    def __init__(self) -> None:
        self.offsets: dict[int, int] | None = {0: 5}

    def next_offsets(self, info: Any, settings: Any) -> dict[int, int] | None:
        return self.offsets


def test_a_topic_of_another_worker_is_taken_over_when_its_table_stands_still() -> None:
    now_s = [100.0]
    worker = LakeWorker("127.0.0.1:1", clock_s=lambda: now_s[0])
    table = Table()
    topic = _Topic(table, "id")  # type: ignore[arg-type]
    info: Any = None
    assert worker._is_served(info, SETTINGS, topic)  # the first look
    assert topic.due_s == 100.0 + STANDBY_INTERVALS * 10
    table.offsets = {0: 9}
    assert worker._is_served(info, SETTINGS, topic)  # it moves
    assert not worker._is_served(info, SETTINGS, topic)
    worker.close()


def test_a_defect_in_one_topics_round_is_reported_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would end the worker, and with it the tables of all topics."""

    def fail(*_: Any) -> None:
        raise OverflowError("date value out of range")

    worker = LakeWorker("127.0.0.1:1")
    topic = _Topic(SimpleNamespace(round=fail), "id")  # type: ignore[arg-type]
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr(worker, "_report", lambda info, offsets, **state: reported.append(state))
    info: Any = SimpleNamespace(name="far")
    assert worker._round(info, SETTINGS, topic) is None
    assert reported == [{"error": topic.error}] == [{"error": "unexpected OverflowError: date value out of range"}]
    assert "topic far: the round failed and will be retried" in caplog.text
    worker.close()


@for_each("has_won, stay", [(True, True), (False, False), (None, True)])
def test_files_that_are_perhaps_in_the_table_stay_after_a_conflict(has_won: bool | None, stay: bool) -> None:
    removed: list[str] = []
    files = RoundFiles(cast(DeltaCommitter, SimpleNamespace(remove_files=removed.extend)))
    files.complete = [cast(DataFile, SimpleNamespace(path="day=ü/1.parquet"))]
    others = "day=%C3%BC/1.parquet" if has_won else "day=%C3%BC/2.parquet"
    winner = SimpleNamespace(files=lambda: [SimpleNamespace(path=others)])
    files.replace_after_conflict(None if has_won is None else cast(DeltaSnapshot, winner))
    assert (removed == [], files.has_tried, files.complete) == (stay, stay, [])
