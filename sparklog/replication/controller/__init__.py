"""The controller's decisions: placement, leaders, ISR, reassignments; pure. See docs/internals/replication.md."""
