"""The broker's background work: flushes, retention, compaction, tiering, checks of disks."""
