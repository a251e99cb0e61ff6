"""Backups of topics and groups in an object store, from a live broker or cluster."""
