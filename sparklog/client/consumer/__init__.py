"""The consumer: positions, and fetching ahead of `poll`."""
