"""A follower's side of replication."""
