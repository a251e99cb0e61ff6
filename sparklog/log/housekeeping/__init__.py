"""Work on all logs of a broker: opening, retention, compaction, tiering."""
