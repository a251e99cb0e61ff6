"""Durations and seeds of the campaigns of `make torture`."""

from __future__ import annotations

import os
import time
from functools import cache

from tests.campaigns.fuzz.campaign import BATCH_TARGETS

TARGETS = len(BATCH_TARGETS) + 5
"""And: readers of a broker, readers beside the cleaner, the broker, the clients, schemas."""
DEFAULT_SECONDS = 1200.0


def seconds_per_target() -> float:
    """FUZZ_SECONDS (20 minutes) is for all targets together."""
    return float(os.environ.get("FUZZ_SECONDS", DEFAULT_SECONDS)) / TARGETS


@cache
def first_seed() -> int:
    """FUZZ_SEED, else a new one every time: a finding names its own."""
    return int(os.environ.get("FUZZ_SEED", str(int(time.time()) * 1000)))
