"""What is counted about replicas where the cluster's images are followed."""

from __future__ import annotations

from msgspec import Struct

from sparklog.replication.cluster_image import PartitionImage


class ReplicationCounters(Struct):
    """Of the partitions that this broker leads. `unclean_elections`: it became leader without being known to have
    all records."""

    isr_shrinks: int = 0
    isr_expands: int = 0
    unclean_elections: int = 0

    def count(self, before: PartitionImage, after: PartitionImage) -> None:
        """A partition that this broker is to lead has another image."""
        if before.leader == after.leader:
            was, is_now = set(before.isr), set(after.isr)
            self.isr_shrinks += bool(was - is_now)
            self.isr_expands += bool(is_now - was)
        self.unclean_elections += after.recovering and before.leader_epoch < after.leader_epoch
