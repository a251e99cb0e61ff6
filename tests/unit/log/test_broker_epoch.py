"""In which life of a broker its log directories were written to last."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from sparklog.environment.files import RealFiles
from sparklog.errors import StorageFullError
from sparklog.format.checkpoint import LOG_DIRS_FILE
from sparklog.log.directories.broker_epoch import (
    BROKER_EPOCH_FILE,
    EPOCHS_KEPT,
    Lives,
    note_lives,
    note_registration,
    noted_lives,
)
from sparklog.log.housekeeping import checkpoints
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.model.log_config import LogConfig, LogOwner
from tests.support.log_managers import kill
from tests.support.logs import SCHEMAS

SPEC = PartitionSpec(LogOwner("in", "1" * 32, 0), LogConfig.from_settings({}), SCHEMAS.__getitem__)


class Machine:
    """With two log directories."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.boot_id = "first"

    def start(self, *names: str, specs: Sequence[PartitionSpec] = (SPEC,)) -> LogManager:
        """With the log directories `names`, else "a" and "b"."""
        files = RealFiles()
        files.boot_id = lambda: self.boot_id  # type: ignore[method-assign]
        manager = LogManager(self.path / "data", log_dirs=[self.path / n for n in names or ("a", "b")], files=files)
        manager.load("0" * 32, specs)
        return manager


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def noted(manager: LogManager) -> Lives:
    return noted_lives(manager.directories.all, is_whole=manager.has_all_directories)


def note(manager: LogManager, lives: Lives) -> None:
    note_lives(manager.directories.live, lives, manager.directories_away)


def lives_at_start(machine: Machine, *names: str) -> Lives:
    manager = machine.start(*names)
    lives = noted(manager)
    kill(manager)
    return lives


def lived(machine: Machine, epoch: int, *names: str, specs: Sequence[PartitionSpec] = (SPEC,)) -> None:
    """One life, as a broker has it, until it is killed."""
    manager = machine.start(*names, specs=specs)
    lives = noted(manager)
    note_registration(manager.directories.live)
    note(manager, lives.then(epoch))
    kill(manager)


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


def test_a_kill_before_the_life_after_a_power_cut_is_noted_vouches_for_no_lost_data(machine: Machine) -> None:
    started_and_killed(machine, Lives().then(17))
    machine.boot_id = "second"
    kill(machine.start())
    assert lives_at_start(machine) == Lives((), (17,))


def test_a_clean_stop_before_the_life_after_a_power_cut_is_noted_vouches_for_no_lost_data(machine: Machine) -> None:
    """For example while no controller can be reached."""
    started_and_killed(machine, Lives().then(17))
    machine.boot_id = "second"
    machine.start().close()
    assert lives_at_start(machine) == Lives((), (17,))


def test_a_directory_without_room_for_its_losses_is_not_stopped_cleanly(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_and_killed(machine, Lives().then(17))
    machine.boot_id = "second"

    def full(*_: object) -> None:
        raise StorageFullError("the disk is full")

    monkeypatch.setattr(checkpoints, "note_losses", full)
    machine.start().close()
    monkeypatch.undo()
    assert lives_at_start(machine) == Lives((), (17,))


def registered_and_killed(machine: Machine) -> None:
    manager = machine.start()
    note_registration(manager.directories.live)
    kill(manager)


def test_unrecorded_lives_wrote_no_record(machine: Machine) -> None:
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


def test_a_life_without_writes_needs_all_directories_as_witnesses(machine: Machine) -> None:
    started_and_killed(machine, Lives().then(17))
    manager = machine.start()
    note_registration(manager.directories.live[:1])
    kill(manager)
    assert lives_at_start(machine) == Lives((17,), (17,))


def test_a_life_that_a_failing_disk_did_not_record_wrote_no_record(machine: Machine) -> None:
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


def test_a_machine_that_does_not_know_its_boot_vouches_for_flushed_data(machine: Machine) -> None:
    machine.boot_id = ""
    started_and_killed(machine, Lives().then(17))
    assert lives_at_start(machine) == Lives((), (17,))


def test_a_disk_that_has_failed_vouches_for_flushed_data(machine: Machine) -> None:
    manager = machine.start()
    note_lives(manager.directories.live, Lives().then(17))
    manager.directories.all[1].health.fail("the disk does not take writes")
    manager.failures.settle()
    kill(manager)
    assert lives_at_start(machine) == Lives((), (17,))


def test_only_so_many_lives_are_kept() -> None:
    lives = Lives()
    for epoch in range(2 * EPOCHS_KEPT):
        lives = lives.then(epoch)
    assert lives.clean == lives.flushed == tuple(range(2 * EPOCHS_KEPT - 1, EPOCHS_KEPT - 1, -1))


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"clean": [16], "flushed": [16]}', b'{"broker_epoch": 17}'])
def test_a_lost_or_foreign_directory_vouches_for_no_life(machine: Machine, content: bytes | None) -> None:
    started_and_killed(machine, Lives((17,), (17,)))
    path = machine.path / "b" / BROKER_EPOCH_FILE
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert lives_at_start(machine) == Lives()


def test_a_life_in_only_some_directories_does_not_count(machine: Machine) -> None:
    """The power has gone while a registration was noted."""
    manager = machine.start()
    note_lives(manager.directories.live, Lives((17,), (17, 5)))
    before = (machine.path / "b" / BROKER_EPOCH_FILE).read_bytes()
    note_lives(manager.directories.live, Lives((23, 17), (23, 17, 5)))
    (machine.path / "b" / BROKER_EPOCH_FILE).write_bytes(before)
    kill(manager)
    assert lives_at_start(machine) == Lives((17,), (17, 5))


# --- disks that come and go


def place_of_the_other(machine: Machine) -> str:
    """Of the directory that the partition is not in."""
    found = next(machine.path.glob("[ab]/in-0")).parent
    return "b" if found.name == "a" else "a"


def test_the_remaining_disks_vouch_without_an_absent_one(machine: Machine) -> None:
    """Found in lives: partitions all of whose brokers had started with a disk that failed, and came back whole, had no
    leader for good."""
    lived(machine, 17)
    other = place_of_the_other(machine)
    assert lives_at_start(machine, other) == Lives((17,), (17,))
    lived(machine, 23, other)
    lived(machine, 29, other)
    assert lives_at_start(machine, other) == Lives((29, 23, 17), (29, 23, 17))
    assert lives_at_start(machine) == Lives((29, 23, 17), (29, 23, 17))
    lived(machine, 31)
    assert lives_at_start(machine) == Lives((31, 29, 23, 17), (31, 29, 23, 17))


def test_a_disk_that_was_away_vouches_for_no_life_of_its_own(machine: Machine) -> None:
    lived(machine, 17)
    lived(machine, 23, "a")
    lived(machine, 29, "b")
    assert lives_at_start(machine) == Lives((17,), (17,))


def test_disks_are_away_in_turn(machine: Machine) -> None:
    names = "a", "b", "c"
    lived(machine, 17, *names)
    specs = [replace(SPEC, owner=replace(SPEC.owner, topic=topic)) for topic in ("one", "two", "three")]
    lived(machine, 19, *names, specs=specs)
    lived(machine, 23, "a", "b", specs=specs)
    lived(machine, 29, "a", "c", specs=specs)
    assert lives_at_start(machine, "b", "c") == Lives((29, 23, 19, 17), (29, 23, 19, 17))
    assert lives_at_start(machine, *names) == Lives((29, 23, 19, 17), (29, 23, 19, 17))


def test_a_disk_that_fails_in_a_life_may_come_back_after_others(machine: Machine) -> None:
    manager = machine.start()
    note(manager, Lives().then(17))
    manager.directories.all[1].health.fail("the disk does not take writes")
    manager.failures.settle()
    note(manager, Lives((17,), (17,)).then(19))  # its session had ended
    kill(manager)
    assert lives_at_start(machine) == Lives((), (19, 17))


def test_an_older_copy_of_an_absent_disk_vouches_for_no_newer_life(machine: Machine) -> None:
    lived(machine, 13)
    copy = (machine.path / "b" / BROKER_EPOCH_FILE).read_bytes()
    lived(machine, 17)
    lived(machine, 23, "a")
    (machine.path / "b" / BROKER_EPOCH_FILE).write_bytes(copy)
    assert lives_at_start(machine) == Lives((13,), (13,))


def test_a_disk_in_the_place_of_one_that_was_lost_has_lost_everything(machine: Machine) -> None:
    lived(machine, 17)
    shutil.rmtree(machine.path / "b")
    assert lives_at_start(machine) == Lives()


def test_a_disk_that_is_missed_no_more_is_lost(machine: Machine) -> None:
    """Its partitions begin anew on the others."""
    lived(machine, 17)
    other = place_of_the_other(machine)
    lived(machine, 23, other)
    (machine.path / "data" / LOG_DIRS_FILE).unlink()
    assert lives_at_start(machine, other) == Lives()


def test_a_disk_that_was_emptied_before_it_was_taken_away_is_not_missed(machine: Machine) -> None:
    lived(machine, 17)
    left = place_of_the_other(machine)
    next(machine.path.glob("[ab]/in-0")).rename(machine.path / left / "in-0")
    lived(machine, 23, left)
    assert lives_at_start(machine, left) == Lives((23, 17), (23, 17))


def test_an_added_disk_cannot_have_lost_records(machine: Machine) -> None:
    lived(machine, 17)
    lived(machine, 23, "a", "b", "c")
    assert lives_at_start(machine, "a", "b", "c") == Lives((23, 17), (23, 17))


def test_lives_of_a_release_that_did_not_know_of_disks_that_are_away(machine: Machine) -> None:
    lived(machine, 17)
    for name in ("a", "b"):
        content = {"clean": [17], "flushed": [17], "boot_id": "first", "registers": False}
        (machine.path / name / BROKER_EPOCH_FILE).write_text(json.dumps(content))
    assert lives_at_start(machine) == Lives((17,), (17,))
    lived(machine, 23)
    assert lives_at_start(machine) == Lives((23, 17), (23, 17))
