"""What an offset lookup costs in a log of few and of many segments.

    python tests/benchmarks/time_lookup.py [--segments 100 10000] [--lookups 2000]

Prints microseconds per lookup: by timestamp (also of a log just opened, where the first lookup reads the end of every
time index), by offset, and for the largest timestamp. Flat means: the figures do not grow with the number of segments.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from sparklog.environment.clock import SystemClock
from sparklog.environment.files import RealFiles
from sparklog.format.batch import encode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.model import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog

OWNER = LogOwner("lookup", "0" * 32, 0, "timestamp")
ROWS = 4
BATCHES_PER_SEGMENT = 3


class _NoSync(RealFiles):
    """Fsyncs would be most of what building the log takes, and no lookup does one."""

    def sync_directory(self, path: Path) -> None:
        pass


def open_log(directory: Path, *, start: int = 0) -> PartitionLog:
    log = PartitionLog.open(
        directory / OWNER.directory_name,
        OWNER,
        LogConfig.from_settings({"retention.ms": -1}),
        {1: ENVELOPE_SCHEMA}.__getitem__,
        files=_NoSync(),
        clock=SystemClock(),
        clean=True,
        log_start_offset=start,
    )
    log.raise_high_watermark(log.log_end_offset)
    return log


def fill(log: PartitionLog, segments: int) -> int:
    """Small segments whose timestamps grow, with some disorder; the largest timestamp."""
    rng = random.Random(7)
    largest = 0
    for segment in range(segments):
        for _ in range(BATCHES_PER_SEGMENT):
            times = [max(0, segment * 1000 + rng.randrange(-3000, 1000)) for _ in range(ROWS)]
            columns = [
                pa.nulls(ROWS, pa.binary()),
                pa.array([b"value"] * ROWS, pa.binary()),
                pa.nulls(ROWS, ENVELOPE_SCHEMA.field("headers").type),
                pa.array([t * 1000 for t in times], ENVELOPE_SCHEMA.field("timestamp").type),
            ]
            rows = pa.record_batch(columns, schema=ENVELOPE_SCHEMA)
            log.appender.append(
                bytearray(encode_batch(rows, schema_id=1, min_timestamp_ms=min(times), max_timestamp_ms=max(times)))
            )
            largest = max(largest, *times)
        log.appender.roll()
    log.raise_high_watermark(log.log_end_offset)
    return largest


def per_call_us(call: Callable[[int], object], arguments: list[int]) -> float:
    started = time.perf_counter()
    for argument in arguments:
        call(argument)
    return (time.perf_counter() - started) / len(arguments) * 1e6


def measure(segments: int, lookups: int) -> None:
    rng = random.Random(11)
    with tempfile.TemporaryDirectory(prefix="lookup-") as directory:
        log = open_log(Path(directory))
        largest = fill(log, segments)
        log.close()
        started = time.perf_counter()
        log = open_log(Path(directory))
        opened_s = time.perf_counter() - started
        started = time.perf_counter()
        log.reader.offset_for_timestamp(largest // 2)
        first_us = (time.perf_counter() - started) * 1e6
        times = [rng.randrange(largest) for _ in range(lookups)]
        offsets = [rng.randrange(log.log_end_offset) for _ in range(lookups)]
        # every segment's index is read once by now; what is measured is the lookup
        per_call_us(log.reader.offset_for_timestamp, list(range(0, largest, 1000)))
        for offset in range(0, log.log_end_offset, ROWS * BATCHES_PER_SEGMENT):
            _read(log, offset)
        print(
            f"{segments:>8,} segments: opened in {opened_s:.2f} s, first lookup {first_us:,.0f} us; then "
            f"by timestamp {per_call_us(log.reader.offset_for_timestamp, times):.1f} us, "
            f"largest timestamp {per_call_us(lambda _: log.reader.offset_of_max_timestamp(), times):.1f} us, "
            f"by offset {per_call_us(lambda o: _read(log, o), offsets):.1f} us"
        )
        log.close(seal=False)


def _read(log: PartitionLog, offset: int) -> None:
    piece = log.reader.read(offset, 1)
    assert piece is not None
    piece.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--segments", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--lookups", type=int, default=2000)
    arguments = parser.parse_args()
    for segments in arguments.segments:
        measure(segments, arguments.lookups)


if __name__ == "__main__":
    main()
