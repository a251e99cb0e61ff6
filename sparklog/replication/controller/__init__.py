"""What the controller decides: placement, leaders, ISR, reassignments; pure. See docs/internals/replication.md."""
