"""The broker's data directory, the partitions that it serves, and the appends to them."""
