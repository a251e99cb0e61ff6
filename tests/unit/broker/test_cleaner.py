"""The cleaner: the dirtiest log first, and a log that fails stops no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from sparklog_broker.background.cleaner import Cleaner
from sparklog_broker.config import BrokerConfig, make_config

from sparklog.environment import real_environment
from sparklog.environment.clock import SystemClock
from sparklog.log.housekeeping.log_table import LogTable
from sparklog.log.model.compaction_policy import CLEANER_POINT_FILE, FAILURES_MAX
from sparklog.log.model.log_config import LogConfig
from sparklog.log.partition_log import PartitionLog
from sparklog.types import TopicPartition
from tests.support.compaction import OWNER, SETTINGS, append_rows, stored
from tests.support.logs import LimitedFiles, open_log
from tests.support.waiting import until


class Logs:
    """Stands for the table of logs."""

    def __init__(self, directory: Path, *topics: str) -> None:
        self.logs: dict[TopicPartition, PartitionLog] = {}
        for topic in topics:
            log = open_log(directory, SETTINGS, files=LimitedFiles(), owner=replace(OWNER, topic=topic))
            self.logs[log.owner.topic_partition] = log

    def __getitem__(self, topic: str) -> PartitionLog:
        return self.logs[TopicPartition(topic, 0)]

    def close(self) -> None:
        for log in self.logs.values():
            log.close(seal=False)


class Clock(SystemClock):
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


def cleaner(
    logs: Logs,
    clock: Clock,
    loop: asyncio.AbstractEventLoop | None = None,
    *,
    deletions_may_go: Callable[[TopicPartition], bool] | None = None,
    **given: int,
) -> Cleaner:
    """Without `loop` nothing runs in the background; `given`: settings of the cleaner."""
    return cleaner_of(cleaner_config(**given), logs, clock, loop, deletions_may_go)


def cleaner_config(**given: int) -> BrokerConfig:
    facts = {"threads": 1, "dedupe.buffer.bytes": 1 << 20, "backoff.ms": 1000}
    facts |= {name.replace("_", "."): value for name, value in given.items()}
    return make_config({f"log.cleaner.{name}": value for name, value in facts.items()})


def cleaner_of(
    config: BrokerConfig,
    logs: Logs,
    clock: Clock,
    loop: asyncio.AbstractEventLoop | None = None,
    deletions_may_go: Callable[[TopicPartition], bool] | None = None,
) -> Cleaner:
    environment = real_environment()._replace(clock=clock)
    return Cleaner(config, cast(asyncio.AbstractEventLoop, loop), environment, cast(LogTable, logs), deletions_may_go)


def fill(log: PartitionLog, rows: int = 2) -> None:
    for i in range(rows):
        append_rows(log, [(b"k", b"%d" % i)])
    log.appender.begin_segment()


def damage(log: PartitionLog) -> None:
    segment = log.segments[0]
    segment.close_handle()
    data = bytearray(segment.path.read_bytes())
    data[segment.end.position - 20] ^= 1
    segment.path.write_bytes(data)


def test_the_dirtiest_log_goes_first(tmp_path: Path) -> None:
    logs = Logs(tmp_path, "little", "much")
    fill(logs["little"], 2)
    fill(logs["much"], 9)
    worker = cleaner(logs, Clock())
    first, second = worker.run_once(), worker.run_once()
    assert first is not None and second is not None
    assert (first.rows_removed, second.rows_removed) == (8, 1)
    assert worker.run_once() is None
    logs.close()


def test_a_log_that_fails_waits_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs, clock = Logs(tmp_path, "bad", "good"), Clock()
    fill(logs["bad"], 9)
    damage(logs["bad"])
    fill(logs["good"])
    worker = cleaner(logs, clock)
    with caplog.at_level(logging.WARNING):
        assert worker.run_once() is None  # the bad one is the dirtiest
        done = worker.run_once()
    assert done is not None and done.rows_removed == 1
    assert stored(logs["good"]) == [(1, b"k", b"1")]
    assert "partition bad-0: compaction failed, next attempt in 1 s" in caplog.text
    attempts = 1
    for wait_s in (1, 2, 4, 8):
        clock.now_s += wait_s - 0.001
        caplog.clear()
        assert worker.run_once() is None and not caplog.text
        clock.now_s += 0.001
        assert worker.run_once() is None
        attempts += 1
    assert attempts == FAILURES_MAX
    assert "the next attempt follows a restart" in caplog.text
    clock.now_s += 1e9
    caplog.clear()
    assert worker.run_once() is None and not caplog.text
    worker.run_soon()  # the topic was altered
    assert worker.run_once() is None and "next attempt" in caplog.text
    logs.close()


def test_a_changed_pause_is_that_of_the_next_attempt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs, config = Logs(tmp_path, "bad"), cleaner_config()
    fill(logs["bad"])
    damage(logs["bad"])
    worker = cleaner_of(config, logs, Clock())
    config.change({"log.cleaner.backoff.ms": 5_000})
    with caplog.at_level(logging.WARNING):
        assert worker.run_once() is None
    assert "next attempt in 5 s" in caplog.text
    logs.close()


def test_a_log_whose_state_cannot_be_read_delays_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs = Logs(tmp_path, "bad", "good")
    for topic in ("bad", "good"):
        fill(logs[topic])
    files: Any = logs["bad"]._state.files
    files.fail_open = CLEANER_POINT_FILE
    (logs["bad"].directory / CLEANER_POINT_FILE).write_bytes(b"{}")
    worker = cleaner(logs, Clock())
    with caplog.at_level(logging.WARNING):
        assert worker.run_once() is not None
    assert stored(logs["good"]) == [(1, b"k", b"1")]
    assert "partition bad-0: compaction failed" in caplog.text
    worker.run_soon()
    assert worker.run_once() is None
    logs.close()


def test_a_full_disk_is_tried_again_for_ever(tmp_path: Path) -> None:
    logs, clock = Logs(tmp_path, "t"), Clock()
    fill(logs["t"])
    files: Any = logs["t"]._state.files
    files.free_bytes = 10
    worker = cleaner(logs, clock)
    for _ in range(3 * FAILURES_MAX):
        assert worker.run_once() is None
        clock.now_s += 1
    files.free_bytes = 1 << 30
    assert worker.run_once() is not None
    logs.close()


def test_deletions_wait_for_the_replicas_that_are_not_in_sync(tmp_path: Path) -> None:
    logs, in_sync = Logs(tmp_path, "t", "other"), set[str]()
    for log in logs.logs.values():
        log.reconfigure(LogConfig.from_settings(SETTINGS | {"delete.retention.ms": 0}))
        append_rows(log, [(b"k", b"v")])
        append_rows(log, [(b"k", None)])
        append_rows(log, [(b"later", b"v")])
    worker = cleaner(logs, Clock(), deletions_may_go=lambda tp: tp.topic in in_sync)

    def keys(topic: str) -> set[bytes | None]:
        logs[topic].appender.begin_segment()
        while worker.run_once() is not None:
            pass
        return {row.key for row in stored(logs[topic])}

    assert keys("t") == keys("other") == {b"k", b"later"}
    in_sync.add("other")
    assert (keys("t"), keys("other")) == ({b"k", b"later"}, {b"later"})
    in_sync.add("t")
    assert keys("t") == {b"later"}
    logs.close()


async def in_the_background(logs: Logs, done: Callable[[], bool], **given: Any) -> None:
    """Runs a cleaner until `done`."""
    worker = cleaner(logs, Clock(), asyncio.get_running_loop(), **given)
    worker.start()
    try:
        await asyncio.to_thread(until, done, "compaction")
    finally:
        await asyncio.wait_for(worker.stop(), 30)


def test_a_stop_ends_a_throttled_run(tmp_path: Path) -> None:
    logs = Logs(tmp_path, "t")
    fill(logs["t"], 9)
    before = stored(logs["t"])
    asyncio.run(in_the_background(logs, lambda: True, io_max_bytes_per_second=1))  # it would take an hour
    assert stored(logs["t"]) == before
    logs.close()


def test_several_threads_compact_every_log_once(tmp_path: Path) -> None:
    logs = Logs(tmp_path, *(f"t{i}" for i in range(8)))
    for log in logs.logs.values():
        fill(log, 4)
    asyncio.run(in_the_background(logs, lambda: all(len(stored(log)) == 1 for log in logs.logs.values()), threads=4))
    assert all(stored(log) == [(3, b"k", b"3")] for log in logs.logs.values())
    logs.close()
