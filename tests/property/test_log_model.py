"""The log against a dict: random appends, rolls, reads, lookups, truncations, elections, deletions, retention,
compaction, clean stops, and crashes of the process or of the machine before any call to the disk, on a disk in
memory."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparklog.environment.files import File, read_whole
from sparklog.errors import LogCorruptError, StorageFullError
from sparklog.format.batch import BatchHeader, iterate_batches
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.housekeeping.cleaner import compact_log, due_for_compaction
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tools.repair import repair
from sparklog.testing._sim_files import PowerCut, SimFiles
from tests.property.log_reading import Row, read_headers, read_rows
from tests.support.compaction import OWNER
from tests.support.logs import SCHEMAS, LimitedFile, ManualClock, batch, open_log

ROOT = Path("/disk")
RETENTION_MS = 1000
KEPT_BYTES = 6000
NOT_CUT = ROOM_BYTES = 1 << 40
KEYS = (b"a", b"b", b"c", b"", None)
RECORD = st.tuples(st.integers(0, 3000), st.sampled_from(KEYS), st.integers(0, 3).map(lambda n: n == 0))
BATCH = st.tuples(st.lists(RECORD, min_size=1, max_size=4), st.integers(0, 3000), st.sampled_from([1, 1, 1, 2]))
BATCHES = st.lists(BATCH, min_size=1, max_size=4)
Batches = list[tuple[list[tuple[int, bytes | None, bool]], int, int]]
SETTINGS = st.fixed_dictionaries(
    {
        "segment.bytes": st.sampled_from([4096, 12000, 1 << 20]),
        "segment.ms": st.sampled_from([700, 1 << 40]),
        "index.interval.bytes": st.sampled_from([1, 1500, 4096, 1 << 20]),
        "segment.index.bytes": st.sampled_from([64, 1 << 20]),
        "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete"]),
        "delete.retention.ms": st.just(RETENTION_MS),
        "min.cleanable.dirty.ratio": st.just(0),
        "retention.ms": st.just(-1),
        "retention.bytes": st.sampled_from([-1, KEPT_BYTES]),
        "file.delete.delay.ms": st.sampled_from([0, 300]),
    }
)


class Disk(SimFiles):
    """In memory, with a power switch, and as much room as `free_bytes` says."""

    def __init__(self) -> None:
        super().__init__()
        self.free_bytes = ROOM_BYTES
        self.fail_truncate = False

    def open(self, path: Path, *, create: bool = False) -> File:
        return _DiskFile(super().open(path, create=create), path, self)  # type: ignore[return-value, arg-type]

    def power_on(self) -> None:
        """After a crash of the process alone: nothing is lost."""
        self.kill()
        self.is_off, self.cut_at = False, None


class _DiskFile(LimitedFile):
    def sync(self) -> None:
        self._inner.sync()


class Under(NamedTuple):
    """Possible effect of an operation that a crash ends: rows added, the log cut, its start raised, rows removed."""

    rows: Sequence[Row] = ()
    cut_to: int | None = None
    start: int = 0


class LogModel(RuleBasedStateMachine):
    """`rows`: the readable rows, by offset, all of them from `start_offset` on; `epochs`: the leader epoch of every
    offset ever assigned below `end`; `flushed`: everything below survives a power cut; `points`: the checkpoint."""

    @initialize(given=SETTINGS)
    def start(self, given: dict[str, Any]) -> None:
        logging.disable(logging.CRITICAL)
        self.given = given
        self.rows: dict[int, Row] = {}
        self.deleted: dict[int, Row] = {}
        self.epochs: list[int] = []
        self.start_offset = self.flushed = self.epoch = self.appended = 0
        self.first_run_ms: dict[int, int] = {}
        """Of a tombstone: when the first compaction began that may have looked at it."""
        self.disk, self.clock = Disk(), ManualClock()
        self.points = {"log_start_offset": 0, "high_watermark": 0, "recovery_point": 0}
        self.cut_to = NOT_CUT
        """End of the cut since the checkpoint."""
        self.loses_power: int | None = None
        self.was_repaired = False
        self.open(clean=True)

    @property
    def end(self) -> int:
        return len(self.epochs)

    @property
    def policy(self) -> str:
        return str(self.given["cleanup.policy"])

    def open(self, *, clean: bool) -> None:
        self.log: PartitionLog = open_log(
            ROOT, self.given, files=self.disk, clock=self.clock, clean=clean, owner=OWNER, **self.points
        )

    def checkpoint(self) -> None:
        self.points = {
            "log_start_offset": self.log.log_start_offset,
            "high_watermark": self.log.high_watermark,
            "recovery_point": self.log.recovery_point,
        }
        self.log.truncation.forget(self.log.truncation.count)
        self.cut_to = NOT_CUT

    # --- crashes ---

    @rule(calls=st.integers(0, 25), power_seed=st.one_of(st.none(), st.integers(0, 1 << 30)))
    def arm(self, calls: int, power_seed: int | None) -> None:
        """The process ends before the `calls`-th call to the disk from now on; with a seed the machine does."""
        self.disk.cut_at = len(self.disk.calls) + calls
        self.loses_power = power_seed

    @contextmanager
    def crashing(self, under: Under | None = None) -> Iterator[None]:
        """The block may end in a crash; its rest is skipped then."""
        under = under or Under()
        try:
            yield
        except PowerCut:
            self.crash(under)
        else:
            self.flushed = max(self.flushed, self.log.flushed_offset)

    def crash(self, under: Under) -> None:
        must_reach, self.disk.free_bytes = self.end, ROOM_BYTES
        if self.loses_power is None:
            self.disk.power_on()
        else:
            must_reach = self.flushed
            self.disk.power_cut(random.Random(self.loses_power))
        if under.cut_to is not None:
            must_reach = min(must_reach, under.cut_to)
        repaired = self.open_after_crash()
        self.was_repaired |= repaired
        self.reconcile(under, must_reach, repaired=repaired)
        self.flushed = min(self.flushed, must_reach, self.end)

    def open_after_crash(self) -> bool:
        """Open the log; returns True if that took a repair, which only a power cut can require."""
        try:
            self.open(clean=False)
        except LogCorruptError:
            assert self.loses_power is not None
            report = repair(ROOT / OWNER.directory_name, self.disk, dry_run=False, schema_of=SCHEMAS.__getitem__)
            assert report.changed
            self.open(clean=False)
            return True
        return False

    def reconcile(self, under: Under, must_reach: int, *, repaired: bool) -> None:
        """Compare the result of a crash with the possible ones, and make it the model."""
        found, end, start = read_rows(self.log), self.log.log_end_offset, self.log.log_start_offset
        known = self.rows | {self.end + i: row for i, row in enumerate(under.rows)}
        assert must_reach <= end <= self.end + len(under.rows), "the log end"
        lowest = min(self.points["log_start_offset"], self.cut_to)
        assert (lowest if under.cut_to is None else min(lowest, under.cut_to)) <= start
        highest = max(self.start_offset, under.start)
        assert start <= highest or must_reach <= highest, "the log start"
        below = (
            self.deleted if under.cut_to is not None else {}
        )  # a cut into the batch with the log start shows its rows
        assert all((known | below)[o] == row for o, row in found.items()), "a record that is none"
        before = {
            o: row
            for o, row in (known | {o: row for o, row in below.items() if o in found}).items()
            if start <= o < end
        }
        lost = [o for o in before if o not in found and o >= must_reach] if repaired else []
        self.check_removed({o: row for o, row in before.items() if o not in lost}, found)
        self.epochs = [*self.epochs, *[self.epoch] * len(under.rows)][:end]
        self.rows, self.start_offset = found, start
        self.deleted = {o: row for o, row in self.deleted.items() if o < start}
        self.checkpoint()

    def check_removed(self, before: dict[int, Row], after: dict[int, Row]) -> None:
        """Check that the missing rows were allowed to go: only by compaction, and for every key the last record stays
        or, after its time, a tombstone without earlier records is gone."""
        if len(before) == len(after):
            return
        assert "compact" in self.policy, f"lost: {before.keys() - after.keys()}"
        last = {row.key: (o, row) for o, row in before.items()}
        left = {row.key for row in after.values()}
        for key, (offset, row) in last.items():
            if key is not None and offset not in after:
                assert row.value is None, f"the last value of {key!r} is gone"
                assert self.clock.time_ms >= self.first_run_ms[offset] + RETENTION_MS, "a tombstone went early"
                assert key not in left, f"{key!r} came back: its tombstone is gone"
        assert {o for o, row in before.items() if row.key is None} <= after.keys(), "a record without a key is gone"

    # --- writing ---

    def payload(self, batches: Batches) -> tuple[bytearray, list[Row]]:
        data, rows = bytearray(), []
        for records, size, schema_id in batches:
            new = []
            for timestamp_ms, key, dead in records:
                self.appended += 1
                value = None if dead and key is not None else b"%d" % self.appended + b"." * size
                new.append(Row(timestamp_ms, key, value))
            times, keys, values = zip(*new, strict=True)
            data += batch(times, keys=keys, values=values, schema_id=schema_id)
            rows += new
        return data, rows

    def wrote(self, rows: list[Row]) -> None:
        self.rows |= {self.end + i: row for i, row in enumerate(rows)}
        self.epochs += [self.epoch] * len(rows)
        self.log.raise_high_watermark(self.log.log_end_offset)

    @rule(batches=BATCHES, step_ms=st.integers(-500, 500))
    def append(self, batches: Batches, step_ms: int) -> None:
        self.clock.time_ms += step_ms
        data, rows = self.payload(batches)
        with self.crashing(Under(rows)):
            info = self.log.appender.append(data, leader_epoch=self.epoch)
            assert (info.base_offset, info.last_offset) == (self.end, self.end + len(rows) - 1)
            assert (info.batch_count, info.record_count) == (len(batches), len(rows))
            assert self.log.reader.read(info.base_offset, 1 << 20) is None  # not committed yet
            self.wrote(rows)

    @rule(batches=BATCHES, share=st.floats(0, 0.99))
    def append_on_a_full_disk(self, batches: Batches, share: float) -> None:
        data, rows = self.payload(batches)
        self.disk.free_bytes = int(share * len(data))
        with self.crashing(Under(rows)):
            try:
                self.log.appender.append(data, leader_epoch=self.epoch)
            except StorageFullError:
                pass
            else:  # a footer that was cut off has made room
                self.wrote(rows)
        self.disk.free_bytes = ROOM_BYTES

    @rule()
    def roll(self) -> None:
        with self.crashing():
            self.log.appender.roll()

    @rule(active=st.booleans())
    def flush(self, active: bool) -> None:
        with self.crashing():
            self.log.flusher.flush(active=active)
            assert not active or self.log.flushed_offset == self.end

    @rule()
    def write_checkpoint(self) -> None:
        with self.crashing():
            self.checkpoint()

    @rule(steps=st.integers(1, 3))
    def elect(self, steps: int) -> None:
        self.epoch += steps

    @rule(at=st.floats(0, 1))
    def truncate(self, at: float) -> None:
        offset = self.start_offset + int(at * (self.end - self.start_offset))
        whole = [header.next_offset for header in self.headers() if header.next_offset <= offset]
        end = self.end if offset == self.end else max([self.log.segments[0].base_offset, *whole])
        with self.crashing(Under(cut_to=end)):
            assert self.log.truncation.truncate_to(offset) == end
            del self.epochs[end:]
            self.rows = {o: row for o, row in self.rows.items() if o < end}
            self.deleted = {o: row for o, row in self.deleted.items() if o < end}
            self.start_offset, self.flushed = min(self.start_offset, end), min(self.flushed, end)
            self.cut_to = min(self.cut_to, end)
        self.epoch += 1  # a new leader, or it would not have been cut

    def headers(self) -> list[BatchHeader]:
        return [header for segment in self.log.segments for _, header in segment.headers_from(None)]

    # --- deleting ---

    def began_at(self, offset: int) -> None:
        self.start_offset = offset
        self.deleted |= {o: row for o, row in self.rows.items() if o < offset}
        self.rows = {o: row for o, row in self.rows.items() if o >= offset}
        self.flushed = max(self.flushed, offset)

    @precondition(lambda self: self.policy != "compact")
    @rule(at=st.floats(0, 1))
    def delete_records(self, at: float) -> None:
        offset = self.start_offset + int(at * (self.end - self.start_offset))
        with self.crashing(Under(start=offset)):
            assert self.log.retention.delete_records(offset) == offset
            self.checkpoint()
            self.began_at(offset)

    @rule()
    def retain(self) -> None:
        with self.crashing(Under(start=self.end)):
            bytes_before = self.log.size_bytes
            expired = self.log.retention.retain()
            self.checkpoint()
            assert self.log.log_start_offset >= self.start_offset
            self.began_at(self.log.log_start_offset)
            self.log.retention.drop_below_log_start()
            assert not expired.too_much or self.given["retention.bytes"] == KEPT_BYTES <= self.log.size_bytes
            assert expired.count or self.log.size_bytes == bytes_before

    @rule(step_ms=st.sampled_from([300, RETENTION_MS + 1]))
    def wait(self, step_ms: int) -> None:
        self.clock.time_ms += step_ms
        with self.crashing():
            self.log.retention.remove_dropped()

    @precondition(lambda self: self.policy != "delete")
    @rule(small_map=st.booleans(), rolls=st.booleans())
    def compact(self, small_map: bool, rolls: bool) -> None:
        for offset in self.rows:
            self.first_run_ms.setdefault(offset, self.clock.time_ms)
        with self.crashing():
            if rolls:
                self.log.appender.begin_segment()
            due = due_for_compaction(self.log)
            if due is None:
                return
            result = compact_log(due, OffsetMap(1 if small_map else 1 << 16))
            found = read_rows(self.log)
            assert found.items() <= self.rows.items()
            self.check_removed(self.rows, found)
            clean = [row.key for o, row in found.items() if o < result.next_dirty_offset and row.key is not None]
            assert len(clean) == len(set(clean)), "a key is there twice in the clean part"
            self.rows = found

    # --- reading ---

    @rule(at=st.floats(0, 1), max_bytes=st.sampled_from([0, 700, 3000, 20_000]))
    def read(self, at: float, max_bytes: int) -> None:
        offset = self.start_offset + int(at * (self.end - self.start_offset))
        found = list(read_headers(self.log, max_bytes, offset))
        if found:
            assert found[0].next_offset > offset
            assert all(a.next_offset <= b.base_offset for a, b in pairwise(found))
        assert found == [header for header in self.headers() if header.next_offset > offset]
        if not self.was_repaired:  # offsets at the end may have been given up
            assert (found[-1].next_offset if found else offset) == self.end

    @rule(a=st.floats(0, 1), b=st.floats(0, 1))
    def locate(self, a: float, b: float) -> None:
        count = self.end - self.start_offset
        start, end = sorted((self.start_offset + int(a * count), self.start_offset + int(b * count)))
        headers = []
        for r in self.log.reader.locate(start, end):
            data = read_whole(self.disk, Path(r.path)) or b""
            located = [h for _, h in iterate_batches(data[r.start_position : r.end_position])]
            assert located[0].base_offset == r.first_offset
            headers += located
        wanted = [h for h in self.headers() if h.next_offset > start and h.base_offset < end and start < end]
        assert headers[: len(wanted)] == wanted
        assert len(headers) <= len(wanted) + 1  # where the end lies in a gap, the batch behind it

    @rule(timestamp_ms=st.integers(0, 3100))
    def look_up_time(self, timestamp_ms: int) -> None:
        found = ((o, row.timestamp_ms) for o, row in sorted(self.rows.items()) if row.timestamp_ms >= timestamp_ms)
        assert self.log.reader.offset_for_timestamp(timestamp_ms) == next(found, (-1, -1))

    @rule()
    def look_up_largest_time(self) -> None:
        best = max(((row.timestamp_ms, -o) for o, row in self.rows.items()), default=None)
        assert self.log.reader.offset_of_max_timestamp() == ((-1, -1) if best is None else (-best[1], best[0]))

    # --- stopping ---

    @rule()
    def restart(self) -> None:
        with self.crashing():
            self.log.close()
            self.flushed = self.end
            self.checkpoint()
            for name in self.disk.list_directory(self.log.directory):
                if name.endswith(".arrow"):
                    assert (read_whole(self.disk, self.log.directory / name) or b"").endswith(b"ARROW1")
            self.open(clean=True)
            self.compare()

    @rule(power_seed=st.one_of(st.none(), st.integers(0, 1 << 30)))
    def stop_at_once(self, power_seed: int | None) -> None:
        self.loses_power = power_seed
        self.crash(Under())

    def has_active_batches(self) -> bool:
        segments = self.log.segments
        if not segments or not segments[-1].data_bytes or segments[-1].is_sealed or self.disk.cut_at is not None:
            return False
        return list(segments[-1].headers_from(None))[-1][1].base_offset >= self.start_offset

    @rule(share=st.floats(0.01, 1), garbage=st.booleans())
    @precondition(lambda self: self.has_active_batches())
    def crash_with_a_torn_tail(self, share: float, garbage: bool) -> None:
        """The last batch is cut anywhere, as if the crash had come while it was written."""
        segment = self.log.segments[-1]
        data = read_whole(self.disk, segment.path) or b""
        *_, (position, header) = iterate_batches(data[segment.data_position :])
        lost = max(1, int(share * header.size_bytes))
        end = segment.data_position + position + header.size_bytes - lost
        file = self.disk.open(segment.path)
        file.truncate(end)
        if garbage:
            file.write(end, bytes(lost))
        file.sync()  # the batch was never whole, so no power cut may make it whole again
        # zeros where the batch had zeros anyway change nothing
        whole = garbage and not any(data[end:])
        if not whole:
            del self.epochs[header.base_offset :]
            self.rows = {o: row for o, row in self.rows.items() if o < header.base_offset}
            self.flushed = min(self.flushed, self.end)
            self.points = {name: min(point, self.end) for name, point in self.points.items()}
        self.open(clean=False)
        self.compare()

    # --- always ---

    @invariant()
    def offsets_are_the_models(self) -> None:
        if hasattr(self, "log"):
            assert self.log.log_end_offset == self.log.high_watermark == self.end
            assert self.log.log_start_offset == self.start_offset
            live = self.epochs[self.start_offset :]
            if live:
                assert self.log.leader_epoch >= live[-1]  # an epoch may have lost, or not had, its records
                for epoch in set(live):
                    end = self.start_offset + max(i for i, e in enumerate(live) if e == epoch) + 1
                    assert self.log.epochs.end_offset_for(epoch, self.log.log_end_offset) == (epoch, end)

    def compare(self) -> None:
        assert read_rows(self.log) == self.rows

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.disk.cut_at = None
            self.compare()
            self.restart()
            self.compare()
        logging.disable(logging.NOTSET)


LogModel.TestCase.settings = settings(
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLogModel = LogModel.TestCase
