"""Offset lookups against a plain list: non-monotone timestamps, many segments, a raised log start, restarts,
crashes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sparklog.log.partition_log import PartitionLog
from tests.support.logs import LimitedFiles, append, batch, open_log

TIME = st.integers(0, 60)
ROWS = st.lists(TIME | st.none(), min_size=1, max_size=4)
BATCHES = st.lists(st.tuples(ROWS, st.sampled_from(["none", "zstd"])), min_size=6, max_size=40)
SETTINGS = st.fixed_dictionaries(
    {
        "segment.bytes": st.sampled_from([4096, 9000, 1 << 20]),
        "index.interval.bytes": st.sampled_from([1, 1500, 1 << 20]),
    }
)
# a share of the log each: where it starts, and where readers end
SHARE = st.floats(0, 1)

Model = list[int]


def model_rows(rows: list[int | None]) -> Model:
    """A record without a timestamp counts with its batch's largest; 0, if no record of it has one."""
    largest = max((t for t in rows if t is not None), default=0)
    return [largest if t is None else t for t in rows]


def check(log: PartitionLog, model: Model, asked: list[int]) -> None:
    visible = [(o, t) for o, t in enumerate(model[: log.high_watermark]) if o >= log.log_start_offset]
    for timestamp_ms in asked:
        expected = next(((o, t) for o, t in visible if t >= timestamp_ms), (-1, -1))
        assert log.reader.offset_for_timestamp(timestamp_ms) == expected, timestamp_ms
    largest = max((t for _, t in visible), default=-1)
    expected = next(((o, t) for o, t in visible if t == largest), (-1, -1))
    assert log.reader.offset_of_max_timestamp() == expected


@given(BATCHES, SETTINGS, SHARE, SHARE, st.booleans(), st.lists(st.integers(0, 61), min_size=1, max_size=8))
def test_lookups_agree_with_a_list(
    batches: list[tuple[list[int | None], str]],
    log_settings: dict[str, Any],
    start_share: float,
    end_share: float,
    clean: bool,
    asked: list[int],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = open_log(Path(directory), log_settings, files=LimitedFiles())
        model: Model = []
        boundaries = [0]
        half = len(batches) // 2
        for i, (rows, compression) in enumerate(batches):
            append(log, batch(rows, compression=compression, value=b"v" * 1500))
            model += model_rows(rows)
            boundaries.append(len(model))
            if i == half:
                check(log, model, asked)  # so that what is remembered has to be brought up to date
        check(log, model, asked)
        log.retention.delete_records(int(start_share * len(model)))
        check(log, model, asked)
        log.retention.drop_below_log_start()
        check(log, model, asked)
        start = log.log_start_offset
        if clean:
            log.close()
        log = open_log(Path(directory), log_settings, files=LimitedFiles(), clean=clean, log_start_offset=start)
        check(log, model, asked)
        append(log, batch([30, 5]))
        model += [30, 5]
        check(log, model, asked)
        log.close()


@given(BATCHES, SETTINGS, SHARE, st.lists(st.integers(0, 61), min_size=1, max_size=8))
def test_records_beyond_the_high_watermark_are_not_looked_up(
    batches: list[tuple[list[int | None], str]], log_settings: dict[str, Any], share: float, asked: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = open_log(Path(directory), log_settings, files=LimitedFiles())
        model: Model = []
        ends = [0]
        for rows, compression in batches:
            log.appender.append(batch(rows, compression=compression, value=b"v" * 1500))
            model += model_rows(rows)
            ends.append(len(model))
        log.raise_high_watermark(ends[int(share * (len(ends) - 1))])  # a high watermark lies on a batch's end
        check(log, model, asked)
        log.raise_high_watermark(len(model))
        check(log, model, asked)
        log.close()
