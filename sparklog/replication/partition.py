"""The role of a broker for one partition.

The high watermark is kept only in the log (`sparklog.log.state.offsets`). The leader raises it to `replicated_to`, and
never lowers it.
"""

from __future__ import annotations

from typing import Protocol


class ReplicaRole(Protocol):
    """A broker's role for one partition (leader, follower or neither), and the partition's replicas."""

    @property
    def leader(self) -> int:
        """The leader's broker id; -1 if there is no leader."""
        ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def replicas(self) -> tuple[int, ...]: ...

    @property
    def isr(self) -> tuple[int, ...]: ...

    @property
    def replicated_to(self) -> int:
        """The end of the committed records, from the rules of this broker's last leadership; 0 before the first one."""
        ...

    def all_have(self, offset: int) -> bool:
        """Return True if this broker knows that every replica has the records below `offset`, which must not be above
        this broker's high watermark. Callable on any thread."""
        ...

    def check_leads(self) -> None:
        """Raise NotLeaderError unless this broker leads the partition."""
        ...

    def check_follows(self) -> None:
        """Raise NotLeaderError unless this broker leads the partition or follows its leader."""
        ...

    def leads_in(self, leader_epoch: int) -> bool:
        """Return True if this broker leads the partition in this leader epoch."""
        ...

    def check_in_sync(self) -> None:
        """Check the in-sync replicas before an append with acks=all. Raises NotEnoughReplicasError."""
        ...

    def require_end(self) -> None:
        """Check that the end of the committed records is known, before a reply contains this end. Raises
        OffsetNotAvailableError while a new leader possibly knows a lower end than its predecessor has returned
        (KIP-207)."""
        ...

    def on_append(self, log_end_offset: int) -> None:
        """Note that the log end is now `log_end_offset`."""
        ...

    def on_follower_fetch(self, replica: int, fetch_offset: int) -> None:
        """Note that follower `replica` has all records below `fetch_offset`. Raises ValueError for other brokers."""
        ...

    def on_log_start(self) -> None:
        """Note that the log start has moved up."""
        ...
