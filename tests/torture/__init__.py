"""Real processes that are killed and stopped at random; tests/checker judges their clients' observations."""
