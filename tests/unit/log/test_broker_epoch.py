"""In which life of a broker its log directories were written to last."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.environment.files import RealFiles
from sparklog.log.directories.broker_epoch import BROKER_EPOCH_FILE, NO_EPOCH, note_epoch, noted_epoch
from sparklog.log.log_manager import LogManager


@pytest.fixture
def logs(tmp_path: Path) -> LogManager:
    manager = LogManager(tmp_path / "data", log_dirs=[tmp_path / "a", tmp_path / "b"], files=RealFiles())
    manager.load("0" * 32, [])
    return manager


def test_all_directories_agree(logs: LogManager) -> None:
    assert noted_epoch(logs.directories.all) == NO_EPOCH
    note_epoch(logs.directories.live, 17)
    assert noted_epoch(logs.directories.all) == 17
    note_epoch(logs.directories.live, 23)
    assert noted_epoch(logs.directories.all) == 23
    logs.close()


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"broker_epoch": 16}'])
def test_one_that_is_lost_or_of_another_life_counts_as_a_crash(logs: LogManager, content: bytes | None) -> None:
    note_epoch(logs.directories.live, 17)
    path = logs.log_dirs[1] / BROKER_EPOCH_FILE
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert noted_epoch(logs.directories.all) == NO_EPOCH
    logs.close()
