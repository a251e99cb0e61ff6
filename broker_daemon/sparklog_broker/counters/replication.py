"""What is counted about replicas where the cluster's images are followed."""

from __future__ import annotations

from msgspec import Struct

from sparklog.metadata.coordination import SessionState
from sparklog.replication.cluster_image import PartitionImage


class ReplicationCounters(Struct):
    """Of the partitions that this broker leads; `bytes_in` of those that it follows. `unclean_elections`: it became
    leader without being known to have all records. `reassignment_bytes_…`: of these, from or to replicas that a
    reassignment adds."""

    isr_shrinks: int = 0
    isr_expands: int = 0
    unclean_elections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    reassignment_bytes_in: int = 0
    reassignment_bytes_out: int = 0

    def count(self, before: PartitionImage, after: PartitionImage) -> None:
        """A partition that this broker is to lead has another image."""
        if before.leader == after.leader:
            was, is_now = set(before.isr), set(after.isr)
            self.isr_shrinks += bool(was - is_now)
            self.isr_expands += bool(is_now - was)
        self.unclean_elections += after.recovering and before.leader_epoch < after.leader_epoch

    def copied(self, size_bytes: int, follower: int, image: PartitionImage | None) -> None:
        """This broker, `follower`, has been sent batches of a partition."""
        self.bytes_in += size_bytes
        if image is not None and follower in image.adding:
            self.reassignment_bytes_in += size_bytes

    def sent(self, size_bytes: int, follower: int, image: PartitionImage) -> None:
        """This broker has answered another one, `follower`, with batches of a partition."""
        self.bytes_out += size_bytes
        if follower in image.adding:
            self.reassignment_bytes_out += size_bytes


class SessionCounters(Struct):
    """Of the session with ZooKeeper. `connects`: again, after the first time."""

    is_connected: bool = True
    connects: int = 0
    disconnects: int = 0
    expirations: int = 0

    def on_state(self, state: SessionState) -> None:
        """Called by the client's own thread."""
        self.is_connected = state is SessionState.CONNECTED
        match state:
            case SessionState.CONNECTED:
                self.connects += 1
            case SessionState.SUSPENDED:
                self.disconnects += 1
            case SessionState.LOST:
                self.expirations += 1
