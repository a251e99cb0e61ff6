"""The broker's counters: numbers that the working code changes and `metrics` reads."""
