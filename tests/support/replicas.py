"""A leader with followers that are elsewhere: a `ReplicaRole` whose in-sync replicas a test moves on by hand."""

from __future__ import annotations

from collections.abc import Sequence


class PartitionReplicas:
    """Log ends by replica. Without `replicas` and `isr` the leader is the only one."""

    def __init__(
        self,
        *,
        leader: int,
        leader_epoch: int = 0,
        replicas: Sequence[int] = (),
        isr: Sequence[int] = (),
        log_end_offset: int = 0,
    ) -> None:
        """`log_end_offset` is the leader's; nothing is known of the followers yet. Raises ValueError."""
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.replicas = tuple(replicas) or (leader,)
        self.isr = tuple(isr) or (leader,)
        if leader not in self.isr or not set(self.isr) <= set(self.replicas):
            raise ValueError(f"leader {leader} must be in the ISR {self.isr}, the ISR in the replicas {self.replicas}")
        self._log_end_offsets = dict.fromkeys(self.replicas, 0) | {leader: log_end_offset}

    def all_have(self, offset: int) -> bool:
        """By the log ends."""
        return min(self._log_end_offsets.values()) >= offset

    def check_leads(self) -> None:
        """It does."""

    def check_follows(self) -> None:
        """It leads."""

    def require_end(self) -> None:
        """It is."""

    def leads_in(self, leader_epoch: int) -> bool:
        """It leads in all there are."""
        return leader_epoch == self.leader_epoch

    def check_in_sync(self) -> None:
        """Nobody else is waited for."""

    @property
    def replicated_to(self) -> int:
        """The smallest log end of the in-sync replicas: what lies below it is on all of them."""
        return min(self._log_end_offsets[r] for r in self.isr)

    @property
    def log_end_offsets(self) -> dict[int, int]:
        """Log end per replica, as far as the leader knows."""
        return dict(self._log_end_offsets)

    def on_append(self, log_end_offset: int) -> None:
        """The leader's log ends at `log_end_offset` now."""
        self._log_end_offsets[self.leader] = log_end_offset

    def on_follower_fetch(self, replica: int, fetch_offset: int) -> None:
        """A follower asks for `fetch_offset`: it has everything below. Raises ValueError for a stranger."""
        if replica not in self._log_end_offsets or replica == self.leader:
            raise ValueError(f"broker {replica} is no follower of this partition (replicas {self.replicas})")
        self._log_end_offsets[replica] = fetch_offset

    def on_log_start(self) -> None:
        """Nobody else is to follow."""
