"""How fast replicas that are being added may be copied (KIP-73): a limit of what a broker sends, and of what it takes.

Only replicas of a reassignment that are out of sync are slowed down: who follows in the ISR never waits. The limit is
the image's `throttle_bytes`; it ends with the last reassignment.
"""

from __future__ import annotations

from collections.abc import Callable

from sparklog.replication.cluster_image import PartitionImage


class Quota:
    """Bytes per second, with a second's worth in stock. What is taken at once may exceed it: then nothing is left until
    it has been made up for."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.rate_bytes = 0
        self._left = 0.0
        self._at_ms = now_ms()

    def set_rate(self, rate_bytes: int) -> None:
        """0: no limit."""
        if rate_bytes != self.rate_bytes:
            self.rate_bytes, self._left, self._at_ms = rate_bytes, float(rate_bytes), self._now_ms()

    def wait_ms(self) -> int:
        """0: something may be taken; else when to come again."""
        if not self.rate_bytes:
            return 0
        now_ms = self._now_ms()
        self._left = min(self.rate_bytes, self._left + self.rate_bytes * (now_ms - self._at_ms) / 1_000)
        self._at_ms = now_ms
        return 0 if self._left > 0 else max(1, int(-self._left * 1_000 / self.rate_bytes) + 1)

    def take(self, size_bytes: int) -> None:
        self._left -= size_bytes


def is_throttled(partition: PartitionImage, replica_id: int) -> bool:
    """Whether copying the partition to this replica is to be slowed down."""
    return replica_id in partition.adding and replica_id not in partition.isr
