"""The limit of the rate at which records are copied to replicas that are being added (KIP-73), at the leader and at the
follower.

Only out-of-sync replicas of a reassignment are slowed down; followers in the ISR never wait. The limit is the image's
`throttle_bytes`, and ends with the last reassignment.
"""

from __future__ import annotations

from collections.abc import Callable

from sparklog.replication.cluster_image import PartitionImage


class Quota:
    """A rate limit in bytes per second. The unused bytes of up to one second can be used later. One `take` can exceed
    them; the next transfer then waits longer.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.rate_bytes = 0
        self._available = 0.0
        self._at_ms = now_ms()

    def set_rate(self, rate_bytes: int) -> None:
        """Set the limit in bytes per second; 0 for no limit."""
        if rate_bytes != self.rate_bytes:
            self.rate_bytes, self._available, self._at_ms = rate_bytes, float(rate_bytes), self._now_ms()

    def wait_ms(self) -> int:
        """Return 0 if bytes are allowed to be sent now, otherwise the time in ms until the next attempt."""
        if not self.rate_bytes:
            return 0
        now_ms = self._now_ms()
        self._available = min(self.rate_bytes, self._available + self.rate_bytes * (now_ms - self._at_ms) / 1_000)
        self._at_ms = now_ms
        return 0 if self._available > 0 else max(1, int(-self._available * 1_000 / self.rate_bytes) + 1)

    def take(self, size_bytes: int) -> None:
        self._available -= size_bytes


def is_throttled(partition: PartitionImage, replica_id: int) -> bool:
    """True if the throttle applies to copies of the partition to this replica."""
    return replica_id in partition.adding and replica_id not in partition.isr
