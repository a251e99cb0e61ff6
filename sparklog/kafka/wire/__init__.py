"""Kafka's requests and responses as bytes: fields, versions and error codes."""
