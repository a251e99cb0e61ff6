"""Form of an error for Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest
from pyspark.sql.types import StructType
from pyspark_sparklog import DefaultSource
from pyspark_sparklog.spark_errors import HIDE_TRACEBACK, FailedStreamReader, all_in_one_line, in_one_line

from sparklog.errors import InvalidConfigError


@in_one_line
def fails(error: Exception) -> None:
    raise error


@in_one_line
def fails_late(error: Exception) -> Iterator[int]:
    yield 1
    raise error


@all_in_one_line
class Reader:
    def read(self) -> None:
        raise InvalidConfigError("no")


@pytest.fixture
def sparks_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules,
        "__main__",
        SimpleNamespace(__spec__=ModuleSpec("pyspark.daemon", None)),
    )
    monkeypatch.setenv(HIDE_TRACEBACK, "")


@pytest.mark.usefixtures("sparks_worker")
def test_in_sparks_worker_the_traceback_of_our_errors_is_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        fails(ZeroDivisionError())
    assert not os.environ[HIDE_TRACEBACK]
    with pytest.raises(InvalidConfigError):
        fails(InvalidConfigError("no"))
    assert os.environ[HIDE_TRACEBACK]


@pytest.mark.usefixtures("sparks_worker")
def test_also_when_it_comes_while_rows_are_read() -> None:
    rows = fails_late(InvalidConfigError("no"))
    assert next(rows) == 1
    assert not os.environ[HIDE_TRACEBACK]
    with pytest.raises(InvalidConfigError):
        next(rows)
    assert os.environ[HIDE_TRACEBACK]


@pytest.mark.usefixtures("sparks_worker")
def test_all_methods_of_a_reader() -> None:
    with pytest.raises(InvalidConfigError):
        Reader().read()
    assert os.environ[HIDE_TRACEBACK]


def test_other_errors_stay_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDE_TRACEBACK, raising=False)
    with pytest.raises(InvalidConfigError):
        fails(InvalidConfigError("no"))
    assert HIDE_TRACEBACK not in os.environ


def test_a_failed_construction_raises_at_the_first_use() -> None:
    reader = DefaultSource({"subscribe": "t", "endingOffsets": "latest"}).streamReader(StructType())
    assert isinstance(reader, FailedStreamReader)
    for use in (
        reader.initialOffset,
        reader.latestOffset,
        reader.getDefaultReadLimit,
        lambda: reader.partitions({}, {}),
    ):
        with pytest.raises(InvalidConfigError, match="ending offset not valid in streaming queries"):
            use()
    reader.stop()
