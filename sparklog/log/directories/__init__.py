"""Log directories: their locks, their checkpoints, and disks that fail."""
