"""A token bucket: the rule behind every limited rate.

A bucket holds at most `burst` tokens and gains `per_second` tokens a second. The cost of an action is taken out after
the action, even if that leaves a debt, because sent or received bytes cannot be taken back. A peer with a debt has to
wait until the debt is paid. So in any time span, the cost of an obedient peer is at most burst + per_second · span +
the cost of one request.
"""

from __future__ import annotations

import math
from typing import NamedTuple

WAIT_MS_MAX = 2**31 - 1
"""Longest delay in ms, for any rate."""


class Rate(NamedTuple):
    """A rate of `per_second` > 0 tokens a second, and a bucket of `burst` > 0 tokens. `throttle_ms_max`: longest delay;
    a debt that would need a longer one is reduced; None: no limit."""

    per_second: float
    burst: float
    throttle_ms_max: int | None = None


class Bucket(NamedTuple):
    """The state of a bucket: the number of tokens at the time `now_ms`. A negative number is a debt."""

    tokens: float
    now_ms: int


def full(rate: Rate, now_ms: int) -> Bucket:
    """Return a full bucket."""
    return Bucket(rate.burst, now_ms)


def at(bucket: Bucket, rate: Rate, now_ms: int) -> Bucket:
    """Return the bucket at a later time. If the clock has gone back, the bucket stays as it is."""
    if now_ms <= bucket.now_ms:
        return bucket
    gained = (now_ms - bucket.now_ms) * rate.per_second / 1000
    return Bucket(min(rate.burst, bucket.tokens + gained), now_ms)


def charge(bucket: Bucket, rate: Rate, cost: float, now_ms: int) -> tuple[Bucket, int]:
    """Take `cost` >= 0 tokens out. Returns the new bucket, and the time to wait in ms (0: none)."""
    now = at(bucket, rate, now_ms)
    tokens = now.tokens - cost
    if rate.throttle_ms_max is not None:
        tokens = max(tokens, -rate.throttle_ms_max * rate.per_second / 1000)
    charged = Bucket(tokens, now.now_ms)
    return charged, throttle_ms(charged, rate, now_ms)


def throttle_ms(bucket: Bucket, rate: Rate, now_ms: int) -> int:
    """Return the time in ms until the debt is paid, rounded up, at most WAIT_MS_MAX. A debt that is only a rounding
    error counts as none."""
    owed_ms = -at(bucket, rate, now_ms).tokens * 1000 / rate.per_second
    return math.ceil(min(owed_ms, WAIT_MS_MAX) - 1e-6) if owed_ms > 1e-6 else 0
