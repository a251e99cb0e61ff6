"""The role of a broker for one partition.

The high watermark is not here. Its one home is the log (`sparklog.log.state.offsets`), which is raised to
`replicated_to` and never goes back.
"""

from __future__ import annotations

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

    def all_have(self, offset: int) -> bool:
        """Return True if this broker knows that every replica has the records below `offset`, which is not above its
        high watermark. Any thread."""
        ...

    def check_leads(self) -> None:
        """Raise NotLeaderError unless this broker leads the partition."""
        ...

    def check_follows(self) -> None:
        """Raise NotLeaderError unless this broker leads the partition, or copies it from its leader."""
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
        """Note the new log end `log_end_offset`."""
        ...

    def on_follower_fetch(self, replica: int, fetch_offset: int) -> None:
        """Note that a follower has all records below `fetch_offset`. Raises ValueError for any other broker."""
        ...

    def on_log_start(self) -> None:
        """Note a later log start."""
        ...
