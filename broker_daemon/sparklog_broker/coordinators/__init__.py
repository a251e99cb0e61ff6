"""Groups and transactions, and the internal topics that hold their state."""
