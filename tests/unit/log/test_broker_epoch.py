"""In which life of a broker its log directories were written to last."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.environment.files import RealFiles
from sparklog.log.directories.broker_epoch import BROKER_EPOCH_FILE, EPOCHS_KEPT, Lives, note_lives, noted_lives
from sparklog.log.log_manager import LogManager


@pytest.fixture
def logs(tmp_path: Path) -> LogManager:
    manager = LogManager(tmp_path / "data", log_dirs=[tmp_path / "a", tmp_path / "b"], files=RealFiles())
    manager.load("0" * 32, [])
    return manager


def test_a_stop_that_was_not_clean_leaves_what_was_flushed(logs: LogManager) -> None:
    assert noted_lives(logs.directories.all, clean_stop=True) == Lives()
    note_lives(logs.directories.live, Lives().then(17))
    assert noted_lives(logs.directories.all, clean_stop=True) == Lives((17,), (17,))
    crashed = noted_lives(logs.directories.all, clean_stop=False)
    assert crashed == Lives((), (17,))
    note_lives(logs.directories.live, crashed.then(23))
    assert noted_lives(logs.directories.all, clean_stop=True) == Lives((23,), (23, 17))
    logs.close()


def test_only_so_many_lives_are_kept() -> None:
    lives = Lives()
    for epoch in range(2 * EPOCHS_KEPT):
        lives = lives.then(epoch)
    assert lives.clean == lives.flushed == tuple(range(2 * EPOCHS_KEPT - 1, EPOCHS_KEPT - 1, -1))


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"clean": [16], "flushed": [16]}', b'{"broker_epoch": 17}'])
def test_a_directory_that_is_lost_or_of_another_life_vouches_for_nothing(
    logs: LogManager, content: bytes | None
) -> None:
    note_lives(logs.directories.live, Lives((17,), (17,)))
    path = logs.log_dirs[1] / BROKER_EPOCH_FILE
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert noted_lives(logs.directories.all, clean_stop=True) == Lives()
    logs.close()


def test_what_only_some_directories_know_does_not_count(logs: LogManager) -> None:
    """The power has gone while a registration was noted."""
    note_lives(logs.directories.live, Lives((17,), (17, 5)))
    note_lives(logs.directories.live[:1], Lives((23, 17), (23, 17, 5)))
    assert noted_lives(logs.directories.all, clean_stop=True) == Lives((17,), (17, 5))
    logs.close()
