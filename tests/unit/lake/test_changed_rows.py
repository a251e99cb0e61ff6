"""Changes of an upserted table that do not fit into memory."""

from __future__ import annotations

import errno
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sparklog.lake.delta_errors import lasting_cause
from sparklog.lake.rules import Span
from sparklog.lake.worker import upsert_round
from sparklog.lake.worker.changed_rows import ChangedRows, TemporaryRows
from tests.support.cases import for_each
from tests.unit.lake.model_log import ModelLog, settings_at, sync_of

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("x", pa.float64()), ("n", pa.int64())])
KEYS = ["id", "name", "x"]
MEMORY_BYTES = 2_000


def changes_of(rng: random.Random, keys: int, count: int) -> list[pa.Table]:
    """Tables of rows with rising `n`; keys are null, NaN and both zeros, too."""
    tables, n = [], 0
    for _ in range(count):
        rows = []
        for _ in range(rng.randrange(1, 60)):
            k = rng.randrange(keys)
            x = (None, float("nan"), 0.0, -0.0)[k % 4]
            rows.append({"id": k // 4, "name": f"é{k % 3}" if k % 5 else None, "x": x, "n": n})
            n += 1
        tables.append(pa.Table.from_pylist(rows, ROWS))
    return tables


def newest_of(tables: list[pa.Table]) -> dict[tuple[str, ...], int]:
    newest: dict[tuple[str, ...], int] = {}
    for table in tables:
        for row in table.to_pylist():
            newest[key_of(row)] = max(row["n"], newest.get(key_of(row), -1))
    return newest


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name] + 0.0 if isinstance(row[name], float) else row[name]) for name in KEYS)


@for_each("keys, count", [(1, 1), (1, 50), (40, 30), (400, 60), (5_000, 60)])
def test_the_newest_row_of_each_key_is_in_one_group(keys: int, count: int) -> None:
    tables = changes_of(random.Random(keys), keys, count)
    with TemporaryRows() as on_disk:
        rows = ChangedRows(KEYS, MEMORY_BYTES, on_disk)
        for table in tables:
            rows.add(table)
        rows.complete(MEMORY_BYTES)
        for _ in range(2):  # another attempt to commit
            groups = list(rows.groups())
            found = [row for group in groups for row in group.to_pylist()]
            assert len(found) == len({key_of(row) for row in found})
            assert {key_of(row): row["n"] for row in found} == newest_of(tables)
        assert (len(groups) > 2) == (keys >= 40)
        assert (rows.newest_bytes == 0) == (keys >= 40)


def test_rows_that_fit_only_alone_are_one_group_on_disk() -> None:
    (table,) = changes_of(random.Random(1), 10, 1)
    with TemporaryRows() as on_disk:
        rows = ChangedRows(KEYS, 1 << 20, on_disk)
        rows.add(table)
        rows.complete(10)
        assert rows.newest_bytes == 0
        (group,) = rows.groups()
        assert {key_of(row): row["n"] for row in group.to_pylist()} == newest_of([table])


class TransactionalLog(ModelLog):
    """A log whose rows are all part of transactions."""

    def read(self, info: Any, partition: int, span: Span, columns: Any, schema: pa.Schema, write: Any) -> bool:
        for start in range(span.start, span.end, 50):
            super().read(info, partition, Span(start, min(start + 50, span.end)), columns, schema, write)
        return True


def test_an_upserted_table_of_transactions_is_written_from_temporary_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upsert_round, "UPSERT_BYTES_PER_ROUND", MEMORY_BYTES)
    log = TransactionalLog(pa.schema([("id", pa.int64()), ("n", pa.int64())]), partitions=2, keys=["id"])
    settings, rng = settings_at(tmp_path / "table", mode="upsert"), random.Random(2)
    rounds, newest = sync_of(log), dict[int, int | None]()
    for count in (3_000, 10, 2_000):
        for n in range(count):
            key = rng.randrange(1_500)
            newest[key] = None if rng.random() < 0.2 else n
            log.rows[key % 2].append({"id": key, "n": newest[key]})
        result = rounds.round(log.newest(), settings, lambda _: None)
        assert result.is_current
        stored = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
        assert sorted((row["id"], row["n"]) for row in stored) == sorted(
            (k, n) for k, n in newest.items() if n is not None
        )


def test_a_full_disk_pauses_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upsert_round, "UPSERT_BYTES_PER_ROUND", MEMORY_BYTES)
    log = TransactionalLog(pa.schema([("id", pa.int64()), ("n", pa.int64())]), keys=["id"])
    log.rows[0] = [{"id": i, "n": i} for i in range(3_000)]

    def refuse(**_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(OSError, match="No space") as caught:
        sync_of(log).round(log.newest(), settings_at(tmp_path / "table", mode="upsert"), lambda _: None)
    assert lasting_cause(caught.value) == "the disk is full"
    assert not list(tmp_path.rglob("*.parquet"))
