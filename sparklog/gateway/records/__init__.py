"""Conversion between Kafka's record batches and sparklog's batches."""
