"""The speed limit for copies to replicas that are being added (KIP-73), on the sending and the receiving broker.

Only out-of-sync replicas of a reassignment are slowed down; followers in the ISR never wait. The limit is the image's
`throttle_bytes`; it ends with the last reassignment.
"""

from __future__ import annotations

from collections.abc import Callable

from sparklog.replication.cluster_image import PartitionImage


class Quota:
    """Bytes per second, with a stock of one second. A single amount may exceed the stock; the excess has to be made up
    before the next one.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.rate_bytes = 0
        self._left = 0.0
        self._at_ms = now_ms()

    def set_rate(self, rate_bytes: int) -> None:
        """Set the limit; 0: none."""
        if rate_bytes != self.rate_bytes:
            self.rate_bytes, self._left, self._at_ms = rate_bytes, float(rate_bytes), self._now_ms()

    def wait_ms(self) -> int:
        """Return 0 if bytes may be taken, otherwise the time in ms until the next attempt."""
        if not self.rate_bytes:
            return 0
        now_ms = self._now_ms()
        self._left = min(self.rate_bytes, self._left + self.rate_bytes * (now_ms - self._at_ms) / 1_000)
        self._at_ms = now_ms
        return 0 if self._left > 0 else max(1, int(-self._left * 1_000 / self.rate_bytes) + 1)

    def take(self, size_bytes: int) -> None:
        self._left -= size_bytes


def is_throttled(partition: PartitionImage, replica_id: int) -> bool:
    """True if copies of the partition to this replica are slowed down."""
    return replica_id in partition.adding and replica_id not in partition.isr
