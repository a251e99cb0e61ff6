"""Compaction: the log keeps only the last record of each key.

A run over one log (`housekeeping.cleaner.compact_log`) takes the part that no earlier run has read, and remembers the
last offset of every key in this part (`offset_map`, of a bounded size). The run reads all segments up to the end of the
part, rewrites the segments that lose rows (`rewrite`), and replaces the old files by the new ones (`swap`). Pure
functions decide when a log is due and which segments are merged (`model.compaction_policy`).
"""
