"""The log against a list: random appends, rolls, reads, lookups, deletions, truncations, elections, clean stops,
crashes and torn tails."""

from __future__ import annotations

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparklog.errors import StorageFullError
from sparklog.format.batch import iterate_batches
from tests.unit.log.support import LimitedFiles, ManualClock, batch, open_log, read_all, segment_files, values

TIMES = st.lists(st.integers(min_value=0, max_value=3000), min_size=1, max_size=4)
BATCH = st.tuples(TIMES, st.integers(min_value=0, max_value=3000), st.sampled_from([1, 1, 1, 2]))
SETTINGS = st.fixed_dictionaries(
    {
        "segment.bytes": st.sampled_from([4096, 12000, 1 << 20]),
        "segment.ms": st.sampled_from([700, 1 << 40]),
        "index.interval.bytes": st.sampled_from([1, 1500, 4096, 1 << 20]),
        "segment.index.bytes": st.sampled_from([64, 1 << 20]),
    }
)


class LogModel(RuleBasedStateMachine):
    """`model`: (timestamp, value) per offset, those below `start` deleted; `epochs`: the leader epoch of each."""

    @initialize(settings=SETTINGS)
    def start(self, settings: dict[str, object]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="log-model-"))
        self.settings = settings
        self.model: list[tuple[int, bytes]] = []
        self.epochs: list[int] = []
        self.start_offset = 0
        self.epoch = 0
        self.files = LimitedFiles()
        self.clock = ManualClock()
        self.appended = 0
        self.open(clean=True)

    def open(self, *, clean: bool) -> None:
        self.log = open_log(
            self.directory, self.settings, files=self.files, clock=self.clock, clean=clean,
            log_start_offset=self.start_offset,
        )  # fmt: skip
        assert self.log.log_end_offset == len(self.model)
        assert self.log.log_start_offset == self.start_offset

    def payload(self, batches: list[tuple[list[int], int, int]]) -> tuple[bytearray, list[tuple[int, bytes]]]:
        data, rows = bytearray(), []
        for times, size, schema_id in batches:
            self.appended += 1
            value = str(self.appended).encode() + b"." * size
            data += batch(times, value=value, schema_id=schema_id)
            rows += [(t, value) for t in times]

        return data, rows

    @rule(batches=st.lists(BATCH, min_size=1, max_size=5), step_ms=st.integers(-500, 500))
    def append(self, batches: list[tuple[list[int], int, int]], step_ms: int) -> None:
        self.clock.time_ms += step_ms
        data, rows = self.payload(batches)
        info = self.log.append(data, leader_epoch=self.epoch)
        assert (info.base_offset, info.last_offset) == (len(self.model), len(self.model) + len(rows) - 1)
        assert (info.batch_count, info.record_count) == (len(batches), len(rows))
        assert self.log.read(info.base_offset, 1 << 20) is None  # not committed yet
        self.model += rows
        self.epochs += [self.epoch] * len(rows)
        self.log.raise_high_watermark(self.log.log_end_offset)

    @rule(batches=st.lists(BATCH, min_size=1, max_size=5), share=st.floats(0, 0.99))
    def append_on_a_full_disk(self, batches: list[tuple[list[int], int, int]], share: float) -> None:
        data, rows = self.payload(batches)
        self.files.free_bytes = int(share * len(data))
        try:
            self.log.append(data, leader_epoch=self.epoch)
        except StorageFullError:
            pass
        else:  # a footer that was cut off has made room
            self.model += rows
            self.epochs += [self.epoch] * len(rows)
            self.log.raise_high_watermark(self.log.log_end_offset)
        self.files.free_bytes = 1 << 40
        assert self.log.log_end_offset == len(self.model)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule(steps=st.integers(1, 3))
    def elect(self, steps: int) -> None:
        self.epoch += steps

    @rule(at=st.floats(0, 1))
    def truncate(self, at: float) -> None:
        offset = self.start_offset + int(at * (len(self.model) - self.start_offset))
        end = offset
        if offset < len(self.model):
            piece = self.log.read(offset, 1)
            assert piece is not None
            end = piece.base_offset
            piece.release()
        assert self.log.truncate_to(offset) == end
        del self.model[end:], self.epochs[end:]
        self.start_offset = min(self.start_offset, end)
        self.epoch += 1  # a new leader, or it would not have been cut

    @rule(at=st.floats(0, 1))
    def delete_records(self, at: float) -> None:
        self.start_offset += int(at * (len(self.model) - self.start_offset))
        assert self.log.delete_records(self.start_offset) == self.start_offset
        self.log.forget_truncation(self.log.truncation_count)  # a checkpoint with the new log start is written
        self.log.retain()
        self.log.drop_below_log_start()
        self.clock.time_ms += 100_000
        self.log.remove_dropped()

    @rule(at=st.floats(0, 1), max_bytes=st.sampled_from([0, 700, 3000, 20_000]))
    def read(self, at: float, max_bytes: int) -> None:
        offset = self.start_offset + int(at * (len(self.model) - self.start_offset))
        found = read_all(self.log, max_bytes, offset)
        assert bool(found) == (offset < len(self.model))
        if found:
            assert found[0][0].base_offset <= offset
            assert found[-1][0].next_offset == len(self.model)
            assert all(a[0].next_offset == b[0].base_offset for a, b in pairwise(found))

    @rule(a=st.floats(0, 1), b=st.floats(0, 1))
    def locate(self, a: float, b: float) -> None:
        count = len(self.model) - self.start_offset
        start, end = sorted((self.start_offset + int(a * count), self.start_offset + int(b * count)))
        headers = []
        for r in self.log.locate(start, end):
            data = Path(r.path).read_bytes()[r.start_position : r.end_position]
            headers += [h for _, h in iterate_batches(data)]
        if start == end:
            assert headers == []
        else:
            assert headers[0].base_offset <= start < headers[0].next_offset
            assert headers[-1].base_offset < end <= headers[-1].next_offset

    @rule(timestamp_ms=st.integers(0, 3100))
    def look_up_time(self, timestamp_ms: int) -> None:
        live = list(enumerate(self.model))[self.start_offset :]
        expected = next(((o, t) for o, (t, _) in live if t >= timestamp_ms), (-1, -1))
        assert self.log.offset_for_timestamp(timestamp_ms) == expected

    @rule()
    def look_up_largest_time(self) -> None:
        times = [t for t, _ in self.model[self.start_offset :]]
        expected = (self.start_offset + times.index(max(times)), max(times)) if times else (-1, -1)
        assert self.log.offset_of_max_timestamp() == expected

    @rule()
    def restart(self) -> None:
        self.log.close()
        assert all(p.read_bytes().endswith(b"ARROW1") for p in segment_files(self.directory))
        self.open(clean=True)

    @rule()
    def crash(self) -> None:
        self.open(clean=False)

    def has_active_batches(self) -> bool:
        segments = self.log._segments.all
        if not segments or not segments[-1].data_bytes or segments[-1].is_sealed:
            return False
        last = list(segments[-1].headers_from(None))[-1][1]
        return last.base_offset >= self.start_offset

    @rule(share=st.floats(0.01, 1), garbage=st.booleans())
    @precondition(lambda self: self.has_active_batches())
    def crash_with_a_torn_tail(self, share: float, garbage: bool) -> None:
        """The last batch is cut anywhere, as if the crash had come while it was written."""
        segment = self.log._segments.all[-1]
        data = segment.path.read_bytes()
        *_, (position, header) = iterate_batches(data[segment.data_position :])
        lost = max(1, int(share * header.size_bytes))
        end = segment.data_position + position + header.size_bytes - lost
        segment.path.write_bytes(data[:end] + (bytes(lost) if garbage else b""))
        # zeros where the batch had zeros anyway change nothing
        whole = garbage and not any(data[end:])
        if not whole:
            del self.model[-header.record_count :], self.epochs[-header.record_count :]
        self.open(clean=False)

    @invariant()
    def content_is_the_model(self) -> None:
        if hasattr(self, "log"):
            assert self.log.log_end_offset == self.log.high_watermark == len(self.model)
            assert self.log.log_start_offset == self.start_offset
            live = self.epochs[self.start_offset :]
            if live:
                assert self.log.leader_epoch >= live[-1]  # an epoch may have lost, or not had, its records
                for epoch in set(live):
                    end = self.start_offset + max(i for i, e in enumerate(live) if e == epoch) + 1
                    assert self.log.end_offset_for(epoch) == (epoch, end)

    def live_values(self) -> list[tuple[int, bytes]]:
        return [(o, v) for o, (_, v) in enumerate(self.model)][self.start_offset :]

    def teardown(self) -> None:
        if hasattr(self, "log"):
            for clean in (True, None):
                assert [r for r in values(self.log) if r[0] >= self.start_offset] == self.live_values()
                self.log.close()
                if clean:
                    self.open(clean=True)
            shutil.rmtree(self.directory)


LogModel.TestCase.settings = settings(
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLogModel = LogModel.TestCase
