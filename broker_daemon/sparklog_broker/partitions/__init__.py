"""The broker's data directory, its partitions, and the appends to them."""
