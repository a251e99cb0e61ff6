"""Real processes that are killed and stopped at random, and what their clients saw judged by tests/checker."""
