"""A clock that jumps makes nothing old at once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.environment.files import RealFiles
from sparklog.errors import StorageFullError
from sparklog.log.housekeeping.expiry_clock import EXPIRY_CLOCK_FILE, ClockState, ExpiryClock, advanced, resumed
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.housekeeping.retention_run import held_back, run_retention
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.types import TopicPartition
from tests.support.logs import SCHEMAS, ManualClock, append, records

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
RATE = 24
NOW_MS = 1_700_000_000_000


class Machine:
    """A wall clock that can be set, and an uptime."""

    def __init__(self, directory: Path, boot_id: str = "b1") -> None:
        self.directory = directory
        self.wall = ManualClock(NOW_MS)
        self.up_ms = 1_000
        self.files = RealFiles()
        self.files.boot_id = lambda: boot_id  # type: ignore[method-assign]

    def clock(self) -> ExpiryClock:
        return ExpiryClock(self.wall, self.files, self.directory, rate=RATE, uptime_ms=lambda: self.up_ms)

    def pass_time(self, ms: int) -> None:
        self.up_ms += ms
        self.wall.time_ms += ms


@given(
    before=st.integers(0, 2**50),
    wall=st.integers(0, 2**50),
    elapsed=st.integers(0, 2**40),
    rate=st.integers(2, 1_000_000),
)
def test_it_is_never_ahead_of_the_wall_clock_and_never_faster_than_the_rate(
    before: int, wall: int, elapsed: int, rate: int
) -> None:
    now = advanced(before, wall, elapsed, rate)
    assert now <= wall
    assert now - before <= elapsed * rate
    assert now == wall or wall > before + elapsed
    assert advanced(now, wall, 0, rate) == now, "asking more often changes nothing"


@given(steps=st.lists(st.integers(0, 10_000), max_size=20), jump=st.integers(0, 10 * DAY_MS))
def test_asking_often_or_seldom_comes_to_the_same(steps: list[int], jump: int) -> None:
    often = NOW_MS
    for i in range(len(steps)):
        often = advanced(often, NOW_MS + jump + sum(steps[: i + 1]), steps[i], RATE)
    seldom = advanced(NOW_MS, NOW_MS + jump + sum(steps), sum(steps), RATE)
    assert abs(often - seldom) <= max([0, *steps]) * RATE


def test_a_clock_that_stays_is_followed_and_one_that_jumps_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path)
    clock = machine.clock()
    machine.pass_time(5 * HOUR_MS)
    assert clock.now_ms() == machine.wall.time_ms
    assert (clock.behind_ms, clock.catches_up_in_ms) == (0, 0)
    assert not caplog.records
    before = clock.now_ms()
    machine.wall.time_ms += 8 * DAY_MS
    assert clock.now_ms() == before
    assert clock.behind_ms == 8 * DAY_MS
    (record,) = caplog.records
    assert (record.levelno, "jumped forward by 192.0 h" in record.message) == (logging.WARNING, True)
    machine.pass_time(HOUR_MS)
    assert clock.now_ms() == before + RATE * HOUR_MS
    machine.pass_time(clock.catches_up_in_ms + 1)
    assert clock.now_ms() == machine.wall.time_ms
    assert len(caplog.records) == 1, "it is said once"


def test_a_clock_that_is_set_right_again_is_followed_at_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    clock = machine.clock()
    machine.wall.time_ms += 8 * DAY_MS
    machine.pass_time(1000)
    assert clock.now_ms() < NOW_MS + HOUR_MS
    machine.wall.time_ms -= 8 * DAY_MS
    assert clock.now_ms() == machine.wall.time_ms


@pytest.mark.parametrize(("boot_id", "elapsed_ms"), [("b1", 10_000), ("b2", 0), ("", 0)])
def test_a_restart_does_not_believe_the_jump_either(tmp_path: Path, boot_id: str, elapsed_ms: int) -> None:
    machine = Machine(tmp_path)
    machine.clock().save()
    machine.pass_time(10_000)
    machine.wall.time_ms += 8 * DAY_MS
    again = Machine(tmp_path, boot_id)
    again.wall, again.up_ms = machine.wall, machine.up_ms
    assert again.clock().now_ms() == NOW_MS + elapsed_ms * RATE


def test_a_machine_that_crashes_right_after_the_first_start_does_not_believe_the_jump_either(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    LogManager(tmp_path, files=machine.files, clock=machine.wall, expiry_rate=RATE).load("c1", [])
    again = Machine(tmp_path, "b2")
    again.wall.time_ms += 8 * DAY_MS
    assert again.clock().now_ms() == NOW_MS


def test_without_a_usable_file_the_clock_is_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert resumed(None, NOW_MS, 5, "b1", RATE) == NOW_MS
    (tmp_path / EXPIRY_CLOCK_FILE).write_bytes(b"{")
    assert Machine(tmp_path).clock().now_ms() == NOW_MS
    assert "cannot be read" in caplog.text
    assert resumed(ClockState(NOW_MS, 900, "b1"), NOW_MS + 5, 100, "b1", RATE) == NOW_MS, "an uptime that went back"


def test_a_state_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(tmp_path)
    clock = machine.clock()

    def full(path: Path, data: bytes) -> None:
        raise StorageFullError("the disk is full")

    machine.files.write_atomic = full  # type: ignore[method-assign]
    clock.save()
    assert "could not be written" in caplog.text


def test_after_a_jump_retention_and_producers_wait(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    manager = LogManager(tmp_path, clock=clock, expiry_rate=RATE)
    owner = LogOwner("events", "0" * 32, 0, "timestamp")
    config = LogConfig.from_settings({"retention.ms": 7 * DAY_MS, "file.delete.delay.ms": 0})
    manager.load("c1", [PartitionSpec(owner, config, SCHEMAS.__getitem__)])
    tp = TopicPartition("events", 0)
    log = manager.table.get(tp)
    for _ in range(3):
        append(log, records(3, first_ms=NOW_MS))
        log.appender.begin_segment()
    clock.time_ms += 8 * DAY_MS
    assert run_retention(manager.table.logs, manager.checkpoints.write).raised == []
    assert held_back(manager.table.logs)[:2] == (1, 3)
    assert held_back(manager.table.logs).size_bytes > 0
    manager.expiry_clock = clock
    log._state.expiry_clock = clock  # it has caught up
    assert held_back(manager.table.logs) == (0, 0, 0)
    assert run_retention(manager.table.logs, manager.checkpoints.write).raised == [tp]
    assert log.log_start_offset == 9
    assert manager.close()
