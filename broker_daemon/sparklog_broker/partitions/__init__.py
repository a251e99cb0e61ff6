"""What the broker keeps: its data directory, the partitions it serves, and the appends to them."""
