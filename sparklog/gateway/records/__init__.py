"""Kafka's record batches and sparklog's batches, each converted into the other."""
