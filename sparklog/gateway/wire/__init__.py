"""Kafka's requests and responses as bytes: their fields, their versions, their errors."""
