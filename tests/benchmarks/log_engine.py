"""What the log engine does without a broker around it: append, scan, start after kill -9, compaction, lookups.

    python -m tests.benchmarks.log_engine [--directory DIR] [--only append,scan,...] [--scale 1.0]

Prints a table, then one line of JSON. The large logs (24 GB on one directory, 100 GB for the lookups) consist of sparse
files: batches, footers and indexes are those of the real thing, blocks of zeros are left out, so that they take little
space. What reads every byte (append, scan, recovery per GB) works on files of random bytes. The page cache holds what
was just written unless a row says cold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from sparklog.environment.files import File, RealFile, RealFiles
from sparklog.format.batch import ATTRIBUTE_LOG_APPEND_TIME, encode_batch, iterate_batches
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.compaction.cleaner import compact_log, due_for_compaction
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.log_manager import LogManager, PartitionSpec
from sparklog.log.model import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog

MIB, GB = 1 << 20, 10**9
BLOCK_BYTES = 4096
CLUSTER = "benchmark"
STARTED_AT_MS = 1_000_000_000_000


class Row(NamedTuple):
    """One figure. `goal`: what it should be at most, None without one."""

    name: str
    value: float
    unit: str
    how: str
    goal: float | None = None


class Ticking:
    """A clock that goes on by a millisecond with every look, so that append times differ."""

    def __init__(self) -> None:
        self.time_ms = STARTED_AT_MS

    def now_ms(self) -> int:
        self.time_ms += 1
        return self.time_ms


class SparseFile(RealFile):
    """Writes no blocks of zeros, so that the file has holes there."""

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        first = -position % BLOCK_BYTES
        if len(view) < first + BLOCK_BYTES:
            super().write(position, view)
            return
        blocks = np.frombuffer(view, np.uint8, (len(view) - first) // BLOCK_BYTES * BLOCK_BYTES, first)
        full = blocks.reshape(-1, BLOCK_BYTES).view(np.uint64).any(axis=1)
        edges = np.flatnonzero(np.diff(np.concatenate(([True], full, [True])).astype(np.int8)))
        start = 0
        for hole, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if first + hole * BLOCK_BYTES > start:
                super().write(position + start, view[start : first + hole * BLOCK_BYTES])
            start = first + end * BLOCK_BYTES
        if start < len(view):
            super().write(position + start, view[start:])
        elif position + len(view) > self.size():
            self.truncate(position + len(view))


class SparseFiles(RealFiles):
    def open(self, path: Path, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        assert isinstance(file, RealFile)
        sparse = SparseFile(os.dup(file.fileno()), path)
        file.close()
        return sparse


def payload(batch_bytes: int, rows: int, content: bytes, *, log_append_time: bool = True) -> bytearray:
    """One encoded batch of about `batch_bytes`; `content` repeats in its values."""
    size = batch_bytes // rows
    value = (content * (size // len(content) + 1))[:size]
    columns = [
        pa.nulls(rows, pa.binary()),
        pa.array([value] * rows, pa.binary()),
        pa.nulls(rows, ENVELOPE_SCHEMA.field("headers").type),
        pa.array([STARTED_AT_MS * 1000] * rows, ENVELOPE_SCHEMA.field("timestamp").type),
    ]
    rows_ = pa.record_batch(columns, schema=ENVELOPE_SCHEMA)
    attributes = ATTRIBUTE_LOG_APPEND_TIME if log_append_time else 0
    times: dict[str, Any] = {"min_timestamp_ms": STARTED_AT_MS, "max_timestamp_ms": STARTED_AT_MS}
    return bytearray(encode_batch(rows_, schema_id=1, attributes=attributes, **times))


def spec(partition: int = 0, **settings: Any) -> PartitionSpec:
    given: dict[str, Any] = {"retention.ms": -1, "message.timestamp.type": "LogAppendTime"}
    owner = LogOwner("benchmark", "0" * 32, partition, "timestamp", ("key",), ("value",))
    config = LogConfig.from_settings(given | {k.replace("_", "."): v for k, v in settings.items()})
    return PartitionSpec(owner, config, {1: ENVELOPE_SCHEMA}.__getitem__)


def opened(
    directory: Path, specs: list[PartitionSpec], *, sparse: bool = False
) -> tuple[LogManager, list[PartitionLog]]:
    manager = LogManager(directory, files=SparseFiles() if sparse else RealFiles(), clock=Ticking())  # type: ignore[arg-type]
    manager.load(CLUSTER, specs)
    if manager.offline:
        raise SystemExit(f"a log cannot be opened: {manager.offline}")
    logs = [manager.get(s.owner.topic_partition) for s in specs]
    for log in logs:
        log.raise_high_watermark(log.log_end_offset)
    return manager, logs


def fill(log: PartitionLog, data: bytearray, total_bytes: float) -> None:
    for _ in range(max(1, round(total_bytes / len(data)))):
        log.appender.append(data)
    log.raise_high_watermark(log.log_end_offset)


def evict(directory: Path) -> None:
    """Out of the page cache, as far as it is on the disk."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


# --- append, scan, compaction ---


def measure_append(directory: Path, scale: float) -> Iterator[Row]:
    for size, name in ((16 * 1024, "append, batches of 16 KiB"), (MIB, "append, batches of 1 MiB")):
        data, rates = payload(size, 16, os.urandom(4096)), []
        for _ in range(3):
            manager, (log,) = opened(directory / "log", [spec()])
            rates.append(GB * scale / MIB / seconds(partial(fill, log, data, GB * scale)))
            manager.close()
            shutil.rmtree(directory / "log")  # or the system would make the next run wait for this one's pages
        yield Row(name, statistics.median(rates), "MiB/s", "checksum checked, into the page cache; 1 GB, median of 3")
    manager, (log,) = opened(directory / "flushed", [spec()])
    took = seconds(lambda: (fill(log, data, GB * scale), log.flusher.flush()))
    yield Row("append and fsync at the end", GB * scale / MIB / took, "MiB/s", "1 GB, then one fsync")
    manager.close()


def measure_scan(directory: Path, scale: float) -> Iterator[Row]:
    manager, (log,) = opened(directory, [spec()])
    fill(log, payload(MIB, 16, os.urandom(4096)), 2 * GB * scale)
    for name, check in (("scan", False), ("scan, checksums verified", True)):
        rates = [log.size_bytes / MIB / seconds(partial(_scan, log, check)) for _ in range(3)]
        yield Row(name, statistics.median(rates), "MiB/s", "read in slices of 8 MiB, page cache; median of 3")
    manager.close()


def _scan(log: PartitionLog, check: bool) -> None:
    at = 0
    while (piece := log.reader.read(at, 8 * MIB)) is not None:
        for _ in iterate_batches(piece.read(), verify=check):
            pass
        at = piece.next_offset
        piece.release()


def measure_compaction(directory: Path, scale: float) -> Iterator[Row]:
    settings: dict[str, Any] = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, "segment_bytes": 128 * MIB}
    for value_bytes in (100, 1000):
        manager, (log,) = opened(directory / str(value_bytes), [spec(**settings)])
        rng, rows, keys = random.Random(1), 8 * MIB // 8 // value_bytes, int(400_000 * 100 / value_bytes)
        while log.size_bytes < 512e6 * scale:
            log.appender.append(_keyed(rng, rows, keys, value_bytes))
        log.raise_high_watermark(log.log_end_offset)
        log.appender.begin_segment()
        before, due = log.size_bytes, due_for_compaction(log)
        assert due is not None
        result = []
        took = seconds(lambda: result.append(compact_log(due, OffsetMap(128 * MIB))))  # noqa: B023
        how = f"{before / MIB:,.0f} MiB to {log.size_bytes / MIB:,.0f}, {keys:,} keys, {result[0].rows_removed:,} records removed"
        yield Row(f"compaction, values of {value_bytes} bytes", before / MIB / took, "MiB/s", how)
        manager.close()


def _keyed(rng: random.Random, rows: int, keys: int, value_bytes: int) -> bytearray:
    columns = [
        pa.array([b"key-%010d" % rng.randrange(keys) for _ in range(rows)], pa.binary()),
        pa.array([rng.randbytes(value_bytes)] * rows, pa.binary()),
        pa.nulls(rows, ENVELOPE_SCHEMA.field("headers").type),
        pa.array([STARTED_AT_MS * 1000] * rows, ENVELOPE_SCHEMA.field("timestamp").type),
    ]
    batch = pa.record_batch(columns, schema=ENVELOPE_SCHEMA)
    times: dict[str, Any] = {"min_timestamp_ms": STARTED_AT_MS, "max_timestamp_ms": STARTED_AT_MS}
    return bytearray(encode_batch(batch, schema_id=1, attributes=ATTRIBUTE_LOG_APPEND_TIME, **times))


# --- starts after kill -9 ---


def _killed(directory: Path, work: str, *arguments: object) -> None:
    """Does `work` in a process that ends by kill -9."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.log_engine",
        "--child",
        work,
        str(directory),
        *map(str, arguments),
    ]
    done = subprocess.run(command, check=False)
    if done.returncode != -signal.SIGKILL:
        raise SystemExit(f"{command} ended with {done.returncode}")


def fill_and_die(directory: Path, partitions: int, sealed_bytes: float, tail_bytes: float, sparse: bool) -> None:
    """Logs with `sealed_bytes` below their recovery points, and `tail_bytes` behind them."""
    manager, logs = opened(directory, [spec(i) for i in range(partitions)], sparse=sparse)
    content = bytes(64) if sparse else os.urandom(4096)
    data = payload(MIB if sealed_bytes / partitions > 100 * MIB else 16 * 1024, 16, content)
    for log in logs:
        fill(log, data, sealed_bytes / partitions)
    manager.flush()
    manager.checkpoint()
    for log in logs:
        fill(log, data, tail_bytes / partitions)
    os.kill(os.getpid(), signal.SIGKILL)


def _start_s(directory: Path, partitions: int, end: list[int]) -> float:
    found: list[Any] = []
    took = seconds(lambda: found.append(opened(directory, [spec(i) for i in range(partitions)])))
    manager, logs = found[0]
    assert not manager.started_clean
    end[:] = [log.log_end_offset for log in logs]
    for log in logs:
        log.close(seal=False)  # the next start finds the same
    manager.directories.unlock()
    return took


def _starts(directory: Path, partitions: int, name: str, how: str, goal: float | None) -> Iterator[Row]:
    """Twice the same start: the files in the page cache, and not."""
    end: list[int] = []
    evict(directory)
    cold = _start_s(directory, partitions, end)
    again: list[int] = []
    warm = statistics.median(_start_s(directory, partitions, again) for _ in range(3))
    assert end == again and min(end) > 0
    yield Row(name, warm, "s", how, goal)
    yield Row(f"{name}, cold", cold, "s", "the same, nothing in the page cache", goal)


def measure_recovery(directory: Path, scale: float) -> Iterator[Row]:
    tail = 2 * GB * scale
    _killed(directory, "fill", 1, MIB, tail, 0)
    end: list[int] = []
    rates = [_start_s(directory, 1, end) / (tail / GB) for _ in range(3)]
    yield Row(
        "recovery behind the recovery point",
        statistics.median(rates),
        "s/GB",
        "every batch read and its checksum verified, page cache",
    )
    evict(directory)
    yield Row("the same, cold", _start_s(directory, 1, end) / (tail / GB), "s/GB", "from the disk")


def measure_start_24_gb(directory: Path, scale: float) -> Iterator[Row]:
    _killed(directory, "fill", 1, 24 * GB * scale, 64 * MIB, 1)
    segments = len(list(directory.rglob("*.arrow")))
    how = f"{segments} segments of at most 1 GiB, 64 MiB behind the recovery point; sparse files"
    yield from _starts(directory, 1, f"start with {24 * scale:g} GB in one log", how, 1.0)


def measure_start_partitions(directory: Path, scale: float) -> Iterator[Row]:
    count = round(1000 * scale)
    _killed(directory, "fill", count, count * 256 * 1024, count * 32 * 1024, 0)
    how = "256 KiB each on the disk, 32 KiB each behind the recovery point"
    yield from _starts(directory, count, f"start with {count:,} partitions", how, 3.0)


# --- lookups ---


def measure_lookups(directory: Path, scale: float) -> Iterator[Row]:
    medians: dict[str, list[float]] = {}
    for gigabytes in (1, 100 * scale):
        place = directory / f"{gigabytes:g}"
        settings = {"segment_bytes": 128 * MIB}
        manager, (log,) = opened(place, [spec(**settings)], sparse=True)
        fill(log, payload(MIB, 16, bytes(64)), gigabytes * GB)
        manager.close()
        manager, (log,) = opened(place, [spec(**settings)], sparse=True)
        rng, last_ms = random.Random(3), log.reader.offset_of_max_timestamp().timestamp_ms
        offsets = [rng.randrange(log.log_end_offset) for _ in range(4000)]
        times = [rng.randrange(STARTED_AT_MS, last_ms) for _ in range(4000)]
        for offset in range(0, log.log_end_offset, 16 * 32):
            _read(log, offset)  # loads the indexes of every segment
        for what, call, arguments in (
            ("offset", partial(_read, log), offsets),
            ("time", log.reader.offset_for_timestamp, times),
        ):
            found = [seconds(partial(call, argument)) * 1e6 for argument in arguments]
            medians.setdefault(what, []).append(statistics.median(found))
            how = f"{log.segment_count} segments of 128 MiB, sparse files; 4,000 random ones, the median"
            yield Row(f"lookup by {what} in {gigabytes:g} GB", statistics.median(found), "us", how)
        manager.close()
    for what, (small, large) in medians.items():
        yield Row(f"lookup by {what}, large to small", large / small, "x", "flat: about 1", 1.5)


def _read(log: PartitionLog, offset: int) -> None:
    piece = log.reader.read(offset, 1)
    assert piece is not None
    piece.release()


MEASUREMENTS: dict[str, Callable[[Path, float], Iterator[Row]]] = {
    "append": measure_append,
    "scan": measure_scan,
    "recovery": measure_recovery,
    "start-24-gb": measure_start_24_gb,
    "start-partitions": measure_start_partitions,
    "compaction": measure_compaction,
    "lookups": measure_lookups,
}


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="log-engine-", dir=directory) as made:
        yield Path(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, help="where the logs are made (default: the temporary directory)")
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help="default: %(default)s")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes, to try it out")
    parser.add_argument("--child", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _, directory, partitions, sealed_bytes, tail_bytes, sparse = arguments.child
        fill_and_die(Path(directory), int(partitions), float(sealed_bytes), float(tail_bytes), sparse == "1")
    rows: list[Row] = []
    table = Table("what", "measured", "unit", "goal", "how", title="The log engine")
    for name in arguments.only.split(","):
        with _place(arguments.directory) as place:
            for row in MEASUREMENTS[name](place, arguments.scale):
                rows.append(row)
                goal = "" if row.goal is None else f"≤ {row.goal:g} {'met' if row.value <= row.goal else 'MISSED'}"
                table.add_row(
                    row.name, f"{row.value:,.3g}" if row.value < 100 else f"{row.value:,.0f}", row.unit, goal, row.how
                )
    Console(width=150).print(table)
    print(json.dumps({"load": os.getloadavg()[0], "cores": os.cpu_count(), "rows": [row._asdict() for row in rows]}))


if __name__ == "__main__":
    main()
