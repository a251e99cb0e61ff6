"""Schemas that another worker has given to a mirrored topic already."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import SchemaMismatchError
from sparklog.mirror.worker.worker import MirrorWorker

OLD, NEW, NEWEST = (pa.schema([(name, pa.int64()) for name in names]) for names in ("a", "ab", "abc"))


def worker(schemas: dict[int, pa.Schema]) -> Any:
    def refuse(name: str, *, schema: pa.Schema) -> None:
        raise SchemaMismatchError("column 'c' is missing: columns cannot be dropped or renamed")

    return SimpleNamespace(_admin=SimpleNamespace(alter_schema=refuse), _schemas=lambda name: schemas)


def test_a_schema_that_the_topic_has_already_is_no_error() -> None:
    schemas = {1: OLD, 2: NEW, 3: NEWEST}
    assert MirrorWorker._evolve(worker(schemas), "t", NEW) == schemas


def test_a_schema_that_the_topic_cannot_get_is_an_error() -> None:
    with pytest.raises(SchemaMismatchError, match="cannot be dropped"):
        MirrorWorker._evolve(worker({1: OLD, 3: NEWEST}), "t", NEW)
