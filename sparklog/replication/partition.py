"""The role of a broker for one partition.

The high watermark is not here. Its one home is the log (`sparklog.log.state.offsets`), which is raised to
`replicated_to` and never goes back.
"""

from __future__ import annotations

from typing import Protocol


class ReplicaRole(Protocol):
    """What a broker is for one partition: its leader, a follower, or neither, and who else holds it."""

    @property
    def leader(self) -> int:
        """-1: nobody leads."""
        ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def replicas(self) -> tuple[int, ...]: ...

    @property
    def isr(self) -> tuple[int, ...]: ...

    @property
    def replicated_to(self) -> int:
        """What lies below is committed, as far as the leader knows."""
        ...

    def check_leads(self) -> None:
        """Raises NotLeaderError unless this broker leads the partition."""
        ...

    def check_follows(self) -> None:
        """Raises NotLeaderError unless this broker leads the partition, or copies it from its leader."""
        ...

    def leads_in(self, leader_epoch: int) -> bool:
        """Whether this broker leads the partition, in this epoch."""
        ...

    def check_in_sync(self) -> None:
        """Before an append with acks=all. Raises NotEnoughReplicasError."""
        ...

    def check_end_known(self) -> None:
        """Before anybody is told where the committed records end. Raises OffsetNotAvailableError while a new leader may
        know less than the one before has told (KIP-207)."""
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
