"""Columns that become wider: by Delta's type widening, and by a rewrite of all files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from sparklog.errors import LakePausedError
from sparklog.lake import log_entry
from sparklog.lake.delta_commit import DeltaCommitter
from sparklog.lake.delta_errors import CommitConflictError
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.history import open_history
from sparklog.lake.log_entry import Entry
from sparklog.lake.rewrite import rewrite_wider
from sparklog.lake.small_files import FILES_MIN, merge_small_files
from tests.support.cases import for_each
from tests.unit.lake.delta_log import require_features
from tests.unit.lake.model_log import TOPIC_ID, ModelLog, run_round, settings_at

NARROW = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("zone", pa.string())])
WIDE = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("zone", pa.string())])
BIG = 2**40
WIDENING = {"delta.enableTypeWidening": "true"}


def opened(path: Path) -> DeltaSnapshot:
    table = DeltaSnapshot.open(str(path))
    assert table is not None
    return table


def stored(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    table, names = opened(path), list(dict.fromkeys([*columns, "_offset"]))
    rows = pa.concat_tables([table.reader.read_file(f, names, masks={}) for f in table.files()])
    found: list[dict[str, Any]] = rows.sort_by("_offset").select(columns).to_pylist()
    return found


def narrow_table(path: Path, mode: str = "append", **others: object) -> tuple[ModelLog, Any]:
    """A table with two rows, whose topic has a wider column since then and a row that needs it."""
    log, settings = ModelLog(NARROW, keys=["id"]), settings_at(path, mode=mode, **others)
    log.rows[0] = [{"id": 1, "n": 1, "zone": "a b/ü"}, {"id": 2, "n": 2, "zone": "=100%"}]
    run_round(log, settings)
    log.schema = WIDE
    log.rows[0].append({"id": 1, "n": BIG, "zone": "a b/ü"})
    return log, settings


@for_each("mode", ["append", "upsert"])
@for_each("types", [{}, {"n": "long"}])
def test_a_table_with_type_widening_goes_on(types: dict[str, str], mode: str, tmp_path: Path) -> None:
    """`types`: those that a user has altered; else the worker alters the column itself."""
    path = tmp_path / f"{mode}-{len(types)}"
    log, settings = narrow_table(path, mode, partition_by="zone")
    require_features(path, "typeWidening", configuration=WIDENING, types=types)
    assert run_round(log, settings).next_offsets == {0: 3}
    first, second, third = ({"id": r["id"], "n": r["n"]} for r in log.rows[0])
    assert stored(path, ["id", "n"]) == ([first, second, third] if mode == "append" else [second, third])
    log.schema = pa.schema([*WIDE, ("more", pa.string())])
    log.rows[0].append({"id": 3, "n": 3, "zone": None, "more": "x"})
    run_round(log, settings)
    assert stored(path, ["id", "more"])[-1] == {"id": 3, "more": "x"}
    field = next(f for f in DeltaTable(path).schema().fields if f.name == "n")
    assert field.metadata["delta.typeChanges"] == [{"fromType": "integer", "toType": "long"}]
    if mode == "append":
        history = open_history(settings, "topic", TOPIC_ID, 1)
        assert history is not None
        found = [n for batch in history.read(0, 0, 4, ["n"], WIDE) for n in batch.data.column("n").to_pylist()]
        assert found == [1, 2, BIG, 3]


def test_a_scan_reads_narrow_files_with_the_wider_type(tmp_path: Path) -> None:
    path = tmp_path / "table"
    log, settings = narrow_table(path)
    require_features(path, "typeWidening", configuration=WIDENING)
    run_round(log, settings)
    history = open_history(settings, "topic", TOPIC_ID, 1)
    assert history is not None
    scanner = history.scanner({0: (0, 3)}, pa.schema([WIDE.field("n")]), pc.field("n") > 1)
    assert scanner is not None
    assert sorted(scanner.to_table().column("n").to_pylist()) == [2, BIG]


def test_a_table_without_type_widening_pauses_and_is_rewritten_with_its_rows(tmp_path: Path) -> None:
    """The rows that the log has deleted stay."""
    for mode in ("append", "upsert"):
        path = tmp_path / mode
        log, settings = narrow_table(path, mode)
        with pytest.raises(LakePausedError, match="rebuild --keep-rows"):
            run_round(log, settings)
        before = stored(path, ["id", "n", "_partition", "_offset", "_timestamp"])
        assert rewrite_wider(opened(path), WIDE, 1 << 20)
        assert opened(path).schema.field("n").type == pa.int64()
        assert stored(path, ["id", "n", "_partition", "_offset", "_timestamp"]) == before
        assert not rewrite_wider(opened(path), WIDE, 1 << 20)
        run_round(log, settings)
        assert stored(path, ["n"])[-1] == {"n": BIG}
        assert DeltaTable(path).to_pyarrow_table().num_rows == (3 if mode == "append" else 2)


def test_a_rewrite_of_a_table_that_changes_meanwhile_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table"
    narrow_table(path)
    table = opened(path)
    DeltaTable(path).alter.set_table_description("changed")
    before = set(path.rglob("*.parquet"))
    with pytest.raises(Exception, match="has changed meanwhile"):
        rewrite_wider(table, WIDE, 1 << 20)
    assert set(path.rglob("*.parquet")) == before


def test_a_version_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "table"
    narrow_table(path)
    first, second = DeltaTable(path), DeltaTable(path)
    log_entry.commit_entry(str(path), first, Entry({"sparklog": {}}))
    with pytest.raises(CommitConflictError, match=f"version {second.version() + 1} exists"):
        log_entry.commit_entry(str(path), second, Entry({"sparklog": {}}))
    assert not [p for p in (path / "_delta_log").iterdir() if p.suffix == ".tmp"]


def test_merges_checkpoints_and_a_rebuild_of_a_table_with_type_widening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_entry, "CHECKPOINT_INTERVAL", 4)
    path = tmp_path / "table"
    log, settings = narrow_table(path)
    require_features(path, "typeWidening", configuration=WIDENING)
    for n in range(FILES_MIN):
        run_round(log, settings)
        log.rows[0].append({"id": n, "n": n, "zone": "z"})
    run_round(log, settings)
    expected = [r["n"] for r in log.rows[0]]
    assert merge_small_files(opened(path), 1 << 30) is not None
    assert [r["n"] for r in stored(path, ["n"])] == expected
    assert list((path / "_delta_log").glob("*.checkpoint.parquet"))
    table = opened(path)
    DeltaCommitter(table).reset({0: 0}, table.schema)
    assert opened(path).files() == []
    run_round(log, settings)
    assert [r["n"] for r in stored(path, ["n"])] == expected
