"""Compaction by the key columns of typed topics."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.format.batch import (
    encode_batch,
)
from sparklog.log.model.log_config import LogOwner
from sparklog.log.partition_log import PartitionLog
from tests.support.compaction import (
    compact,
)
from tests.support.logs import LimitedFiles, ManualClock, open_log

A, B, C = b"a", b"b", b"c"


TYPED = pa.schema([("id", pa.int64()), ("zone", pa.string()), ("fare", pa.float64()), ("note", pa.string())])


def typed_log(directory: Path, key_columns: tuple[str, ...], clock: ManualClock | None = None) -> PartitionLog:
    owner = LogOwner("events", "0" * 32, 0, None, key_columns)
    given = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}
    return PartitionLog.open(
        directory / "events-0",
        owner,
        type(OPEN_CONFIG).from_settings(given),
        {1: TYPED}.__getitem__,
        files=LimitedFiles(),
        clock=clock or ManualClock(),
        clean=True,
    )


OPEN_CONFIG = open_log.__globals__["LogConfig"].from_settings({})


def append_typed(log: PartitionLog, rows: list[tuple[object, ...]]) -> None:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(TYPED)]
    data = encode_batch(pa.record_batch(columns, schema=TYPED), schema_id=1, min_timestamp_ms=0, max_timestamp_ms=0)
    log.appender.append(bytearray(data))
    log.raise_high_watermark(log.log_end_offset)


def typed_rows(log: PartitionLog) -> list[tuple[int, ...]]:
    log.close()
    rows = []
    for path in sorted(log.directory.glob("*.arrow")):
        table = pa.ipc.open_file(path).read_all()
        if "__offset" in table.column_names:
            rows += list(zip(*[table.column(n).to_pylist() for n in ("__offset", "id", "zone", "fare")], strict=True))
    return rows


def test_typed_topics_go_by_their_key_columns(tmp_path: Path) -> None:
    log = typed_log(tmp_path, ("id", "zone"))
    append_typed(log, [(1, "x", 1.0, None), (1, "y", 2.0, None), (None, "x", 3.0, None), (1, "x", 4.0, None)])
    append_typed(log, [(None, "x", 5.0, "n"), (None, None, 6.0, None), (None, None, 7.0, None), (1, "y", None, None)])
    result = compact(log)
    assert result is not None and result.null_keys == 2
    expected = [(3, 1, "x", 4.0), (4, None, "x", 5.0), (5, None, None, 6.0), (6, None, None, 7.0), (7, 1, "y", None)]
    assert typed_rows(log) == expected


def test_a_typed_tombstone_has_null_in_every_other_column(tmp_path: Path) -> None:
    log = typed_log(tmp_path, ("id",))
    append_typed(log, [(1, "x", 1.0, None), (2, None, None, "kept"), (1, None, None, None)])
    compact(log)
    compact(log, roll=False)  # delete.retention.ms is 0
    assert typed_rows(log) == [(1, 2, None, None)]


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (pa.decimal128(38, 2), 1, 2**70),
        (pa.date32(), 1, 2),
        (pa.bool_(), True, False),
        (pa.timestamp("us", tz="UTC"), 1, 2),
        (pa.int8(), -1, 1),
        (pa.float32(), 0.5, 1.5),
        (pa.duration("us"), 1, 2),
    ],
)
def test_every_type_of_key(kind: pa.DataType, first: object, second: object) -> None:
    from sparklog.log.compaction.key_hash import HashSeeds, hash_keys

    column = pa.array([first, second, first, None, None], kind)
    found = hash_keys([column], HashSeeds.draw())
    assert found.first[0] == found.first[2] != found.first[1]
    assert found.second[0] == found.second[2] != found.second[1]
    assert found.null is not None and found.null.tolist() == [False, False, False, True, True]
    sliced = hash_keys([column.slice(1)], HashSeeds(1, 2, 3, 5))
    whole = hash_keys([column], HashSeeds(1, 2, 3, 5))
    assert sliced.first.tolist() == whole.first[1:].tolist()


def test_zero_and_minus_zero_are_the_same_key_and_so_are_all_nans() -> None:
    from sparklog.log.compaction.key_hash import HashSeeds, hash_keys

    found = hash_keys([pa.array([0.0, -0.0, float("nan"), -float("nan"), 1.0])], HashSeeds.draw()).first.tolist()
    assert found[0] == found[1] and found[2] == found[3]
    assert len(set(found)) == 3
