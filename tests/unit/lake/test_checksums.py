"""Checksums of a table's files: a flipped bit is an error of every reader, and of `verify`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparklog.errors import LakeUnavailableError
from sparklog.lake import parquet_checks
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.history import open_history
from sparklog.lake.parquet_checks import DATA_CRC, FOOTER_CRC, CheckedFooters, open_parquet
from tests.unit.lake.model_log import TOPIC_ID, ModelLog, run_round, settings_at

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
ROWS = 200
STEP = 11
"""Distance of the flipped bytes."""


class Table:
    """A table with one file, and its readers."""

    def __init__(self, path: Path) -> None:
        self.log = ModelLog(SCHEMA)
        self.log.rows[0] = [{"id": n * 7919, "text": f"text {n % 7}"} for n in range(ROWS)]
        self.settings = settings_at(path)
        run_round(self.log, self.settings)
        (self.file,) = path.glob("*.parquet")
        table = DeltaSnapshot.open(str(path))
        assert table is not None
        self.table = table

    def history(self) -> list[dict[str, object]]:
        found = open_history(self.settings, "topic", TOPIC_ID, 1)
        assert found is not None
        return [row for b in found.read(0, 0, ROWS, SCHEMA.names, SCHEMA) for row in b.data.to_pylist()]

    def scan(self) -> list[dict[str, object]]:
        found = open_history(self.settings, "topic", TOPIC_ID, 1)
        assert found is not None
        scanner = found.scanner({0: (0, ROWS)}, SCHEMA, None)
        assert scanner is not None
        rows: list[dict[str, object]] = scanner.to_table().to_pylist()
        return rows

    def check(self) -> None:
        (file,) = self.table.files()
        self.table.reader.check_checksums(file)


def test_verify_reports_a_flipped_bit_and_no_reader_sees_another_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path / "table")
    whole = table.file.read_bytes()
    table.check()
    expected = table.history()
    assert expected == table.log.rows[0] == table.scan()
    readers: list[Callable[[], list[dict[str, object]]]] = [table.history, table.scan]
    refusals = 0
    for at in range(0, len(whole), STEP):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        table.file.write_bytes(damaged)
        with pytest.raises(LakeUnavailableError, match="sparklog-00000"):
            table.check()
        monkeypatch.setattr("sparklog.lake.history.CHECKED_FOOTERS", CheckedFooters())
        for read in readers:
            try:
                assert read() == expected, (at, read)
            except (LakeUnavailableError, OSError):
                refusals += 1
    assert refusals > len(whole) / STEP  # most bytes belong to columns that both read


def test_a_file_has_the_checksums_in_a_form_that_other_readers_ignore(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    metadata = pq.read_metadata(table.file)
    assert {DATA_CRC, FOOTER_CRC} <= metadata.metadata.keys()
    assert metadata.metadata[FOOTER_CRC] != b"0" * 8
    assert pq.read_table(table.file, page_checksum_verification=True).num_rows == ROWS


def test_files_of_other_writers_are_read_without_checksums(tmp_path: Path) -> None:
    path = tmp_path / "user.parquet"
    pq.write_table(pa.table({"n": [1]}), path)
    with pa.OSFile(str(path)) as source:
        assert open_parquet(source, "user.parquet").read().num_rows == 1
        parquet_checks.check_data(source, "user.parquet")
