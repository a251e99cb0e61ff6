"""The imports of a Spark process are taken out of garbage collection, once."""

from __future__ import annotations

import gc
import sys
import types

import pytest
from pyspark_sparklog.worker_process import FREEZES_MAX, ImportedObjects


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
