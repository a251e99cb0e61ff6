"""Offsets by timestamp: the first record in log order with at least that timestamp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparklog.client.producer.rows import envelope_batch
from sparklog.log.model.log_config import LogOwner
from tests.support.logs import append, batch, open_log, packed

PLAIN_OWNER = LogOwner("events", "0" * 32, 0, None)


def test_first_record_in_log_order(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch([100, 300, 200]))
    append(log, batch([150, 160]))
    append(log, batch([400, 350]))
    answers = {t: log.reader.offset_for_timestamp(t) for t in (0, 100, 101, 250, 301, 380, 400, 401)}
    assert answers == {
        0: (0, 100),
        100: (0, 100),
        101: (1, 300),
        250: (1, 300),
        301: (5, 400),
        380: (5, 400),
        400: (5, 400),
        401: (-1, -1),
    }
    assert log.reader.offset_of_max_timestamp() == (5, 400)


def test_a_later_segment_whose_largest_timestamp_equals_the_requested_one(tmp_path: Path) -> None:
    """The first segment has a later time, in a record below the log start."""
    settings = {"segment.bytes": 4_096}
    log = open_log(tmp_path, settings)
    for times in ([500, 100], [300], [200], [400], [50]):
        append(log, batch(times, value=b"x" * (4_000 // len(times))))
    assert len(log.segments) == 5
    log.close()
    log = open_log(tmp_path, settings, log_start_offset=1)
    answers = {t: log.reader.offset_for_timestamp(t) for t in (100, 101, 299, 300, 301, 400, 401)}
    assert answers == {
        100: (1, 100),
        101: (2, 300),
        299: (2, 300),
        300: (2, 300),
        301: (4, 400),
        400: (4, 400),
        401: (-1, -1),
    }


def test_an_empty_log_has_no_record(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.reader.offset_for_timestamp(0) == (-1, -1)
    assert log.reader.offset_of_max_timestamp() == (-1, -1)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("interval", [1, 3000, 1 << 30])
def test_against_a_scan(tmp_path: Path, sealed: bool, interval: int) -> None:
    log = open_log(tmp_path, {"segment.bytes": 16384, "index.interval.bytes": interval})
    times: list[int] = []
    for i in range(80):
        chunk = [(i * 37) % 500 + (j * 7919) % 90 + (i // 20) * 150 for j in range(1 + i % 4)]
        times += chunk
        append(log, batch(chunk, value=b"x" * (200 * (i % 5))))
    if sealed:
        log.close()
        log = open_log(tmp_path)
    for t in range(0, 1200, 11):
        expected = next(((o, ms) for o, ms in enumerate(times) if ms >= t), (-1, -1))
        assert log.reader.offset_for_timestamp(t) == expected
    assert log.reader.offset_of_max_timestamp() == (times.index(max(times)), max(times))


def test_a_flipped_bit_in_an_index_changes_no_answer(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"segment.bytes": 8192, "index.interval.bytes": 1}
    log = open_log(tmp_path, settings)
    times = [(i * 37) % 90 + i * 20 for i in range(16)]
    for t in times:
        append(log, batch([t], value=b"x" * 300))
    log.close()
    expected = {t: next(((o, ms) for o, ms in enumerate(times) if ms >= t), (-1, -1)) for t in range(0, 400, 9)}
    latest = (times.index(max(times)), max(times))
    paths = sorted((tmp_path / "events-0").glob("*index"))
    assert len(paths) > 2
    assert all(p.stat().st_size > 30 for p in paths[:2])
    for path in paths[:2]:
        good = path.read_bytes()
        for position in range(len(good)):
            damaged = bytearray(good)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            log = open_log(tmp_path, settings)
            if position % 2:  # begins with the end of the time index alone
                assert log.reader.offset_of_max_timestamp() == latest
            assert {t: log.reader.offset_for_timestamp(t) for t in expected} == expected, (path, position)
            assert log.reader.offset_of_max_timestamp() == latest
            log.close()
            path.write_bytes(good)


def test_records_above_the_high_watermark_are_hidden(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch([100]), batch([120]))
    log.appender.append(batch([500]))
    assert log.reader.offset_for_timestamp(121) == (-1, -1)
    assert log.reader.offset_of_max_timestamp() == (1, 120)
    log.raise_high_watermark(3)
    assert log.reader.offset_for_timestamp(121) == (2, 500)
    assert log.reader.offset_of_max_timestamp() == (2, 500)


def test_records_below_the_log_start_are_not_looked_up(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch([900, 100, 200]), batch([150]))
    log.close()
    log = open_log(tmp_path, log_start_offset=1)
    assert log.log_start_offset == 1
    assert log.reader.offset_for_timestamp(120) == (2, 200)
    assert log.reader.offset_for_timestamp(201) == (-1, -1)
    assert log.reader.offset_of_max_timestamp() == (2, 200)


def test_sub_millisecond_and_null_timestamps(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch([None, 100, None, 300]))
    append(log, batch([None, None]))
    # a null counts as the latest time of its batch
    assert log.reader.offset_for_timestamp(50) == log.reader.offset_for_timestamp(101) == (0, 300)
    assert log.reader.offset_for_timestamp(301) == (-1, -1)
    assert log.reader.offset_of_max_timestamp() == (0, 300)


def test_without_a_timestamp_column_a_record_has_its_batchs(tmp_path: Path) -> None:
    log = open_log(tmp_path, owner=PLAIN_OWNER)
    append(log, batch([100, 300, 200]))
    append(log, batch([400]))
    assert log.reader.offset_for_timestamp(250) == (0, 300)
    assert log.reader.offset_for_timestamp(301) == (3, 400)


def test_compressed_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch([100, 300], compression="zstd"), batch([500, 700], compression="lz4"))
    assert log.reader.offset_for_timestamp(200) == (1, 300)
    assert log.reader.offset_for_timestamp(600) == (3, 700)


@pytest.mark.parametrize("run", [1, 50])
def test_packed_batches(tmp_path: Path, run: int) -> None:
    log = open_log(tmp_path)
    for first in (0, 300):
        stamps = np.arange(first, first + 300) // run * run * 1000
        append(log, packed(envelope_batch([b"v"] * 300, None, None, stamps)))
    assert log.reader.offset_for_timestamp(150) == (150, 150)
    assert log.reader.offset_for_timestamp(350) == (350, 350)
    assert log.reader.offset_of_max_timestamp() == ((550, 550) if run == 50 else (599, 599))
