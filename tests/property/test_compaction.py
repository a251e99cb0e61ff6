"""Compaction against a list of all that was ever written: random appends, runs, crashes, deletions, time."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.housekeeping.cleaner import compact_log, due_for_compaction
from tests.support.compaction import ManualClock, Row, Stored, append_rows, open_keyed, stored
from tests.support.logs import LimitedFiles

RETENTION_MS = 1000
KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"a longer key of more than one word", None])
ROWS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=3))), min_size=1, max_size=6)
SETTINGS = st.fixed_dictionaries(
    {
        "segment.bytes": st.sampled_from([4096, 8000, 1 << 20]),
        "index.interval.bytes": st.sampled_from([1, 4096]),
        "cleanup.policy": st.sampled_from(["compact", "compact,delete"]),
        "delete.retention.ms": st.just(RETENTION_MS),
        "retention.ms": st.just(-1),
    }
)


class _Stop(Exception):  # noqa: N818
    """Breaks a run off."""


class CompactionModel(RuleBasedStateMachine):
    """`model`: everything ever appended. `seen_ms`: when a reader that reads everything last began."""

    @initialize(given=SETTINGS)
    def start(self, given: dict[str, Any]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="compaction-model-"))
        self.given, self.clock, self.files = given, ManualClock(), LimitedFiles()
        self.model: list[Stored] = []
        self.log = open_keyed(self.directory, given, files=self.files, clock=self.clock)
        self.state: dict[bytes, bytes] = {}
        self.read_at_ms = self.clock.time_ms

    @rule(rows=ROWS, compression=st.sampled_from(["none", "none", "zstd"]))
    def append(self, rows: list[Row], compression: str) -> None:
        base = append_rows(self.log, rows, first_ms=self.clock.time_ms, compression=compression)
        assert base == len(self.model)
        self.model += [Stored(base + i, *row) for i, row in enumerate(rows)]

    @rule(after_calls=st.one_of(st.none(), st.none(), st.integers(0, 10)), small_map=st.booleans())
    def compact(self, after_calls: int | None, small_map: bool) -> None:
        self.log.appender.begin_segment()
        due = due_for_compaction(self.log)
        if due is None:
            return
        calls = 0

        def throttle(size_bytes: int) -> None:
            nonlocal calls
            calls += 1
            if after_calls is not None and calls > after_calls:
                raise _Stop

        try:
            result = compact_log(due, OffsetMap(1 if small_map else 1 << 16), throttle)
        except _Stop:
            return
        rows = stored(self.log)
        clean = [r.key for r in rows if r.offset < result.next_dirty_offset and r.key is not None]
        assert len(clean) == len(set(clean)), "a key is there twice in the clean part"

    @rule(step_ms=st.sampled_from([1, RETENTION_MS // 2, RETENTION_MS + 1]))
    def wait(self, step_ms: int) -> None:
        self.clock.time_ms += step_ms

    @rule()
    def read_on(self) -> None:
        """A reader that never falls back by more than delete.retention.ms ends in the right state."""
        if self.clock.time_ms - self.read_at_ms >= RETENTION_MS:
            self.position = self.log.log_start_offset  # too late: it has to begin anew
            self.state = {}
        rows = stored(self.log, max(getattr(self, "position", 0), self.log.log_start_offset))
        for row in rows:
            if row.key is not None and row.value is not None:
                self.state[row.key] = row.value
            elif row.key is not None:
                self.state.pop(row.key, None)
        self.position, self.read_at_ms = self.log.log_end_offset, self.clock.time_ms
        if self.log.log_start_offset == 0:
            assert self.state == self.expected()

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        ends = {"log_start_offset": self.log.log_start_offset, "high_watermark": self.log.high_watermark}
        before = stored(self.log)
        self.log.close(seal=clean)
        self.log = open_keyed(self.directory, self.given, files=self.files, clock=self.clock, clean=clean, **ends)
        assert stored(self.log) == before
        assert self.log.log_end_offset == len(self.model)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        if self.given["cleanup.policy"] == "compact,delete":
            self.log.retention.delete_records(int(share * len(self.model) / 4))
            self.log.retention.drop_below_log_start()
            self.log.retention.remove_dropped()

    def expected(self) -> dict[bytes, bytes]:
        state: dict[bytes, bytes | None] = {r.key: r.value for r in self.model if r.key is not None}
        return {key: value for key, value in state.items() if value is not None}

    @invariant()
    def the_log_is_right(self) -> None:
        if not hasattr(self, "log"):
            return
        rows, start = stored(self.log), self.log.log_start_offset
        offsets = [row.offset for row in rows]
        assert offsets == sorted(set(offsets))
        assert set(rows) <= set(self.model)
        last = {row.key: row for row in self.model if row.key is not None}
        kept = set(rows)
        for row in last.values():
            if row.offset >= start and row.value is not None:
                assert row in kept, "the last value of a key is gone"
        assert {r for r in self.model if r.key is None and r.offset >= start} <= kept

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(seal=False)
            shutil.rmtree(self.directory)


CompactionModel.TestCase.settings = settings(
    suppress_health_check=[HealthCheck.too_slow], stateful_step_count=25, deadline=None
)
TestCompaction = CompactionModel.TestCase
