"""Real processes that are killed and stopped at random; tests/campaigns/checker judges their clients' observations."""
