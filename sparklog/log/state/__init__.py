"""The state of one partition's log, and the writer of its active segment."""
