"""A token bucket: the rule behind every rate that is limited.

A bucket holds at most `burst` tokens and gains `rate` a second. A finished action takes its cost out, even if that
leaves a debt, because received or sent bytes cannot be taken back. A peer with a debt waits until it is paid. So a peer
that obeys has, in any time span, a cost of at most burst + rate · span + the cost of one request.
"""

from __future__ import annotations

import math
from typing import NamedTuple

WAIT_MS_MAX = 2**31 - 1
"""Longest delay in an answer, for any rate."""


class Rate(NamedTuple):
    """A rate of `per_second` > 0 tokens a second, and of `burst` > 0 tokens at once. `throttle_ms_max`: longer waits
    are cut, the debt with them."""

    per_second: float
    burst: float
    throttle_ms_max: int | None = None


class Bucket(NamedTuple):
    """The number of `tokens` at the time `now_ms`; a negative number is a debt."""

    tokens: float
    now_ms: int


def full(rate: Rate, now_ms: int) -> Bucket:
    """Return a full bucket."""
    return Bucket(rate.burst, now_ms)


def at(bucket: Bucket, rate: Rate, now_ms: int) -> Bucket:
    """Return the bucket at a later time; a clock that goes back does not take anything away."""
    if now_ms <= bucket.now_ms:
        return bucket
    gained = (now_ms - bucket.now_ms) * rate.per_second / 1000
    return Bucket(min(rate.burst, bucket.tokens + gained), now_ms)


def charge(bucket: Bucket, rate: Rate, cost: float, now_ms: int) -> tuple[Bucket, int]:
    """Take `cost` >= 0 out; returns the bucket after it, and the time to wait (ms; 0: none)."""
    now = at(bucket, rate, now_ms)
    tokens = now.tokens - cost
    if rate.throttle_ms_max is not None:
        tokens = max(tokens, -rate.throttle_ms_max * rate.per_second / 1000)
    charged = Bucket(tokens, now.now_ms)
    return charged, throttle_ms(charged, rate, now_ms)


def throttle_ms(bucket: Bucket, rate: Rate, now_ms: int) -> int:
    """Return the time until the debt is paid, at most WAIT_MS_MAX (ms, rounded up; a debt that is only a rounding error
    counts as none)."""
    owed_ms = -at(bucket, rate, now_ms).tokens * 1000 / rate.per_second
    return math.ceil(min(owed_ms, WAIT_MS_MAX) - 1e-6) if owed_ms > 1e-6 else 0
