"""Rate limit of compaction's reads and writes: a token bucket that gets the time from its caller."""

from __future__ import annotations

BURST_S = 1.0
"""Capacity of the bucket: the tokens of this many seconds. Further unused tokens are lost."""


class TokenBucket:
    """A rate limit. Each second adds `bytes_per_second` tokens. A caller that takes more tokens than the bucket has
    must wait. The bucket has no lock."""

    def __init__(self, bytes_per_second: int, now_s: float) -> None:
        self._rate = bytes_per_second
        self._tokens = bytes_per_second * BURST_S
        self._filled_s = now_s

    def take(self, size_bytes: int, now_s: float) -> float:
        """Take `size_bytes` tokens, and return the seconds that the caller must wait before it continues, or 0.0."""
        elapsed_s = max(0.0, now_s - self._filled_s)
        self._filled_s = now_s
        self._tokens = min(self._tokens + elapsed_s * self._rate, self._rate * BURST_S) - size_bytes
        return max(0.0, -self._tokens / self._rate)
