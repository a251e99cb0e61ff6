"""Every error has a next step, and ends the command with one line."""

from __future__ import annotations

import pytest

from sparklog.cli.errors import HINTS, hint_for, report
from sparklog.errors import ERRORS, CorruptBatchError, SparklogError


def test_every_error_has_a_next_step() -> None:
    assert set(HINTS) == set(ERRORS.values())
    assert all(HINTS.values())


def test_a_subclass_has_its_base_classs_hint() -> None:
    class WorseError(CorruptBatchError):
        pass

    assert hint_for(WorseError("x")) == HINTS[CorruptBatchError]
    assert hint_for(SparklogError("x")) == ""


def test_without_a_terminal_there_are_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    report("STORAGE_FULL", "the disk is full", "free some space")
    assert capsys.readouterr().err == "STORAGE_FULL: the disk is full\n  next: free some space\n"
