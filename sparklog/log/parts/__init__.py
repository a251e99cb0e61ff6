"""The parts that a partition's log is composed of."""
