"""Compaction: the log keeps only the last record of each key.

A run over one log (`cleaner.compact_log`) takes the part that no earlier run has read, and remembers the last offset of
every key in it (`offset_map`, bounded). It reads all segments up to the end of that part, rewrites those that lose rows
(`rewrite`), and replaces the old files by the new ones (`swap`). Pure functions decide when a log is due and which
segments are merged (`policy`).
"""
