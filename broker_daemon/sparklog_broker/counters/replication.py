"""Counters of replicas, and of the session with ZooKeeper."""

from __future__ import annotations

from msgspec import Struct

from sparklog.metadata.coordination import SessionState
from sparklog.replication.cluster_image import PartitionImage


class ReplicationCounters(Struct):
    """Counters of replication on this broker."""

    isr_shrinks: int = 0
    isr_expands: int = 0
    unclean_elections: int = 0
    """Elections of this broker as a leader that perhaps lacks committed records."""
    bytes_in: int = 0
    """Bytes copied into partitions that this broker follows."""
    bytes_out: int = 0
    reassignment_bytes_in: int = 0
    """The part of `bytes_in` for replicas that a reassignment adds."""
    reassignment_bytes_out: int = 0
    """The part of `bytes_out` for replicas that a reassignment adds."""

    def count(self, before: PartitionImage, after: PartitionImage) -> None:
        """Count the differences between two states of a partition that this broker leads."""
        if before.leader == after.leader:
            was, is_now = set(before.isr), set(after.isr)
            self.isr_shrinks += bool(was - is_now)
            self.isr_expands += bool(is_now - was)
        self.unclean_elections += after.recovering and before.leader_epoch < after.leader_epoch

    def copied(self, size_bytes: int, follower: int, image: PartitionImage | None) -> None:
        """Count bytes that this broker, as `follower`, has received."""
        self.bytes_in += size_bytes
        if image is not None and follower in image.adding:
            self.reassignment_bytes_in += size_bytes

    def sent(self, size_bytes: int, follower: int, image: PartitionImage) -> None:
        """Count bytes that this broker has sent to the broker `follower`."""
        self.bytes_out += size_bytes
        if follower in image.adding:
            self.reassignment_bytes_out += size_bytes


class SessionCounters(Struct):
    """Counters of the session with ZooKeeper."""

    is_connected: bool = True
    connects: int = 0
    """Number of connections after the first one."""
    disconnects: int = 0
    expirations: int = 0

    def on_state(self, state: SessionState) -> None:
        """Count a change of the session's state. Called on the thread of ZooKeeper's client."""
        self.is_connected = state is SessionState.CONNECTED
        match state:
            case SessionState.CONNECTED:
                self.connects += 1
            case SessionState.SUSPENDED:
                self.disconnects += 1
            case SessionState.LOST:
                self.expirations += 1
