"""Faults and a movable clock for brokers that tests start with `--testing`. Brokers in production do not load it."""
