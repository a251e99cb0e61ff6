"""A consumer's part in its group: membership, heartbeats, commits."""
