"""Campaigns: kills, fuzz, benchmarks, and suites of other projects. The gate has a short run of each promise."""
