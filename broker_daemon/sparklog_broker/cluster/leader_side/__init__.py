"""A leader's side of replication."""
