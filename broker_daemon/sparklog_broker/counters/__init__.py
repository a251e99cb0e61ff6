"""The broker's counters: plain numbers, kept where the work is done and read by `metrics`."""
