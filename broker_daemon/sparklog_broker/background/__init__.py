"""The broker's background work."""
