"""Compaction: of the records with the same key, only the last one stays.

A run over one log (`cleaner.compact_log`) takes the part that has not been looked at yet, remembers the last offset of
every key in it (`offset_map`, bounded), reads all segments up to there and writes those that have something to lose
again without it (`rewrite`), and puts the new files in the place of the old ones (`swap`). What is due and which
segments go together is decided by pure functions (`policy`).
"""
