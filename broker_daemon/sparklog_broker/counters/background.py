"""Counters of the background work since the broker's start."""

from __future__ import annotations

from msgspec import Struct


class CleanerCounters(Struct):
    """Counters of compaction. `failing`: number of logs whose last compaction failed."""

    runs: int = 0
    failures: int = 0
    failing: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    removed_records: int = 0
    busy_s: float = 0.0


class TierCounters(Struct):
    """Counters of tiering, in segments. `failing`: number of partitions whose last round failed."""

    rounds: int = 0
    failures: int = 0
    failing: int = 0
    copied: int = 0
    released: int = 0
    deleted: int = 0


class RetentionCounters(Struct):
    """Counters of retention. `raised`: number of times that a log start was raised."""

    runs: int = 0
    raised: int = 0
    removed_segments: int = 0
