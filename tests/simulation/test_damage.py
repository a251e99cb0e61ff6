"""One flipped bit anywhere in a partition's files, and a tail torn at any byte: never a wrong record, never an
unexpected exception.

A batch's stamp (offset, leader epoch, append time) has no checksum. After a clean start footers are trusted without a
scan, and reading does not notice a bit flipped in a stamp, so that case checks only the values.
"""

from __future__ import annotations

import logging
import shutil
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparklog.environment.files import RealFiles
from sparklog.errors import CorruptBatchError, LogCorruptError
from sparklog.format.batch import STAMP_CHARS, decode_batch, iterate_batches
from sparklog.log.partition_log import PartitionLog
from sparklog.log.parts.time_lookup import NO_RECORD
from sparklog.log.tools.repair import repair
from tests.support.logs import SCHEMAS, LimitedFiles, append, batch, open_log

SETTINGS: dict[str, Any] = {"index.interval.bytes": 4096}
RECORDS_PER_BATCH = 3
LOOKED_UP_MS = (0, *range(1000, 2500, 70), 10**9)
EXPECTED_ERRORS = (LogCorruptError, CorruptBatchError)


class StoppedLog(NamedTuple):
    """A stopped log of one 64 KiB segment with its indexes: its files, records, and the positions of its stamps."""

    directory: Path
    files: dict[str, bytes]
    values: list[bytes]
    timestamps_ms: list[int]
    stamps: list[range]
    ends: list[int]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StoppedLog:
    logging.disable(logging.CRITICAL)  # a line per case, which is never read
    root = tmp_path_factory.mktemp("damage")
    log = open_log(root, SETTINGS, files=LimitedFiles())
    values: list[bytes] = []
    timestamps_ms: list[int] = []
    while log.size_bytes < 64 * 1024 - 2500:
        n = len(values)
        value = b"%d:" % n * (200 + n)
        chunk = [1000 + n * 10 + i for i in range(RECORDS_PER_BATCH)]
        append(log, batch(chunk, value=value[: 400 + 7 * n]))
        timestamps_ms += chunk
        values += [value[: 400 + 7 * n]] * RECORDS_PER_BATCH
    (segment,) = log.segments
    stamps = [
        range(position + header.stamp_position, position + header.stamp_position + STAMP_CHARS)
        for position, header in segment.headers_from(None)
    ]
    ends = [position + header.size_bytes for position, header in segment.headers_from(None)]
    log.close()
    directory = root / "events-0"
    return StoppedLog(
        directory, {p.name: p.read_bytes() for p in directory.iterdir()}, values, timestamps_ms, stamps, ends
    )


@pytest.fixture(scope="module", autouse=True)
def logging_again() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


def records_of(log: PartitionLog) -> list[tuple[int, bytes]]:
    """Return the records of a consumer, which passes an unusable batch only with an explicit position."""
    found, offset = [], log.log_start_offset
    while (piece := log.reader.read(offset, 20_000)) is not None:
        try:
            data = piece.read()
            for position, header in iterate_batches(data):
                column = decode_batch(data[position : position + header.size_bytes], SCHEMAS[header.schema_id])["value"]
                found += [(header.base_offset + i, v) for i, v in enumerate(column.to_pylist())]
        finally:
            piece.release()
        if piece.next_offset <= offset:
            raise CorruptBatchError("the offsets go backwards")
        offset = piece.next_offset
    return found


def check_damaged(made: StoppedLog, root: Path, *, clean: bool, exact: bool) -> str:
    """Open, read, look up, append; return the result."""
    log = None
    try:
        log = open_log(root, SETTINGS, files=LimitedFiles(), clean=clean)
        latest = log.reader.offset_of_max_timestamp()  # first: this reads only the end of the time index
        answers = {t: log.reader.offset_for_timestamp(t) for t in LOOKED_UP_MS}
        found = records_of(log)
        log.appender.append(batch([5]))
    except EXPECTED_ERRORS:
        return "refused"
    finally:
        if log is not None:
            log.close(seal=False)
    if exact:
        assert found == list(enumerate(made.values))[: len(found)]
        assert found or not made.values
        times = made.timestamps_ms[: len(found)]
        assert latest == (len(times) - 1, times[-1])
        assert answers == {
            t: (bisect_left(times, t), min(m for m in times if m >= t)) if t <= times[-1] else NO_RECORD
            for t in LOOKED_UP_MS
        }
    else:
        assert [v for _, v in found] == made.values
    return "whole" if len(found) == len(made.values) else "cut"


def flip_and_check(made: StoppedLog, root: Path, name: str, position: int, *, clean: bool) -> str:
    directory = root / "events-0"
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    for other, data in made.files.items():
        content = bytearray(data)
        if other == name:
            content[position] ^= 1 << (position * 5 % 8)
        (directory / other).write_bytes(content)
    in_stamp = name.endswith(".arrow") and any(position in stamp for stamp in made.stamps)
    try:
        outcome = check_damaged(made, root, clean=clean, exact=not (clean and in_stamp))
    except Exception as e:
        raise AssertionError(f"{name}: bit {position * 5 % 8} of byte {position} flipped, clean={clean}") from e
    return outcome


def positions_of(made: StoppedLog, name: str, step: int) -> range:
    return range(0, len(made.files[name]), step)


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_in_a_sample_of_bytes(made: StoppedLog, tmp_path: Path, clean: bool) -> None:
    outcomes = set()
    for name in made.files:
        step = 211 if name.endswith(".arrow") else 7
        outcomes |= {flip_and_check(made, tmp_path, name, p, clean=clean) for p in positions_of(made, name, step)}
    assert {"refused", "whole"} <= outcomes


@pytest.mark.torture
@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_in_every_byte(made: StoppedLog, tmp_path: Path, clean: bool) -> None:
    for name in made.files:
        for position in positions_of(made, name, 1):
            flip_and_check(made, tmp_path, name, position, clean=clean)


def repair_and_check(made: StoppedLog, root: Path, position: int) -> None:
    """Repair the log: it opens, every record in it is right, and at most the batch with the bit is lost."""
    name = next(n for n in made.files if n.endswith(".arrow"))
    flip_and_check(made, root, name, position, clean=False)
    shutil.rmtree(root / "events-0")
    (root / "events-0").mkdir()
    for other, data in made.files.items():
        content = bytearray(data)
        if other == name:
            content[position] ^= 1 << (position * 5 % 8)
        (root / "events-0" / other).write_bytes(content)
    try:
        repair(root / "events-0", RealFiles(), dry_run=False, schema_of=SCHEMAS.__getitem__)
        log = open_log(root, SETTINGS, files=LimitedFiles(), clean=False)
        found = dict(records_of(log))
    except Exception as e:
        raise AssertionError(f"repair with byte {position} flipped") from e
    assert all(made.values[o] == v for o, v in found.items()), position
    assert len(found) >= len(made.values) - RECORDS_PER_BATCH, position


@pytest.mark.nightly
def test_a_repair_saves_all_but_one_batch_for_a_sample_of_bytes(made: StoppedLog, tmp_path: Path) -> None:
    name = next(n for n in made.files if n.endswith(".arrow"))
    for position in positions_of(made, name, 499):
        repair_and_check(made, tmp_path, position)


@pytest.mark.torture
def test_a_repair_saves_all_but_one_batch_for_a_fine_sample_of_bytes(made: StoppedLog, tmp_path: Path) -> None:
    name = next(n for n in made.files if n.endswith(".arrow"))
    for position in positions_of(made, name, 13):
        repair_and_check(made, tmp_path, position)


def torn(made: StoppedLog, root: Path, size: int, tail: bytes) -> None:
    directory = root / "events-0"
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    name = next(n for n in made.files if n.endswith(".arrow"))
    content = made.files[name][:size] + tail
    (directory / name).write_bytes(content)
    log = open_log(root, SETTINGS, files=LimitedFiles(), clean=False)
    found = records_of(log)
    assert found == list(enumerate(made.values))[: len(found)], size
    whole = sum(content[:end] == made.files[name][:end] for end in made.ends)
    assert len(found) == RECORDS_PER_BATCH * whole, size
    assert append(log, batch([5])) == len(found)
    assert [o for o, _ in records_of(log)] == list(range(len(found) + 1))


@pytest.mark.parametrize("tail", [b"", bytes(700), b"\xff\xff\xff\xff\x88\x01\0\0" * 9])
def test_a_tail_torn_in_a_sample_of_bytes(made: StoppedLog, tmp_path: Path, tail: bytes) -> None:
    name = next(n for n in made.files if n.endswith(".arrow"))
    for size in range(len(made.files[name]) - 1, 0, -401):
        torn(made, tmp_path, size, tail)


@pytest.mark.torture
@pytest.mark.parametrize("tail", [b"", bytes(700), b"\xff\xff\xff\xff\x88\x01\0\0" * 9])
def test_a_tail_torn_at_every_byte_of_the_last_batch(made: StoppedLog, tmp_path: Path, tail: bytes) -> None:
    """Every byte of the last batch and of the footer behind it, and a fine sample of what is before."""
    name = next(n for n in made.files if n.endswith(".arrow"))
    for size in range(len(made.files[name]) - 1, made.ends[-2], -1):
        torn(made, tmp_path, size, tail)
    for size in range(made.ends[-2], 0, -67):
        torn(made, tmp_path, size, tail)


@pytest.mark.torture
def test_a_flipped_bit_in_every_byte_of_the_stamps_and_the_small_files(made: StoppedLog, tmp_path: Path) -> None:
    """Flip bits in the parts without a checksum, after a clean stop."""
    for name in made.files:
        in_stamps = (p for stamp in made.stamps for p in stamp)
        for position in in_stamps if name.endswith(".arrow") else positions_of(made, name, 1):
            flip_and_check(made, tmp_path, name, position, clean=True)
