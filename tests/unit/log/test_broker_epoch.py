"""In which life of a broker its log directories were written to last."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.environment.files import RealFiles
from sparklog.log.directories.broker_epoch import (
    BROKER_EPOCH_FILE,
    EPOCHS_KEPT,
    Lives,
    note_lives,
    note_registration,
    noted_lives,
)
from sparklog.log.log_manager import LogManager


class Machine:
    """With two log directories."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.boot_id = "first"

    def start(self) -> LogManager:
        files = RealFiles()
        files.boot_id = lambda: self.boot_id  # type: ignore[method-assign]
        manager = LogManager(self.path / "data", log_dirs=[self.path / "a", self.path / "b"], files=files)
        manager.load("0" * 32, [])
        return manager


def kill(manager: LogManager) -> None:
    manager.directories.unlock()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def lives_at_start(machine: Machine) -> Lives:
    manager = machine.start()
    lives = noted_lives(manager.directories.all)
    kill(manager)
    return lives


def started_and_killed(machine: Machine, lives: Lives) -> None:
    manager = machine.start()
    note_lives(manager.directories.live, lives)
    kill(manager)


def test_a_new_broker_has_had_no_life(machine: Machine) -> None:
    assert lives_at_start(machine) == Lives()


def test_a_clean_stop_keeps_everything_on_a_machine_that_is_started_again(machine: Machine) -> None:
    manager = machine.start()
    note_lives(manager.directories.live, Lives().then(17))
    manager.close()
    machine.boot_id = "second"
    assert lives_at_start(machine) == Lives((17,), (17,))


def test_a_kill_keeps_everything_as_long_as_the_machine_runs(machine: Machine) -> None:
    started_and_killed(machine, Lives().then(17))
    assert lives_at_start(machine) == Lives((17,), (17,))
    machine.boot_id = "second"
    crashed = lives_at_start(machine)
    assert crashed == Lives((), (17,))
    started_and_killed(machine, crashed.then(23))
    assert lives_at_start(machine) == Lives((23,), (23, 17))


def test_a_kill_before_the_life_after_a_power_cut_is_noted_does_not_bring_back_what_is_lost(machine: Machine) -> None:
    started_and_killed(machine, Lives().then(17))
    machine.boot_id = "second"
    kill(machine.start())
    assert lives_at_start(machine) == Lives((), (17,))


def registered_and_killed(machine: Machine) -> None:
    manager = machine.start()
    note_registration(manager.directories.live)
    kill(manager)


def test_in_lives_that_were_not_noted_nothing_was_written(machine: Machine) -> None:
    registered_and_killed(machine)
    assert lives_at_start(machine) == Lives()  # a new broker has nothing to vouch for
    started_and_killed(machine, Lives().then(17))
    registered_and_killed(machine)
    assert lives_at_start(machine) == Lives((17,), (17,), 17)
    machine.boot_id = "second"
    registered_and_killed(machine)
    assert lives_at_start(machine) == Lives((), (17,), 17)
    registered_and_killed(machine)
    assert lives_at_start(machine) == Lives((), (17,), 17)
    started_and_killed(machine, Lives((), (17,)).then(40))
    assert lives_at_start(machine) == Lives((40,), (40, 17))


def test_that_nothing_was_written_counts_if_all_directories_say_so(machine: Machine) -> None:
    started_and_killed(machine, Lives().then(17))
    manager = machine.start()
    note_registration(manager.directories.live[:1])
    kill(manager)
    assert lives_at_start(machine) == Lives((17,), (17,))


def test_in_a_life_that_a_failing_disk_could_not_note_nothing_was_written(machine: Machine) -> None:
    """Found in lives: the broker gave up, and its disks counted as emptied."""
    started_and_killed(machine, Lives().then(17))
    manager = machine.start()
    note_registration(manager.directories.live)
    note_lives(manager.directories.live[:1], Lives((17,), (17,)).then(23))
    kill(manager)
    assert lives_at_start(machine) == Lives((23, 17), (23, 17))
    registered_and_killed(machine)
    assert lives_at_start(machine) == Lives((23, 17), (23, 17), 23)
    machine.boot_id = "second"
    registered_and_killed(machine)
    assert lives_at_start(machine) == Lives((), (23, 17), 23)


def test_a_machine_that_does_not_know_its_boot_vouches_for_what_was_flushed(machine: Machine) -> None:
    machine.boot_id = ""
    started_and_killed(machine, Lives().then(17))
    assert lives_at_start(machine) == Lives((), (17,))


def test_a_disk_that_has_failed_vouches_for_what_was_flushed(machine: Machine) -> None:
    manager = machine.start()
    note_lives(manager.directories.live, Lives().then(17))
    manager.directories.all[1].health.fail("the disk does not take writes")
    manager.settle_failures()
    kill(manager)
    assert lives_at_start(machine) == Lives((), (17,))


def test_only_so_many_lives_are_kept() -> None:
    lives = Lives()
    for epoch in range(2 * EPOCHS_KEPT):
        lives = lives.then(epoch)
    assert lives.clean == lives.flushed == tuple(range(2 * EPOCHS_KEPT - 1, EPOCHS_KEPT - 1, -1))


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"clean": [16], "flushed": [16]}', b'{"broker_epoch": 17}'])
def test_a_directory_that_is_lost_or_of_another_life_vouches_for_nothing(
    machine: Machine, content: bytes | None
) -> None:
    started_and_killed(machine, Lives((17,), (17,)))
    path = machine.path / "b" / BROKER_EPOCH_FILE
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert lives_at_start(machine) == Lives()


def test_what_only_some_directories_know_does_not_count(machine: Machine) -> None:
    """The power has gone while a registration was noted."""
    manager = machine.start()
    note_lives(manager.directories.live, Lives((17,), (17, 5)))
    note_lives(manager.directories.live[:1], Lives((23, 17), (23, 17, 5)))
    kill(manager)
    assert lives_at_start(machine) == Lives((17,), (17, 5))
