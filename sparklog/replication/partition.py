"""A partition's replicas and its high watermark: a pure state machine.

The high watermark is the smallest log end of the in-sync replicas: what lies below it is on all of them. It never goes
back.
"""

from __future__ import annotations

from collections.abc import Sequence


class PartitionReplicas:
    """Who holds a partition, as its leader sees it."""

    def __init__(
        self,
        *,
        leader: int,
        leader_epoch: int = 0,
        replicas: Sequence[int] = (),
        isr: Sequence[int] = (),
        log_end_offset: int = 0,
        high_watermark: int = 0,
    ) -> None:
        """`log_end_offset` is the leader's; nothing is known of the followers yet. Without `replicas` and `isr` the
        leader is the only one."""
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.replicas = tuple(replicas) or (leader,)
        self.isr = tuple(isr) or (leader,)
        if leader not in self.isr or not set(self.isr) <= set(self.replicas):
            raise ValueError(f"leader {leader} must be in the ISR {self.isr}, the ISR in the replicas {self.replicas}")
        self._log_end_offsets = dict.fromkeys(self.replicas, 0) | {leader: log_end_offset}
        self._high_watermark = high_watermark
        self._advance()

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def log_end_offsets(self) -> dict[int, int]:
        """Log end per replica, as far as the leader knows."""
        return dict(self._log_end_offsets)

    def on_append(self, log_end_offset: int) -> int:
        """The leader's log ends at `log_end_offset` now. Returns the high watermark."""
        self._log_end_offsets[self.leader] = log_end_offset
        return self._advance()

    def on_follower_fetch(self, replica: int, fetch_offset: int) -> int:
        """A follower asks for `fetch_offset`: it has everything below. Returns the high watermark."""
        if replica not in self._log_end_offsets or replica == self.leader:
            raise ValueError(f"broker {replica} is no follower of this partition (replicas {self.replicas})")
        self._log_end_offsets[replica] = fetch_offset
        return self._advance()

    def _advance(self) -> int:
        lowest = min(self._log_end_offsets[r] for r in self.isr)
        self._high_watermark = max(self._high_watermark, lowest)
        return self._high_watermark
