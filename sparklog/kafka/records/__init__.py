"""Kafka's record batches: their heads, compression, and the decoder of records into Arrow columns."""
