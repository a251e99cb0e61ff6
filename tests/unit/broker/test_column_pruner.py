"""Fetches of some columns, from segment files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sparklog_broker.network.reply import Response
from sparklog_broker.partitions import column_pruner
from sparklog_broker.partitions.column_pruner import ColumnPruner, Part, Room

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import decode_header, encode_batch, iterate_batches
from sparklog.log.partition_log import PartitionLog
from sparklog.log.segments.slices import FileSlice
from tests.support.logs import open_log

COLUMNS = 10
SCHEMA = pa.schema([(f"c{i}", pa.float64()) for i in range(COLUMNS)])
ROWS = 5_000


def rows(seed: int, count: int = ROWS) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    return pa.record_batch([pa.array(rng.random(count)) for _ in range(COLUMNS)], schema=SCHEMA)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """A log with three large batches and a small one."""
    log = open_log(tmp_path)
    log.use_schemas(lambda _: SCHEMA)
    for seed, count in enumerate((ROWS, ROWS, ROWS, 3)):
        batch = encode_batch(rows(seed, count), schema_id=1, min_timestamp_ms=1, max_timestamp_ms=1)
        log.appender.append(bytearray(batch))
    log.raise_high_watermark(log.log_end_offset)
    return log


def slices(log: PartitionLog) -> list[FileSlice]:
    found = log.reader.read(0, 1 << 30)
    assert found is not None
    return [found]


def received(parts: Sequence[Part]) -> bytes:
    data = b"".join(part if isinstance(part, bytes) else part.read() for part in parts)
    assert len(data) == Response(None, parts).payload_bytes
    Response(None, parts).release()
    return data


def prune(
    log: PartitionLog, pruner: ColumnPruner, columns: Sequence[str], bytes_max: int = 1 << 30, room: Room | None = None
) -> bytes:
    held = slices(log)
    room = room or Room(1 << 30)
    before = room.remaining_bytes
    parts, next_offset = pruner.prune("log", held, columns, log.reader.schema_of, bytes_max, room)
    Response(None, held).release()
    data = received(parts)
    assert before - room.remaining_bytes == len(data)
    assert next_offset == end_of(data, default=0)
    return data


def end_of(data: bytes, default: int) -> int:
    """Offset after the last batch; that of the log, if the batches end with damage."""
    end = default
    try:
        for _, header in iterate_batches(data):
            end = header.next_offset
    except CorruptBatchError:
        return 3 * ROWS + 3
    return end


def damage(log: PartitionLog, offset_in_file: int) -> None:
    [path] = log.directory.glob("*.arrow")
    with path.open("r+b") as file:
        file.seek(offset_in_file)
        byte = file.read(1)
        file.seek(offset_in_file)
        file.write(bytes([byte[0] ^ 1]))


def place_of(log: PartitionLog, column: int) -> int:
    """Place in the file of a byte in a column of the second batch."""
    [held] = slices(log)
    data = held.read()
    starts = [position for position, _ in iterate_batches(data)]
    header = decode_header(memoryview(data), starts[1])
    body = starts[1] + header.size_bytes - header.body_length_bytes
    held.release()
    return held.position + body + column * 8 * ROWS + 100


def test_large_batches_are_pruned_and_small_ones_stay_whole(log: PartitionLog) -> None:
    pruner = ColumnPruner()
    for _ in range(2):
        data = prune(log, pruner, ["c2", "c7"])
        headers = [header for _, header in iterate_batches(data)]
        assert [h.next_offset for h in headers] == [ROWS, 2 * ROWS, 3 * ROWS, 3 * ROWS + 3]
        assert [round(h.size_bytes / (8 * ROWS)) for h in headers] == [2, 2, 2, 0]
    assert len(prune(log, pruner, SCHEMA.names)) == sum(s.length_bytes for s in slices(log))


def test_an_answer_fits_its_room_or_has_one_batch(log: PartitionLog) -> None:
    for room, batches in ((1, 1), (16 * ROWS, 1), (16 * ROWS + 2_000, 2)):
        assert len(list(iterate_batches(prune(log, ColumnPruner(), ["c0"], room)))) == batches


def test_the_room_of_an_answer_is_shared_by_its_partitions(log: PartitionLog) -> None:
    """Only the first batch of the answer is allowed to be larger."""
    pruner, batch_bytes = ColumnPruner(), 8 * ROWS + 2_000
    room = Room(1)
    counts = [len(list(iterate_batches(prune(log, pruner, ["c0"], room=room)))) for _ in range(3)]
    assert counts == [1, 0, 0]
    room = Room(4 * batch_bytes)
    counts = [len(list(iterate_batches(prune(log, pruner, ["c0"], 2 * batch_bytes, room)))) for _ in range(3)]
    assert counts == [2, 2, 0]


def test_small_batches_that_follow_each_other_are_one_part(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.use_schemas(lambda _: SCHEMA)
    for seed in range(100):
        log.appender.append(
            bytearray(encode_batch(rows(seed, 100), schema_id=1, min_timestamp_ms=1, max_timestamp_ms=1))
        )
    log.raise_high_watermark(log.log_end_offset)
    [held] = slices(log)
    room = Room(1 << 30)
    [part], next_offset = ColumnPruner().prune("log", [held], ["c0"], log.reader.schema_of, 1 << 30, room)
    assert received([part]) == held.read()
    assert isinstance(part, FileSlice)
    assert (next_offset, room.remaining_copied_bytes) == (10_000, column_pruner.COPIED_BYTES_MAX)
    held.release()


def test_a_byte_that_is_damaged_before_the_first_read_is_detected(log: PartitionLog) -> None:
    damage(log, place_of(log, 2))
    data = prune(log, ColumnPruner(), ["c2"])
    with pytest.raises(CorruptBatchError, match="checksum"):
        list(iterate_batches(data))


def test_a_byte_that_is_damaged_later_is_detected_by_readers_of_its_column(log: PartitionLog) -> None:
    pruner = ColumnPruner()
    prune(log, pruner, ["c2"])
    prune(log, pruner, ["c3"])
    damage(log, place_of(log, 2))
    assert len(list(iterate_batches(prune(log, pruner, ["c3"])))) == 4
    with pytest.raises(CorruptBatchError, match="checksum"):
        list(iterate_batches(prune(log, pruner, ["c2"])))


def test_a_damaged_header_is_sent_as_it_is(log: PartitionLog) -> None:
    [held] = slices(log)
    damage(log, held.position + 4)
    held.release()
    with pytest.raises(CorruptBatchError):
        list(iterate_batches(prune(log, ColumnPruner(), ["c2"])))


def test_the_memory_for_pruned_batches_is_bounded(log: PartitionLog) -> None:
    pruner = ColumnPruner(kept_bytes_max=5_000)
    for i in range(COLUMNS):
        prune(log, pruner, [f"c{i}"])
    assert pruner._kept_bytes <= 5_000
    assert sum(size for _, size in pruner._kept.values()) == pruner._kept_bytes > 0


def test_copied_bytes_are_bounded(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_pruner, "READ_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(column_pruner, "COPIED_BYTES_MAX", 30_000)
    room = Room(1 << 30)
    assert len(list(iterate_batches(prune(log, ColumnPruner(), ["c0"], room=room)))) == 2
    assert not prune(log, ColumnPruner(), ["c0"], room=room), "of all partitions of an answer"


def test_names_that_the_schema_lacks_take_no_memory(log: PartitionLog) -> None:
    pruner = ColumnPruner()
    expected = prune(log, pruner, ["c1"])
    kept_bytes = pruner._kept_bytes
    for i in range(5):
        assert prune(log, pruner, [f"unknown{i}-{j}" for j in range(1_000)] + ["c1"]) == expected
    assert pruner._kept_bytes == kept_bytes
