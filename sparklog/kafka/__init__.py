"""Kafka's protocol as pure functions: messages and record batches, for the gateway and for mirrors."""
