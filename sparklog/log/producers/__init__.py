"""The producers of a partition, and its open and aborted transactions: rules, and the files with this state."""
