"""The broker's log in a file: it begins again at its size, and after another program has moved it."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import pytest
from sparklog_broker.config import load_config
from sparklog_broker.log_format import LogFile, RolledFile
from sparklog_broker.main import log_file_of


def line(text: str) -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, "f", 1, text, None, None)


def test_the_file_begins_again_at_its_size_and_old_ones_are_kept(tmp_path: Path) -> None:
    handler = RolledFile(LogFile(tmp_path / "logs" / "broker.log", max_bytes=100, backups=2))
    for number in range(40):
        handler.emit(line(f"line {number:04}"))
    handler.close()
    files = sorted((tmp_path / "logs").iterdir())
    assert [f.name for f in files] == ["broker.log", "broker.log.1", "broker.log.2"]
    assert all(f.stat().st_size <= 100 for f in files)
    lines = [text for f in reversed(files) for text in f.read_text(encoding="utf-8").splitlines()]
    assert lines == [f"line {n:04}" for n in range(40 - len(lines), 40)], "no line between two files is lost"


def test_without_backups_one_file_is_kept_below_its_size(tmp_path: Path) -> None:
    handler = RolledFile(LogFile(tmp_path / "broker.log", max_bytes=100))
    for number in range(40):
        handler.emit(line(f"line {number:04}"))
    handler.close()
    assert [f.name for f in tmp_path.iterdir()] == ["broker.log"]
    text = (tmp_path / "broker.log").read_text(encoding="utf-8")
    assert text.endswith("line 0039\n")
    assert len(text) <= 100


@pytest.mark.parametrize("how", ["renamed", "removed"])
def test_a_file_that_was_moved_begins_again(tmp_path: Path, how: str) -> None:
    path = tmp_path / "broker.log"
    handler = RolledFile(LogFile(path))
    handler.emit(line("before"))
    path.rename(tmp_path / "broker.log-20261127") if how == "renamed" else path.unlink()
    handler.emit(line("after"))
    handler.close()
    assert path.read_text(encoding="utf-8") == "after\n"


def test_a_line_that_the_disk_refuses_is_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    handler = RolledFile(LogFile(Path("/dev/full")))
    handler.emit(line("the disk is full"))
    assert "the disk is full" in capsys.readouterr().err
    with contextlib.suppress(OSError):
        handler.close()


def test_the_path_is_below_the_data_directory(tmp_path: Path) -> None:
    given = {"data_dir": str(tmp_path), "log_file": "logs/broker.log", "log_file_max_bytes": "1MB"}
    assert log_file_of(load_config(**given)) == LogFile(tmp_path / "logs" / "broker.log", 1_000_000, 5)  # type: ignore[arg-type]
    assert log_file_of(load_config(**{**given, "log_file": "/var/log/x"})).path == Path("/var/log/x")  # type: ignore[arg-type,union-attr]
    assert log_file_of(load_config()) is None
