"""The history of a table to which another program has appended rows of offsets that it has already."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.history import History, open_history
from tests.unit.lake.model_log import TOPIC_ID, ModelLog, run_round, settings_at

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


def doubled_table(path: Path, *, optimize: bool) -> History:
    log, settings = ModelLog(SCHEMA), settings_at(path)
    for n in range(3):
        log.rows[0] += [{"id": 2 * n, "n": n}, {"id": 2 * n + 1, "n": n}]
        run_round(log, settings)
    again = DeltaTable(path).to_pyarrow_table().sort_by("_offset").slice(1, 3)
    again = again.set_column(1, "n", pa.array([-1, -1, -1], pa.int64()))
    write_deltalake(path, again, mode="append")
    if optimize:
        DeltaTable(path).optimize.compact()
    history = open_history(settings, "topic", TOPIC_ID, 1)
    assert history is not None
    return history


def test_each_offset_is_read_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = doubled_table(tmp_path / "table", optimize=False)
    for start, end in ((0, 6), (1, 4), (2, 3)):
        batches = list(history.read(0, start, end, SCHEMA.names, SCHEMA))
        assert [o for b in batches for o in b.offsets().tolist()] == list(range(start, end))
        assert [n for b in batches for n in b.data.column("n").to_pylist()] == [o // 2 for o in range(start, end)]
    assert history.scanner({0: (0, 6)}, SCHEMA, None) is None  # it would read them twice
    assert "has 3 rows of offsets that it has already" in caplog.text


def test_each_offset_is_read_once_after_an_optimize(tmp_path: Path) -> None:
    history = doubled_table(tmp_path / "table", optimize=True)
    batches = list(history.read(0, 0, 6, ["id"], SCHEMA))
    assert [i for b in batches for i in b.data.column("id").to_pylist()] == list(range(6))


def test_a_file_with_rows_of_several_partitions_belongs_to_each_of_them(tmp_path: Path) -> None:
    """A file that another program has written; the statistics name one partition only if it is that of all rows."""
    path = tmp_path / "table"
    log, settings = ModelLog(SCHEMA, partitions=2), settings_at(path)
    log.rows = {p: [{"id": 10 * p + n, "n": n} for n in range(3)] for p in (0, 1)}
    run_round(log, settings)
    DeltaTable(path).optimize.compact()
    snapshot = DeltaSnapshot.open(str(path))
    assert snapshot is not None
    assert [file.partition for file in snapshot.files()] == [None]
    history = open_history(settings, "topic", TOPIC_ID, 2)
    assert history is not None
    for p in (0, 1):
        batches = history.read(p, 0, 3, ["id"], SCHEMA)
        assert [i for b in batches for i in b.data.column("id").to_pylist()] == [10 * p, 10 * p + 1, 10 * p + 2]
