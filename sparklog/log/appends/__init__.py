"""Appending: what may be written, which segment takes it, and the log's own part in it."""
