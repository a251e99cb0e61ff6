"""The parts of compaction: hashes, the offset map, the rules of due logs, the throttle."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sparklog_broker.background.cleaner import TokenBucket

from sparklog.log.compaction.key_hash import LONG_KEY_BYTES, HashSeeds, KeyHashes, hash_keys
from sparklog.log.compaction.offset_map import SLOT_BYTES, OffsetMap
from sparklog.log.model.compaction_policy import (
    FAILURES_MAX,
    NO_HORIZON,
    CompactionPolicy,
    DirtySection,
    dirtiest_first,
    dirty_section,
    group_segments,
    is_due,
    retry_after_ms,
)

SEEDS = HashSeeds(11, 22, 33, 55)


def hashes_of(keys: list[bytes | None]) -> KeyHashes:
    return hash_keys([pa.array(keys, pa.binary())], SEEDS)


def test_a_hash_depends_on_the_key_alone() -> None:
    """Not on the other keys, the place, the buffer behind it, or the vectorised path taken."""
    rng = random.Random(1)
    keys: list[bytes | None] = [
        rng.randbytes(rng.choice([0, 1, 7, 8, 9, 15, 16, 17, 40, LONG_KEY_BYTES + 3])) for _ in range(300)
    ]
    keys[5] = keys[77] = None
    together = hashes_of(keys)
    for i, key in enumerate(keys):
        alone = hashes_of([key])
        assert (alone.first[0], alone.second[0]) == (together.first[i], together.second[i])
    part = hash_keys([pa.array(keys, pa.binary()).slice(50, 100)], SEEDS)
    assert (part.first == together.first[50:150]).all() and (part.second == together.second[50:150]).all()


def test_different_keys_have_different_hashes() -> None:
    keys: list[bytes | None] = [b"%d" % i for i in range(50_000)]
    keys += [b"\0" * n for n in range(100)] + [b"x" * n for n in range(1, 2 * LONG_KEY_BYTES, 17)]
    found = hashes_of(keys)
    for half in (found.first, found.second):
        assert len(np.unique(half)) == len(keys)
    other = hash_keys([pa.array(keys, pa.binary())], HashSeeds.draw())
    assert (other.first != found.first).all()


def test_the_order_of_columns_and_nulls_count() -> None:
    a, b = pa.array(["x", "x", None, "y"]), pa.array(["y", None, "x", "x"])
    found = hash_keys([a, b], SEEDS)
    assert len(set(found.first.tolist())) == 4
    assert found.null is None


def test_the_map_against_a_dict() -> None:
    rng = random.Random(2)
    keys = OffsetMap(64 * 1024)
    model: dict[bytes, int] = {}
    offset = 0
    while not keys.is_full and offset < 20_000:
        batch = [b"%d" % rng.randrange(1500) for _ in range(rng.randrange(1, 200))]
        offsets = np.arange(offset, offset + len(batch))
        assert keys.put(hashes_of(list(batch)), offsets)
        model |= {key: offset + i for i, key in enumerate(batch)}
        offset += len(batch)
    assert keys.count == len(model)
    asked = [b"%d" % i for i in range(3000)]
    assert keys.get(hashes_of(list(asked))).tolist() == [model.get(key, -1) for key in asked]
    assert keys.latest_offset == offset - 1


def test_a_full_map_says_how_far_it_goes() -> None:
    keys = OffsetMap(64 * SLOT_BYTES)
    batch: list[bytes | None] = [b"%d" % i for i in range(2 * keys.capacity)]
    assert not keys.put(hashes_of(batch), np.arange(100, 100 + len(batch)))
    assert keys.count == keys.capacity and keys.is_full
    assert keys.latest_offset == 100 + keys.capacity - 1
    found = keys.get(hashes_of(batch)).tolist()
    assert found == [*range(100, 100 + keys.capacity), *[-1] * keys.capacity]


def test_repeated_keys_take_no_room() -> None:
    keys = OffsetMap(64 * SLOT_BYTES)
    batch: list[bytes | None] = [b"%d" % (i % 40) for i in range(10_000)]
    assert keys.put(hashes_of(batch), np.arange(len(batch)))
    assert keys.count == 40


def test_null_keys_are_not_in_the_map() -> None:
    keys = OffsetMap(64 * SLOT_BYTES)
    batch = [None, b"", None]
    assert keys.put(hashes_of(batch), np.arange(3))
    assert keys.count == 1
    assert keys.get(hashes_of([b""])).tolist() == [1]


def test_the_map_stays_within_its_buffer() -> None:
    for buffer_bytes in (1, 1 << 20, (1 << 20) + 1, 100 << 20):
        keys = OffsetMap(buffer_bytes)
        slots = len(keys._offsets)
        assert slots * SLOT_BYTES <= max(buffer_bytes, 64 * SLOT_BYTES)


# --- what is due ---


@dataclass(frozen=True)
class Segment:
    base_offset: int
    next_offset: int
    data_bytes: int = 100
    largest_ms: int = 0
    schema_id: int = 1

    def bytes_before(self, offset: int) -> int:
        return self.data_bytes * min(offset - self.base_offset, 10) // 10


POLICY = CompactionPolicy(True, 0.5, 1000, 0, 1 << 40)
LOG = [Segment(0, 10), Segment(10, 20), Segment(20, 30), Segment(30, 40)]


def section(segments: list[Segment] = LOG, policy: CompactionPolicy = POLICY, **given: Any) -> DirtySection:
    facts = {"first_dirty_offset": 0, "last_stable_offset": 40, "now_ms": 1000} | given
    return dirty_section(segments, policy, largest_timestamp_of=lambda s: s.largest_ms, **facts)


def test_the_parts_of_a_log() -> None:
    assert section() == DirtySection(0, 30, 0, 300)
    assert section(first_dirty_offset=10) == DirtySection(10, 30, 100, 200)
    assert section(first_dirty_offset=15) == DirtySection(15, 30, 150, 150)
    assert section(last_stable_offset=29) == DirtySection(0, 20, 0, 200)
    assert section(last_stable_offset=9) == DirtySection(0, 0, 0, 0)
    assert section(first_dirty_offset=30) == DirtySection(30, 30, 300, 0)
    assert section([]) == DirtySection(0, 0, 0, 0)


def test_a_first_dirty_offset_that_the_log_does_not_have() -> None:
    assert section(LOG[1:], first_dirty_offset=5).first_dirty_offset == 10  # deleted by retention
    assert section(first_dirty_offset=99).first_dirty_offset == 30  # cut off


def test_the_minimum_lag_ends_the_dirty_part() -> None:
    policy = CompactionPolicy(True, 0.5, 1000, 500, 1 << 40)
    segments = [Segment(0, 10, largest_ms=100), Segment(10, 20, largest_ms=501), Segment(20, 30), Segment(30, 40)]
    assert section(segments, policy).first_uncleanable_offset == 10
    assert section(segments, policy, now_ms=1001).first_uncleanable_offset == 30


def test_when_a_log_is_due() -> None:
    def due(found: DirtySection, *, first_ms: int | None = 0, horizon_ms: int = NO_HORIZON, now_ms: int = 0) -> bool:
        policy = CompactionPolicy(True, 0.5, 1000, 0, 100)
        return is_due(found, policy, first_dirty_timestamp_ms=first_ms, next_horizon_ms=horizon_ms, now_ms=now_ms)

    assert due(DirtySection(10, 20, 100, 100))
    assert not due(DirtySection(10, 20, 101, 100))
    assert not due(DirtySection(10, 20, 101, 100), now_ms=100)
    assert due(DirtySection(10, 20, 101, 100), now_ms=101)  # max.compaction.lag.ms
    assert not due(DirtySection(10, 10, 100, 0), now_ms=1000)
    assert due(DirtySection(10, 10, 100, 0), horizon_ms=50, now_ms=50)
    assert not due(DirtySection(10, 10, 100, 0), horizon_ms=50, now_ms=49)


def test_the_dirtiest_log_goes_first() -> None:
    logs = {"a": DirtySection(0, 1, 100, 50), "b": DirtySection(0, 1, 0, 10), "c": DirtySection(0, 1, 0, 20)}
    assert dirtiest_first(logs) == ["c", "b", "a"]


def test_groups() -> None:
    def groups(segments: list[Segment], bytes_max: int) -> list[list[int]]:
        found = group_segments(segments, bytes_max=bytes_max, schema_id_of=lambda s: s.schema_id)
        return [[s.base_offset for s in group] for group in found]

    assert groups(LOG, 200) == [[0, 10], [20, 30]]
    assert groups(LOG, 99) == [[0], [10], [20], [30]]
    assert groups([Segment(0, 10), Segment(10, 20, schema_id=2), Segment(20, 30)], 1000) == [[0], [10], [20]]
    assert groups([Segment(0, 10), Segment(10, 2**32), Segment(2**32, 2**32 + 1)], 1000) == [[0, 10], [2**32]]


def test_a_failing_log_is_tried_less_and_less_often_and_then_not_at_all() -> None:
    waits = [retry_after_ms(n, 100) for n in range(1, FAILURES_MAX + 2)]
    assert waits == [100, 200, 400, 800, None, None]


# --- the throttle ---


def test_the_bucket_lets_through_its_rate_on_average() -> None:
    bucket, now_s, taken = TokenBucket(1000, 0.0), 0.0, 0
    for _ in range(100):
        taken += 300
        now_s += bucket.take(300, now_s)
    assert taken == pytest.approx(1000 * (now_s + 1), abs=1)


def test_saved_credit_is_bounded() -> None:
    bucket = TokenBucket(1000, 0.0)
    assert bucket.take(1000, 100.0) == 0.0
    assert bucket.take(500, 100.0) == pytest.approx(0.5)
    assert bucket.take(0, 100.2) == pytest.approx(0.3)
    assert bucket.take(0, 50.0) == pytest.approx(0.3)  # a clock that goes back gives nothing
