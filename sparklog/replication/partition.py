"""The role of a broker for one partition.

The high watermark is not here. Its one home is the log (`sparklog.log.state.offsets`), which is raised to
`replicated_to` and never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ReplicaRole(Protocol):
    """A broker's role for one partition: its leader, a follower, or neither, and the other replicas."""

    @property
    def leader(self) -> int:
        """The leader's id; -1: there is no leader."""
        ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def replicas(self) -> tuple[int, ...]: ...

    @property
    def isr(self) -> tuple[int, ...]: ...

    @property
    def replicated_to(self) -> int:
        """Return the end of the committed records, as far as the leader knows."""
        ...

    def check_leads(self) -> None:
        """Raises NotLeaderError unless this broker leads the partition."""
        ...

    def check_follows(self) -> None:
        """Raises NotLeaderError unless this broker leads the partition, or copies it from its leader."""
        ...

    def leads_in(self, leader_epoch: int) -> bool:
        """Return True if this broker leads the partition in this leader epoch."""
        ...

    def check_in_sync(self) -> None:
        """Check the in-sync replicas before an append with acks=all. Raises NotEnoughReplicasError."""
        ...

    def check_end_known(self) -> None:
        """Check that the end of the committed records is known, before an answer contains it. Raises
        OffsetNotAvailableError while a new leader may know less than its predecessor has answered (KIP-207)."""
        ...

    def on_append(self, log_end_offset: int) -> None:
        """The log ends at `log_end_offset` now."""
        ...

    def on_follower_fetch(self, replica: int, fetch_offset: int) -> None:
        """A follower has everything below `fetch_offset`. Raises ValueError for a stranger."""
        ...

    def on_log_start(self) -> None:
        """The log begins later than before."""
        ...


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

    def check_leads(self) -> None:
        """It does."""

    def check_follows(self) -> None:
        """It leads."""

    def check_end_known(self) -> None:
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
